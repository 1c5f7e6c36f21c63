"""The law without some sorts means what the law means where those sorts are empty."""

from __future__ import annotations

import random

import pytest
from law.random_states import BARE, FULL, random_state, random_values

from freehold.model_check.scopes import Scope
from freehold.spec import concrete
from freehold.spec.absent import without
from freehold.spec.language import Body, Clause, Law, Operation
from freehold.spec.law import law
from freehold.spec.state import Place
from freehold.spec.terms import FALSE, TRUE, Element, Formula, Int, SetOf, exists, forall, lone, minimum, no

SCOPES = {
    "bare": BARE,
    "window": Scope("window", {**BARE.sizes, "SwaPage": 2}, {**BARE.constants, "window": 2}),
    "states": Scope("states", {**BARE.sizes, "StateSlot": 2}, {**BARE.constants, "namespaces": 2}),
    "host": Scope("host", {**BARE.sizes, "HostPage": 2}, BARE.constants),
    "loans": Scope("loans", {**BARE.sizes, "Loan": 2}, BARE.constants),
    "all": FULL,
}


def widened(small: concrete.State, within: Scope) -> concrete.State:
    """The same state for the whole law: other sorts are empty, other symbols false and 0."""
    state = concrete.full(law, {s.__name__: range(within.sizes.get(s.__name__, 0)) for s in law.sorts}, small.constants)
    relations = {name: small.relations.get(name, set()) for name in law.relations}
    functions = {name: small.functions.get(name, {}) for name in law.functions}
    return concrete.State(state.universe, dict(within.constants), relations, functions)


def same(small: concrete.State, whole: concrete.State) -> bool:
    """Equal in what the reduced law has; nothing true beyond it."""
    dead = [name for name in whole.relations if name not in small.relations and whole.relations[name]]
    dead += [n for n, vs in whole.functions.items() if n not in small.functions and any(vs.values())]
    kept = {n: {x: v for x, v in vs.items() if v} for n, vs in small.functions.items()}
    lengths = {n: {x: v for x, v in whole.functions[n].items() if v} for n in kept}
    return not dead and kept == lengths and all(whole.relations[n] == ts for n, ts in small.relations.items())


@pytest.mark.parametrize("within", SCOPES.values(), ids=SCOPES)
def test_events_and_rules_mean_the_same(within: Scope) -> None:
    rng, reduced = random.Random(6), within.law(law)
    enabled = 0
    for _ in range(25):
        small = random_state(reduced, within, rng)
        whole = widened(small, within)
        for name, action in reduced.actions.items():
            env = random_values(action, small, rng)
            original = law.actions[name]
            by_name = {p.name: v for p, v in env.items()}
            full_env = {p: by_name.get(p.name, frozenset()) for p in original.params}
            broken = concrete.broken_clause(action.guard, env, small)
            expected = concrete.broken_clause(original.guard, full_env, whole)
            assert (broken and broken.text) == (expected and expected.text), name
            enabled += broken is None
            assert same(concrete.act(action, env, small), concrete.act(original, full_env, whole)), name
        for name, prop in law.invariants.items():
            holds = name not in reduced.invariants or concrete.holds(reduced.invariants[name].term, {}, small)
            assert holds == concrete.holds(prop.term, {}, whole), name
        assert concrete.holds(reduced.idle, {}, small) == concrete.holds(law.idle, {}, whole)
    assert enabled > 50


@pytest.mark.parametrize("within", SCOPES.values(), ids=SCOPES)
def test_operations_lead_to_the_same_states(within: Scope) -> None:
    """Along a walk of the reduced law; an operation that left the text is impossible in the whole law, too."""
    rng, reduced = random.Random(7), within.law(law)
    small = concrete.initial(reduced, within.sizes, within.constants)
    taken = 0
    for number in range(400):
        if number % 50 == 0:
            small = concrete.initial(reduced, within.sizes, within.constants)
        whole = widened(small, within)
        for name, operation in law.operations.items():
            if any(not whole.universe[type(p)] for p in operation.params if isinstance(p, Element)):
                assert name not in reduced.operations
        operation = law.operations[rng.choice(list(reduced.operations))]
        env = random_values(operation, whole, rng)
        expected = concrete.operate(operation, env, whole)
        outcome = concrete.operate(reduced.operations[operation.name], renamed(operation, env, reduced), small)
        assert isinstance(outcome, Clause) == isinstance(expected, Clause), operation.name
        if not isinstance(outcome, Clause) and not isinstance(expected, Clause):
            assert same(outcome[1], expected[1]), operation.name
            small, taken = outcome[1], taken + 1
    assert taken > 20


def renamed(operation: Operation, env: concrete.Env, reduced: Law) -> concrete.Env:
    by_name = {p.name: v for p, v in env.items()}
    return {p: by_name[p.name] for p in reduced.operations[operation.name].params}


def test_what_is_impossible_leaves_the_text() -> None:
    reduced = BARE.law(law)
    assert [s.__name__ for s in reduced.sorts] == ["Page", "Row", "Record", "Request", "Session"]
    assert not {"held", "out", "reads", "peer", "label", "E", "salt", "T"} & {*reduced.relations, *reduced.functions}
    assert not {"lend", "pair", "tag", "window_drop", "release_state", "unstash"} & reduced.actions.keys()
    assert not {"launch", "extend_pair", "send"} & reduced.operations.keys()
    assert {c.group for c in reduced.contracts.values()} == reduced.actions.keys()
    assert all(p.term not in (TRUE, FALSE) for p in reduced.invariants.values())


def test_constants_are_put_in() -> None:
    """With a window but one namespace, or two namespaces but no window, only what belongs to the other goes."""
    window, names = SCOPES["window"].law(law), SCOPES["states"].law(law)
    assert "window_drop" in window.actions
    assert "tag" not in window.actions
    assert "extend_page" not in window.operations  # pages come with their other half only
    assert "tag" in names.actions
    assert "window_drop" not in names.actions
    assert "extend_page" in names.operations


# A law small enough to say what must be left --------------------------------------------------------------------------


class Thing(Element):
    """A sort for these tests."""


class Other(Element):
    """A sort that goes."""


@pytest.fixture
def small() -> Law:
    law = Law("small")
    law.sort(Thing, Other)
    here = law.relation("here", Thing, doc="")
    seen = law.relation("seen", Thing, doc="starts empty, and only an event of Other makes it true")
    never = law.relation("never", Thing, doc="follows from `seen` alone")
    has = law.relation("has", Other, Thing, doc="")
    size = law.function("size", Thing, doc="stays at 0")
    law.initial += [forall(Thing, lambda t: here(t)), forall(Thing, lambda t: ~seen(t) & ~never(t))]

    @law.action
    def take(o: Other, t: Thing) -> Body:
        """Needs another."""
        yield has.add(o, t)

    @law.action
    def see(o: Other, t: Thing) -> Body:
        """Needs another."""
        yield has(o, t), "the other has it"
        yield seen.add(t)

    @law.action
    def follow(t: Thing) -> Body:
        """Possible only where something was seen."""
        yield seen(t), "it was seen"
        yield never.add(t)

    @law.action
    def leave(t: Thing, others: SetOf[Other], n: Int) -> Body:
        """Always possible."""
        yield forall(Other, lambda o: others(o) >> has(o, t)), "each other has it"
        yield n >= size(t), "the number is at least its size"
        yield here.drop(t, when=no(Other, lambda o: has(o, t)))
        yield size.becomes(t, minimum(size(t), n))

    @law.action
    def forget(t: Thing, others: SetOf[Other]) -> Body:
        """Does nothing where there are no others."""
        yield has.loses(lambda o, x: others(o) & has(o, x))

    @law.operation
    def leave_and_forget(t: Thing, o: Other) -> object:
        """Needs another."""
        yield leave(t, o, 0)

    @law.operation
    def go(t: Thing) -> object:
        """Both events of a thing."""
        yield leave(t, lambda o: has(o, t), 0)
        yield forget(t, lambda o: has(o, t))

    @law.invariant("always")
    def nobody_has_what_is_gone() -> Formula:
        """No other has what is not here."""
        return forall(Other, Thing, lambda o, t: has(o, t) >> here(t))

    @law.invariant("always")
    def one_is_seen() -> Formula:
        """At most one is seen, or something is here."""
        return lone(Thing, lambda t: seen(t) & (size(t) < 1)) | exists(Thing, lambda t: here(t))

    return law


def test_a_dead_symbol_takes_with_it_what_needs_it(small: Law) -> None:
    left = without(small, [Other])
    assert [*left.relations] == ["here"]
    assert [*left.functions] == []
    assert [*left.actions] == ["leave"]
    assert [p.name for p in left.actions["leave"].params] == ["t", "n"]
    assert [c.text for c in left.actions["leave"].guard] == ["the number is at least its size"]
    assert [u.of.name for u in left.actions["leave"].updates] == ["here"]
    assert [*left.operations] == ["go"]
    assert [s.action.name for s in left.operations["go"].steps] == ["leave"]
    assert [*left.invariants] == []


def test_without_nothing_only_what_never_moves_goes(small: Law) -> None:
    left = without(small, [])
    assert left.relations.keys() == small.relations.keys()
    assert left.actions.keys() == small.actions.keys()
    assert left.operations.keys() == small.operations.keys()
    assert left.invariants.keys() == small.invariants.keys()
    assert [*left.functions] == []


def test_places_stay_as_they_are() -> None:
    """Places of an absent pool are places still: a law that lacks them would lack its numbers."""
    reduced = BARE.law(law)
    state = concrete.initial(reduced, BARE.sizes, BARE.constants)
    request, to = reduced.actions["place"].params
    assert concrete.broken_clause(reduced.actions["place"].guard, {request: 0, to: int(Place.WAITING)}, state) is None
