"""Is each engine check needed, and enough? Every planted bug is hunted, with all checks and with each one missing.

A hunt runs the scenes and programs from fixed seeds until a check fails, within a budget that is the same for all. The
bugs are those that real engines had (`planted`) and each line of the memory that moves ownership, dropped in turn
(`dropped`). A bug that is seen with all checks and unseen with one of them missing shows what that check is for; a
check without such a bug would be decoration.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import islice

from freehold.model_check.dropped import Dropped, every_line
from freehold.model_check.planted import FAULTS, Fault
from freehold.model_check.programs import Program, random_program, run_program
from freehold.model_check.scenes import SCENES
from freehold.model_check.watch import ALL, Check, Violation

PROGRAMS = 36
VERBS = 60
WORKERS = 2
ABLATED = 24
"""At most so many bugs of each check are hunted without it: those that real engines had first."""


@dataclass(frozen=True, slots=True)
class FaultResult:
    """How a fault was caught: by which check first, after how many engine steps; `caught_by` is None if it was not.

    unseen_without: the check without which it goes unseen, where that was tried.
    """

    fault: str
    kind: str
    says: str
    caught_by: Check | None
    steps: int
    violation: Violation | None
    program: Program | None
    unseen_without: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineFaultReport:
    """steps: engine steps of all hunts with all checks."""

    results: tuple[FaultResult, ...]
    steps: int
    seconds: float

    @property
    def sole(self) -> dict[Check, list[str]]:
        """For each check, faults that go unseen without it."""
        return {check: [r.fault for r in self.results if check in r.unseen_without] for check in Check}

    @property
    def survivors(self) -> tuple[str, ...]:
        """Faults that no check sees."""
        return tuple(result.fault for result in self.results if result.caught_by is None)

    @property
    def idle(self) -> tuple[Check, ...]:
        """Checks that could be switched off unseen."""
        return tuple(check for check, faults in self.sole.items() if not faults)

    def soon(self) -> str:
        """A table: how many faults each check is the first to see, and after how many engine steps."""
        lines = [f"{'check':10}{'faults':>8}{'median':>8}{'most':>8}  engine steps until found"]
        for check in Check:
            steps = sorted(r.steps for r in self.results if r.caught_by is check)
            if steps:
                lines.append(f"{check:10}{len(steps):8}{steps[len(steps) // 2]:8}{steps[-1]:8}")
        return "\n".join(lines)


def faults() -> tuple[Fault | Dropped, ...]:
    """All of them: those from public bugs, then the dropped lines."""
    return (*FAULTS, *every_line())


def budget() -> Iterator[Program]:
    """The programs of a hunt: scenes, then random ones, whose kinds of engines take turns."""
    yield from SCENES.values()
    yield from (random_program(seed, VERBS) for seed in range(PROGRAMS))


def hunt(checks: frozenset[Check] = ALL) -> tuple[Violation | None, Program | None, int]:
    """The first violation in the budget, the program that shows it, and the engine steps that it took."""
    steps = 0
    for program in budget():
        run = run_program(program, checks)
        steps += run.steps
        if run.violation:
            return run.violation, program, steps
    return None, None, steps


def plant_all(
    chosen: Sequence[Fault | Dropped] | None = None,
    progress: Callable[[int, int], None] | None = None,
    workers: int = WORKERS,
) -> EngineFaultReport:
    """Hunt every fault, or those chosen; `progress` is told (done, wanted)."""
    started = time.perf_counter()
    names = [fault.name for fault in (faults() if chosen is None else chosen)]
    found: dict[str, FaultResult] = {}
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_hunted, name) for name in names]):
            found[future.result().fault] = future.result()
            if progress is not None:
                progress(len(found), len(names))
        results = [found[name] for name in names]
        for needed in pool.map(_needing, Check, [_to_ablate(results, check) for check in Check]):
            for name, check in needed:
                found[name] = replace(found[name], unseen_without=(check,))
    results = [found[name] for name in names]
    return EngineFaultReport(tuple(results), sum(r.steps for r in results), time.perf_counter() - started)


def _to_ablate(results: Sequence[FaultResult], check: Check) -> list[str]:
    """Faults that a check is the first to see. Without any but the first to see it a fault is seen all the same."""
    real = {fault.name for fault in FAULTS}
    mine = sorted((r for r in results if r.caught_by is check), key=lambda r: (r.fault not in real, r.steps))
    return [r.fault for r in islice(mine, ABLATED)]


def _by_name(name: str) -> Fault | Dropped:
    return next(fault for fault in faults() if fault.name == name)


def _hunted(name: str) -> FaultResult:
    """In a worker: one fault, with all checks."""
    fault = _by_name(name)
    with fault.planted():
        violation, program, steps = hunt()
    caught_by = violation.check if violation else None
    return FaultResult(name, fault.kind, fault.says, caught_by, steps, violation, program)


def _needing(check: Check, names: Sequence[str]) -> list[tuple[str, Check]]:
    """In a worker: the first of these faults that goes unseen without the check."""
    for name in names:
        with _by_name(name).planted():
            if hunt(ALL - {check})[0] is None:
                return [(name, check)]
    return []
