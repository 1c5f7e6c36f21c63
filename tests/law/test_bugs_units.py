"""Public bugs of leaks and uses after free: each is found within its budget, and not in the law as it is."""

from __future__ import annotations

import pytest

from freehold.model_check.bugs import bank
from freehold.model_check.bugs.bug import Bug
from freehold.model_check.bugs.hunt import hunt

LAWFUL_STATES = 20_000  # of the law as it is; the command looks at more


@pytest.mark.parametrize("bug", [b for b in bank.UNITS if b.kind in "ABCD"], ids=lambda b: b.reference)
def test_a_bug_is_found_and_the_law_is_clean(bug: Bug) -> None:
    found = hunt(bug, (), LAWFUL_STATES)
    assert not found.gap
    assert 0 < len(found.trace) <= bug.steps
    assert found.clean


def test_bugs_differ() -> None:
    references = [b.reference for b in bank.BUGS]
    assert len(set(references)) == len(references)
    titles = [b.title for b in bank.BUGS]
    assert len(set(titles)) == len(titles)
    for bug in bank.UNITS:
        assert bug.kind in bank.KINDS
