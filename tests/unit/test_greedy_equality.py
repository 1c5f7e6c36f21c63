"""Greedy output equals transformers' `generate` on the same real weights, token for token, however it is run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import pytest
import torch

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.execution.weights import LoadedModel, load_model
from freehold.impl.execution.worker import Worker
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import Executor
from freehold.impl.scheduling.request import Request
from freehold.model_check.serving_run import reference
from freehold.spec.state import Place

NEW_TOKENS = 10
PREFIX = "The following is a list of short facts about the sea, the sky and the animals that live in them. "
TEXTS = (
    "Hello", "The capital of France is", "1, 2, 3, 4,", "def add(a, b):\n    return", "Water boils at",
    "Once upon a time",
    "Roses are red,", "The largest planet is", "E = m", "To be or not to be,", "The quick brown fox", "import numpy as",
    "In the beginning", "A triangle has", "The opposite of hot is", "Monday, Tuesday,", "She sells sea shells",
    PREFIX + "Whales are", PREFIX + "Gulls are", PREFIX + "Clouds are made of",
    PREFIX * 3 + "The moon", PREFIX * 3 + "The tide",
)  # fmt: skip


@dataclass(frozen=True)
class Scene:
    loaded: LoadedModel
    prompts: list[list[int]]
    expected: list[list[int]]

    @contextmanager
    def engine(self, page_size: int, overlap: bool = False, **sizes: int) -> Iterator[Engine]:
        """With `overlap`, a thread of its own runs the forward steps; it ends with the context."""
        defaults = {"num_pages": 1024 // page_size, "max_context_tokens": 128, "max_running": 32, "chunk_tokens": 512}
        config = EngineConfig(page_size=page_size, overlap=overlap, **{**defaults, **sizes})  # type: ignore[arg-type]
        with ExitStack() as at_end:

            def executor(tables: KvTables) -> Executor:
                runner = ModelRunner(self.loaded.model, tables, page_size=page_size)
                return at_end.enter_context(closing(Worker(runner))) if overlap else runner

            yield Engine(config, executor)

    def submit(self, engine: Engine) -> list[Request]:
        stops = sorted(self.loaded.eos_token_ids)
        return [engine.submit(p, max_new_tokens=NEW_TOKENS, stop_ids=stops) for p in self.prompts]

    def check(self, requests: list[Request]) -> None:
        for text, request, expected in zip(TEXTS, requests, self.expected, strict=True):
            assert request.output == expected, text


@pytest.fixture(scope="module")
def scene() -> Scene:
    loaded = load_model(dtype=torch.float32)
    prompts = [[int(t) for t in loaded.tokenizer(t, add_special_tokens=False)["input_ids"]] for t in TEXTS]
    return Scene(loaded, prompts, [reference(loaded, p, NEW_TOKENS) for p in prompts])


ways = pytest.mark.parametrize(("page_size", "overlap"), [(1, False), (16, False), (16, True)])


def test_there_are_enough_prompts_of_mixed_length(scene: Scene) -> None:
    lengths = [len(p) for p in scene.prompts]
    assert len(lengths) >= 20
    assert min(lengths) < 3
    assert max(lengths) > 60


def test_alone(scene: Scene) -> None:
    requests = []
    for prompt in scene.prompts:
        with scene.engine(page_size=16) as engine:
            stops = sorted(scene.loaded.eos_token_ids)
            requests.append(engine.submit(prompt, max_new_tokens=NEW_TOKENS, stop_ids=stops))
            engine.run_until_idle()
    scene.check(requests)


@ways
def test_batched(scene: Scene, page_size: int, overlap: bool) -> None:
    with scene.engine(page_size, overlap) as engine:
        requests = scene.submit(engine)
        engine.run_until_idle()
        scene.check(requests)


@ways
def test_batched_with_prefix_hits(scene: Scene, page_size: int, overlap: bool) -> None:
    with scene.engine(page_size, overlap) as engine:
        scene.submit(engine)
        engine.run_until_idle()
        assert engine.observe().relations["in_tree"]
        before = engine.scheduler.cache.match(torch.tensor(scene.prompts[-1][:-1], dtype=torch.int32).numpy())
        assert before.matched_tokens >= len(scene.prompts[-1]) // page_size * page_size - page_size
        requests = scene.submit(engine)
        engine.run_until_idle()
        scene.check(requests)


@ways
def test_chunked_prefill(scene: Scene, page_size: int, overlap: bool) -> None:
    with scene.engine(page_size, overlap, chunk_tokens=7) as engine:
        requests = scene.submit(engine)
        engine.run_until_idle()
        scene.check(requests)


@ways
def test_retracted_and_computed_again(scene: Scene, page_size: int, overlap: bool) -> None:
    """Every request is retracted once while it runs, as memory pressure does to the youngest."""
    with scene.engine(page_size, overlap, max_running=8) as engine:
        requests = scene.submit(engine)
        waiting = set(requests)
        while engine.busy:
            engine.step()
            for request in [r for r in waiting if r.place is Place.RUNNING and len(r.output) >= 2]:
                engine.scheduler._retract(request)
                assert request.kv is None
                waiting.remove(request)
        assert len(waiting) < 3, "all but those that say almost nothing were retracted"
        scene.check(requests)
