"""What each public bug is asked: it is found within its budget, and the law as it is shows nothing in its scope."""

from __future__ import annotations

from collections.abc import Iterable

from freehold.model_check.bugs.ask import ask, ask_without
from freehold.model_check.bugs.bug import Bug
from freehold.model_check.bugs.sums import WrongSum


def named(bug: Bug) -> str:
    return f"{bug.kind} {bug.reference}"


def found_within_budget(bug: Bug) -> None:
    found = ask(bug)
    assert found is not None
    assert 0 < len(found.trace) <= bug.steps
    assert found.trace[-1][0] in found.text


def clean_without(bug: Bug) -> None:
    assert ask_without(bug) is None


def one_a_scope(bugs: Iterable[Bug]) -> list[Bug]:
    """One bug for each search that the law as it is has to pass."""
    kinds = {(b.shows, b.kind == "E", str(b.scope), b.base.name if isinstance(b, WrongSum) else ""): b for b in bugs}
    return list(kinds.values())
