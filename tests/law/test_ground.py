"""The ground reading says what the concrete reading says, on random states that need not be reachable."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from freehold.model_check.bits import WORD_BITS, columns, pairs, words
from freehold.model_check.bits import within as inside
from freehold.model_check.codes import Codec, CodeSet
from freehold.model_check.explore import reachable
from freehold.model_check.gates import Gates, Node, compiled
from freehold.model_check.ground import Env, World
from freehold.model_check.scopes import Scope, scope
from freehold.model_check.successors import Expander, Grain, operations
from freehold.model_check.vector import Batch, batch_of, state_of
from freehold.spec import concrete
from freehold.spec.errors import InvalidInput, Unsupported
from freehold.spec.language import Body, Clause, Law
from freehold.spec.law import law as whole
from freehold.spec.state import A, P, Page, Place, Record, free, in_tree, maps, owns, parent, pos
from freehold.spec.terms import (
    Formula,
    LawError,
    Param,
    SetOf,
    exists,
    forall,
    lift,
    lone,
    maximum,
    minimum,
    next_,
    no,
    one,
)

POOLS = {"SwaPage": 2, "StateSlot": 1, "HostPage": 2, "Loan": 2, "window": 1, "namespaces": 2}
SMALL = scope("small", pages=3, rows=2, records=2, requests=2, sessions=2, page_size=2, row_width=4, **POOLS)
ODD = scope("odd", pages=2, rows=1, records=2, requests=1, sessions=1, page_size=3, row_width=7, **POOLS)
law = SMALL.law(whole)


def random_state(rng: random.Random, within: Scope) -> concrete.State:
    """Any assignment at all: sparse or dense relations, lengths and positions from 0 to the row width."""
    state = concrete.initial(law, within.sizes, within.constants)
    for name, relation in law.relations.items():
        density = rng.choice((0.1, 0.4, 0.8))
        everything = itertools.product(*(state.universe[s] for s in relation.sorts))
        state.relations[name] = {t for t in everything if rng.random() < density}
    for name, function in law.functions.items():
        top = {"pos": 2, "place": 4}.get(name, within.constants["row_width"])
        state.functions[name] = {x: rng.randint(0, top) for x in state.universe[function.sort]}
    return state


def near_reachable(rng: random.Random, within: Scope, count: int) -> list[concrete.State]:
    """Reachable states, half of them with one tuple of one relation turned over."""
    batch = reachable(law, within, budget=4_000)
    states = [state_of(law, batch, rng.randrange(batch.count)) for _ in range(count)]
    for state in states[::2]:
        relation = rng.choice(list(law.relations.values()))
        state.relations[relation.name] ^= {tuple(rng.choice(state.universe[s]) for s in relation.sorts)}
    return states


@functools.cache
def sample(within_name: str) -> list[concrete.State]:
    within = SMALL if within_name == "small" else ODD
    rng = random.Random(within_name)
    return [random_state(rng, within) for _ in range(20)] + near_reachable(rng, within, 80)


def arguments(rng: random.Random, params: Sequence[Param], within: Scope) -> tuple[Env, Env]:
    """Random arguments, as the ground reading and as the concrete one take them."""
    here: dict[Param, Any] = {}
    there: dict[Param, Any] = {}
    for p in params:
        here[p] = there[p] = rng.choice(within.values(p))
        if isinstance(p, SetOf):
            there[p] = frozenset(x for x in within.values(p) if rng.random() < 0.4)
            here[p] = tuple(int(x in there[p]) for x in within.values(p))
    return here, there


class Reading:
    """The ground reading over one scope, run on given states."""

    def __init__(self, within: Scope, states: Sequence[concrete.State]) -> None:
        self.codec, self.states = Codec(law, within), states
        self.ground, self.now = self.codec.ground()
        self.columns = columns(self.codec.pack(batch_of(law, states)))

    def truth(self, node: Node) -> list[bool]:
        """Where a node is true."""
        found = words(compiled(self.ground.gates, [node] * 64).run(self.columns))
        return (found[0, : len(self.states)] != 0).tolist()

    def agrees(self, world: World, after: Sequence[concrete.State]) -> bool:
        """Whether a world holds these states, and says of which a number has no room."""
        gates, count = self.ground.gates, len(after)
        ends = self.codec.unpack(words(compiled(gates, self.codec.bits(gates, world)).run(self.columns)))
        wanted, room, same = batch_of(law, after), torch.ones(count).bool(), torch.ones(count).bool()
        for name, column in wanted.columns.items():
            if name in law.functions:
                room &= ((column >= 0) & (column < 1 << self.codec.fields[name].bits)).all(0)
            same &= (column == ends.column(name)[..., :count]).reshape(-1, count).all(0)
        lost = torch.tensor(self.truth(self.codec.lost(gates, world)))
        return torch.equal(room, ~lost) and bool((same | lost).all())


def keys(batch: Batch) -> list[Any]:
    return [state_of(law, batch, i).key() for i in range(batch.count)]


@pytest.mark.parametrize("within", [SMALL, ODD], ids=str)
def test_actions_agree_on_guards_and_successors(within: Scope) -> None:
    states, rng = sample(within.name), random.Random(1)
    reading, ever = Reading(within, states), set()
    for action in law.actions.values():
        for _ in range(4):
            here, there = arguments(rng, action.params, within)
            possible = [concrete.broken_clause(action.guard, there, s) is None for s in states]
            assert reading.truth(reading.ground.enabled(action.guard, here, reading.now)) == possible, action.name
            after = [concrete.act(action, there, s) for s in states]
            assert reading.agrees(reading.ground.act(action, here, reading.now), after), action.name
            ever |= {action.name} if any(possible) else set()
    assert len(ever) >= len(law.actions) * 3 // 4, set(law.actions) - ever


def exchange(k: Record) -> Body:
    """Every update here reads what another one writes."""
    yield A.becomes(k, P(k))
    yield P.becomes(k, A(k))
    yield owns[k].loses(lambda p: free(p))
    yield free.gains(lambda p: owns(k, p))
    yield owns[k].gains(lambda p: ~owns(k, p))
    yield parent.gains(lambda p, q: parent(q, p) & owns(k, q))
    yield parent.loses(lambda p, q: parent(p, q) & free(p))
    yield free.loses(lambda p: ~free(p) | in_tree(p))


def test_updates_read_the_old_state_and_apply_in_order() -> None:
    states, action = sample("small"), Law("scratch").action(exchange)
    reading = Reading(SMALL, states)
    for k in SMALL.values(action.params[0]):
        env: dict[Param, Any] = {action.params[0]: k}
        after = [concrete.act(action, env, s) for s in states]
        assert reading.agrees(reading.ground.act(action, env, reading.now), after)
        assert sum(a.key() != s.key() for a, s in zip(after, states, strict=True)) > 50


@pytest.mark.parametrize("grain", Grain, ids=str)
def test_expanding_is_taking_every_operation(grain: Grain) -> None:
    states = sample("small")[40:52]
    codec = Codec(law, SMALL)
    expand = Expander(codec, operations(codec.law, grain))
    found, wanted, seen = expand(codec.pack(batch_of(law, states))), Counter[Any](), Counter[Any]()
    for (i, state), operation in itertools.product(enumerate(states), operations(law, grain)):
        for values in itertools.product(*(SMALL.values(p) for p in operation.params)):
            named = zip(operation.params, values, strict=True)
            env: Env = {p: frozenset((v,)) if isinstance(p, SetOf) else v for p, v in named}
            outcome = concrete.operate(operation, env, state)
            if not isinstance(outcome, Clause):
                wanted[i, operation.name, values, outcome[1].key()] += 1
    after = keys(codec.unpack(found.codes))
    for row, number, key in zip(found.rows.tolist(), found.ways.tolist(), after, strict=True):
        way = expand.ways[number]
        seen[row, way.operation.name, tuple(way.values[p] for p in way.operation.params), key] += 1
    assert seen == wanted
    assert len(seen) > 50


def lengthen(k: Record) -> Body:
    yield A.becomes(k, A(k) + 1)


def test_a_number_that_leaves_its_bits_is_refused() -> None:
    action = Law("scratch").action(lengthen)
    endless = dataclasses.replace(law, actions={"lengthen": action})
    codec = Codec(endless, SMALL)
    state = concrete.initial(law, SMALL.sizes, SMALL.constants)
    expand, codes = Expander(codec, operations(codec.law, Grain.EVENTS)), codec.pack(batch_of(law, [state]))
    for length in range((1 << codec.fields["A"].bits) - 1):
        assert state_of(law, codec.unpack(codes), 0).functions["A"][0] == length
        codes = expand(codes).codes[:, :1]
    with pytest.raises(Unsupported, match="lengthen"):
        expand(codes)


@pytest.mark.parametrize("within", [SMALL, ODD], ids=str)
def test_properties_agree(within: Scope) -> None:
    states = sample(within.name)
    reading = Reading(within, states)
    for rule in [*law.invariants.values(), *law.witnesses.values()]:
        seen = reading.truth(reading.ground.holds(rule.term, {}, reading.now))
        assert seen == [concrete.holds(rule.term, {}, s) for s in states], rule.name


FORMULAS: dict[str, Formula] = {
    "lone over a pair": lone(Record, Page, lambda k, p: owns(k, p)),
    "one": one(Page, lambda p: free(p)),
    "one over a pair": one(Record, Page, lambda k, p: maps(k, p)),
    "no": no(Page, Page, lambda p, q: parent(p, q)),
    "a page is its own parent": exists(Page, lambda p: parent(p, p)),
    "the inner variable comes first": forall(Page, lambda p: exists(Page, lambda q: parent(q, p))),
    "a variable that is skipped": exists(Page, lambda p: forall(Record, lambda k: lone(Page, lambda q: parent(p, q)))),
    "three deep": forall(Page, lambda p: exists(Page, lambda q: no(Record, lambda k: owns(k, p) & maps(k, q)))),
    "a body without the variable": forall(Page, lambda p: one(Record, lambda k: exists(Page, lambda q: free(q)))),
    "minimum and maximum": forall(
        Record, Page, lambda k, p: minimum(A(k), pos(p) * 3 - 1) < maximum(pos(p) + 2, minimum(lift(3), A(k)))
    ),
    "a floor below zero": exists(Page, Record, lambda p, k: (pos(p) - A(k)) // 2 == (pos(p) - 3) // 3),
    "elements that differ": forall(Page, Page, lambda p, q: (p != q) >> ~(pos(p) == pos(q))),
    "always and never": forall(Page, lambda p: p == p) & ~exists(Page, lambda p: ~(p == p)),
    "equivalence": forall(
        Record,
        lambda k: (
            ((A(k) <= 2) >> exists(Page, lambda p: owns(k, p))) & (exists(Page, lambda p: owns(k, p)) >> (A(k) <= 2))
        ),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_terms_agree(name: str) -> None:
    states = sample("small")
    reading = Reading(SMALL, states)
    seen = reading.truth(reading.ground.holds(FORMULAS[name], {}, reading.now))
    assert seen == [concrete.holds(FORMULAS[name], {}, s) for s in states]


@pytest.mark.parametrize("primed", [lambda p: next_(free(p)), lambda p: next_(pos(p)) == 0])
def test_contracts_are_refused(primed: Callable[[Page], Formula]) -> None:
    reading = Reading(SMALL, sample("small")[:1])
    with pytest.raises(LawError, match="one state"):
        reading.ground.holds(exists(Page, primed), {}, reading.now)


# Bits and circuits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 64, 65, 700])
def test_bits_turn_and_turn_back(count: int) -> None:
    codes = torch.randint(-(1 << 62), 1 << 62, (3, count), generator=torch.Generator().manual_seed(count))
    bits = columns(codes)
    assert torch.equal(words(bits)[:, :count], codes)
    numbers, rows = pairs(bits[:70] & inside(count, bits.shape[1], bits.device))
    wanted = [(b, n) for b in range(70) for n in range(count) if int(codes[b // 64, n]) >> b % 64 & 1]
    assert sorted(zip(numbers.tolist(), rows.tolist(), strict=True)) == wanted
    assert numbers.tolist() == sorted(numbers.tolist())


Meaning = Callable[[int], bool]


def grown(rng: random.Random, gates: Gates) -> list[tuple[Node, Meaning]]:
    """Random nodes with what each should be, given the inputs as the bits of a number."""
    nodes: list[tuple[Node, Meaning]] = [(0, lambda v: False), (1, lambda v: True)]
    nodes += [(gates.input(i), lambda v, i=i: bool(v >> i & 1)) for i in range(gates.inputs)]  # type: ignore[misc]
    for _ in range(60):
        (a, f), (b, g), (c, h) = (rng.choice(nodes) for _ in range(3))
        made: list[tuple[Node, Meaning]] = [
            (gates.both(a, b), lambda v, f=f, g=g: f(v) and g(v)),  # type: ignore[misc]
            (gates.either(a, b), lambda v, f=f, g=g: f(v) or g(v)),  # type: ignore[misc]
            (gates.negate(a), lambda v, f=f: not f(v)),  # type: ignore[misc]
            (gates.choose(a, b, c), lambda v, f=f, g=g, h=h: g(v) if f(v) else h(v)),  # type: ignore[misc]
        ]
        nodes.append(rng.choice(made))
    return nodes


def test_circuits_mean_what_they_were_built_from() -> None:
    rng, inputs = random.Random(4), 5
    bits = columns(torch.arange(1 << inputs).unsqueeze(0))
    for _ in range(50):
        gates = Gates(inputs)
        nodes = grown(rng, gates)
        found = compiled(gates, [n for n, _ in nodes]).run(bits)
        for row, (_, meaning) in zip(found.tolist(), nodes, strict=True):
            # the states lie in the words, one each, as there are fewer than 64
            assert [row[0] >> v & 1 for v in range(1 << inputs)] == [meaning(v) for v in range(1 << inputs)]


# Codes ---------------------------------------------------------------------------------------------------------------


def test_codes_are_states() -> None:
    for within in (SMALL, ODD):
        codec, states = Codec(law, within), sample(within.name)
        batch = batch_of(law, states)
        codes = codec.pack(batch)
        assert keys(codec.unpack(codes)) == [s.key() for s in states]
        distinct = {tuple(c) for c in codes.t().tolist()}
        assert len(distinct) == len({s.key() for s in states})
        for each in codec.fields.values():
            assert all(slot.shift + each.bits <= WORD_BITS for slot in each.slots)


@pytest.mark.parametrize("value", [-1, 64])
def test_values_without_room_are_refused(value: int) -> None:
    state = concrete.initial(law, SMALL.sizes, SMALL.constants)
    state.functions["A"][0] = value
    with pytest.raises(Unsupported, match="A leaves"):
        Codec(law, SMALL).pack(batch_of(law, [state]))


def test_code_set_is_exact_when_all_hashes_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freehold.model_check.codes.mix", lambda codes: torch.full_like(codes[0], -5))
    check_code_set(values=40, rounds=30, most=20)


def test_code_set_is_exact_over_growth() -> None:
    check_code_set(values=90, rounds=60, most=3000)


def check_code_set(values: int, rounds: int, most: int) -> None:
    rng = torch.Generator().manual_seed(3)
    known, codes = dict[tuple[int, ...], int](), CodeSet(2, capacity=16)
    for _ in range(rounds):
        some = torch.randint(-values, values, (2, int(torch.randint(0, most, (), generator=rng))), generator=rng)
        new = codes.add(some)
        fresh = [tuple(c) for c in some[:, new].t().tolist()]
        assert len(set(fresh)) == len(fresh)
        assert set(fresh) == {tuple(c) for c in some.t().tolist()} - known.keys()
        known.update({c: len(known) + i for i, c in enumerate(fresh)})
    assert [tuple(c) for c in codes.codes(0, codes.count).t().tolist()] == list(known)


def test_parameters_range_over_the_scope() -> None:
    places = operations(law, Grain.EVENTS)
    names = {p.name: SMALL.values(p) for o in places for p in o.params}
    assert names["pages"] == range(3)
    assert names["a"] == range(max(Place) + 1)
    wide = dataclasses.replace(SMALL, constants={"page_size": 1, "row_width": 9})
    assert {p.name: wide.values(p) for o in places for p in o.params}["q"] == range(10)


def test_empty_scopes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        scope("none", pages=0, rows=1, records=1, requests=1, sessions=1, page_size=1, row_width=1)
