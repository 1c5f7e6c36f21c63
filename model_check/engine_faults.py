"""Is each engine check needed, and enough? Every planted bug is hunted, with all checks and with each one missing.

A hunt runs programs from fixed seeds until a check fails, within a budget that is the same for all. A bug that is seen
with all checks and unseen with one of them missing shows what that check is for; a check without such a bug would be
decoration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from freehold.model_check.planted import FAULTS, Fault
from freehold.model_check.programs import Program, random_program, run_program
from freehold.model_check.watch import ALL, Check, Violation

PROGRAMS = 12
VERBS = 60


@dataclass(frozen=True, slots=True)
class FaultResult:
    """How a fault was caught: by which check first, after how many engine steps; `caught_by` is None if it was not.

    unseen_without: the checks without which it goes unseen.
    """

    fault: str
    kind: str
    says: str
    caught_by: Check | None
    steps: int
    violation: Violation | None
    program: Program | None
    unseen_without: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class EngineFaultReport:
    """steps: engine steps of all hunts."""

    results: tuple[FaultResult, ...]
    steps: int
    seconds: float

    @property
    def sole(self) -> dict[Check, list[str]]:
        """For each check, the faults that go unseen without it."""
        return {check: [r.fault for r in self.results if check in r.unseen_without] for check in Check}

    @property
    def survivors(self) -> tuple[str, ...]:
        """Faults that no check sees."""
        return tuple(result.fault for result in self.results if result.caught_by is None)

    @property
    def idle(self) -> tuple[Check, ...]:
        """Checks that could be switched off unseen."""
        return tuple(check for check, faults in self.sole.items() if not faults)


def hunt(checks: frozenset[Check] = ALL) -> tuple[Violation | None, Program | None, int]:
    """The first violation in the budget, the program that shows it, and the engine steps that it took."""
    steps = 0
    for seed in range(PROGRAMS):
        program = random_program(seed, VERBS)
        run = run_program(program, checks)
        steps += run.steps
        if run.violation:
            return run.violation, program, steps
    return None, None, steps


def plant_all(
    faults: Sequence[Fault] = tuple(FAULTS), progress: Callable[[int, int], None] | None = None
) -> EngineFaultReport:
    """Hunt every fault; `progress` is told (done, wanted)."""
    started, results, total = time.perf_counter(), [], 0
    for done, fault in enumerate(faults, start=1):
        with fault.planted():
            violation, program, steps = hunt()
            total += steps
            # Checks look and never touch, so without any but the first to see it the fault is seen all the same.
            unseen: tuple[Check, ...] = ()
            if violation:
                without, _, more = hunt(ALL - {violation.check})
                total += more
                unseen = () if without else (violation.check,)
        caught_by = violation.check if violation else None
        results.append(FaultResult(fault.name, fault.kind, fault.says, caught_by, steps, violation, program, unseen))
        if progress is not None:
            progress(done, len(faults))
    return EngineFaultReport(tuple(results), total, time.perf_counter() - started)
