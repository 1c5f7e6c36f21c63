"""Law faults: the law with one thing taken out, each of which some check has to notice.

A fault drops one guard clause, one update or all updates of an event, or one precondition of an operation. The checks
are the law's own properties; a fault is *caught* by a property when the grounded reading finds a counterexample that
replays. The matrix also shows which property is the only one to see some fault: what cannot be switched off.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import TypeVar

from freehold.model_check.refute import Counterexample, Refuter
from freehold.spec.language import Action, Law, Step
from freehold.spec.law import law as the_law

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing taken out of the law: `drop` names it."""

    subject: str
    drop: str
    law: Law

    @property
    def name(self) -> str:
        return f"{self.subject}: without {self.drop}"


@dataclass(frozen=True, slots=True)
class Caught:
    """The properties that see a fault, and one counterexample."""

    fault: str
    by: tuple[str, ...]
    example: Counterexample | None


@dataclass(frozen=True, slots=True)
class MutationReport:
    faults: tuple[Caught, ...]
    seconds: float

    @property
    def survivors(self) -> tuple[str, ...]:
        return tuple(c.fault for c in self.faults if not c.by)

    def sole_witness(self) -> dict[str, list[str]]:
        """For each property, the faults that it alone sees."""
        found: dict[str, list[str]] = {}
        for caught in self.faults:
            if len(caught.by) == 1:
                found.setdefault(caught.by[0], []).append(caught.fault)
        return found


def faults(law: Law) -> Iterator[Fault]:
    """Every fault of the law, in the order of its text."""
    for action in law.actions.values():
        for kept, clause in _without(action.guard):
            yield _with_action(law, replace(action, guard=kept), f"“{clause.text}”")
        for number, (left, _) in enumerate(_without(action.updates), start=1):
            yield _with_action(law, replace(action, updates=left), f"update {number}")
        if len(action.updates) > 1:
            yield _with_action(law, replace(action, updates=()), "any effect")
    for operation in law.operations.values():
        for kept, clause in _without(operation.guard):
            changed = replace(law, operations={**law.operations, operation.name: replace(operation, guard=kept)})
            yield Fault(operation.name, f"“{clause.text}”", changed)


def _without(items: tuple[T, ...]) -> Iterator[tuple[tuple[T, ...], T]]:
    for i, item in enumerate(items):
        yield items[:i] + items[i + 1 :], item


def _with_action(law: Law, action: Action, drop: str) -> Fault:
    """The law with an action replaced, in the operations that take it, too."""

    def relink(step: Step) -> Step:
        return replace(step, action=action) if step.action.name == action.name else step

    operations = {n: replace(o, steps=tuple(map(relink, o.steps))) for n, o in law.operations.items()}
    return Fault(action.name, drop, replace(law, actions={**law.actions, action.name: action}, operations=operations))


def catch(fault: Fault) -> Caught:
    """Which properties see the fault: those of the event, and of the operations that take it where those are blind."""
    refuter = Refuter(fault.law)
    ask = refuter.obligations
    if fault.subject in fault.law.actions:
        asked = [ask.of_action(fault.law.actions[fault.subject])]
        asked += [
            ask.of_operation(o)
            for o in fault.law.operations.values()
            if any(s.action.name == fault.subject for s in o.steps)
        ]
    else:
        asked = [ask.of_operation(fault.law.operations[fault.subject])]
    for questions in asked:
        examples = [e for e in map(refuter.refute, questions) if e is not None]
        if examples:
            return Caught(fault.name, tuple(e.property for e in examples), examples[0])
    return Caught(fault.name, (), None)


SHARES = 16


def _catch_share(share: int) -> list[Caught]:
    return [catch(f) for f in itertools.islice(faults(the_law), share, None, SHARES)]


def mutate(workers: int = 2, progress: Callable[[int, int], None] | None = None) -> MutationReport:
    """Plant every fault in the law, one at a time; `progress` is told (shares done, shares in all)."""
    started = time.perf_counter()
    found: list[Caught] = []
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(_catch_share, i) for i in range(SHARES)]
        for done, future in enumerate(as_completed(futures), start=1):
            found += future.result()
            if progress is not None:
                progress(done, SHARES)
    order = {f.name: i for i, f in enumerate(faults(the_law))}
    found.sort(key=lambda c: order[c.fault])
    return MutationReport(tuple(found), time.perf_counter() - started)
