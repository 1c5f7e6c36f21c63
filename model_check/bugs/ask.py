"""The search that fits a bug, asked of the law with the bug and of the law as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.replicas_search import divergence
from freehold.model_check.bugs.stuck import goals, stuck
from freehold.model_check.bugs.sums import WrongSum, false_alarm
from freehold.model_check.explore import explore
from freehold.model_check.steps import Taken
from freehold.spec.census import Sheet
from freehold.spec.errors import Unsupported
from freehold.spec.language import Law
from freehold.spec.law import law as the_law

STATES = 200_000
"""No search looks at more states, or pairs of them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found: the rule, goal or sum that is broken, and a shortest trace, a line and its events a step."""

    rule: str
    trace: tuple[tuple[str, tuple[str, ...]], ...]
    text: str


def ask(bug: Bug) -> Answer | None:
    """The bug as its search finds it; None when it does not. `Unsupported` for a bug that needs no law state."""
    return _answer(bug, bug.law(the_law), bug.sheet if isinstance(bug, WrongSum) else None)


def ask_without(bug: Bug) -> Answer | None:
    """What the same search finds in the same scope of the law as it is, which should be None."""
    return _answer(bug, the_law, bug.base if isinstance(bug, WrongSum) else None)


def _answer(bug: Bug, law: Law, sheet: Sheet | None) -> Answer | None:
    if sheet is not None:
        alarm = false_alarm(law, bug.scope, sheet)
        return None if alarm is None else Answer(str(alarm.count), _lines(alarm.trace), str(alarm))
    if bug.shows is Shows.PROGRESS:
        end = stuck(law, bug.scope, goals(bug))
        return None if end is None else Answer(f"never {end.goal}", _lines(end.trace), str(end))
    if bug.shows is Shows.REPLICAS:
        apart = divergence(law, bug.scope, STATES)
        if apart is None:
            return None
        return Answer("ranks come apart", tuple((str(m), ()) for m in apart.trace), str(apart))
    if bug.shows is not Shows.STATE:
        raise Unsupported(f"{bug.reference} shows as {bug.shows}: it has no trace, see its own check")
    searched = explore(law, bug.scope, budget=STATES)
    if searched.violation is not None:
        return Answer(searched.violation.invariant.name, _lines(searched.violation.trace), str(searched.violation))
    if not searched.closed and searched.depth <= bug.steps:
        raise Unsupported(f"{STATES:,} states of {bug.scope} do not reach depth {bug.steps}: choose a smaller scope")
    return None


def _lines(trace: Sequence[Taken]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((str(t), t.events) for t in trace)
