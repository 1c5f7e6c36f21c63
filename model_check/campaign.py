"""Many simulated runs: scenarios from seeds in several processes, and what is left of one that failed.

A scenario fails when the run breaks a rule, leaks a unit, says a wrong token, ends a request for no reason or never.
Its script is shrunk: whatever can be left out without the failure going away is left out.
"""

from __future__ import annotations

import multiprocessing
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from freehold.model_check.simulate import Script, World, random_script

BATCH = 50


@dataclass(frozen=True, slots=True)
class Failure:
    """A scenario that went wrong: its seed, what was wrong, and the smallest script found that shows it."""

    seed: int
    text: str
    script: Script


@dataclass(slots=True)
class CampaignReport:
    """Sums over scenarios. ends: how requests ended. core_s: processor time of the runs themselves."""

    scenarios: int = 0
    steps: int = 0
    requests: int = 0
    passes: int = 0
    core_s: float = 0.0
    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: CampaignReport) -> None:
        """Take another part's sums in."""
        self.scenarios += other.scenarios
        self.steps += other.steps
        self.requests += other.requests
        self.passes += other.passes
        self.core_s += other.core_s
        self.ends += other.ends
        self.failures += other.failures


def campaign(
    seeds: range, processes: int = 2, progress: Callable[[int, int], None] = lambda done, wanted: None
) -> CampaignReport:
    """Every seed's scenario. `progress` is told (done, wanted). The result does not depend on the processes."""
    started, report = time.perf_counter(), CampaignReport()
    parts = [seeds[first : first + BATCH] for first in range(0, len(seeds), BATCH)]
    for part in _each(parts, processes):
        report.add(part)
        progress(report.scenarios, len(seeds))
    report.seconds = time.perf_counter() - started
    return report


def _each(parts: Sequence[range], processes: int) -> Iterator[CampaignReport]:
    if processes < 2 or len(parts) < 2:
        yield from map(run_part, parts)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run_part, parts)


def run_part(seeds: range) -> CampaignReport:
    """The scenarios of some seeds, one after the other; the first few failures are shrunk."""
    report = CampaignReport()
    for seed in seeds:
        script = random_script(seed)
        started = time.thread_time()
        world, text = run(script)
        report.core_s += time.thread_time() - started
        report.scenarios += 1
        report.steps += world.steps
        report.requests += world.requests
        report.passes += world.executor.passes
        report.ends.update(world.ends)
        if text:
            small = shrunk(script, text) if len(report.failures) < 2 else script
            report.failures.append(Failure(seed, text, small))
    return report


def run(script: Script) -> tuple[World, str]:
    """A run, and what was wrong with it in words; empty when nothing was."""
    world = World(script)
    try:
        world.run()
    except Exception as error:  # whatever an engine in disorder raises is what is wrong
        return world, f"{type(error).__name__}: {error}"
    return world, ""


def shrunk(script: Script, text: str, attempts: int = 300) -> Script:
    """A smaller script that fails in the same way."""
    candidates = _smaller(script)
    while attempts and (candidate := next(candidates, None)):
        attempts -= 1
        if _kind(run(candidate)[1]) == _kind(text):
            script, candidates = candidate, _smaller(candidate)
    return script


def _kind(text: str) -> str:
    """The first words without numbers, which change from run to run, and without arguments."""
    return re.sub(r"\d+", "#", text.partition("(")[0])[:40]


def _smaller(script: Script) -> Iterator[Script]:
    size = len(script.steps)
    while size:
        for start in range(0, len(script.steps), size):
            yield replace(script, steps=script.steps[:start] + script.steps[start + size :])
        size //= 2
    for number in script.passes:
        yield replace(script, passes={n: what for n, what in script.passes.items() if n != number})
    for index, step in enumerate(script.steps):
        for left_out in range(len(step)):
            fewer = step[:left_out] + step[left_out + 1 :]
            yield replace(script, steps=(*script.steps[:index], fewer, *script.steps[index + 1 :]))
