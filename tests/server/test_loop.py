"""The engine's thread: calls between steps, all jobs or none, and an end after which nothing is held."""

import time
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread

import pytest
from server.harness import WAIT_S, Gate, SuccessorExecutor, make_engine, nothing_is_held

from freehold.impl.engine import Engine
from freehold.impl.scheduling.ports import ForwardBatch
from freehold.impl.scheduling.request import FinishReason
from freehold.impl.serving.errors import status_of
from freehold.impl.serving.loop import EngineLoop, EngineUnavailable, Job, RequestTimedOut, Update
from freehold.impl.serving.streams import blocking_updates
from freehold.spec.errors import InvalidInput

Running = tuple[EngineLoop, Engine, SuccessorExecutor]


@pytest.fixture
def running() -> Iterator[Running]:
    engine, executor, monitor = make_engine()
    with EngineLoop(engine) as loop:
        yield loop, engine, executor
        executor.before = lambda batch: None
    assert monitor.verdict is None
    assert nothing_is_held(engine)


def job(name: str, tokens: int = 3, prompt: tuple[int, ...] = (1, 2)) -> Job:
    return Job(request_id=name, prompt=prompt, max_new_tokens=tokens)


def next_of(updates: "SimpleQueue[Update]") -> Update:
    return updates.get(timeout=WAIT_S)


def test_updates_come_one_a_token(running: Running) -> None:
    loop, _, _ = running
    assert list(blocking_updates(loop, job("a"))) == [
        Update("a", 3, None),
        Update("a", 4, None),
        Update("a", 5, FinishReason.LENGTH),
    ]


def test_closing_the_iterator_aborts_the_job(running: Running) -> None:
    loop, _, executor = running
    gate = Gate()
    executor.before = gate
    gate.let_through(1)
    updates = blocking_updates(loop, job("a", tokens=100))
    assert next(updates).token == 3
    updates.close()  # type: ignore[attr-defined]
    gate.let_through(1)
    while loop.call(lambda engine: engine.busy).result(timeout=WAIT_S):
        pass
    assert loop.call(nothing_is_held).result(timeout=WAIT_S)


def test_all_jobs_are_taken_or_none(running: Running) -> None:
    loop, _, _ = running
    updates: SimpleQueue[Update] = SimpleQueue()
    with pytest.raises(InvalidInput, match="empty"):
        loop.submit([job("a"), job("b", prompt=())], updates.put).result(timeout=WAIT_S)
    while loop.call(lambda engine: engine.busy).result(timeout=WAIT_S):
        pass
    assert updates.empty()
    loop.submit([job("a"), job("b")], updates.put).result(timeout=WAIT_S)  # the names are free again
    ended = [next_of(updates) for _ in range(6)]
    assert {update.request_id for update in ended if update.finish_reason} == {"a", "b"}


def test_an_aborted_job_has_no_further_update(running: Running) -> None:
    loop, _, executor = running
    gate = Gate()
    executor.before = gate
    updates: SimpleQueue[Update] = SimpleQueue()
    loop.submit([job("a", tokens=50), job("b", tokens=4)], updates.put).result(timeout=WAIT_S)
    gate.wait_until_entered()
    loop.abort(["a", "b", "unknown"])
    loop.submit([job("c", tokens=1)], updates.put)
    gate.let_through(3)
    seen = next_of(updates)
    while seen.request_id != "c":  # the step that was under way
        assert seen.finish_reason is None
        seen = next_of(updates)
    assert updates.empty()


def test_a_listener_that_is_gone_loses_its_job(running: Running) -> None:
    loop, _, _ = running

    def gone(update: Update) -> None:
        raise RuntimeError("the event loop is closed")

    loop.submit([job("a", tokens=100)], gone).result(timeout=WAIT_S)
    assert [update.token for update in blocking_updates(loop, job("b"))] == [3, 4, 5]
    assert loop.call(lambda engine: engine.scheduler.queues.find("a")).result(timeout=WAIT_S) is None


class StoppedClock:
    """Stands at `seconds` until somebody moves it."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


def test_a_request_that_runs_out_of_time_ends_with_an_error_and_its_tokens_so_far() -> None:
    engine, executor, monitor = make_engine(running_timeout_s=5.0)
    clock = engine.scheduler.clock = StoppedClock()

    def second_step_takes_long(batch: ForwardBatch) -> None:
        if len(executor.batches) == 2:
            clock.seconds = 6.0

    executor.before = second_step_takes_long
    with EngineLoop(engine) as loop:
        *tokens, last = blocking_updates(loop, job("a", tokens=9))
    assert [update.token for update in tokens] == [3, 4]
    assert (last.token, last.finish_reason) == (None, FinishReason.TIMEOUT)
    assert isinstance(last.error, RequestTimedOut)
    assert status_of(last.error) == 503
    assert nothing_is_held(engine)
    assert monitor.verdict is None


def test_a_call_that_raises_harms_nobody(running: Running) -> None:
    loop, _, _ = running
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda engine: 1 // 0).result(timeout=WAIT_S)
    assert loop.call(lambda engine: engine.config.page_size).result(timeout=WAIT_S) == 4


def test_closing_aborts_requests_and_ends_sessions() -> None:
    engine, executor, monitor = make_engine(max_context_tokens=4096, num_pages=2048)
    loop = EngineLoop(engine)
    assert "not been started" in str(loop.unable)
    loop.start()
    assert loop.unable is None
    loop.call(lambda engine: engine.open_session("s")).result(timeout=WAIT_S)
    loop.call(lambda engine: engine.submit([1] * 5, session_id="s", max_new_tokens=2)).result(timeout=WAIT_S)
    gate = Gate()
    updates: SimpleQueue[Update] = SimpleQueue()
    executor.before = gate
    loop.submit([job("a", tokens=4000), job("b", tokens=4000)], updates.put)
    closing = Thread(target=loop.close)
    closing.start()
    while closing.is_alive():
        gate.let_through(1)
        time.sleep(0.01)
    loop.close()
    last = {}
    while not updates.empty():
        update = updates.get()
        last[update.request_id] = update
    assert [last[name].finish_reason for name in "ab"] == [FinishReason.ABORT] * 2
    assert all(isinstance(update.error, EngineUnavailable) for update in last.values())
    assert nothing_is_held(engine)
    assert not engine.cache.sessions.slots
    assert monitor.verdict is None
    with pytest.raises(EngineUnavailable, match="shut down"):
        loop.submit([job("c")], updates.put).result(timeout=WAIT_S)


def test_closing_with_grace_lets_jobs_finish() -> None:
    engine, executor, _ = make_engine(max_context_tokens=4096, num_pages=2048)
    loop = EngineLoop(engine)
    loop.start()
    gate = Gate()
    updates: SimpleQueue[Update] = SimpleQueue()
    executor.before = gate
    loop.submit([job("a", tokens=4000)], updates.put)
    closing = Thread(target=loop.close, args=(WAIT_S,))
    closing.start()
    while loop.unable is None:  # from here on it takes nothing more
        gate.let_through(1)
        time.sleep(0.01)
    refused = loop.submit([job("b")], updates.put)
    gate.let_through(4000)
    with pytest.raises(EngineUnavailable, match="shutting down"):
        refused.result(timeout=WAIT_S)
    closing.join(timeout=WAIT_S)
    assert not closing.is_alive()
    last = [next_of(updates) for _ in range(4000)][-1]
    assert last.finish_reason is FinishReason.LENGTH
    assert nothing_is_held(engine)


def test_a_loop_that_never_ran_closes() -> None:
    loop = EngineLoop(make_engine()[0])
    loop.close()
    assert loop.failure is None
