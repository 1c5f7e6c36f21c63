"""A real engine that is held to everything after each step: events, tensors, what pages hold, and tokens."""

from collections.abc import Sequence
from typing import Any

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.memory.record import KvRecord
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import ForwardBatch
from freehold.impl.scheduling.request import FinishReason, Request, StepOutput
from freehold.model_check.content import ContentExecutor, Shape, continuation, right_kv, wrong_row, wrong_tree
from freehold.spec.monitor import Monitor
from freehold.spec.trace import Event, single_events

SIZES = {"page_size": 4, "num_pages": 32, "max_context_tokens": 48, "max_running": 4, "chunk_tokens": 16}
Occurrence = tuple[Any, ...]


def text(first: int, tokens: int) -> list[int]:
    """A prompt that no other one begins like."""
    return [first, *((first * 7 + 3 * n) % 50 for n in range(1, tokens))]


class StoppedClock:
    """Stands at `seconds` until somebody moves it."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Stepped:
    """An engine of small sizes over a `ContentExecutor`, and all that its tests ask again and again."""

    def __init__(self, **sizes: Any) -> None:
        self.config = EngineConfig(**{**SIZES, **sizes})
        self.shape = Shape(self.config.window_tokens, self.config.num_state_slots > 0)
        self.clock = StoppedClock()
        self.monitor = Monitor(self.config.header)
        self.requests: list[Request] = []
        self._events: list[Occurrence] = []
        self._right: dict[Request, list[int]] = {}
        self.engine = Engine(self.config, self._make_executor, clock=self.clock, sink=self)
        self.cache, self.scheduler = self.engine.cache, self.engine.scheduler

    def _make_executor(self, tables: KvTables) -> ContentExecutor:
        self.executor = ContentExecutor(tables, self.config.page_size, self.shape, self.config.num_state_slots)
        return self.executor

    def emit(self, name: str, *args: object) -> None:
        """The engine's `EventSink`."""
        self._events.append((name, *args))
        self.monitor.emit(name, *args)

    # What a client does

    def submit(self, prompt: Sequence[int], **options: Any) -> Request:
        request = self.engine.submit(prompt, **options)
        self.requests.append(request)
        return request

    def step(self) -> list[StepOutput]:
        """One step, then every check."""
        outputs = self.engine.step()
        self.check()
        return outputs

    def run(self, most_steps: int = 1000) -> list[StepOutput]:
        """Steps until nobody is live, with every check after each; nothing but the tree and sessions holds KV then."""
        outputs: list[StepOutput] = []
        for _ in range(most_steps):
            if not self.engine.busy:
                return outputs
            outputs += self.step()
        raise AssertionError(f"requests are live after {most_steps} steps: {list(self.scheduler.queues.all())}")

    def fail_next_forward(self) -> None:
        """The step that is computed next raises, and none after it."""

        def fails(batch: ForwardBatch) -> None:
            self.executor.before = lambda batch: None
            raise RuntimeError("the device is gone")

        self.executor.before = fails

    # What was seen

    def events(self, *names: str) -> list[Occurrence]:
        """What happened since the last call, or what of it has one of `names`."""
        happened, self._events = self._events, []
        singles = [
            (each.name, *each.args)
            for name, *args in happened
            for each in single_events(Event(1, str(name), tuple(args)))
        ]
        return [event for event in singles if not names or event[0] in names]

    def starts_of(self, request: Request) -> list[int]:
        """The first token of each of the request's shares; the very first says how much it did not compute."""
        return [
            item.start_tokens for batch in self.executor.batches for item in batch.items
            if item.request_id == request.id
        ]  # fmt: skip

    def seen(self, relation: str) -> set[tuple[int | str, ...]]:
        return self.engine.observe().relations[relation]

    # What must hold

    def check(self) -> None:
        seen = self.engine.observe()
        self.monitor.emit("observe", {**seen.relations, **seen.functions, "conflicts": seen.conflicts})
        assert self.monitor.verdict is None, self.monitor.verdict
        for request in self.requests:
            right = self.right_output(request)
            assert request.output == right[: len(request.output)], request
            if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert len(request.output) == len(right)
            if request.kv:
                self._check_record(request.kv, request.tokens(0, request.length_tokens).tolist())
        for slot in self.cache.sessions.slots.values():
            if slot.kv:
                self._check_record(slot.kv, slot.history.tolist())
        assert next(wrong_tree(self.executor, self.cache.tree.root), None) is None

    def _check_record(self, kv: KvRecord, tokens: list[int]) -> None:
        row = self.cache.rows.page_table[kv.row].numpy()
        assert wrong_row(self.executor, row, kv.committed_tokens, right_kv(tokens)) is None

    def right_output(self, request: Request) -> list[int]:
        """What the request has to say."""
        if request not in self._right:
            prompt = request.tokens(0, request.prompt_tokens).tolist()
            count = request.limit_tokens - request.prompt_tokens
            self._right[request] = continuation(prompt, count, sorted(request.stop_ids), self.shape)
        return self._right[request]

    def right_after(self, prompt: Sequence[int], count: int) -> list[int]:
        """The first `count` tokens after a prompt."""
        return continuation(prompt, count, shape=self.shape)
