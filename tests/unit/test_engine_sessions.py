"""Streaming sessions: rewinding, turns that end badly, memory that is taken from them, and their end."""

import pytest
from unit.stepped import Stepped, text

from freehold.impl.memory.record import record_of
from freehold.impl.memory.sessions import SessionSlot
from freehold.impl.scheduling.request import FinishReason
from freehold.spec.errors import InvalidInput
from freehold.spec.state import Place

WINDOW = {"window_tokens": 8, "num_swa_pages": 32}


def talk(engine: Stepped, prompt: list[int], new_tokens: int) -> SessionSlot:
    """A session `s` with one finished turn."""
    engine.engine.open_session("s")
    engine.submit(prompt, session_id="s", max_new_tokens=new_tokens)
    engine.run()
    return engine.cache.sessions.find("s")


def rewound(engine: Stepped, slot: SessionSlot, tokens: int) -> int:
    """The first token that a turn computes which goes on from `tokens` tokens; it runs to its end."""
    history = slot.history.tolist()
    turn = engine.submit([48, 49], session_id="s", max_new_tokens=4, rewind_to=tokens)
    engine.run()
    assert turn.prompt_tokens == tokens + 2
    assert slot.history.tolist() == [*history[:tokens], 48, 49, *turn.output]
    return engine.starts_of(turn)[0]


@pytest.mark.parametrize("tokens", [0, 1, 4, 9, 17, 18])
def test_a_rewound_turn_computes_nothing_that_it_kept(tokens: int) -> None:
    engine = Stepped()
    slot = talk(engine, text(1, 10), 8)
    assert record_of(slot).committed_tokens == 17
    assert rewound(engine, slot, tokens) == min(tokens, 17)


def test_a_turn_may_be_rewound_and_its_session_rewound_again() -> None:
    engine = Stepped()
    slot = talk(engine, text(1, 10), 8)
    assert [rewound(engine, slot, tokens) for tokens in (14, 15, 3)] == [14, 15, 3]
    assert engine.cache.free_pages == 32 - 2


def shared_prefix(engine: Stepped) -> SessionSlot:
    """A session whose first two pages are the tree's."""
    prompt = text(1, 12)
    engine.submit(prompt, max_new_tokens=1)
    engine.run()
    slot = talk(engine, prompt[:10], 20)
    assert (record_of(slot).published_tokens, record_of(slot).committed_tokens) == (8, 29)
    return slot


@pytest.mark.parametrize(("tokens", "start"), [(6, 4), (8, 8), (3, 0), (9, 9)])
def test_a_rewind_into_a_matched_prefix_ends_at_a_page_and_unlocks_the_rest(tokens: int, start: int) -> None:
    engine = Stepped()
    slot = shared_prefix(engine)
    engine.events()
    assert rewound(engine, slot, tokens) == start
    assert len(engine.events("unlock")) == (start < 8)
    assert record_of(slot).published_tokens == min(start, 8)


@pytest.mark.parametrize(("tokens", "start"), [(29, 29), (28, 28), (27, 8), (20, 8), (10, 8), (8, 8), (5, 4)])
def test_a_rewind_below_the_cursor_ends_at_a_page_whose_window_is_alive(tokens: int, start: int) -> None:
    engine = Stepped(**WINDOW)
    slot = shared_prefix(engine)
    assert record_of(slot).cursor_tokens == 20
    assert rewound(engine, slot, tokens) == start


def test_an_unaligned_rewind_within_the_window_computes_only_what_is_new() -> None:
    engine = Stepped(**WINDOW)
    slot = talk(engine, text(1, 10), 22)
    kv = record_of(slot)
    assert (kv.committed_tokens, kv.cursor_tokens) == (31, 20)
    assert rewound(engine, slot, 30) == 30


def test_the_window_moves_on_through_the_turns_of_a_session() -> None:
    engine = Stepped(**WINDOW)
    slot = talk(engine, text(1, 6), 10)
    for n in range(3):
        turn = engine.submit(text(n, 3), session_id="s", max_new_tokens=6)
        engine.run()
        assert engine.starts_of(turn)[0] == 15 + 9 * n
        assert engine.cache.pages.swa.free_pages >= 32 - 4
        assert record_of(slot).cursor_tokens % 4 == 0
    assert record_of(slot).cursor_tokens == 32


@pytest.mark.parametrize("rewind_to", [-1, 19])
def test_there_must_be_something_to_rewind_to(rewind_to: int) -> None:
    engine = Stepped()
    slot = talk(engine, text(1, 10), 8)
    engine.events()
    with pytest.raises(InvalidInput, match=r"has 18 tokens: rewind_to must lie in \[0, 18\]"):
        engine.submit([1], session_id="s", rewind_to=rewind_to)
    with pytest.raises(InvalidInput, match="name the session"):
        engine.submit([1], rewind_to=3)
    assert (engine.events(), slot.turn) == ([], None)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_second_turn_is_refused_until_the_first_has_left(overlap: bool) -> None:
    engine = Stepped(overlap=overlap)
    talk(engine, text(1, 6), 3)
    engine.submit([1], session_id="s", request_id="t1", max_new_tokens=3)
    for _ in range(3):
        with pytest.raises(InvalidInput, match="has a live turn 't1': wait for its end or abort it"):
            engine.submit([2], session_id="s")
        engine.step()
    engine.run()
    engine.submit([2], session_id="s", max_new_tokens=2)
    engine.run()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_session_that_is_closed_in_use_ends_with_its_turn(overlap: bool, steps: int) -> None:
    engine = Stepped(overlap=overlap)
    talk(engine, text(1, 6), 3)
    turn = engine.submit([1], session_id="s", max_new_tokens=4)
    for _ in range(steps):
        engine.step()
    engine.engine.close_session("s")
    engine.check()
    assert engine.seen("closing") == {("s",)}
    with pytest.raises(InvalidInput, match="closing"):
        engine.submit([2], session_id="s")
    engine.run()
    assert (turn.finish_reason, engine.cache.sessions.slots) == (FinishReason.LENGTH, {})
    assert engine.cache.free_pages == 32


def test_a_closing_session_ends_with_a_turn_that_is_aborted_or_fails() -> None:
    engine = Stepped(overlap=True)
    for end in ("abort", "failure"):
        engine.engine.open_session("s")
        engine.submit([1, 2], session_id="s", request_id="t")
        engine.step()
        engine.engine.close_session("s")
        if end == "abort":
            engine.engine.abort("t")
        else:
            engine.fail_next_forward()
        engine.run()
        assert engine.cache.sessions.slots == {}
        assert engine.cache.free_pages == 32


def test_an_idle_session_expires_and_a_busy_one_never() -> None:
    engine = Stepped(session_timeout_s=5.0)
    talk(engine, text(1, 6), 3)
    engine.submit([1], session_id="s", max_new_tokens=5)
    engine.clock.seconds = 100.0
    engine.step()
    assert "s" in engine.cache.sessions.slots
    engine.run()
    engine.clock.seconds = 105.0
    engine.step()
    assert "s" in engine.cache.sessions.slots  # it is idle since 100
    engine.clock.seconds = 105.5
    engine.step()
    assert engine.cache.sessions.slots == {}
    assert engine.cache.free_pages == 32


def test_a_turn_that_waits_keeps_its_session_from_expiring() -> None:
    engine = Stepped(session_timeout_s=5.0, max_running=1)
    talk(engine, text(1, 6), 3)
    engine.submit(text(2, 6), max_new_tokens=9)
    engine.step()
    turn = engine.submit([1], session_id="s", max_new_tokens=2)
    engine.clock.seconds = 100.0
    engine.step()
    assert turn.place is Place.WAITING
    assert "s" in engine.cache.sessions.slots
    engine.run()
    assert len(turn.output) == 2
    assert "s" in engine.cache.sessions.slots


def test_an_opened_session_expires_if_nobody_ever_talks() -> None:
    engine = Stepped(session_timeout_s=5.0)
    engine.clock.seconds = 50.0
    engine.engine.open_session("s")
    engine.step()
    assert "s" in engine.cache.sessions.slots
    engine.clock.seconds = 56.0
    engine.step()
    assert engine.cache.sessions.slots == {}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("sizes", [{}, WINDOW])
def test_a_turn_that_is_retracted_gives_all_back_and_its_session_goes_on(overlap: bool, sizes: dict[str, int]) -> None:
    engine = Stepped(num_pages=12, max_running=2, overlap=overlap, **sizes)
    slot = talk(engine, text(1, 10), 6)
    engine.submit(text(2, 4), max_new_tokens=40)
    turn = engine.submit([1, 2], session_id="s", max_new_tokens=20)
    was_retracted = False
    while engine.engine.busy:
        holding = turn.kv
        engine.step()
        if holding and turn.place is Place.WAITING:
            was_retracted = True
            assert (turn.kv, slot.kv, slot.turn) == (None, None, turn)
    assert was_retracted
    assert len(turn.output) == 20
    third = engine.submit([3], session_id="s", max_new_tokens=4)
    engine.run()
    assert engine.starts_of(third) == [turn.length_tokens - 1, *range(third.prompt_tokens, third.length_tokens - 1)]


def test_an_aborted_turn_that_was_retracted_before_leaves_an_empty_slot_and_the_history() -> None:
    engine = Stepped(num_pages=12, max_running=2)
    slot = talk(engine, text(1, 10), 6)
    history = slot.history.tolist()
    engine.submit(text(2, 4), max_new_tokens=40)
    turn = engine.submit([1, 2], session_id="s", request_id="t", max_new_tokens=20)
    engine.step()
    while turn.place is not Place.WAITING:
        engine.step()
    engine.engine.abort("t")
    engine.step()
    assert (slot.kv, slot.turn, slot.history.tolist()) == (None, None, history)
    engine.submit([3], session_id="s", max_new_tokens=2)
    engine.run()


@pytest.mark.parametrize("overlap", [False, True])
def test_an_aborted_turn_leaves_what_the_last_finished_one_had(overlap: bool) -> None:
    engine = Stepped(overlap=overlap)
    slot = talk(engine, text(1, 10), 6)
    kv, history = slot.kv, slot.history.tolist()
    engine.submit(text(2, 12), session_id="s", request_id="t", max_new_tokens=9)
    for _ in range(3):
        engine.step()
    engine.engine.abort("t")
    engine.run()
    assert (slot.kv, record_of(slot).committed_tokens, slot.history.tolist()) == (kv, 15, history)
    assert engine.cache.free_pages == 32 - 4
    third = engine.submit([3], session_id="s", max_new_tokens=4)
    engine.run()
    assert engine.starts_of(third)[0] == 15


def test_a_turn_that_failed_leaves_what_the_last_finished_one_had() -> None:
    engine = Stepped()
    slot = talk(engine, text(1, 10), 6)
    engine.fail_next_forward()
    turn = engine.submit(text(2, 12), session_id="s", max_new_tokens=9)
    engine.run()
    assert turn.finish_reason is FinishReason.ERROR
    assert record_of(slot).committed_tokens == 15


def test_a_turn_that_is_aborted_after_a_rewind_does_not_bring_back_what_it_cut_off() -> None:
    engine = Stepped()
    slot = talk(engine, text(1, 10), 6)
    history = slot.history.tolist()
    engine.submit([1, 2], session_id="s", request_id="t", max_new_tokens=9, rewind_to=7)
    engine.step()
    engine.engine.abort("t")
    engine.run()
    assert slot.history.tolist() == history
    assert record_of(slot).committed_tokens == 7
    third = engine.submit([3], session_id="s", max_new_tokens=4)
    engine.run()
    assert engine.starts_of(third)[0] == 7


def test_a_turn_that_is_aborted_behind_the_window_leaves_nothing_on_which_no_one_could_build() -> None:
    engine = Stepped(**WINDOW)
    slot = talk(engine, text(1, 10), 6)
    turn = engine.submit(text(2, 4), session_id="s", request_id="t", max_new_tokens=20)
    while len(turn.output) < 16:
        engine.step()
    engine.engine.abort("t")
    engine.run()
    assert slot.kv is None
    assert engine.cache.pages.swa.free_pages == 32
    third = engine.submit([3], session_id="s", max_new_tokens=4)
    engine.run()
    assert engine.starts_of(third)[0] == 0


def test_idle_sessions_give_their_kv_back_under_pressure_the_one_saved_longest_ago_first() -> None:
    engine = Stepped(num_pages=14)
    slots = []
    for name in ("old", "new"):
        engine.engine.open_session(name)
        engine.submit(text(len(slots), 10), session_id=name, max_new_tokens=6)
        engine.run()
        slots.append(engine.cache.sessions.find(name))
    engine.submit(text(5, 30), max_new_tokens=3)
    engine.run()
    assert [slot.kv is None for slot in slots] == [True, False]
    turns = [engine.submit([1], session_id=name, max_new_tokens=3) for name in ("old", "new")]
    engine.run()
    assert [engine.starts_of(turn)[0] for turn in turns] == [0, 15]
    assert all(len(turn.output) == 3 for turn in turns)


def test_rows_are_taken_from_idle_sessions_too() -> None:
    engine = Stepped(num_rows=4, max_running=4)
    for n in range(4):
        engine.engine.open_session(f"s{n}")
        engine.submit(text(n, 3), session_id=f"s{n}", max_new_tokens=2)
        engine.run()
    assert engine.cache.rows.free_rows == []
    engine.submit(text(5, 3), max_new_tokens=2)
    engine.run()
    assert [slot.kv is None for slot in engine.cache.sessions.slots.values()] == [True, False, False, False]


def test_idle_sessions_keep_their_kv_when_giving_it_up_would_not_help() -> None:
    engine = Stepped(num_pages=24, max_context_tokens=64)
    engine.engine.open_session("s")
    engine.submit(text(1, 10), session_id="s", max_new_tokens=2)
    engine.run()
    slot = engine.cache.sessions.find("s")
    first = engine.submit(text(2, 50), max_new_tokens=14, publishes=False)
    engine.step()
    engine.submit(text(3, 50), max_new_tokens=14, publishes=False)
    for _ in range(3):
        engine.step()
        assert first.kv is not None
        assert slot.kv is not None
    engine.run()
