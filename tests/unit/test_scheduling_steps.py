"""What one scheduler step does: chunks, mixed batches, retraction, aborts, turns, failures."""

from dataclasses import replace

import pytest

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.memory.events import ListSink
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.flight import Landed
from freehold.impl.scheduling.ports import ForwardBatch
from freehold.impl.scheduling.request import FinishReason, StepOutput
from freehold.impl.scheduling.scheduler import ExecutionFailed
from freehold.model_check.content import ContentExecutor, continuation
from freehold.spec.errors import InvalidInput, RuleBroken
from freehold.spec.state import Place

PROMPT = [7, 1, 8, 2, 8, 1, 8, 2, 8, 4]


class Setup:
    """An engine over a `ContentExecutor`, with every event kept."""

    def __init__(self, **sizes: object) -> None:
        defaults = {"page_size": 4, "num_pages": 24, "max_context_tokens": 32, "max_running": 4, "chunk_tokens": 8}
        self.sink = ListSink()
        self.engine = Engine(EngineConfig(**{**defaults, **sizes}), self.make_executor, sink=self.sink)  # type: ignore[arg-type]

    def make_executor(self, tables: KvTables) -> ContentExecutor:
        self.executor = ContentExecutor(tables, page_size=4)
        return self.executor

    def events(self) -> list[tuple[object, ...]]:
        happened = list(self.sink.events)
        self.sink.events.clear()
        return happened

    def names(self) -> list[object]:
        return [event[0] for event in self.events()]

    def shares(self) -> list[tuple[str, int, int, bool]]:
        """The last batch: who, from where, how many tokens, and whether a token was wanted."""
        items = self.executor.batches[-1].items
        return [(item.request_id, item.start_tokens, len(item.token_ids), item.samples) for item in items]


def test_a_long_prompt_goes_in_chunks_beside_the_decodes_of_others() -> None:
    setup = Setup()
    engine = setup.engine
    engine.submit([1, 2], request_id="short", max_new_tokens=9)
    engine.step()
    long = engine.submit(PROMPT * 2, request_id="long", max_new_tokens=2)
    engine.step()
    assert setup.shares() == [("short", 2, 1, True), ("long", 0, 8, False)]
    assert long.place is Place.PARKED
    engine.step()
    assert setup.shares() == [("short", 3, 1, True), ("long", 8, 8, False)]
    outputs = engine.step()
    assert setup.shares() == [("short", 4, 1, True), ("long", 16, 4, True)]
    first, last = continuation(PROMPT * 2, 2)
    assert outputs[1] == StepOutput("long", first, None)
    assert engine.step()[1] == StepOutput("long", last, FinishReason.LENGTH)
    assert long.kv is None
    assert engine.scheduler.departed == [long]


def test_the_chunk_budget_is_shared_by_the_prompts_of_a_step() -> None:
    setup = Setup()
    for name in "abc":
        setup.engine.submit([ord(name)] * 5, request_id=name, max_new_tokens=1)
    setup.engine.step()
    assert setup.shares() == [("a", 0, 5, True), ("b", 0, 3, False)]
    setup.engine.step()
    assert setup.shares() == [("b", 3, 2, True), ("c", 0, 5, True)]


def test_a_chunk_is_published_and_helps_the_next_request_at_once() -> None:
    setup = Setup()
    setup.engine.submit(PROMPT * 2, request_id="a", max_new_tokens=1)
    setup.engine.step()
    setup.engine.submit(PROMPT * 2, request_id="b", max_new_tokens=1)
    setup.engine.step()
    setup.engine.step()
    assert setup.shares() == [("a", 16, 4, True), ("b", 16, 4, True)]


def test_a_request_that_keeps_to_itself_publishes_nothing() -> None:
    setup = Setup()
    setup.engine.submit(PROMPT, max_new_tokens=3, publishes=False)
    setup.engine.run_until_idle()
    assert "publish" not in setup.names()
    assert setup.engine.cache.free_pages == 24


def test_a_stop_id_ends_the_output_with_it() -> None:
    setup = Setup()
    stop = continuation(PROMPT, 3)[2]
    request = setup.engine.submit(PROMPT, max_new_tokens=9, stop_ids=[stop])
    assert setup.engine.run_until_idle()[-1].finish_reason is FinishReason.STOP
    assert request.output == continuation(PROMPT, 9, [stop])


def test_output_without_a_limit_fills_the_context() -> None:
    setup = Setup()
    request = setup.engine.submit(PROMPT)
    setup.engine.run_until_idle()
    assert (len(request.output), request.finish_reason) == (22, FinishReason.LENGTH)


def test_the_youngest_gives_way_keeps_its_tokens_and_comes_back_first() -> None:
    setup = Setup(num_pages=8, num_rows=4)
    requests = [setup.engine.submit([n] * 8, request_id=f"r{n}", max_new_tokens=16) for n in range(3)]
    setup.engine.step()
    setup.events()
    kept: list[int] = []
    while ("place", "r1", Place.WAITING) not in setup.events():
        kept = requests[1].output
        setup.engine.step()
        assert requests[0].place is Place.RUNNING
    assert len(kept) > 1
    assert requests[1].output == kept
    assert requests[1].kv is None
    assert list(setup.engine.scheduler.queues.waiting) == ["r1", "r2"]
    setup.engine.run_until_idle()
    for n, request in enumerate(requests):
        assert request.output == continuation([n] * 8, 16)


def test_a_step_in_which_someone_gave_way_admits_nobody() -> None:
    setup = Setup(num_pages=8, policy="priority", max_running=2)
    for n in range(2):
        setup.engine.submit([n] * 4, request_id=f"r{n}", max_new_tokens=24)
    setup.engine.step()
    setup.engine.submit([2], request_id="small", priority=1, max_new_tokens=2)  # there is no seat for it yet
    setup.events()
    events: list[tuple[object, ...]] = []
    while ("place", "r1", Place.WAITING) not in events:
        setup.engine.step()
        events = setup.events()
    assert "bind_row" not in [event[0] for event in events]
    setup.engine.step()
    assert ("place", "small", Place.PREFILL) in setup.events()


def test_one_request_may_fill_the_whole_pool_whatever_others_left_there() -> None:
    setup = Setup(num_pages=8)
    setup.engine.open_session("s")
    setup.engine.submit(PROMPT, session_id="s", max_new_tokens=4)
    setup.engine.submit([3] * 10, max_new_tokens=4)
    setup.engine.run_until_idle()
    setup.events()
    request = setup.engine.submit([4] * 20, max_new_tokens=12)
    setup.engine.run_until_idle()
    assert request.output == continuation([4] * 20, 12)
    names = setup.names()
    assert "evict" in names
    assert setup.engine.cache.sessions.find("s").kv is None


def test_a_waiting_turn_may_lose_what_was_saved_and_computes_it_again() -> None:
    setup = Setup(num_pages=8, max_running=1)
    engine = setup.engine
    engine.open_session("s")
    first = engine.submit(PROMPT, session_id="s", max_new_tokens=4)
    engine.run_until_idle()
    engine.submit([4] * 20, max_new_tokens=12, request_id="big")
    engine.step()
    turn = engine.submit([5, 6], session_id="s", max_new_tokens=3)
    engine.run_until_idle()
    assert turn.tokens(0, 16).tolist() == [*PROMPT, *first.output, 5, 6]
    assert turn.output == continuation([*PROMPT, *first.output, 5, 6], 3)


def test_a_turn_goes_on_where_the_last_one_ended() -> None:
    setup = Setup()
    setup.engine.open_session("s")
    first = setup.engine.submit(PROMPT[:5], session_id="s", max_new_tokens=4)
    setup.engine.run_until_idle()
    setup.events()
    second = setup.engine.submit([9, 9], session_id="s", request_id="t", max_new_tokens=2)
    setup.engine.step()
    assert setup.shares() == [("t", 8, 3, True)]  # the last token of a turn is written by the next one
    setup.engine.run_until_idle()
    assert second.output == continuation([*PROMPT[:5], *first.output, 9, 9], 2)
    assert setup.events() == [
        ("use", "s", "t"), ("place", "t", Place.WAITING),
        ("transfer_to_request", "s", 1, "t"), ("place", "t", Place.PREFILL),
        ("acquire", 1, [3]), ("extend", 1, [3], 11), ("commit", 1, 11), ("place", "t", Place.RUNNING), ("mark", "step"),
        ("extend", 1, [], 12), ("commit", 1, 12),
        ("transfer_to_session", "t", 1, "s"), ("unuse", "s", "t"), ("place", "t", Place.OUT),
        ("mark", "step"), ("mark", "quiescent"),
    ]  # fmt: skip


def test_a_session_that_closes_under_its_turn_ends_with_it() -> None:
    setup = Setup()
    setup.engine.open_session("s")
    turn = setup.engine.submit(PROMPT, session_id="s", max_new_tokens=3)
    setup.engine.step()
    setup.engine.close_session("s")
    with pytest.raises(InvalidInput, match="closing"):
        setup.engine.submit([1], session_id="s")
    setup.engine.run_until_idle()
    assert turn.output == continuation(PROMPT, 3)
    assert setup.engine.cache.sessions.slots == {}
    assert setup.engine.cache.free_pages == 24


def test_a_second_turn_is_refused_while_one_is_live() -> None:
    setup = Setup()
    setup.engine.open_session("s")
    setup.engine.submit(PROMPT, session_id="s", request_id="t1")
    with pytest.raises(InvalidInput, match="live turn 't1'"):
        setup.engine.submit([1], session_id="s")
    assert list(setup.engine.scheduler.queues.waiting) == ["t1"]


@pytest.mark.parametrize("steps", range(4))
def test_an_abort_gives_everything_back_wherever_the_request_is(steps: int) -> None:
    setup = Setup()
    request = setup.engine.submit(PROMPT * 2, request_id="r", max_new_tokens=9, publishes=False)
    for _ in range(steps):
        setup.engine.step()
    where = [Place.WAITING, Place.PARKED, Place.PARKED, Place.RUNNING]
    assert request.place is where[steps]
    setup.engine.abort("r")
    setup.engine.abort("r")
    assert setup.engine.step() == [StepOutput("r", None, FinishReason.ABORT)]
    setup.engine.abort("r")
    assert setup.engine.step() == []
    assert setup.engine.cache.free_pages == 24
    assert request.kv is None


def test_an_abort_is_meant_for_who_has_the_name_now_and_not_for_who_gets_it_next() -> None:
    setup = Setup()
    setup.engine.abort("r")
    first = setup.engine.submit(PROMPT[:5], request_id="r", max_new_tokens=1)
    setup.executor.before = lambda batch: setup.engine.abort("r")  # too late: it ends with this step
    while first.finish_reason is None:
        setup.engine.step()
    setup.executor.before = lambda batch: None
    second = setup.engine.submit(PROMPT[:5], request_id="r", max_new_tokens=3)
    setup.engine.run_until_idle()
    assert (len(first.output), len(second.output)) == (1, 3)


def test_an_abort_during_the_forward_pass_waits_for_its_end() -> None:
    setup = Setup()
    request = setup.engine.submit(PROMPT, request_id="r", max_new_tokens=9)
    setup.executor.before = lambda batch: setup.engine.abort("r")
    setup.engine.step()
    assert request.place is Place.PARKED
    setup.engine.step()
    assert (request.place, request.finish_reason) == (Place.OUT, FinishReason.ABORT)


def test_an_aborted_turn_leaves_what_the_last_finished_one_had() -> None:
    setup = Setup()
    engine = setup.engine
    engine.open_session("s")
    engine.submit(PROMPT[:5], session_id="s", max_new_tokens=2)
    engine.run_until_idle()
    history = engine.cache.sessions.find("s").history.tolist()
    engine.submit(PROMPT, session_id="s", request_id="t", max_new_tokens=9)
    engine.step()
    engine.abort("t")
    setup.events()
    engine.step()
    assert setup.events() == [
        ("truncate", 1, 6), ("release", 1, [3, 4]), ("transfer_to_session", "t", 1, "s"),
        ("unuse", "s", "t"), ("place", "t", Place.OUT), ("mark", "step"), ("mark", "quiescent"),
    ]  # fmt: skip
    slot = engine.cache.sessions.find("s")
    assert slot.kv is not None
    assert slot.history.tolist() == history


def test_a_first_turn_that_is_aborted_leaves_an_empty_slot() -> None:
    setup = Setup()
    setup.engine.open_session("s")
    setup.engine.submit(PROMPT, session_id="s", request_id="t", max_new_tokens=9)
    setup.engine.step()
    setup.engine.abort("t")
    setup.engine.step()
    assert setup.engine.cache.sessions.find("s").kv is None
    assert setup.engine.cache.free_pages == 24


def test_a_failed_forward_pass_ends_its_requests_and_no_others() -> None:
    def fail(batch: ForwardBatch) -> None:
        raise RuntimeError("the device is gone")

    setup = Setup(max_running=2)
    requests = [setup.engine.submit([n] * 8, request_id=f"r{n}", max_new_tokens=2) for n in range(3)]
    setup.engine.step()
    setup.executor.before = fail
    assert setup.engine.step() == [StepOutput(f"r{n}", None, FinishReason.ERROR) for n in range(2)]
    for request in requests[:2]:
        assert isinstance(request.error, ExecutionFailed)
        assert "the device is gone" in str(request.error)
        assert request.kv is None
    setup.executor.before = lambda batch: None
    setup.engine.run_until_idle()
    assert requests[2].output == continuation([2] * 8, 2)
    assert setup.engine.observe().relations["owns"] == set()


@pytest.mark.parametrize("answer", [[], [None], [1, 2]])
def test_an_answer_that_does_not_fit_the_batch_is_a_failure(answer: list[int | None]) -> None:
    class Wrong(ContentExecutor):
        def launch(self, batch: ForwardBatch) -> Landed:  # type: ignore[override]
            return Landed(answer)

    engine = Engine(EngineConfig(), lambda tables: Wrong(tables, page_size=16))
    engine.submit([1, 2])
    assert engine.run_until_idle()[0].finish_reason is FinishReason.ERROR


def test_pages_that_leaked_are_noticed_as_a_broken_rule_and_not_as_an_endless_loop() -> None:
    setup = Setup(num_pages=8)
    setup.engine.cache.pages.full.alloc(6)
    setup.engine.submit(PROMPT, max_new_tokens=4)
    with pytest.raises(RuleBroken, match="leaked"):
        setup.engine.run_until_idle()


def test_longest_prefix_serves_hits_first_but_never_passes_over_the_head() -> None:
    setup = Setup(policy="longest_prefix", max_running=1, chunk_tokens=32)
    setup.engine.submit(PROMPT, max_new_tokens=1)
    setup.engine.run_until_idle()
    for name, prompt in {"head": [1] * 9, "cold": [2] * 9, "warm": PROMPT}.items():
        setup.engine.submit(prompt, request_id=name, max_new_tokens=1)
    setup.engine.scheduler.limits = replace(setup.engine.scheduler.limits, max_running=2)
    setup.engine.step()
    assert [share[0] for share in setup.shares()] == ["head", "warm"]


def test_no_more_requests_run_than_may() -> None:
    setup = Setup(max_running=2, chunk_tokens=32)
    for n in range(4):
        setup.engine.submit([n] * 3, max_new_tokens=3)
    while setup.engine.busy:
        setup.engine.step()
        assert len(setup.executor.batches[-1].items) <= 2


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        ([], {}, "empty"),
        ([1] * 32, {}, "exceed the context of 32"),
        ([1] * 30, {"max_new_tokens": 3}, "exceed the context of 32"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens"),
        ([-1], {}, "token ids"),
        ([1], {"session_id": "nobody"}, "not open"),
        ([1], {"request_id": "taken"}, "live already"),
    ],
)
def test_what_cannot_be_served_is_refused_and_leaves_no_trace(
    prompt: list[int], options: dict[str, object], says: str
) -> None:
    setup = Setup()
    setup.engine.submit([1], request_id="taken")
    setup.events()
    with pytest.raises(InvalidInput, match=says):
        setup.engine.submit(prompt, **options)  # type: ignore[arg-type]
    assert setup.events() == []
    assert list(setup.engine.scheduler.queues.waiting) == ["taken"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"page_size": 5}, "power of two"),
        ({"num_pages": 7}, "at least 8 pages"),
        ({"max_running": 0}, "max_running"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
        ({"num_rows": 3}, "num_rows"),
        ({"policy": "luck"}, "first_come, longest_prefix"),
    ],
)
def test_an_impossible_configuration_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Setup(**wrong)
