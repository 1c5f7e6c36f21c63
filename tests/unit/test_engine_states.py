"""Recurrent states: copied where a request builds on a checkpoint, and started afresh where none is left."""

from typing import Any

import pytest
from unit.stepped import Stepped, text

from freehold.impl.memory.record import record_of
from freehold.impl.scheduling.request import FinishReason
from freehold.spec.errors import InvalidInput


def test_each_running_request_has_a_slot_and_gives_it_back() -> None:
    engine = Stepped(num_state_slots=6)
    requests = [engine.submit(text(n, 5), max_new_tokens=4, publishes=False) for n in range(3)]
    engine.step()
    assert len({record_of(request).state for request in requests}) == 3
    assert engine.cache.states.pool.free_pages == 3
    engine.run()
    assert engine.cache.states.pool.free_pages == 6
    assert engine.seen("snapshot") == set()


def test_a_chunk_ends_at_a_page_where_its_state_can_hang() -> None:
    engine = Stepped(num_state_slots=8, chunk_tokens=10)
    request = engine.submit(text(1, 15), max_new_tokens=2)
    engine.run()
    assert engine.starts_of(request) == [0, 8, 12, 15]
    assert [event[0] for event in engine.events("publish", "checkpoint_state", "donate_state")] == [
        *["publish", "checkpoint_state"] * 2, "publish", "donate_state",
    ]  # fmt: skip


def test_a_fork_gets_a_copy_of_the_checkpoint_which_stays() -> None:
    engine = Stepped(num_state_slots=8)
    stem = text(1, 8)
    engine.submit(stem, max_new_tokens=2)
    engine.run()
    ((page, checkpoint),) = engine.seen("snapshot")
    engine.events()
    forks = [engine.submit([*stem, n, n], max_new_tokens=6) for n in range(2)]
    engine.step()
    states = [record_of(fork).state for fork in forks]
    assert engine.events("load_state") == [
        ("load_state", record_of(fork).id, state, page, checkpoint) for fork, state in zip(forks, states, strict=True)
    ]
    assert len({checkpoint, *states}) == 3
    assert [engine.starts_of(fork)[0] for fork in forks] == [8, 8]
    engine.run()
    assert (page, checkpoint) in engine.seen("snapshot")


def test_a_prefix_counts_only_up_to_a_page_with_a_checkpoint() -> None:
    engine = Stepped(num_state_slots=8, chunk_tokens=16)
    prompt = text(1, 16)
    engine.submit(prompt, max_new_tokens=2)
    engine.run()
    inside, behind = engine.submit([*prompt[:12], 1], max_new_tokens=2), engine.submit([*prompt, 1], max_new_tokens=2)
    engine.run()
    assert (engine.starts_of(inside)[0], engine.starts_of(behind)[0]) == (0, 16)


def test_the_state_of_a_request_that_ends_at_a_page_hangs_there_itself() -> None:
    engine = Stepped(num_state_slots=8)
    first = engine.submit(text(1, 6), max_new_tokens=7)
    engine.run()
    (donated,) = engine.events("donate_state")
    assert first.length_tokens == 13
    assert (donated[3], donated[2]) in engine.seen("snapshot")
    whole = first.tokens(0, 12).tolist()
    second = engine.submit([*whole, 1, 2], max_new_tokens=3)
    engine.run()
    assert engine.starts_of(second)[0] == 12


def test_under_pressure_the_checkpoint_that_was_used_longest_ago_goes() -> None:
    engine = Stepped(num_state_slots=4, max_running=2)
    for n in range(3):
        engine.submit(text(n, 8), max_new_tokens=2)
        engine.run()
    engine.submit([*text(0, 8), 1], max_new_tokens=2)  # uses the oldest one again
    engine.run()
    engine.events()
    for n in (8, 9):
        engine.submit(text(n, 2), max_new_tokens=2)
    engine.run()
    assert len(engine.events("evict_state")) == 1
    again = [engine.submit([*text(n, 8), 1], max_new_tokens=2) for n in range(3)]
    engine.run()
    assert [engine.starts_of(request)[0] for request in again[:2]] == [8, 0]


def test_as_many_slots_as_run_at_once_are_enough() -> None:
    with pytest.raises(InvalidInput, match="at least max_running=3"):
        Stepped(num_state_slots=2, max_running=3)
    engine = Stepped(num_state_slots=3, max_running=3, num_pages=20)
    engine.engine.open_session("s")
    for n in range(9):
        engine.submit(text(n % 3, 4 + 3 * n), max_new_tokens=6)
    engine.submit(text(1, 8), session_id="s", max_new_tokens=3)
    engine.run()
    assert all(request.finish_reason is FinishReason.LENGTH for request in engine.requests)


def test_a_checkpoint_in_the_only_slot_goes_for_the_request_that_could_have_built_on_it() -> None:
    engine = Stepped(num_state_slots=1, max_running=1)
    first = engine.submit(text(1, 6), max_new_tokens=7)
    engine.run()
    assert len(engine.seen("snapshot")) == 1
    second = engine.submit([*first.tokens(0, 12).tolist(), 1, 2], max_new_tokens=3)
    engine.run()
    assert engine.starts_of(second)[0] == 0


def test_an_evicted_page_takes_its_checkpoint_along() -> None:
    engine = Stepped(num_state_slots=8, num_pages=12)
    engine.submit(text(1, 16), max_new_tokens=2)
    engine.run()
    assert len(engine.seen("snapshot")) == 1
    engine.submit(text(2, 40), max_new_tokens=2)
    engine.run()
    names = [event[0] for event in engine.events("evict_state", "evict")]
    assert names[:2] == ["evict_state", "evict"]


def turns(engine: Stepped) -> list[int]:
    """The history of a session `s` with one finished turn."""
    engine.engine.open_session("s")
    engine.submit(text(1, 9), session_id="s", max_new_tokens=4)
    engine.run()
    return engine.cache.sessions.find("s").history.tolist()


def test_a_session_keeps_its_state_between_turns() -> None:
    engine = Stepped(num_state_slots=6)
    turns(engine)
    slot = engine.cache.sessions.find("s")
    state = record_of(slot).state
    second = engine.submit([1, 2], session_id="s", max_new_tokens=4)
    engine.step()
    assert record_of(second).state == state
    assert engine.starts_of(second) == [12]
    engine.run()


def test_a_rewound_turn_starts_from_a_fresh_state() -> None:
    engine = Stepped(num_state_slots=6)
    history = turns(engine)
    engine.events()
    second = engine.submit([1, 2], session_id="s", max_new_tokens=4, rewind_to=10)
    engine.step()
    assert [event[0] for event in engine.events("release_state", "take_state")] == ["release_state", "take_state"]
    assert engine.starts_of(second) == [0]
    engine.run()
    assert engine.cache.sessions.find("s").history.tolist() == [*history[:10], 1, 2, *second.output]


def test_an_aborted_turn_took_the_state_too_far_so_the_next_one_starts_from_nothing() -> None:
    engine = Stepped(num_state_slots=6)
    history = turns(engine)
    engine.submit([1, 2], session_id="s", request_id="t", max_new_tokens=9)
    engine.step()
    engine.engine.abort("t")
    engine.step()
    slot = engine.cache.sessions.find("s")
    assert (slot.kv, slot.history.tolist()) == (None, history)
    assert engine.cache.states.pool.free_pages == 6
    third = engine.submit([3], session_id="s", max_new_tokens=4)
    engine.run()
    assert engine.starts_of(third)[0] == 0


def test_a_step_that_fails_at_its_end_leaves_no_state_to_build_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Stepped(num_state_slots=6)
    history = turns(engine)
    compute = engine.executor._run

    def fails_late(*step: Any) -> list[int | None]:
        compute(*step)
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(engine.executor, "_run", fails_late)
        second = engine.submit([1, 2], session_id="s", max_new_tokens=4)
        engine.run()
    assert second.finish_reason is FinishReason.ERROR
    assert engine.cache.sessions.find("s").history.tolist() == history
    third = engine.submit([3], session_id="s", max_new_tokens=4)
    engine.run()
    assert len(third.output) == 4


def test_a_turn_that_is_aborted_before_it_ran_leaves_state_and_kv_where_they_were() -> None:
    engine = Stepped(num_state_slots=6, max_running=1)
    turns(engine)
    slot = engine.cache.sessions.find("s")
    kv = slot.kv
    engine.submit(text(2, 4), max_new_tokens=4)
    engine.step()
    engine.submit([1, 2], session_id="s", request_id="t", max_new_tokens=9)
    engine.engine.abort("t")
    engine.run()
    assert slot.kv is kv
    third = engine.submit([3], session_id="s", max_new_tokens=4)
    engine.run()
    assert engine.starts_of(third)[0] == 12
