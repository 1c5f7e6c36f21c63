"""Class H: sums that are wrong, sums that hide something, and the census that names the units."""

from __future__ import annotations

import pytest
from law.bug_checks import clean_without, found_within_budget, named, one_a_scope

from freehold.model_check.bugs import accounting
from freehold.model_check.bugs.bug import Bug
from freehold.model_check.explore import explore
from freehold.spec.census import census
from freehold.spec.law import law

BUGS = accounting.BUGS


@pytest.mark.parametrize("bug", BUGS, ids=named)
def test_bug_is_found_within_its_budget(bug: Bug) -> None:
    found_within_budget(bug)


@pytest.mark.parametrize("bug", one_a_scope(BUGS), ids=named)
def test_law_as_it_is_shows_nothing(bug: Bug) -> None:
    clean_without(bug)


@pytest.mark.parametrize("part", ["mini-sglang#149", "TensorRT-LLM#12834"])
def test_a_right_sum_hides_a_wrong_owner(part: str) -> None:
    bug = next(b for b in accounting.BUGS if part in b.reference)
    found = explore(bug.law(law), bug.scope).violation
    assert found is not None
    counted = census(found.state)
    assert sum(sum(c.counts.values()) for c in counted) == sum(c.total for c in counted)
    assert any(c.doubled for c in counted)
    assert any(c.lost for c in counted)
    assert not all(c.sound for c in counted)
