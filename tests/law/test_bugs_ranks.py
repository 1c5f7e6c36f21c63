"""Class O: ranks that come apart."""

from __future__ import annotations

import pytest
from law.bug_checks import clean_without, found_within_budget, named, one_a_scope

from freehold.model_check.bugs import replicas
from freehold.model_check.bugs.bug import Bug
from freehold.model_check.bugs.replicas_search import divergence
from freehold.spec.law import law

BUGS = replicas.BUGS


@pytest.mark.parametrize("bug", BUGS, ids=named)
def test_bug_is_found_within_its_budget(bug: Bug) -> None:
    found_within_budget(bug)


@pytest.mark.parametrize("bug", one_a_scope(BUGS), ids=named)
def test_law_as_it_is_shows_nothing(bug: Bug) -> None:
    clean_without(bug)


def test_a_decision_by_a_local_fact_is_what_parts_the_ranks() -> None:
    bug = replicas.BUGS[0]
    found = divergence(bug.law(law), bug.scope)
    assert found is not None
    *_, local, decision = found.trace
    assert (local.operation, decision.operation) == ("runs_short_on_host", "write_through")
    assert {local.rank, decision.rank} == {0, 1}
    assert "the other rank cannot" in str(found)
