"""The law's language: what it refuses, and that a term is what was written."""

import pytest

from freehold.spec.language import Action, Body, Law
from freehold.spec.terms import (
    And,
    Atom,
    Change,
    Element,
    Int,
    LawError,
    Quantified,
    SetOf,
    exists,
    forall,
    lone,
    next_,
)


class Thing(Element):
    """A sort for these tests."""


class Other(Element):
    """Another one."""


@pytest.fixture
def small() -> Law:
    law = Law("small")
    law.sort(Thing, Other)
    law.relation("has", Other, Thing, doc="")
    law.function("size", Thing, doc="")
    return law


def test_a_term_has_no_truth_value(small: Law) -> None:
    has = small.relations["has"]
    with pytest.raises(LawError, match="no truth value"):
        forall(Other, Thing, lambda o, t: has(o, t) and has(o, t))


def test_a_relation_refuses_the_wrong_sort(small: Law) -> None:
    with pytest.raises(LawError, match="wants a Other, got Thing"):
        forall(Thing, lambda t: small.relations["has"](t, t))


def test_a_function_refuses_the_wrong_sort(small: Law) -> None:
    with pytest.raises(LawError, match="wants a Thing, got Other"):
        exists(Other, lambda o: small.functions["size"](o) == 0)


def test_a_quantifier_wants_a_variable_a_sort() -> None:
    with pytest.raises(LawError, match="2 variables for 1 sorts"):
        forall(Thing, lambda a, b: a == b)


def test_the_names_of_bound_variables_are_kept(small: Law) -> None:
    term = lone(Thing, lambda whatever: exists(Other, lambda owner: small.relations["has"](owner, whatever)))
    assert isinstance(term, Quantified)
    assert [v.name for v in term.bound] == ["whatever"]


def test_an_action_is_traced_into_guard_and_updates(small: Law) -> None:
    has, size = small.relations["has"], small.functions["size"]

    @small.action
    def give(o: Other, things: SetOf[Thing], n: Int) -> Body:
        """Give things."""
        yield forall(Thing, lambda t: things(t) >> ~has(o, t)), "it has none of them"
        yield n >= 1, "the number is positive"
        yield has[o].gains(things)

    assert isinstance(give, Action)
    assert [type(p).__name__ for p in give.params] == ["Other", "SetOf", "IntVar"]
    assert [c.text for c in give.guard] == ["it has none of them", "the number is positive"]
    (change,) = give.updates
    assert isinstance(change, Change)
    assert change.gains
    assert size.sort is Thing


def test_the_same_value_cannot_be_assigned_twice(small: Law) -> None:
    size = small.functions["size"]

    def twice(t: Thing) -> Body:
        yield size.becomes(t, 1)
        yield size.becomes(t, 2)

    with pytest.raises(LawError, match="assigns the same value twice"):
        small.action(twice)


def test_a_name_is_taken_once(small: Law) -> None:
    with pytest.raises(LawError, match="defined twice"):
        small.relation("has", Thing, doc="")


def test_next_speaks_of_relations_and_values_only(small: Law) -> None:
    has = small.relations["has"]
    (bound, *_), term = (Thing("t"),), has(Other("o"), Thing("t"))
    primed = next_(term)
    assert isinstance(primed, Atom)
    assert primed.primed
    with pytest.raises(LawError, match="next_ takes"):
        next_(And((term, bound == bound)))
