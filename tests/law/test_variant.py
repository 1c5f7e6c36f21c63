"""Variants of the law: each kind of change, what it leaves alone, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from law.random_states import FULL

from freehold.spec import concrete
from freehold.spec.events import close, place_
from freehold.spec.language import Law
from freehold.spec.law import law
from freehold.spec.state import C, Place, Record, free
from freehold.spec.terms import LawError, forall
from freehold.spec.variant import Edit, edit, steps, variant

LOCKED, CHILD = "no record locks the page", "no page comes behind it in the tree"


def clauses(of: Law, action: str) -> list[str]:
    return [c.text for c in of.actions[action].guard]


def test_a_clause_is_dropped_and_the_law_is_as_it_was() -> None:
    before = clauses(law, "evict")
    changed = variant(law, edit("evict", drop=LOCKED))
    assert clauses(changed, "evict") == [c for c in before if c != LOCKED]
    assert clauses(law, "evict") == before
    assert changed.actions["acquire"] is law.actions["acquire"]
    assert changed.invariants is law.invariants


def test_several_clauses_are_dropped() -> None:
    assert not {LOCKED, CHILD} & set(clauses(variant(law, edit("evict", drop=(LOCKED, CHILD))), "evict"))


def test_a_swapped_clause_has_another_meaning_in_its_place() -> None:
    text = "the published prefix stays"
    changed = variant(law, edit("truncate", swap={text: lambda k, a: a >= 0}))
    assert clauses(changed, "truncate") == clauses(law, "truncate")
    number = clauses(law, "truncate").index(text)
    action = changed.actions["truncate"]
    state = concrete.initial(law, FULL.sizes, FULL.constants)
    state.functions["P"] = {0: 2}
    env = dict(zip(action.params, (0, 1), strict=True))
    assert concrete.holds(action.guard[number].term, env, state)
    assert not concrete.holds(law.actions["truncate"].guard[number].term, env, state)


def test_a_clause_is_added_behind_the_others() -> None:
    changed = variant(law, edit("commit", add={"nobody is far": lambda k, c: forall(Record, lambda x: C(x) <= c)}))
    assert clauses(changed, "commit") == [*clauses(law, "commit"), "nobody is far"]


@pytest.mark.parametrize(("undo", "left"), [("free loses", ["owns"]), ("owns", ["free"]), (("free", "owns"), [])])
def test_updates_are_undone_by_name_or_direction(undo: str | tuple[str, ...], left: list[str]) -> None:
    changed = variant(law, edit("acquire", undo=undo))
    assert [u.of.name for u in changed.actions["acquire"].updates] == left


def test_updates_are_added() -> None:
    changed = variant(law, edit("commit", do=lambda k, c: [free.gains(lambda p: free(p))]))
    assert [u.of.name for u in changed.actions["commit"].updates] == ["C", "free"]


def test_operations_take_the_changed_event() -> None:
    changed = variant(law, edit("release", drop="no row entry keeps any of the pages"))
    for name, operation in changed.operations.items():
        for step, before in zip(operation.steps, law.operations[name].steps, strict=True):
            assert step.action is changed.actions[step.action.name]
            assert (step.action is before.action) == (step.action.name != "release")


def test_an_operation_loses_a_clause_and_takes_other_steps() -> None:
    text = "the request is no session's turn"
    changed = variant(law, steps("finish", lambda r, k, w: [close(k), place_(r, Place.OUT)], drop=text))
    finish = changed.operations["finish"]
    assert [s.action.name for s in finish.steps] == ["close", "place"]
    assert [c.text for c in finish.guard] == ["the request holds the record"]
    assert changed.operations["retract"] is law.operations["retract"]


def test_new_steps_take_events_that_were_changed_before() -> None:
    changed = variant(
        law, steps("finish", lambda r, k, w: [close(k)]), edit("close", drop="the record has no row any more")
    )
    (step,) = changed.operations["finish"].steps
    assert step.action is changed.actions["close"]
    assert step.action.guard == ()


def test_changes_add_up_in_their_order() -> None:
    changed = variant(law, edit("evict", drop=LOCKED), edit("evict", drop=CHILD))
    assert not {LOCKED, CHILD} & set(clauses(changed, "evict"))


def test_what_is_written_into_a_variant_stays_there() -> None:
    def more(of: Law) -> None:
        @of.operation
        def shut(k: Record) -> Any:
            """Close, and nothing else."""
            yield close(k)

    assert "shut" in variant(law, extra=more).operations
    assert "shut" not in law.operations


def twice(of: Law) -> None:
    of.relation("free", Record, doc="a name that is taken")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: variant(law, edit("evicts", drop=LOCKED)), "no event or operation is named 'evicts'"),
        (lambda: variant(law, edit("evict", drop="no lock")), f"evict has no clause 'no lock'; it has: .*{LOCKED}"),
        (lambda: variant(law, edit("evict", swap={"no lock": lambda p: free(p)})), "evict has no clause 'no lock'"),
        (lambda: variant(law, edit("evict", drop=LOCKED), edit("evict", drop=LOCKED)), "evict has no clause"),
        (lambda: variant(law, edit("evict", undo="owns")), "evict does not change owns"),
        (lambda: variant(law, edit("acquire", undo="free gains")), "acquire does not change free gains"),
        (lambda: variant(law, edit("finish", undo="free")), "finish is an operation: it has steps and no updates"),
        (lambda: variant(law, edit("finish", do=lambda r, k, w: [])), "finish is an operation"),
        (lambda: variant(law, edit("evict", add={"odd": lambda p: 1})), "a clause has to be a formula"),
        (lambda: variant(law, steps("finish", lambda r, k, w: [], drop="no")), "finish has no clause 'no'"),
        (lambda: variant(law, extra=twice), "free is defined twice"),
    ],
)  # fmt: skip
def test_a_change_that_names_nothing_is_refused(make: Callable[[], Law], says: str) -> None:
    with pytest.raises(LawError, match=says):
        make()


def test_steps_are_of_operations() -> None:
    with pytest.raises(LawError, match="evict is an event: it has no steps"):
        variant(law, Edit("evict", steps=lambda p: []))
