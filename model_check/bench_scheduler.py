"""What a decode step costs the scheduler, with an executor that computes nothing, and the monitor off and on.

Nothing here is asserted anywhere: a benchmark informs, a test decides.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.memory.events import EventSink
from freehold.impl.scheduling.null_executor import NullExecutor
from freehold.spec.monitor import Monitor

PROMPT_TOKENS = 16
PAGE_SIZE = 16
# What the engine has beside full pages. The window is short enough that it moves on in every request.
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "full + swa": {"window_tokens": 63},
    "full + swa, overlap": {"window_tokens": 63, "overlap": True},
}


@dataclass(frozen=True, slots=True)
class StepCost:
    """Microseconds per running request in one all-decode scheduler step: medians and means."""

    kind: str
    running: int
    monitor_off: float
    monitor_on: float
    mean_off: float
    mean_on: float


def busy_machine() -> str | None:
    """A warning when something else computes: a torch thread that waits for a core distorts everything."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"load average {load:.1f} on {cores} cores: these figures are not to be trusted" if load > 0.7 else None


def step_costs(running: Iterable[int] = (1, 16, 64, 256), steps: int = 200) -> list[StepCost]:
    """The scheduler alone, at page size 16."""
    costs = []
    for kind in KINDS:
        for n in running:
            (off, mean_off), (on, mean_on) = (_step_cost(kind, n, steps, watched) for watched in (False, True))
            costs.append(StepCost(kind, n, off, on, mean_off, mean_on))
    return costs


def _step_cost(kind: str, running: int, steps: int, watched: bool) -> tuple[float, float]:
    context = PROMPT_TOKENS + steps + 32
    pools = dict(KINDS[kind])
    if "window_tokens" in pools:
        pools["num_swa_pages"] = running * 8
    config = EngineConfig(
        page_size=PAGE_SIZE, num_pages=running * (context // PAGE_SIZE + 2), max_context_tokens=context,
        max_running=running, chunk_tokens=PROMPT_TOKENS * running, **pools,
    )  # fmt: skip
    sink: EventSink | None = Monitor(config.header) if watched else None
    engine = Engine(config, lambda _: NullExecutor(), sink=sink)
    for i in range(running):
        engine.submit([i] * PROMPT_TOKENS, max_new_tokens=steps + PROMPT_TOKENS, publishes=False)
    engine.step()
    spent = []
    for _ in range(steps):
        started = time.perf_counter()
        engine.step()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent) * 1e6 / running, statistics.mean(spent) * 1e6 / running
