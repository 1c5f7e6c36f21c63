"""One step ahead of the forward pass: who ends in flight, steps that fail, and units that wait for the fence."""

import pytest
from unit.stepped import Stepped, text

from freehold.impl.engine import EngineConfig
from freehold.impl.scheduling.ports import PENDING, ForwardBatch
from freehold.impl.scheduling.request import FinishReason, StepOutput
from freehold.spec.errors import InvalidInput
from freehold.spec.state import Place


def stop_at(engine: Stepped, prompt: list[int], tokens: int) -> dict[str, object]:
    """Options with which a request ends by a stop id, as its so-manieth token."""
    right = engine.right_after(prompt, tokens)
    assert right[-1] not in right[:-1]
    return {"stop_ids": [right[-1]], "max_new_tokens": 20}


def test_a_step_is_launched_before_the_one_ahead_of_it_has_landed() -> None:
    engine = Stepped(overlap=True)
    engine.submit(text(1, 5), max_new_tokens=3)
    assert engine.step() == []
    assert [batch.items[0].token_ids for batch in engine.executor.batches] == [tuple(text(1, 5))]
    (output,) = engine.step()
    assert output.token is not None
    assert engine.executor.batches[1].items[0].token_ids == (PENDING,)
    engine.run()
    assert len(engine.events("lend")) == 3  # nothing is computed for a token beyond the limit


def test_steps_land_in_the_order_of_their_launch_at_most_one_behind() -> None:
    engine = Stepped(overlap=True)
    for n in range(3):
        engine.submit(text(n, 5 + n), max_new_tokens=6)
    engine.run()
    in_flight, most, closed = list[object](), 0, list[object]()
    for name, loan, *_ in engine.events("lend", "loan_close"):
        if name == "lend":
            in_flight.append(loan)
        else:
            in_flight.remove(loan)
            closed.append(loan)
        most = max(most, len(in_flight))
    assert closed == sorted(closed, key=int)  # type: ignore[call-overload]
    assert most == 2 * 3
    assert in_flight == []


def test_what_a_finished_request_gives_back_is_free_only_after_the_fence() -> None:
    engine = Stepped(overlap=True)
    prompt = text(1, 6)
    request = engine.submit(prompt, publishes=False, **stop_at(engine, prompt, 4))
    while request.finish_reason is None:
        engine.step()
    assert (request.finish_reason, request.kv, engine.engine.busy) == (FinishReason.STOP, None, True)
    assert engine.seen("held") == {(1,), (2,), (3,)}
    assert engine.cache.free_pages == 32 - 3
    assert engine.step() == []
    assert engine.seen("held") == set()
    assert engine.cache.free_pages == 32
    assert not engine.engine.busy


def test_what_waits_for_a_fence_is_given_to_nobody_before() -> None:
    engine = Stepped(overlap=True, num_pages=12)
    prompt = text(1, 22)
    request = engine.submit(prompt, publishes=False, **stop_at(engine, prompt, 3))
    while request.finish_reason is None:
        engine.step()
    held = {page for (page,) in engine.seen("held")}
    assert len(held) == 7
    engine.events()
    other = engine.submit(text(2, 26), max_new_tokens=4, publishes=False)
    engine.run()
    events = engine.events("acquire", "loan_close")
    fence = [event[0] for event in events].index("loan_close")
    assert not held & {page for name, _, pages in events[:fence] if name == "acquire" for page in pages}
    assert held & {page for name, _, pages in events[fence:] if name == "acquire" for page in pages}
    assert len(other.output) == 4


@pytest.mark.parametrize(
    ("steps", "place"), [(0, Place.WAITING), (1, Place.PREFILL), (2, Place.PREFILL), (3, Place.RUNNING)]
)
@pytest.mark.parametrize("beside", [False, True])
def test_an_abort_in_flight_gives_everything_back_behind_the_fence(steps: int, place: Place, beside: bool) -> None:
    engine = Stepped(overlap=True, chunk_tokens=8, window_tokens=4, num_swa_pages=24)
    if beside:
        other = engine.submit(text(2, 3), max_new_tokens=12, publishes=False)
        engine.step()
        engine.step()
    request = engine.submit(text(1, 14), request_id="r", max_new_tokens=9, publishes=False)
    for _ in range(steps):
        engine.step()
    assert request.place is place
    kept = request.output
    engine.engine.abort("r")
    outputs = engine.step()
    assert outputs[0] == StepOutput("r", None, FinishReason.ABORT)
    assert [output for output in outputs[1:] if output.request_id == "r"] == []
    assert (request.kv, request.output) == (None, kept)
    engine.run()
    assert (engine.cache.pages.full.free_pages, engine.cache.pages.swa.free_pages) == (32, 24)
    if beside:
        assert len(other.output) == 12


def test_an_aborted_request_leaves_its_pages_with_the_step_in_flight_while_that_is_computed() -> None:
    engine = Stepped(overlap=True)
    engine.submit(text(1, 6), request_id="r", max_new_tokens=9, publishes=False)
    engine.step()
    held = []
    engine.executor.before = lambda batch: held.append(engine.seen("held"))
    engine.engine.abort("r")
    engine.step()
    assert held == [{(1,), (2,)}]
    assert engine.cache.free_pages == 32


def test_a_failed_step_ends_its_requests_and_those_of_the_step_behind_it_go_on_unless_they_had_a_share() -> None:
    engine = Stepped(overlap=True)
    first = engine.submit(text(1, 6), request_id="a", max_new_tokens=9)
    engine.step()
    second = engine.submit(text(2, 6), request_id="b", max_new_tokens=9)
    engine.fail_next_forward()
    outputs = engine.step()  # launches a decode of both, then the prefill of the first one fails
    assert [item.request_id for item in engine.executor.batches[1].items] == ["a", "b"]
    assert outputs == [StepOutput("a", None, FinishReason.ERROR)]
    assert "the device is gone" in str(first.error)
    assert second.place is Place.PREFILL
    assert engine.seen("held") == {(1,), (2,)}  # what the first one gave back, for the step behind
    engine.run()
    assert (first.output, len(second.output)) == ([], 9)
    assert engine.seen("owns") == engine.seen("held") == set()


def test_a_step_that_fails_behind_one_that_lands_ends_whoever_has_a_share_in_it() -> None:
    engine = Stepped(overlap=True)
    for n in range(2):
        engine.submit(text(n, 6), request_id=f"r{n}", max_new_tokens=9)
        engine.step()
    engine.fail_next_forward()
    assert [output.finish_reason for output in engine.step()] == [FinishReason.ERROR] * 2
    engine.run()
    assert [len(request.output) for request in engine.requests] == [1, 0]
    assert engine.seen("owns") == set()


def test_both_steps_in_flight_may_fail() -> None:
    engine = Stepped(overlap=True)

    def fails(batch: ForwardBatch) -> None:
        raise RuntimeError("the device is gone")

    engine.submit(text(1, 6), request_id="a", max_new_tokens=9, publishes=False)
    engine.step()
    engine.submit(text(2, 6), request_id="b", max_new_tokens=9, publishes=False)
    engine.executor.before = fails
    outputs = engine.run()
    assert [(output.request_id, output.finish_reason) for output in outputs] == [
        ("a", FinishReason.ERROR), ("b", FinishReason.ERROR),
    ]  # fmt: skip
    assert engine.cache.free_pages == 32
    assert [event[2].name for event in engine.events("loan_close")] == [
        "FAILED"
    ] * 4  # the second step failed under a third one


def test_a_turn_that_ended_under_a_stale_step_saves_what_is_right_and_the_next_one_writes_behind_that_step() -> None:
    engine = Stepped(overlap=True)
    engine.engine.open_session("s")
    prompt = text(1, 5)
    first = engine.submit(prompt, session_id="s", **stop_at(engine, prompt, 2))
    while first.finish_reason is None:
        engine.step()
    assert len(engine.seen("out")) == 1  # a step that writes where the next turn will
    (kv,) = [slot.kv for slot in engine.cache.sessions.slots.values()]
    assert kv
    second = engine.submit([11, 12, 13], session_id="s", max_new_tokens=5)
    engine.step()
    assert second.kv is kv
    assert engine.starts_of(second) == [6]
    engine.run()
    assert len(second.output) == 5
    third = engine.submit([14], session_id="s", max_new_tokens=5)
    engine.run()
    assert third.prompt_tokens == second.length_tokens + 1


def test_pages_that_a_turn_let_go_of_under_a_stale_step_are_not_promised_to_anybody() -> None:
    engine = Stepped(overlap=True, num_pages=16, chunk_tokens=64)
    prefix = text(1, 24)
    engine.submit(prefix, max_new_tokens=1)
    engine.run()
    engine.engine.open_session("s")
    turn = engine.submit([*prefix, 30], session_id="s", **stop_at(engine, [*prefix, 30], 2))
    while turn.finish_reason is None:
        engine.step()
    engine.submit([1, 2], session_id="s", rewind_to=0, max_new_tokens=1)  # unlocks what the step in flight reads
    large = engine.submit(text(5, 47), max_new_tokens=1)
    engine.run()
    assert len(large.output) == 1


def workload(overlap: bool, **sizes: int) -> list[list[int]]:
    """The output of many requests and turns in a pool too small for all of them."""
    engine = Stepped(overlap=overlap, num_pages=24, chunk_tokens=12, max_running=6, **sizes)
    for name in ("north", "south"):
        engine.engine.open_session(name)
    for n in range(30):
        stop_ids = [7, 21] if n % 3 else []
        engine.submit(text(n % 4, 3 + n % 17), max_new_tokens=4 + n % 13, stop_ids=stop_ids, publishes=n % 5 != 0)
        for name, slot in engine.cache.sessions.slots.items():
            if slot.turn is None and len(slot.history) < 30:
                engine.submit(text(n, 2), session_id=name, max_new_tokens=4, stop_ids=[5, 6])
        for _ in range(n % 3):
            engine.step()
    engine.run()
    return [request.output for request in engine.requests if request.session is None]


@pytest.mark.parametrize("sizes", [{}, {"window_tokens": 6, "num_swa_pages": 14}])
def test_tokens_are_the_same_as_without_overlap(sizes: dict[str, int]) -> None:
    assert workload(overlap=True, **sizes) == workload(overlap=False, **sizes)


def test_an_executor_that_cannot_even_start_a_step_fails_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Stepped(overlap=True)
    request = engine.submit(text(1, 6), max_new_tokens=9, publishes=False)

    def refuses(batch: ForwardBatch) -> None:
        raise MemoryError("no room for the step")

    monkeypatch.setattr(engine.executor, "launch", refuses)
    engine.run()
    assert "no room for the step" in str(request.error)
    assert engine.cache.free_pages == 32


def test_recurrent_states_refuse_overlap() -> None:
    with pytest.raises(InvalidInput, match="recurrent states"):
        EngineConfig(overlap=True, num_state_slots=64)
