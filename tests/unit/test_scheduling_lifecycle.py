"""Random serving under memory pressure: events against a naive law, tensors against its state, tokens against truth."""

import random
from collections import Counter

import pytest
from unit.naive_law import NaiveLaw

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.memory.events import ListSink
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import ForwardBatch
from freehold.impl.scheduling.request import FinishReason, Request
from freehold.model_check.content import ContentExecutor, continuation
from freehold.spec.errors import InvalidInput
from freehold.spec.state import Place
from freehold.spec.trace import Event, single_events

CONFIGS = {
    "page 1, room for two": EngineConfig(
        page_size=1, num_pages=60, max_context_tokens=40, max_running=6, chunk_tokens=8, num_rows=8
    ),
    "page 4, room for two": EngineConfig(
        page_size=4, num_pages=18, max_context_tokens=40, max_running=6, chunk_tokens=10, num_rows=8
    ),
    "page 4, room for one": EngineConfig(
        page_size=4, num_pages=10, max_context_tokens=40, max_running=4, chunk_tokens=6, num_rows=4
    ),
    "page 1, longest prefix": EngineConfig(
        page_size=1, num_pages=90, max_context_tokens=40, max_running=5, chunk_tokens=16, policy="longest_prefix"
    ),
}
STEPS = 1500
SESSIONS = ("north", "south", "east")


class Workload:
    """Clients with a seed: they ask, talk in sessions, hang up at any time; and a device that fails now and then."""

    def __init__(self, config: EngineConfig, seed: int) -> None:
        self.random = random.Random(seed)
        self.config = config
        self.sink = ListSink()
        self.engine = Engine(config, self.make_executor, sink=self.sink)
        self.law = NaiveLaw(
            num_pages=config.num_pages,
            num_rows=config.geometry.num_rows,
            row_width=config.max_context_tokens,
            page_size=config.page_size,
        )
        self.stems = [[self.random.randrange(40) for _ in range(20)] for _ in range(3)]
        self.requests: list[Request] = []
        self.aborted_at: Counter[Place] = Counter()
        self.events_seen: Counter[object] = Counter()
        self.retracts = self.reclaims = 0

    def make_executor(self, tables: KvTables) -> ContentExecutor:
        self.executor = ContentExecutor(tables, self.config.page_size)
        self.executor.before = self.disturb
        return self.executor

    def disturb(self, batch: ForwardBatch) -> None:
        """While the forward pass runs: the device fails, or a client hangs up."""
        if self.random.random() < 0.01:
            raise RuntimeError("the device is gone")
        if self.random.random() < 0.03:
            self.hang_up(self.random.choice(batch.items).request_id)

    def hang_up(self, request_id: str) -> None:
        request = self.engine.scheduler.queues.find(request_id)
        if request:
            self.aborted_at[request.place] += 1
        self.engine.abort(request_id)

    def prompt(self, longest: int) -> list[int]:
        """Often the beginning of a stem that others share, with a tail of its own."""
        stem = self.random.choice(self.stems)[: self.random.randint(0, 20)]
        return (stem + [self.random.randrange(40) for _ in range(self.random.randint(1, 6))])[:longest]

    def arrive(self) -> None:
        session = self.random.choice([None, None, *SESSIONS])
        if session and session not in self.engine.cache.sessions.slots:
            self.engine.open_session(session)
        prompt = self.prompt(30)
        longest = self.random.choice([10, 10, self.config.max_context_tokens - len(prompt)])
        try:
            request = self.engine.submit(
                prompt,
                max_new_tokens=self.random.randint(1, longest),
                stop_ids=[self.random.randrange(50)],
                session_id=session,
                publishes=self.random.random() < 0.9,
            )
            self.requests.append(request)
        except InvalidInput:  # the session is busy or closing, or its context is used up
            assert session
            if self.random.random() < 0.5 and session not in self.law.closing:
                self.engine.close_session(session)

    def step(self) -> None:
        """One step of the engine, then everything that can be compared is compared."""
        live = list(self.engine.scheduler.queues.waiting) + list(self.engine.scheduler.queues.holders())
        if self.random.random() < 0.05 and live:
            victim = self.random.choice(live)
            self.hang_up(victim if isinstance(victim, str) else victim.id)
        self.engine.step()
        for name, *args in self.sink.events:
            for event in single_events(Event(1, str(name), tuple(args))):
                self.count(event.name, list(event.args))
                self.law.apply(event.name, *event.args)
        self.sink.events.clear()
        seen = self.engine.observe()
        assert seen.conflicts == []
        assert seen.relations == self.law.relations()
        live_places = {r: place for r, place in seen.functions["place"].items() if place}
        assert {**seen.functions, "place": live_places} == self.law.functions()

    def count(self, name: object, args: list[object]) -> None:
        self.events_seen[name] += 1
        if name == "place" and args[1] == Place.WAITING:
            self.retracts += self.law.place_of.get(str(args[0]), 0) != Place.OUT
        if name == "unbind_row":
            self.reclaims += args[0] in {k for s, k in self.law.slot_kv.items() if s not in self.law.closing}


def check_tokens(workload: Workload) -> None:
    """Finished requests say what they had to say; unfinished ones stopped on the way to it."""
    for request in workload.requests:
        prompt = request.tokens(0, request.prompt_tokens).tolist()
        right = continuation(prompt, request.limit_tokens - request.prompt_tokens, list(request.stop_ids))
        if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert request.output == right
        else:
            assert request.output == right[: len(request.output)]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_no_page_is_lost_or_shared_and_every_token_is_right(config: EngineConfig) -> None:
    workload = Workload(config, seed=20)
    for number in range(STEPS):
        crowd = 8 if number % 200 < 120 else 1  # in between it is quiet, so that sessions keep what they saved
        if workload.random.random() < 0.5 and len(workload.engine.scheduler.queues.waiting) < crowd:
            workload.arrive()
        workload.step()
    while workload.engine.busy:
        workload.step()
    for session in list(workload.engine.cache.sessions.slots):
        workload.engine.close_session(session)
    workload.step()

    check_tokens(workload)
    assert workload.law.row_of == {}
    assert workload.events_seen.keys() >= {name.removeprefix("on_") for name in dir(NaiveLaw) if name.startswith("on_")}
    assert all(request.place is Place.OUT and request.kv is None for request in workload.requests)
    assert workload.aborted_at.keys() >= {Place.WAITING, Place.PREFILL, Place.PARKED, Place.RUNNING}
    assert workload.retracts > 0
    assert workload.reclaims > 0
    reasons = Counter(request.finish_reason for request in workload.requests)
    assert set(reasons) == set(FinishReason) - {FinishReason.TIMEOUT}
