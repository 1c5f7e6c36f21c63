"""Measurements, each beside a named peer in the same run: ratios, since a machine's own figures say little.

Text: tokens per second of the engine and of transformers' `generate` on the same weights, dtype and prompts,
alternating. Scheduler: time per running request and step with an executor that computes nothing, with the monitor off
and on. Nothing here is asserted anywhere: a benchmark informs, a test decides.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.execution.weights import load_model
from freehold.impl.memory.events import EventSink
from freehold.impl.scheduling.null_executor import NullExecutor
from freehold.spec.monitor import Monitor
from freehold.spec.trace import Header

PROMPT_TOKENS = 16
REPEATS = 3


@dataclass(frozen=True, slots=True)
class TextRate:
    """Generated tokens per second, medians of alternating repeats."""

    dtype: str
    concurrent: int
    engine: float
    generate: float

    @property
    def ratio(self) -> float:
        return self.engine / self.generate


@dataclass(frozen=True, slots=True)
class StepCost:
    """Microseconds per running request in one all-decode scheduler step, medians."""

    running: int
    monitor_off: float
    monitor_on: float


def busy_machine() -> str | None:
    """A warning when something else computes: a torch thread that waits for a core distorts everything."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"load average {load:.1f} on {cores} cores: these figures are not to be trusted" if load > 0.7 else None


def text_rates(
    new_tokens: int = 48,
    concurrencies: Iterable[int] = (1, 16),
    dtypes: Iterable[torch.dtype] = (torch.float32, torch.bfloat16),
    announce: Callable[[str], None] = lambda _: None,
) -> list[TextRate]:
    """Greedy generation from prompts of 16 tokens, all different."""
    rates = []
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        announce(f"loading SmolLM2 in {name}, twice")
        loaded, peer = load_model(dtype=dtype), load_model(dtype=dtype)
        words = loaded.tokenizer(" ".join(f"page {i}" for i in range(400)), add_special_tokens=False)["input_ids"]
        for concurrent in concurrencies:
            announce(f"{name}, {concurrent} concurrent")
            prompts = [[int(t) for t in words[7 * i : 7 * i + PROMPT_TOKENS]] for i in range(concurrent)]
            ours, theirs = [], []
            for _ in range(REPEATS):
                ours.append(_rate(partial(_engine, loaded.model, prompts, new_tokens), concurrent * new_tokens))
                theirs.append(_rate(partial(_generate, peer.model, prompts, new_tokens), concurrent * new_tokens))
            rates.append(TextRate(name, concurrent, statistics.median(ours), statistics.median(theirs)))
    return rates


def _rate(run: Callable[[], None], tokens: int) -> float:
    started = time.perf_counter()
    run()
    return tokens / (time.perf_counter() - started)


def _engine(model: Any, prompts: list[list[int]], new_tokens: int) -> None:
    config = EngineConfig(page_size=16, num_pages=256, max_context_tokens=256, max_running=16, chunk_tokens=256)
    engine = Engine(config, lambda table: ModelRunner(model, table, num_pages=257, page_size=16))
    for prompt in prompts:
        engine.submit(prompt, max_new_tokens=new_tokens)
    engine.run_until_idle()


@torch.inference_mode()
def _generate(model: Any, prompts: list[list[int]], new_tokens: int) -> None:
    ids = torch.tensor(prompts)
    model.generate(
        ids, attention_mask=torch.ones_like(ids), min_new_tokens=new_tokens, max_new_tokens=new_tokens,
        do_sample=False, pad_token_id=0,
    )  # fmt: skip


def step_costs(running: Iterable[int] = (1, 16, 64, 256), steps: int = 200) -> list[StepCost]:
    """The scheduler alone, at page size 16."""
    return [StepCost(n, _step_cost(n, steps, watched=False), _step_cost(n, steps, watched=True)) for n in running]


def _step_cost(running: int, steps: int, watched: bool) -> float:
    context = 16 + steps + 32
    config = EngineConfig(
        page_size=16, num_pages=running * (context // 16 + 2), max_context_tokens=context, max_running=running,
        chunk_tokens=16 * running,
    )  # fmt: skip
    sink: EventSink | None = None
    if watched:
        sink = Monitor(Header(16, config.num_pages, config.geometry.num_rows, context))
    engine = Engine(config, lambda _: NullExecutor(), sink=sink)
    for i in range(running):
        engine.submit([i] * 16, max_new_tokens=steps + 16, publishes=False)
    engine.step()
    spent = []
    for _ in range(steps):
        started = time.perf_counter()
        engine.step()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent) * 1e6 / running
