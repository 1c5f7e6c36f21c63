"""One text, several readings: concrete, source and grounded smt give the same answers on random states."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import z3
from law.random_states import LAWS, random_state, random_values

from freehold.model_check.scopes import Scope
from freehold.model_check.smt import Env, Smt, View
from freehold.spec import concrete
from freehold.spec.absent import without
from freehold.spec.compiler import Compiler, flatten, symbols
from freehold.spec.language import Action, Clause, Law
from freehold.spec.source import Compiled
from freehold.spec.standing import standing_subject
from freehold.spec.state import Page, Record, owns
from freehold.spec.terms import Formula, IntVar, SetOf, exists, forall, lone, no, one
from freehold.spec.writer import TRACKED

over_each_law = pytest.mark.parametrize(("law", "within"), LAWS.values(), ids=LAWS)


def compiled_for(law: Law, within: Scope) -> Compiled:
    return Compiled(law, within.constants, {n: range(c) for n, c in within.sizes.items()})


@over_each_law
def test_source_and_concrete_agree(law: Law, within: Scope) -> None:
    rng, compiled = random.Random(1), compiled_for(law, within)
    taken = dict.fromkeys(law.actions, 0)
    for _ in range(120):
        state = random_state(law, within, rng)
        for action in law.actions.values():
            env = random_values(action, state, rng)
            compiled.load(state)
            number = compiled.actions[action.name](*env.values())
            broken = concrete.broken_clause(action.guard, env, state)
            if broken is None:
                taken[action.name] += 1
                assert number == -1, action.name
                assert compiled.state().key() == concrete.act(action, env, state).key(), action.name
            else:
                assert action.guard[number] is broken, action.name
        compiled.load(state)
        for name, prop in law.invariants.items():
            assert compiled.properties[name]() == concrete.holds(prop.term, {}, state), name
    assert all(taken[name] for name in ("grow", "open_session", "use", "close_session", "place")), taken


def reading(law: Law, within: Scope) -> tuple[Smt, View]:
    smt = Smt(law, within.constants, within.sizes)
    return smt, smt.state("")


def facts(smt: Smt, view: View, state: concrete.State) -> list[Any]:
    """The state, said to Z3 fact by fact."""
    said: list[Any] = list(smt.distinct())
    for name, relation in smt.law.relations.items():
        for index in itertools.product(*(range(len(smt.elements[s])) for s in relation.sorts)):
            args = [smt.elements[s][i] for s, i in zip(relation.sorts, index, strict=True)]
            said.append(view.relations[name](*args) == (index in state.relations[name]))
    for name, function in smt.law.functions.items():
        for i, x in enumerate(smt.elements[function.sort]):
            said.append(view.functions[name](x) == state.functions[name].get(i, 0))
    return said


def meaning(smt: Smt, env: Env) -> dict[Any, Any]:
    """Concrete parameters as Z3 values."""
    found: dict[Any, Any] = {}
    for param, value in env.items():
        if isinstance(param, IntVar):
            found[param] = z3.IntVal(value)
        elif isinstance(param, SetOf):
            members = [smt.elements[param.sort][i] for i in value]
            found[param] = lambda x, members=members: z3.Or(*(x == m for m in members), z3.BoolVal(False))
        else:
            found[param] = smt.elements[type(param)][value]
    return found


p = Page("p")


@pytest.mark.parametrize("kind", [forall, exists, lone, one, no])
def test_quantifiers_and_multiplicities_agree(kind: Callable[..., Formula]) -> None:
    """Each of them over records, for every page, in three readings."""
    rng = random.Random(5)
    law, within = LAWS["bare"]
    smt, view = reading(law, within)
    term = kind(Record, lambda k: owns(k, p))
    source = Compiler(law, within.constants).formula(term, {p: "p_"})
    seen = set()
    for _ in range(12):
        state = random_state(law, within, rng)
        solver = z3.Solver()
        solver.add(*facts(smt, view, state))
        by_first: dict[int, set[int]] = {}
        by_second: dict[int, set[int]] = {}
        for k, page in state.relations["owns"]:
            by_first.setdefault(k, set()).add(page)
            by_second.setdefault(page, set()).add(k)
        for page in state.universe[Page]:
            expected = concrete.holds(term, {p: page}, state)
            said = smt.formula(term, {p: smt.elements[Page][page]}, view)
            scope = {
                "owns_by_first": by_first, "owns_by_second": by_second, "EMPTY": frozenset(),
                "universe": {"Record": state.universe[Record]}, "p_": page,
            }  # fmt: skip
            assert entails(solver, said) == expected
            assert eval(source, scope) == expected
            seen.add(expected)
    assert seen == {True, False}


@over_each_law
def test_smt_and_concrete_agree(law: Law, within: Scope) -> None:
    rng = random.Random(2)
    smt, view = reading(law, within)
    for _ in range(2):
        state = random_state(law, within, rng)
        solver = z3.Solver()
        solver.add(*facts(smt, view, state))
        goals: dict[str, Any] = {}
        for action in law.actions.values():
            env = random_values(action, state, rng)
            values = meaning(smt, env)
            for clause, said in zip(action.guard, smt.guard(action, values, view), strict=True):
                expected = concrete.holds(clause.term, env, state)
                goals[f"{action.name}: {clause.text}"] = said.expr if expected else z3.Not(said.expr)
            after = smt.act(action, values, view)
            goals[action.name] = z3.And(*facts(smt, after, concrete.act(action, env, state)))
        for name, prop in law.invariants.items():
            said = smt.formula(prop.term, {}, view)
            goals[name] = said if concrete.holds(prop.term, {}, state) else z3.Not(said)
        together = entails(solver, z3.And(*goals.values()))
        assert together, [name for name, goal in goals.items() if not entails(solver, goal)]


def entails(solver: z3.Solver, goal: Any) -> bool:
    """Whether the facts imply the goal; they decide everything, so they imply it or its negation."""
    answer = solver.check(z3.Not(goal))
    assert answer != z3.unknown
    return bool(answer == z3.unsat)


def test_a_set_event_is_the_fold_of_its_single_events() -> None:
    """`acquire` and `release` of a set, and of its members one by one."""
    rng, (law, within) = random.Random(3), LAWS["full"]
    compared = 0
    for _ in range(1200):
        state = random_state(law, within, rng)
        action = law.actions[rng.choice(["acquire", "release"])]
        env = random_values(action, state, rng)
        record, pages = action.params
        members = sorted(env[pages])
        whole = concrete.broken_clause(action.guard, env, state) is None
        single, enabled = state, True
        for p in members:
            one = {record: env[record], pages: frozenset((p,))}
            enabled = enabled and concrete.broken_clause(action.guard, one, single) is None
            single = concrete.act(action, one, single)
        if members:
            assert whole == enabled
        if whole:
            compared += 1
            assert single.key() == concrete.act(action, env, state).key()
    assert compared > 20


@over_each_law
def test_step_invariants_of_touched_elements_are_the_step_invariants(law: Law, within: Scope) -> None:
    """From good states, any event at all, allowed or not: looking at what it touched finds what a full look finds."""
    rng = random.Random(4)
    lawless = replace(law, actions={n: replace(a, guard=()) for n, a in law.actions.items()})
    anything = compiled_for(lawless, within)
    step = [name for name, prop in law.invariants.items() if prop.group == "step"]
    outcomes = {True: 0, False: 0}
    for state in walk(law, within, rng, 1000):
        action = law.actions[rng.choice(list(law.actions))]
        anything.load(state)
        anything.actions[action.name](*random_values(action, state, rng).values())
        broken = [name for name in step if not anything.properties[name]()]
        found = anything.settle()
        outcomes[found is None] += 1
        assert (found in broken) if broken else found is None, (action.name, broken, found)
    assert min(outcomes.values()) > 100, outcomes


def _stands(clause: Clause, action: Action) -> bool:
    return any(standing_subject(t, action.params, TRACKED) is not None for t in flatten(clause.term))


def test_what_stands_is_asked_again_when_it_can_have_changed() -> None:
    """Any events at all, one behind the other: the guard of each agrees with the concrete reading, which forgets."""
    rng, (full, within) = random.Random(6), LAWS["full"]
    small = {"page_size": 1, "window": 1}  # so that windows end between the lengths that random states have
    law, within = without(full, (), small), replace(within, constants={**within.constants, **small})
    standing = {name: tuple(c for c in a.guard if _stands(c, a)) for name, a in law.actions.items()}
    lawless = replace(law, actions={n: replace(a, guard=standing[n]) for n, a in law.actions.items()})
    asked = [a for a in lawless.actions.values() if standing[a.name]]
    spoken_of = {s for a in asked for c in a.guard for s in symbols(c.term)}
    moving = [a for a in lawless.actions.values() if spoken_of & {u.of.name for u in a.updates}]
    outcomes = {(a.name, holds): 0 for a in asked for holds in (True, False)}
    compiled = compiled_for(lawless, within)
    for _ in range(200):
        state = random_state(law, within, rng)
        compiled.load(state)
        for action in (rng.choice(asked if rng.random() < 0.5 else moving) for _ in range(25)):
            env = random_values(action, state, rng)
            broken = concrete.broken_clause(action.guard, env, state)
            number = compiled.actions[action.name](*env.values())
            assert (number == -1) == (broken is None), action.name
            if broken is None:
                state = concrete.act(action, env, state)
            if action.guard:
                outcomes[action.name, broken is None] += 1
        assert compiled.state().key() == state.key()
    assert {"commit", "lend"} <= {name for name, _ in outcomes}
    assert min(outcomes.values()) > 50, outcomes


def walk(law: Law, within: Scope, rng: random.Random, count: int) -> Iterator[concrete.State]:
    """States at the ends of operations, along a random walk that starts anew now and then."""
    state = concrete.initial(law, within.sizes, within.constants)
    for number in range(count):
        if number % 60 == 0:
            state = concrete.initial(law, within.sizes, within.constants)
        for operation in rng.sample(list(law.operations.values()), len(law.operations)):
            outcome = concrete.operate(operation, random_values(operation, state, rng), state)
            if not isinstance(outcome, Clause):
                state = outcome[1]
                break
        yield state


def test_nothing_is_remembered_of_what_is_over() -> None:
    law, within = LAWS["full"]
    compiled = compiled_for(law, within)
    compiled.load(concrete.initial(law, within.sizes, within.constants))
    for request in ("a", "b", "c"):
        compiled.universe["Request"][request] = None
        assert compiled.actions["place"](request, 1) == -1
        assert compiled.actions["place"](request, 0) == -1
    assert compiled.settle() is None
    assert set(compiled.universe["Request"]) == {0, 1}
    assert compiled.values["place"] == {}
