"""Tokens per second of the engine beside transformers on the same weights, dtype and prompts, alternating.

The peers are `generate` with one padded batch, and transformers' own continuous batching over paged KV. Ratios count,
since a machine's own figures say little. Nothing here is asserted anywhere.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.execution.weights import load_model
from freehold.spec.monitor import Monitor

PROMPT_TOKENS = 16
REPEATS = 3


@dataclass(frozen=True, slots=True)
class TextRate:
    """Generated tokens per second, medians of alternating repeats."""

    dtype: str
    concurrent: int
    engine: float
    watched: float
    generate: float
    continuous: float

    @property
    def ratio(self) -> float:
        """The engine by the better of its peers."""
        return self.engine / max(self.generate, self.continuous)

    @property
    def monitor_share(self) -> float:
        """What the monitor takes of the engine's tokens per second."""
        return 1 - self.watched / self.engine


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
            runs: tuple[Callable[[], None], ...] = (
                partial(_engine, loaded.model, prompts, new_tokens, False),
                partial(_engine, loaded.model, prompts, new_tokens, True),
                partial(_generate, peer.model, prompts, new_tokens),
                partial(_continuous, peer.model, prompts, new_tokens),
            )
            spent: list[list[float]] = [[] for _ in runs]
            for _ in range(REPEATS):
                for run, times in zip(runs, spent, strict=True):
                    started = time.perf_counter()
                    run()
                    times.append(concurrent * new_tokens / (time.perf_counter() - started))
            rates.append(TextRate(name, concurrent, *(statistics.median(times) for times in spent)))
    return rates


def _engine(model: Any, prompts: list[list[int]], new_tokens: int, watched: bool) -> None:
    config = EngineConfig(page_size=16, num_pages=256, max_context_tokens=256, max_running=16, chunk_tokens=256)
    sink = Monitor(config.header) if watched else None
    engine = Engine(config, lambda tables: ModelRunner(model, tables, page_size=16), sink=sink)
    for prompt in prompts:
        engine.submit(prompt, max_new_tokens=new_tokens)
    engine.run_until_idle()


@torch.inference_mode()
def _generate(model: Any, prompts: list[list[int]], new_tokens: int) -> None:
    model.set_attn_implementation("sdpa")
    ids = torch.tensor(prompts)
    model.generate(
        ids, attention_mask=torch.ones_like(ids), min_new_tokens=new_tokens, max_new_tokens=new_tokens,
        do_sample=False, pad_token_id=0,
    )  # fmt: skip


def _continuous(model: Any, prompts: list[list[int]], new_tokens: int) -> None:
    """transformers' continuous batching, with as much room as the engine has."""
    sampling = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    room = ContinuousBatchingConfig(max_batch_tokens=256, num_blocks=128)
    model.generate_batch(prompts, generation_config=sampling, continuous_batching_config=room, progress_bar=False)
