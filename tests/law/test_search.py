"""The bounded search: its reading against the concrete one, its traces against the exhaustive search."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from freehold.model_check.circuit import FALSE, TRUE, Bit, Circuit
from freehold.model_check.explore import explore
from freehold.model_check.finite import Finite, Frame
from freehold.model_check.mutators import faults
from freehold.model_check.scopes import scope
from freehold.model_check.search import LOOK_BACK, Found, Nothing, Search
from freehold.spec import concrete
from freehold.spec.errors import Unsupported
from freehold.spec.language import Action, Clause, Law, Operation, Property, Step
from freehold.spec.law import law as whole
from freehold.spec.state import A, Page, Record, Request, Session, free, kv, owns
from freehold.spec.terms import Element, IntVar, Param, SetOf, exists, forall, lift, one

SCOPE = {s.__name__: 3 if s is Page else 2 for s in whole.sorts}
CONSTANTS = {"page_size": 2, "row_width": 5, "window": 2, "namespaces": 2}
LITTLE = scope("little", pages=2, rows=2, records=2, requests=2, sessions=1, page_size=2, row_width=4)
law = LITTLE.law(whole)


# The circuit ---------------------------------------------------------------------------------------------------------


def test_a_circuit_shares_and_folds() -> None:
    circuit = Circuit()
    a, b = circuit.input(), circuit.input()
    assert circuit.conj((a, b)) == circuit.conj((b, TRUE, a, a))
    assert circuit.conj((a, a ^ 1)) == FALSE
    assert circuit.disj((a, a ^ 1)) == TRUE
    assert circuit.conj(()) == TRUE
    assert circuit.disj(()) == FALSE
    assert circuit.same(a, TRUE) == a
    assert circuit.at_most_one((a,)) == TRUE


# The reading ---------------------------------------------------------------------------------------------------------


def bit(value: bool) -> Bit:
    return TRUE if value else FALSE


def random_state(rng: random.Random) -> concrete.State:
    state = concrete.initial(whole, SCOPE, CONSTANTS)
    density = rng.random()
    for name, relation in whole.relations.items():
        tuples = itertools.product(*(state.universe[s] for s in relation.sorts))
        state.relations[name] = {t for t in tuples if rng.random() < density}
    for name, function in whole.functions.items():
        state.functions[name] = {x: rng.randrange(6) for x in state.universe[function.sort]}
    return state


def random_values(of: Action | Operation, rng: random.Random) -> dict[Param, Any]:
    def value(param: Param) -> Any:
        if isinstance(param, IntVar):
            return rng.randrange(6)
        if isinstance(param, SetOf):
            return frozenset(x for x in range(SCOPE[param.sort.__name__]) if rng.random() < 0.4)
        return rng.randrange(SCOPE[type(param).__name__])

    return {p: value(p) for p in of.params}


def frame(reading: Finite, state: concrete.State) -> Frame:
    """A concrete state as constant bits: whatever is read over it folds to a constant."""
    relations = {
        n: {index: bit(index in state.relations[n]) for index in reading.tuples(r.sorts)}
        for n, r in whole.relations.items()
    }
    functions = {
        n: tuple({state.functions[n].get(i, 0): TRUE} for i in range(SCOPE[f.sort.__name__]))
        for n, f in whole.functions.items()
    }
    return Frame(relations, functions)


def state_of(found: Frame, like: concrete.State) -> concrete.State:
    relations: dict[str, set[tuple[Any, ...]]] = {
        n: {index for index, b in bits.items() if b == TRUE} for n, bits in found.relations.items()
    }
    functions = {n: {i: next(iter(v)) for i, v in enumerate(numbers)} for n, numbers in found.functions.items()}
    return concrete.State(like.universe, like.constants, relations, functions)


def bits_of(param: Param, value: Any) -> Any:
    """A parameter as bits: it could be anything, and is one thing."""
    if isinstance(param, IntVar):
        return {v: bit(v == value) for v in range(8)}
    sort = param.sort if isinstance(param, SetOf) else type(param)
    among = value if isinstance(param, SetOf) else {value}
    return tuple(bit(i in among) for i in range(SCOPE[sort.__name__]))


@pytest.mark.parametrize("seed", range(3))
def test_events_agree_with_the_concrete_reading(seed: int) -> None:
    rng, reading = random.Random(seed), Finite(whole, Circuit(), SCOPE, CONSTANTS)
    for action in whole.actions.values():
        state, env = random_state(rng), random_values(action, rng)
        bits = {p: bits_of(p, v) for p, v in env.items()}
        for clause in action.guard:
            said = reading.formula(clause.term, bits, frame(reading, state))
            assert said == bit(concrete.holds(clause.term, env, state)), clause.text
        after = reading.act(action, bits, frame(reading, state))
        assert state_of(after, state).key() == concrete.act(action, env, state).key(), action.name


@pytest.mark.parametrize("seed", range(3))
def test_operations_agree_with_the_concrete_reading(seed: int) -> None:
    """From the beginning, by random operations: so some of them can be taken."""
    rng, reading = random.Random(seed), Finite(whole, Circuit(), SCOPE, CONSTANTS)
    state, enabled = concrete.initial(whole, SCOPE, CONSTANTS), 0
    for _ in range(400):
        operation = rng.choice(list(whole.operations.values()))
        env = random_values(operation, rng)
        expected = concrete.operate(operation, env, state)
        if isinstance(expected, Clause) and rng.random() < 0.8:
            continue
        bits = {p: bits_of(p, v) for p, v in env.items()}
        guards, end = reading.operate(operation, bits, frame(reading, state))
        assert all(g == TRUE for g in guards) != isinstance(expected, Clause), operation.name
        if not isinstance(expected, Clause):
            enabled += 1
            assert state_of(end, state).key() == expected[1].key(), operation.name
            state = expected[1]
    assert enabled > 5


def test_properties_agree_with_the_concrete_reading() -> None:
    rng, reading = random.Random(4), Finite(whole, Circuit(), SCOPE, CONSTANTS)
    only = Property("one owner", forall(Page, lambda p: one(Record, lambda k: owns(k, p))), "", "test")
    truths = set()
    for _ in range(8):
        state = random_state(rng)
        for prop in (*whole.invariants.values(), *whole.witnesses.values(), only):
            said = reading.formula(prop.term, {}, frame(reading, state))
            assert said == bit(concrete.holds(prop.term, {}, state)), prop.name
            truths.add((prop.name in whole.invariants, said))
    assert len(truths) == 4


# The search ----------------------------------------------------------------------------------------------------------

SHORT = [
    ("place", "the edge exists"),
    ("evict", "the page is in the tree"),
    ("save", "the session is not closing"),
    ("grow", "the length grows"),
    ("acquire", "each page is free"),
]


def fault(subject: str, drop: str) -> Law:
    return next(f.law for f in faults(law) if f.subject == subject and drop in f.change)


@pytest.mark.parametrize(("subject", "drop"), SHORT, ids=str)
def test_traces_are_as_short_as_those_of_the_exhaustive_search(subject: str, drop: str) -> None:
    faulty = fault(subject, drop)
    expected = explore(faulty, LITTLE).violation
    assert expected is not None
    found = Search(faulty, LITTLE.sizes, LITTLE.constants).violation(9)
    assert isinstance(found, Found)
    assert len(found.trace) == len(expected.trace)
    assert not concrete.holds(law.invariants[found.property].term, {}, found.state)
    assert f"{found.property} after {len(found.trace)} operations:" in str(found)


def test_witnesses_are_as_near_as_in_the_exhaustive_search() -> None:
    levels = explore(law, LITTLE, budget=2_000).witnesses
    search = Search(law, LITTLE.sizes, LITTLE.constants)
    near = [n for n, level in levels.items() if level is not None and level <= 4]
    assert len(near) > 10
    for name in near:
        found = search.witness(name, law.witnesses[name].term, 4)
        assert isinstance(found, Found), name
        assert len(found.trace) == levels[name], name


def test_the_last_operation_settles_a_law_that_its_invariants_prove() -> None:
    seen: list[int] = []
    found = Search(law, LITTLE.sizes, LITTLE.constants).violation(12, seen.append)
    assert isinstance(found, Nothing)
    assert found.settled == LOOK_BACK - 1 == seen[-1]


def test_invariants_that_do_not_prove_themselves_are_searched_at_each_depth() -> None:
    kept = {n: p for n, p in law.invariants.items() if n == "page_has_one_record"}
    seen: list[int] = []
    found = Search(replace(law, invariants=kept), LITTLE.sizes, LITTLE.constants).violation(6, seen.append)
    assert isinstance(found, Nothing)
    assert found.settled is None
    assert seen == list(range(7))


def test_new_names_come_in_order() -> None:
    search = Search(law, LITTLE.sizes, LITTLE.constants)
    second = exists(
        Page, lambda p: exists(Request, lambda r: exists(Record, lambda k: kv(r, k) & owns(k, p) & ~free(p)))
    )
    found = search.witness("a page is taken", second, 5)
    assert isinstance(found, Found)
    for step in found.trace:
        assert {v for n, v in step.arguments.items() if n in ("r", "k", "w", "p")} == {0}


def test_a_number_beyond_the_search_is_said_and_not_lost() -> None:
    (k,) = (p for p in law.operations["decode"].params if isinstance(p, Element))
    leap = replace(law.actions["grow"], name="leap", guard=())
    wild = Operation("leap", (k,), (), (Step(leap, (k, A(k) + 30)),), "")
    actions, operations = {**law.actions, "leap": leap}, {**law.operations, "leap": wild}
    faulty = replace(law, actions=actions, operations=operations, invariants={})
    with pytest.raises(Unsupported, match="larger constants"):
        Search(faulty, LITTLE.sizes, LITTLE.constants).witness("never", ~(lift(0) <= 0), 1)


def test_a_sort_that_the_scope_lacks_is_empty() -> None:
    sizes = {n: size for n, size in LITTLE.sizes.items() if n != "Session"}
    search = Search(law, sizes, LITTLE.constants)
    assert Session not in search.law.sorts
    assert isinstance(search.violation(3), Nothing)
