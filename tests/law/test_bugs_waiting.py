"""Class I: deadlocks and livelocks are found, and a loop can be read."""

from __future__ import annotations

import pytest
from law.bug_checks import clean_without, found_within_budget, named, one_a_scope

from freehold.model_check.bugs import liveness
from freehold.model_check.bugs.bug import Bug
from freehold.model_check.bugs.small import small
from freehold.model_check.bugs.stuck import SERVED, goals, stuck
from freehold.spec.law import law
from freehold.spec.terms import FALSE
from freehold.spec.variant import edit, variant

BUGS = liveness.BUGS


@pytest.mark.parametrize("bug", BUGS, ids=named)
def test_bug_is_found_within_its_budget(bug: Bug) -> None:
    found_within_budget(bug)


@pytest.mark.parametrize("bug", one_a_scope(BUGS), ids=named)
def test_law_as_it_is_shows_nothing(bug: Bug) -> None:
    clean_without(bug)


def test_livelock_comes_with_its_loop() -> None:
    bug = next(b for b in liveness.BUGS if "16315" in b.reference)
    found = stuck(bug.law(law), bug.scope, goals(bug))
    assert found is not None
    assert [t.operation for t in found.loop] == ["admit", "retract"]


def test_deadlock_has_no_loop() -> None:
    bug = next(b for b in liveness.BUGS if "45388" in b.reference)
    found = stuck(bug.law(law), bug.scope, goals(bug))
    assert found is not None
    assert found.loop == ()
    assert "and then for ever: nothing" in str(found)


def test_stuck_needs_the_retraction_of_the_law() -> None:
    pinned = variant(law, edit("retract", add={"nobody is retracted": lambda r, k, w: FALSE}))
    scope = small(Page=2, Row=2, Record=2, Request=2, row_width=2)
    assert stuck(law, scope, [SERVED]) is None
    assert stuck(pinned, scope, [SERVED]) is not None
