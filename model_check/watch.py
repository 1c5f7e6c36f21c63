"""The checks by name, what a violation is, and what an engine's events go through on their way to the monitor."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from freehold.model_check.coverage import Coverage
from freehold.model_check.probe import Probe
from freehold.spec.monitor import Monitor
from freehold.spec.source import Compiled
from freehold.spec.trace import Event, Header
from freehold.spec.verdict import Verdict


class Check(StrEnum):
    """What is held against the engine."""

    GUARDS = "guards"
    """Each event's guard in the law, as the event happens."""
    MARKS = "marks"
    """The always and step invariants after each verb and at step marks; the quiescent ones when nothing runs."""
    OBSERVE = "observe"
    """The true tensors and structures against the law's state, after each verb."""
    CONTENT = "content"
    """What the pages of every record and of the tree hold, and every token that came out."""
    PROGRESS = "progress"
    """No exception, no wrong refusal, no end that nobody asked for, and the oldest request leaves in bounded time."""


ALL = frozenset(Check)


@dataclass(frozen=True, slots=True)
class Violation:
    """What a check saw.

    verdict: in the words of the law, where the law is what is broken. event_number: the last event before it was seen.
    """

    check: Check
    text: str
    verdict: Verdict | None
    event_number: int

    def same_as(self, other: Violation) -> bool:
        """Whether both are of one kind: seen by the same check, of the same clause or with the same first words."""
        mine, theirs = self.verdict, other.verdict
        if mine is not None and theirs is not None:
            return (self.check, mine.rule, _words(mine.clause)) == (
                other.check,
                theirs.rule,
                _words(theirs.clause),
            )
        same = self.check is other.check and mine is theirs
        return same and _words(self.text).partition("#")[0] == _words(other.text).partition("#")[0]

    def __str__(self) -> str:
        return f"{self.check}: {self.verdict or self.text}"


def _words(text: str) -> str:
    """A clause without the numbers of units, which change from program to program."""
    return re.sub(r"\d+", "#", text)


class Violated(AssertionError):
    """A check failed."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


class Watch:
    """An `EventSink` that keeps the log, and shows the monitor what the chosen checks want it to judge."""

    def __init__(self, header: Header, checks: frozenset[Check], probe: Probe | None = None) -> None:
        """`probe`: asks in between whether guard clauses can say no."""
        self.monitor = Monitor(header)
        self.coverage = Coverage()
        self.probe = probe
        self.events: list[Event] = []
        self._marks = Check.MARKS in checks
        if Check.GUARDS not in checks:
            compiled, law = self.monitor.compiled, self.monitor.law
            unguarded = replace(law, actions={n: replace(action, guard=()) for n, action in law.actions.items()})
            self.monitor.compiled = Compiled(unguarded, compiled.constants, compiled.universe)
            self.monitor.compiled.load(compiled.state())
            universe = self.monitor.compiled.universe
            self.monitor._comers = {  # who comes must come into the universe that is read from now on
                name: [(i, universe[type(action.params[i]).__name__]) for i, _ in self.monitor._comers[name]]
                for name, action in law.actions.items()
            }

    def emit(self, name: str, *args: object) -> None:
        event = Event(len(self.events) + 1, name, args)
        self.events.append(event)
        self.coverage.see(event, self.monitor)
        if self.probe:
            self.probe.look(self.monitor)
        if name != "mark" or self._marks:
            self.monitor.feed(event)

    def violation(self) -> Violation | None:
        """What the monitor said about an event."""
        verdict = self.monitor.verdict
        if verdict is None:
            return None
        check = Check.MARKS if verdict.event.startswith("mark(") else Check.GUARDS
        return Violation(check, verdict.clause, verdict, verdict.event_number)
