"""Which instrument finds which bug, after how many steps, and that none finds one in the law as it is.

The explorer comes first: its shortest trace is what the others are asked about. For a bug that no single state shows
it is the search that `ask` chooses, and the others are not asked: they speak of states and steps only.

| instrument | finds a bug when | a step is |
|---|---|---|
| explore | a state of the scope breaks a rule, or can never get where it must end | an operation |
| monitor | the log of the trace breaks a clause of the law, or a step mark a rule | an event |
| observe | or else the engine's own state after an operation is not what the log says | an event |
| proof | what the bug changes does not keep an invariant, from a state that satisfies all | an event or operation |
| contract | a changed event does not do what its contract says | an event |
| search | a SAT solver finds a trace to a state that breaks a rule (only when asked for) | an operation |
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from freehold.model_check.bugs.ask import ask, ask_without
from freehold.model_check.bugs.bank import BUGS
from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.logged import objection
from freehold.model_check.bugs.sums import WrongSum
from freehold.model_check.explore import explore
from freehold.model_check.obligations import Obligation
from freehold.model_check.refute import Refuter
from freehold.model_check.scopes import Scope
from freehold.model_check.search import Found, Search
from freehold.model_check.steps import Taken
from freehold.spec.language import Law
from freehold.spec.law import law as the_law

STATES = 200_000  # no search for a bug, or for its absence, looks at more


class Instrument(StrEnum):
    """Who looks for a bug."""

    EXPLORE = "explore"
    MONITOR = "monitor"
    OBSERVE = "observe"
    PROOF = "proof"
    CONTRACT = "contract"
    SEARCH = "search"


ASKED = tuple(i for i in Instrument if i is not Instrument.SEARCH)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one instrument says of a bug. steps: after how many it was found, None when it was not."""

    instrument: Instrument
    steps: int | None
    says: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Hunted:
    """What all instruments say of a bug.

    trace: the explorer's shortest, an operation with its events a line. clean: what was searched of the law as it is,
    without finding anything. gap: what is wrong, empty when the bug is found within its budget and the law is clean.
    """

    reference: str
    kind: str
    title: str
    budget: int
    trace: tuple[tuple[str, tuple[str, ...]], ...]
    findings: tuple[Finding, ...]
    clean: str
    gap: str

    def by(self, instrument: Instrument) -> Finding | None:
        """What one instrument says, None when it was not asked."""
        return next((f for f in self.findings if f.instrument is instrument), None)


@dataclass(frozen=True, slots=True)
class Shown:
    """A bug as its search found it: what it breaks, a shortest trace in words, and its steps for others to look at."""

    rule: str
    lines: tuple[tuple[str, tuple[str, ...]], ...]
    trace: tuple[Taken, ...]


# One bug -------------------------------------------------------------------------------------------------------------


def hunt(bug: Bug, instruments: Sequence[Instrument] = ASKED, lawful_states: int = STATES) -> Hunted:
    """Ask the instruments for one bug, and the explorer for the law without it, of which it sees `lawful_states`."""
    law = bug.law(the_law)
    started = time.perf_counter()
    shown = _shown(bug, law)
    spent = time.perf_counter() - started
    steps = None if shown is None else len(shown.lines)
    findings = [Finding(Instrument.EXPLORE, steps, "nothing" if shown is None else shown.rule, spent)]
    if _is_of_states(bug):
        findings += _others(bug, law, shown, instruments)
    clean, complaint = _absence(bug, lawful_states)
    trace = () if shown is None else shown.lines
    gap = complaint or _gap(bug, steps)
    return Hunted(bug.reference, bug.kind, bug.title, bug.steps, trace, tuple(findings), clean, gap)


def _gap(bug: Bug, steps: int | None) -> str:
    if steps is None:
        return f"{bug.reference} is not found in {bug.scope}"
    return f"{bug.reference} takes {steps} steps instead of {bug.steps}" if steps > bug.steps else ""


def _others(bug: Bug, law: Law, shown: Shown | None, instruments: Sequence[Instrument]) -> Iterator[Finding]:
    """The findings of all but the explorer, each with its own time."""
    asked: dict[Instrument, Callable[[], tuple[int | None, str]]] = {
        Instrument.PROOF: lambda: _broken(bug, law, ("event", "operation")),
        Instrument.CONTRACT: lambda: _broken(bug, law, ("contract",)),
        Instrument.SEARCH: lambda: _searched(bug, law),
    }
    if shown is not None:
        trace = shown.trace
        asked[Instrument.MONITOR] = lambda: _logged(bug, law, trace, observed=False)
        asked[Instrument.OBSERVE] = lambda: _logged(bug, law, trace, observed=True)
    for instrument in instruments:
        if instrument in asked:
            started = time.perf_counter()
            steps, says = asked[instrument]()
            yield Finding(instrument, steps, says, time.perf_counter() - started)


def _is_of_states(bug: Bug) -> bool:
    """Whether a single state shows the bug, by a rule of the law."""
    return bug.shows is Shows.STATE and not isinstance(bug, WrongSum)


def _shown(bug: Bug, law: Law) -> Shown | None:
    """The answer of the search that fits the bug. Raises Unsupported when none does."""
    if not _is_of_states(bug):
        answer = ask(bug)
        return None if answer is None else Shown(answer.rule, answer.trace, ())
    found = explore(law, bug.scope, budget=STATES).violation
    if found is None:
        return None
    return Shown(found.invariant.name, tuple((str(t), t.events) for t in found.trace), found.trace)


# The law without the bug ---------------------------------------------------------------------------------------------


def _absence(bug: Bug, states: int) -> tuple[str, str]:
    """What was searched of the law as it is, and what is wrong with that, if anything is."""
    if not _is_of_states(bug):
        answer = ask_without(bug)
        return ("the whole scope", "") if answer is None else ("", f"the law as it is: {answer.rule} in {bug.scope}")
    return _clean(_Key(bug.scope), bug.steps, states)


@dataclass(frozen=True, slots=True, eq=False)
class _Key:
    """A scope that can be looked up."""

    scope: Scope

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and str(self.scope) == str(other.scope)

    def __hash__(self) -> int:
        return hash(str(self.scope))


@cache
def _explored(key: _Key, budget: int) -> tuple[str | None, int, int, bool]:
    """Of the law as it is: the broken rule, states, levels that were searched to their end, and whether all were."""
    found = explore(the_law, key.scope, budget=budget)
    broken = None if found.violation is None else found.violation.invariant.name
    return broken, found.distinct, found.depth if found.closed else found.depth - 1, found.closed


def _clean(key: _Key, steps: int, budget: int) -> tuple[str, str]:
    broken, states, depth, closed = _explored(key, budget)
    if broken is not None:
        return "", f"the law as it is breaks {broken} in {key.scope}"
    if not closed and depth < steps:
        return "", f"{states:,} states of {key.scope} reach only to depth {depth}"
    return f"all {states:,} states" if closed else f"{states:,} states, to depth {depth}", ""


# The other instruments -----------------------------------------------------------------------------------------------


def _logged(bug: Bug, law: Law, trace: Sequence[Taken], observed: bool) -> tuple[int | None, str]:
    """At which event the monitor objects to the log of the trace, and why."""
    found = objection(bug.scope, law, trace, observed=observed)
    return (None, "nothing") if found is None else (found[0], f"{found[1].rule}: {found[1].clause}")


def _broken(bug: Bug, law: Law, kinds: Sequence[str]) -> tuple[int | None, str]:
    """Whether a changed event or operation breaks an obligation of these kinds, in the bug's scope or one of twos."""
    sizes = {n: max(2, s) for n, s in bug.scope.sizes.items()}
    refuter = Refuter(bug.scope.law(law), sizes, bug.scope.constants)
    for obligation in _questions(refuter, law):
        if obligation.kind in kinds and refuter.refute(obligation) is not None:
            said = obligation.claim.partition(": ")[2]
            return 1, said or f"{obligation.subject} breaks {obligation.claim}"
    return None, "nothing"


def _questions(refuter: Refuter, law: Law) -> Iterator[Obligation]:
    """What must hold of the events that differ from the law's, and of the operations that differ or take them."""
    events = {n for n, a in law.actions.items() if a is not the_law.actions.get(n)}
    for name, action in refuter.law.actions.items():
        if name in events:
            yield from refuter.obligations.of_action(action)
    for name, operation in refuter.law.operations.items():
        changed = law.operations[name] is not the_law.operations.get(name)
        if changed or events & {s.action.name for s in operation.steps}:
            yield from refuter.obligations.of_operation(operation)


def _searched(bug: Bug, law: Law) -> tuple[int | None, str]:
    found = Search(law, bug.scope.sizes, bug.scope.constants).violation(bug.steps)
    return (len(found.trace), found.property) if isinstance(found, Found) else (None, f"nothing to depth {found.depth}")


# All of them ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """The detection matrix: a row a bug, in the order of the bank."""

    rows: tuple[Hunted, ...]
    seconds: float

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is wrong: bugs that are not found within their budget, and rules that the law itself breaks."""
        return tuple(r.gap for r in self.rows if r.gap)

    def found_by(self, instrument: Instrument) -> int:
        """How many bugs an instrument finds."""
        return sum(f is not None and f.steps is not None for f in (r.by(instrument) for r in self.rows))


def _hunt_all(references: Sequence[str], instruments: Sequence[Instrument]) -> list[Hunted]:
    by_reference = {b.reference: b for b in BUGS}
    return [hunt(by_reference[r], instruments) for r in references]


def matrix(
    bugs: Sequence[Bug] = BUGS,
    instruments: Sequence[Instrument] = ASKED,
    workers: int = 2,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> MatrixReport:
    """Hunt each of some bugs of the bank; `progress` is told (bugs done, bugs in all).

    Bugs of one scope go to one worker, which searches the law as it is only once for them.
    """
    started = time.perf_counter()
    shares: dict[str, list[str]] = {}
    for bug in bugs:
        shares.setdefault(f"{bug.shows} {bug.scope}", []).append(bug.reference)
    rows: list[Hunted] = []
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_hunt_all, share, instruments) for share in shares.values()]):
            rows += future.result()
            progress(len(rows), len(bugs))
    order = {b.reference: i for i, b in enumerate(bugs)}
    rows.sort(key=lambda r: order[r.reference])
    return MatrixReport(tuple(rows), time.perf_counter() - started)
