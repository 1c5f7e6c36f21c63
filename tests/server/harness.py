"""A server on a port of its own, whose engine counts through the alphabet, with the law's monitor listening."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.scheduling.flight import Landed, run_now
from freehold.impl.scheduling.ports import ForwardBatch
from freehold.impl.serving.loop import EngineLoop
from freehold.impl.serving.owners import Owners, owners_of
from freehold.impl.serving.server import Server, bind, url_of
from freehold.spec.monitor import Monitor

VOCABULARY = 128
EOS = ord("{")  # what follows z
WAIT_S = 30.0


class SuccessorExecutor:
    """The next token is the last one plus 1, so `abc` goes on with `defg`.

    before: called with each batch before it is answered; may block or raise.
    """

    def __init__(self) -> None:
        self.batches: list[ForwardBatch] = []
        self.before: Callable[[ForwardBatch], None] = lambda batch: None

    def launch(self, batch: ForwardBatch) -> Landed:
        return run_now(lambda: self._next_tokens(batch))

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        raise NotImplementedError("it has no recurrent states")

    def _next_tokens(self, batch: ForwardBatch) -> list[int | None]:
        self.batches.append(batch)
        self.before(batch)
        return [(item.token_ids[-1] + 1) % VOCABULARY if item.samples else None for item in batch.items]


class Gate:
    """Lets an executor through one step at a time."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def __call__(self, batch: ForwardBatch) -> None:
        self.entered.release()
        assert self._permits.acquire(timeout=WAIT_S)

    def let_through(self, steps: int) -> None:
        """So many steps may go on, now or when they come."""
        self._permits.release(steps)

    def wait_until_entered(self) -> None:
        """The executor is in its next step."""
        assert self.entered.acquire(timeout=WAIT_S)


class CharacterTokenizer:
    """A token is the code of a character."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


@dataclass(frozen=True, slots=True)
class CountingModel:
    tokenizer: CharacterTokenizer = field(default_factory=CharacterTokenizer)
    model_name: str = "counting"
    eos_token_ids: frozenset[int] = frozenset({EOS})
    vocabulary_tokens: int = VOCABULARY


def make_engine(**sizes: Any) -> tuple[Engine, SuccessorExecutor, Monitor]:
    config = EngineConfig(
        **{"page_size": 4, "num_pages": 32, "max_context_tokens": 128, "max_running": 8, "chunk_tokens": 16, **sizes}
    )
    monitor, executor = Monitor(config.header), SuccessorExecutor()
    return Engine(config, lambda tables: executor, sink=monitor), executor, monitor


def nothing_is_held(engine: Engine) -> bool:
    seen = engine.observe()
    return not any(seen.relations[name] for name in ("kv", "slot_kv", "owns", "locks", "row_of")) and not seen.conflicts


@dataclass(slots=True)
class Served:
    """A running server. engine: to look into once the server has stopped; before, ask `owners`."""

    client: httpx.Client
    engine: Engine
    executor: SuccessorExecutor
    monitor: Monitor
    loop: EngineLoop
    server: Server
    thread: threading.Thread

    def post(self, **body: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json=body)

    def complete(self, prompt: Any, **fields: Any) -> Any:
        response = self.post(prompt=prompt, temperature=0, **fields)
        assert response.status_code == 200, response.text
        return response.json()

    def text(self, prompt: Any, **fields: Any) -> str:
        text: str = self.complete(prompt, **fields)["choices"][0]["text"]
        return text

    def events(self, prompt: Any, **fields: Any) -> list[Any]:
        """The events of a streamed answer, without the last, which must be [DONE]."""
        response = self.post(prompt=prompt, temperature=0, stream=True, **fields)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.text.endswith("\n\n")
        lines = response.text[:-2].split("\n\n")
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def owners(self) -> Owners:
        return self.loop.call(owners_of).result(timeout=WAIT_S)

    def wait_until_idle(self) -> None:
        """Until no request is live; every step that this takes is one call to the engine's thread."""
        for _ in range(10_000):
            if not self.loop.call(lambda engine: engine.busy).result(timeout=WAIT_S):
                return
        raise AssertionError("the engine is still busy")

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=WAIT_S)
        assert not self.thread.is_alive()


@contextmanager
def serving(*, grace_s: float = 0.0, **sizes: Any) -> Iterator[Served]:
    """A server until the end of the block; then nothing may be held, and no event may have broken a rule."""
    engine, executor, monitor = make_engine(**sizes)
    listening = threading.Event()
    with bind("127.0.0.1", 0) as bound, EngineLoop(engine) as loop:
        url = url_of(bound)
        server = Server(loop, CountingModel(), grace_s=grace_s, on_listening=listening.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            assert listening.wait(timeout=WAIT_S)
            with httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False) as client:
                yield Served(client, engine, executor, monitor, loop, server, thread)
        finally:
            executor.before = lambda batch: None
            server.should_exit = True
            thread.join(timeout=WAIT_S)
    assert not thread.is_alive()
    assert monitor.verdict is None, monitor.verdict
    if loop.failure is None:
        assert nothing_is_held(engine)
