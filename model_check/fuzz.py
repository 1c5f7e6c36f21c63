"""Fuzzing: the stateful machine with fresh seeds, for as long as there is time, and every failure kept.

A failure is kept shrunk and twice: as a program that `freehold fuzz --replay FILE` runs again, and as the log of that
run, which `freehold check FILE` judges without the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freehold.model_check.coverage import Coverage
from freehold.model_check.programs import Program, Run, run_program
from freehold.model_check.refinement import Profile, refine
from freehold.model_check.watch import Check, Violation
from freehold.spec.errors import InvalidInput
from freehold.spec.trace import TraceWriter

EXAMPLES = 8
VERBS = 60


@dataclass(frozen=True, slots=True)
class Failure:
    """A violation that was found, and where it is kept.

    in_law: whether the log alone shows it, so that `freehold check` rejects it. What is not in the law, wrong content
    or a lack of progress, only the replay shows.
    """

    seed: int
    violation: Violation
    program: Path
    trace: Path
    in_law: bool

    @property
    def replay(self) -> str:
        return f"freehold fuzz --replay {self.program}"


@dataclass(slots=True)
class FuzzReport:
    """What was run so far. verbs: what clients did; steps: of the engine; events: those that moved something."""

    first_seed: int
    seeds: int = 0
    examples: int = 0
    verbs: int = 0
    steps: int = 0
    seconds: float = 0.0
    coverage: Coverage = field(default_factory=Coverage)
    failures: list[Failure] = field(default_factory=list)

    @property
    def events(self) -> int:
        return self.coverage.moves


def fuzz(
    seconds: float, seed: int, out_dir: Path | str, progress: Callable[[FuzzReport], None] | None = None
) -> FuzzReport:
    """Run seed, seed + 1, … until the time is up; at least one. `progress` is told after each.

    The same violation is kept once. Raises InvalidInput when `out_dir` can't be written.
    """
    folder = _folder(out_dir)
    started, report = time.perf_counter(), FuzzReport(seed)
    while not report.seeds or time.perf_counter() - started < seconds:
        found = refine(Profile("fuzz", EXAMPLES, VERBS, seed=seed + report.seeds))
        known = any(found.violation.same_as(f.violation) for f in report.failures) if found.violation else True
        if found.program and not known:
            report.failures.append(keep(found.program, seed + report.seeds, folder))
        report.seeds += 1
        report.examples += found.examples
        report.verbs += found.verbs
        report.steps += found.steps
        report.coverage.update(found.coverage)
        report.seconds = time.perf_counter() - started
        if progress is not None:
            progress(report)
    return report


def replay(path: Path | str) -> Run:
    """Run a kept program again, with all checks. Raises InvalidInput when the file holds none."""
    return run_program(Program.load(path))


def keep(program: Program, seed: int, folder: Path) -> Failure:
    """Run a failing program once more and write what it is and what it does to `folder`."""
    run = run_program(program)
    violation = run.violation
    if violation is None:
        raise AssertionError(
            f"the program of seed {seed} failed and does not fail again: the engine is not deterministic"
        )
    name = f"failure-{seed}-{violation.check}"
    kept, trace = folder / f"{name}.json", folder / f"{name}.jsonl"
    kept.write_text(program.to_json() + "\n", encoding="utf-8")
    write_trace(run, program, trace)
    in_law = violation.check in (Check.GUARDS, Check.MARKS, Check.OBSERVE) and violation.verdict is not None
    return Failure(seed, violation, kept, trace, in_law)


def write_trace(run: Run, program: Program, path: Path) -> None:
    """The log of a run, and behind it what shows its violation: a mark, or what the engine truly looked like."""
    with TraceWriter(path, program.config.header) as writer:
        for event in run.events:
            writer.emit(event.name, *event.args)
        if run.violation and run.violation.check is Check.MARKS:  # seen between two marks, perhaps
            writer.emit("mark", "step")
        if run.state:
            writer.emit("observe", _as_json(run.state))


def _as_json(state: Mapping[str, Any]) -> dict[str, Any]:
    """An observed state as a log has it: relations and functions as sorted lists of lists."""
    facts = {name: seen.items() if isinstance(seen, Mapping) else seen for name, seen in state.items()}
    conflicts = list(facts.pop("conflicts"))
    return {name: sorted(map(list, tuples), key=str) for name, tuples in facts.items()} | {"conflicts": conflicts}


def _folder(out_dir: Path | str) -> Path:
    folder = Path(out_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{folder}: {error.strerror or error}; give a folder for failures that can be written"
        ) from error
    return folder
