"""Classes J, L, M, N: wrong content, sessions, reused slots and rows that overflow."""

from __future__ import annotations

import pytest
from law.bug_checks import clean_without, found_within_budget, named, one_a_scope

from freehold.model_check.bugs import contamination, content, rows, sessions
from freehold.model_check.bugs.bug import Bug

BUGS = (*contamination.BUGS, *content.BUGS, *rows.BUGS, *sessions.BUGS)


@pytest.mark.parametrize("bug", BUGS, ids=named)
def test_bug_is_found_within_its_budget(bug: Bug) -> None:
    found_within_budget(bug)


@pytest.mark.parametrize("bug", one_a_scope(BUGS), ids=named)
def test_law_as_it_is_shows_nothing(bug: Bug) -> None:
    clean_without(bug)
