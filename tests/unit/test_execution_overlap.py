"""Steps launched before the last one's tokens are known: by placeholder, on a worker's thread, in order."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from unit.paged_bench import Bench, generated, item
from unit.tiny_models import VOCABULARY, prompt

from freehold.impl.execution.paths import AttentionPath, KernelPath, TorchPath
from freehold.impl.execution.worker import Worker
from freehold.impl.scheduling.ports import PENDING, ForwardBatch
from freehold.spec.errors import InvalidInput

PATIENCE_S = 60.0


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@dataclass
class Gated:
    """A runner whose steps each wait for leave to end, and say who prepared and who ran them."""

    leave: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    log: list[tuple[str, object]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def prepare(self, batch: ForwardBatch) -> str:
        name = batch.items[0].request_id
        self.log.append(("prepare", name))
        if name == "r7":
            raise InvalidInput("r7 cannot be prepared")
        return name

    def run(self, step: str) -> list[int | None]:
        assert self.leave.acquire(timeout=PATIENCE_S)
        self.threads.add(threading.get_ident())
        self.log.append(("run", step))
        if step == "r6":
            raise RuntimeError("the forward of r6 failed")
        return [int(step[1:])]

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.log.append(("copy", tuple(pairs)))
        if (6, 6) in pairs:
            raise InvalidInput("6 cannot be copied")


@pytest.fixture
def gated() -> Gated:
    return Gated()


@pytest.fixture
def worker(gated: Gated) -> Iterator[Worker]:
    worker = Worker(gated)
    yield worker
    gated.leave.release(100)
    worker.close()


def batch(row: int) -> ForwardBatch:
    return ForwardBatch(items=(item(row, (1,), 0),))


def test_steps_are_prepared_at_once_and_run_in_order_on_one_other_thread(worker: Worker, gated: Gated) -> None:
    flights = [worker.launch(batch(row)) for row in (3, 1, 2)]
    assert gated.log == [("prepare", "r3"), ("prepare", "r1"), ("prepare", "r2")]
    assert not any(flight.ready() for flight in flights)
    gated.leave.release()
    assert flights[0].result() == [3]
    assert flights[0].ready()
    assert not flights[1].ready()
    gated.leave.release(2)
    assert [flight.result() for flight in reversed(flights)] == [[2], [1], [3]]
    assert gated.log[3:] == [("run", "r3"), ("run", "r1"), ("run", "r2")]
    assert len(gated.threads) == 1
    assert threading.get_ident() not in gated.threads


def test_what_a_step_raises_comes_out_of_its_result_and_the_next_step_runs(worker: Worker, gated: Gated) -> None:
    gated.leave.release(2)
    failing, sound = worker.launch(batch(6)), worker.launch(batch(2))
    assert sound.result() == [2]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the forward of r6 failed"):
            failing.result()


def test_what_cannot_be_prepared_raises_at_launch(worker: Worker, gated: Gated) -> None:
    gated.leave.release(1)
    with pytest.raises(InvalidInput, match="cannot be prepared"):
        worker.launch(batch(7))
    assert worker.launch(batch(2)).result() == [2]
    assert ("run", "r7") not in gated.log


def test_states_are_copied_between_the_steps_around(worker: Worker, gated: Gated) -> None:
    first = worker.launch(batch(1))
    worker.copy_states([(1, 2)])
    second = worker.launch(batch(2))
    assert ("copy", ((1, 2),)) not in gated.log
    gated.leave.release(2)
    assert (first.result(), second.result()) == ([1], [2])
    assert gated.log[2:] == [("run", "r1"), ("copy", ((1, 2),)), ("run", "r2")]


def test_a_failed_copy_fails_the_step_behind_it_only(worker: Worker, gated: Gated) -> None:
    gated.leave.release(3)
    before = worker.launch(batch(1))
    worker.copy_states([(6, 6)])
    behind, later = worker.launch(batch(2)), worker.launch(batch(3))
    assert before.result() == [1]
    with pytest.raises(InvalidInput, match="6 cannot be copied"):
        behind.result()
    assert later.result() == [3]


def test_close_ends_what_was_launched_and_refuses_more(gated: Gated) -> None:
    worker = Worker(gated)
    flight = worker.launch(batch(4))
    gated.leave.release()
    worker.close()
    assert flight.ready()
    assert flight.result() == [4]
    worker.close()
    with pytest.raises(InvalidInput, match="closed"):
        worker.launch(batch(1))
    with pytest.raises(InvalidInput, match="closed"):
        worker.copy_states([(1, 2)])
    assert ("prepare", "r1") not in gated.log


@pytest.mark.parametrize("name", ["gpt_oss", "falcon_h1"])
def test_steps_ahead_say_what_steps_in_turn_say(name: str) -> None:
    """Every step is launched before any result is taken: prefill in chunks, then decodes of pending tokens."""
    bench = Bench(name, 4)
    prompts = {1: prompt(11, 1), 2: prompt(6, 2)}
    for row, ids in prompts.items():
        bench.give(row, len(ids) + 8)
    worker = Worker(bench.runner)
    flights = [
        worker.launch(ForwardBatch(items=(item(2, prompts[2][:4], 0, samples=False), item(1, prompts[1], 0)))),
        worker.launch(ForwardBatch(items=(item(2, prompts[2][4:], 4), item(1, (PENDING,), 11)))),
    ]
    for step in range(6):
        items = (item(1, (PENDING,), 12 + step), item(2, (PENDING,), 6 + step))
        flights.append(worker.launch(ForwardBatch(items=items)))
    results = [flight.result() for flight in flights]
    worker.close()
    assert [results[0][1], results[1][1], *(tokens[0] for tokens in results[2:])] == generated(name, prompts[1], 8)
    assert [results[1][0], *(tokens[1] for tokens in results[2:])] == generated(name, prompts[2], 7)
    assert results[0][0] is None


@pytest.mark.parametrize("path", [TorchPath(), KernelPath()])
def test_the_tables_are_read_at_launch(path: AttentionPath) -> None:
    """What the scheduler does to a row after the launch does not reach the step: a prefill, then a decode."""
    bench = Bench("gemma3", 4)
    bench.runner.planner = replace(bench.runner.planner, path=path)
    ids = list(prompt(9, 4))
    bench.give(1, 10)
    tables = (bench.page_table, bench.tables.peers)
    before = [table.clone() for table in tables]
    for start in (0, 9):
        step = bench.runner.prepare(ForwardBatch(items=(item(1, ids[start:], start),)))
        for table in tables:
            table.zero_()
        ids.extend(token for token in bench.runner.run(step) if token is not None)
        for table, saved in zip(tables, before, strict=True):
            table.copy_(saved)
    assert ids[9:] == generated("gemma3", ids[:9], 2)


def test_a_pending_token_behind_a_failed_step_is_some_token() -> None:
    bench = Bench("llama", 4)
    bench.give(1, 8)
    failed = bench.runner.launch(ForwardBatch(items=(item(1, (VOCABULARY + 5,), 0),)))
    behind = bench.runner.launch(ForwardBatch(items=(item(1, (PENDING,), 1),)))
    with pytest.raises(IndexError):
        failed.result()
    (token,) = behind.result()
    assert token is not None
    assert 0 <= token < VOCABULARY


def test_a_pending_token_is_for_decodes() -> None:
    bench = Bench("llama", 4)
    bench.give(1, 8)
    with pytest.raises(InvalidInput, match="pending token in a chunk"):
        bench.step(item(1, (5, PENDING), 0))


def test_what_the_model_raises_comes_out_of_the_flight() -> None:
    bench = Bench("llama", 4)
    bench.give(1, 8)
    flight = bench.runner.launch(ForwardBatch(items=(item(1, (VOCABULARY + 5,), 0),)))
    assert flight.ready()
    with pytest.raises(IndexError):
        flight.result()
    assert bench.step(item(1, prompt(5, 1), 0)) == generated("llama", prompt(5, 1), 1)
