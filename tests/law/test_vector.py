"""The vector reading says what the concrete reading says, on random states that need not be reachable."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from freehold.model_check.codes import WORD_BITS, Codec, CodeSet
from freehold.model_check.explore import reachable
from freehold.model_check.scopes import Scope, scope
from freehold.model_check.successors import Grain, operations
from freehold.model_check.vector import Batch, act, batch_of, enabled, everywhere, holds, operate, state_of
from freehold.spec import concrete
from freehold.spec.errors import InvalidInput, Unsupported
from freehold.spec.language import Body, Clause, Law
from freehold.spec.law import law
from freehold.spec.state import A, P, Page, Record, free, in_tree, maps, owns, parent, pos
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

SMALL = scope("small", pages=3, rows=2, records=2, requests=2, sessions=2, page_size=2, row_width=4)
ODD = scope("odd", pages=3, rows=1, records=2, requests=1, sessions=1, page_size=3, row_width=7)


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


def arguments(
    rng: random.Random, params: Sequence[Param], states: Sequence[concrete.State], within: Scope
) -> tuple[dict[Param, Any], list[dict[Param, Any]]]:
    """Random arguments for a batch, and the same for each state; each state has a random set of its own."""
    batched: dict[Param, Any] = {}
    single: list[dict[Param, Any]] = [{} for _ in states]
    for p in params:
        value = rng.choice(within.values(p))
        if isinstance(p, SetOf):
            mask = torch.tensor([[rng.random() < 0.4 for _ in states] for _ in within.values(p)])
            batched[p] = mask
            for i, env in enumerate(single):
                env[p] = frozenset(mask[:, i].nonzero().view(-1).tolist())
        else:
            batched[p] = value
            for env in single:
                env[p] = value
    return batched, single


def agree(batch: Batch, states: Sequence[concrete.State]) -> bool:
    """Whether a batch holds exactly these states."""
    expected = batch_of(law, states)
    return all(torch.equal(batch.column(n), expected.column(n)) for n in expected.columns)


def keys(batch: Batch) -> list[Any]:
    return [state_of(law, batch, i).key() for i in range(batch.count)]


@pytest.mark.parametrize("within", [SMALL, ODD], ids=str)
def test_actions_agree_on_guards_and_successors(within: Scope) -> None:
    states, rng = sample(within.name), random.Random(1)
    batch, ever = batch_of(law, states), set()
    for action in law.actions.values():
        for _ in range(8):
            batched, single = arguments(rng, action.params, states, within)
            possible = [concrete.broken_clause(action.guard, e, s) is None for e, s in zip(single, states, strict=True)]
            assert enabled(action.guard, batched, batch).tolist() == possible, action.name
            after = [concrete.act(action, e, s) for e, s in zip(single, states, strict=True)]
            assert agree(act(action, batched, batch), after), action.name
            ever |= {action.name} if any(possible) else set()
    assert len(ever) >= len(law.actions) - 2, set(law.actions) - ever


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
    batch = batch_of(law, states)
    for k in SMALL.values(action.params[0]):
        env: dict[Param, Any] = {action.params[0]: k}
        after = [concrete.act(action, env, s) for s in states]
        assert agree(act(action, env, batch), after)
        assert sum(a.key() != s.key() for a, s in zip(after, states, strict=True)) > 50


def test_operations_agree_on_guards_and_ends() -> None:
    states, rng = sample("small"), random.Random(2)
    batch, ever = batch_of(law, states), set()
    for operation in law.operations.values():
        for _ in range(12):
            batched, single = arguments(rng, operation.params, states, SMALL)
            possible, after = operate(operation, batched, batch)
            outcomes = [concrete.operate(operation, e, s) for e, s in zip(single, states, strict=True)]
            assert possible.tolist() == [not isinstance(o, Clause) for o in outcomes], operation.name
            ends = [o[1] for o in outcomes if not isinstance(o, Clause)]
            if ends:
                assert agree(after.select(possible.nonzero().view(-1)), ends), operation.name
                ever.add(operation.name)
    assert len(ever) >= len(law.operations) * 2 // 3, set(law.operations) - ever


@pytest.mark.parametrize("within", [SMALL, ODD], ids=str)
def test_properties_agree(within: Scope) -> None:
    states = sample(within.name)
    batch = batch_of(law, states)
    for rule in [*law.invariants.values(), *law.witnesses.values()]:
        seen = everywhere(holds(rule.term, {}, batch), batch).tolist()
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
    batch = batch_of(law, states)
    seen = everywhere(holds(FORMULAS[name], {}, batch), batch).tolist()
    assert seen == [concrete.holds(FORMULAS[name], {}, s) for s in states]


def test_contracts_are_refused() -> None:
    batch = batch_of(law, [concrete.initial(law, SMALL.sizes, SMALL.constants)])
    with pytest.raises(LawError, match="one state"):
        holds(exists(Page, lambda p: next_(free(p))), {}, batch)


def test_selection_and_writes_compose() -> None:
    states = sample("small")
    first, second = torch.arange(0, 100, 2), torch.tensor([7, 3, 48, 3])
    truncate = law.actions["truncate"]
    env: dict[Param, Any] = dict(zip(truncate.params, (1, 2), strict=True))
    batch = act(truncate, env, batch_of(law, states).select(first)).select(second)
    assert keys(batch) == [concrete.act(truncate, env, states[i]).key() for i in (14, 6, 96, 6)]
    assert batch.written == {"maps", "A", "C"}


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


def test_codes_of_successors_change_only_what_was_written() -> None:
    codec, states = Codec(law, SMALL), sample("small")
    root = batch_of(law, states)
    codes, rows = codec.pack(root), torch.tensor([5, 90, 77])
    for operation in operations(law, Grain.OPERATIONS):
        env: dict[Param, Any] = {p: SMALL.values(p)[-1] for p in operation.params}
        after = operate(operation, env, root.select(rows))[1]
        try:
            plain = codec.pack(after)
        except Unsupported:
            with pytest.raises(Unsupported, match="row_width"):
                codec.repack(codes, after)
            continue
        assert torch.equal(codec.repack(codes, after), plain), operation.name


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
    assert names["a"] == range(5)
    narrow = dataclasses.replace(SMALL, constants={"page_size": 1, "row_width": 1})
    assert {p.name: narrow.values(p) for o in places for p in o.params}["q"] == range(5)


def test_empty_scopes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        scope("none", pages=0, rows=1, records=1, requests=1, sessions=1, page_size=1, row_width=1)


def test_integers_may_differ_from_state_to_state() -> None:
    states = sample("small")
    batch, grow = batch_of(law, states), law.actions["grow"]
    lengths = [i % 5 for i in range(len(states))]
    k, a = grow.params
    env: dict[Param, Any] = {k: 1, a: torch.tensor(lengths, dtype=torch.int8)}
    after = [concrete.act(grow, {k: 1, a: n}, s) for n, s in zip(lengths, states, strict=True)]
    assert agree(act(grow, env, batch), after)
