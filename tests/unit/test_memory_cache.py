"""The verbs of the cache: what moves, and in which events."""

from dataclasses import dataclass

import numpy as np
import pytest

from freehold.impl.memory import session_moves
from freehold.impl.memory.arrays import Tokens
from freehold.impl.memory.cache import KvCache, Need
from freehold.impl.memory.events import ListSink
from freehold.impl.memory.geometry import CacheGeometry
from freehold.impl.memory.pool import OutOfPages
from freehold.impl.memory.record import KvRecord
from freehold.spec.errors import InvalidInput

PROMPT: Tokens = np.arange(100, 116, dtype=np.int32)


@dataclass(eq=False)
class Someone:
    """Whoever can hold a record."""

    id: str
    kv: KvRecord | None = None


class Fixture:
    """A cache of pages of four tokens, with every event kept."""

    def __init__(self, num_pages: int = 8, num_rows: int = 3) -> None:
        self.sink = ListSink()
        sizes = CacheGeometry(page_size=4, num_pages=num_pages, num_rows=num_rows, max_context_tokens=16)
        self.cache = KvCache(sizes, self.sink)

    def write(self, name: str, tokens: int, prompt: Tokens = PROMPT) -> tuple[Someone, KvRecord]:
        """A request that has written the first `tokens` of `prompt`."""
        request = Someone(name)
        kv = self.cache.admit(request, self.cache.match(prompt[: max(0, tokens - 1)]))
        self.cache.extend([(kv, tokens - kv.allocated_tokens)])
        self.cache.commit([(kv, tokens)])
        return request, kv

    def events(self) -> list[tuple[object, ...]]:
        """What happened since the last call."""
        happened = list(self.sink.events)
        self.sink.events.clear()
        return happened


def test_a_life_without_sharing() -> None:
    fixture = Fixture()
    request, kv = fixture.write("r", 6)
    assert fixture.events() == [
        ("bind_row", "r", 1, 1), ("acquire", 1, [1, 2]), ("extend", 1, [1, 2], 6), ("commit", 1, 6),
    ]  # fmt: skip
    fixture.cache.extend([(kv, 2)])
    assert fixture.events() == [("extend", 1, [], 8)]
    fixture.cache.release(request)
    assert request.kv is None
    assert fixture.events() == [
        ("truncate", 1, 0), ("release", 1, [1, 2]), ("unbind_row", 1, 1), ("close", 1),
    ]  # fmt: skip
    assert fixture.cache.free_pages == 8
    assert not fixture.cache.rows.page_table.any()


def test_published_pages_are_the_trees_and_the_next_request_locks_them() -> None:
    fixture = Fixture()
    request, kv = fixture.write("r", 10)
    fixture.cache.publish(kv, PROMPT[:10])
    assert (kv.published_tokens, kv.committed_tokens) == (8, 10)
    fixture.cache.release(request)
    assert fixture.events()[-6:] == [
        ("publish", 1, 8), ("truncate", 1, 8), ("release", 1, [3]),
        ("unlock", 1, 0), ("unbind_row", 1, 1), ("close", 1),
    ]  # fmt: skip
    fixture.write("q", 10)
    assert fixture.events()[:4] == [
        ("bind_row", "q", 2, 1), ("lock", 2, [1, 2]), ("attach", 2, [1, 2]), ("acquire", 2, [3]),
    ]  # fmt: skip


def test_a_page_that_the_tree_has_already_takes_the_place_of_the_own_one() -> None:
    fixture = Fixture()
    _, first = fixture.write("r", 9)
    _, second = fixture.write("q", 14)
    fixture.cache.publish(first, PROMPT[:9])
    fixture.events()
    fixture.cache.publish(second, PROMPT[:14])
    assert fixture.events() == [
        ("lock", 2, [1, 2]), ("attach", 2, [1, 2]), ("release", 2, [4, 5]), ("publish", 2, 12),
    ]  # fmt: skip
    assert fixture.cache.rows.entries(second.row, 0, 4).tolist() == [1, 2, 6, 7]
    fixture.cache.publish(second, PROMPT[12:14])
    assert fixture.events() == []


def test_room_is_made_of_unlocked_pages_then_of_idle_sessions_and_never_of_what_is_spared() -> None:
    fixture = Fixture()
    cache = fixture.cache
    request, kv = fixture.write("r", 8)
    cache.publish(kv, PROMPT[:8])
    assert cache.make_room(Need(6, 0))
    assert not cache.make_room(Need(7, 0))
    cache.release(request)
    assert cache.make_room(Need(8, 0))
    assert not cache.make_room(Need(8, 0), sparing_match=cache.match(PROMPT[:6]))
    slot = cache.sessions.open("s")
    turn, kv = fixture.write("t", 8, prompt=PROMPT[::-1].copy())
    cache.sessions.use(slot, turn)
    session_moves.save(cache, slot, PROMPT[:8])
    assert not cache.make_room(Need(7, 0), sparing_slot=slot)
    assert slot.kv is kv
    assert cache.make_room(Need(7, 0))
    assert slot.kv is None
    assert slot.history.tolist() == PROMPT[:8].tolist()


def test_extending_evicts_what_it_needs_or_takes_nothing() -> None:
    fixture = Fixture(num_pages=4)
    cache = fixture.cache
    request, kv = fixture.write("r", 12)
    cache.publish(kv, PROMPT[:12])
    cache.release(request)
    other = cache.admit(Someone("q"), cache.match(PROMPT[:0]))
    fixture.events()
    with pytest.raises(OutOfPages, match="1 are free and 3 can be evicted"):
        cache.extend([(other, 16), (other, 4)])
    assert fixture.events() == []
    cache.extend([(other, 12)])
    assert fixture.events()[0] == ("evict", [3, 2])
    assert cache.match(PROMPT).matched_tokens == 4


def test_a_row_is_taken_from_the_session_that_was_saved_longest_ago() -> None:
    fixture = Fixture(num_rows=2)
    cache = fixture.cache
    slots = [cache.sessions.open(name) for name in ("a", "b")]
    for slot in reversed(slots):
        turn, _ = fixture.write(f"turn of {slot.id}", 3)
        cache.sessions.use(slot, turn)
        session_moves.save(cache, slot, PROMPT[:4])
        cache.sessions.unuse(slot)
    fixture.write("r", 2)
    assert slots[0].kv is not None
    assert slots[1].kv is None


def test_a_flush_empties_the_tree_unless_anybody_holds_kv() -> None:
    fixture = Fixture()
    cache = fixture.cache
    request, kv = fixture.write("r", 8)
    cache.publish(kv, PROMPT[:8])
    fixture.events()
    with pytest.raises(InvalidInput, match="in use"):
        cache.flush()
    assert fixture.events() == []
    cache.release(request)
    fixture.events()
    cache.flush()
    assert fixture.events() == [("reset",)]
    assert (cache.free_pages, cache.tree.unlocked_pages, cache.match(PROMPT).matched_tokens) == (8, 0, 0)


def test_a_session_is_handed_to_its_turn_and_back() -> None:
    fixture = Fixture()
    cache = fixture.cache
    slot = cache.sessions.open("s")
    first, kv = fixture.write("t1", 6)
    cache.sessions.use(slot, first)
    session_moves.save(cache, slot, PROMPT[:7])
    cache.sessions.unuse(slot)
    assert (first.kv, slot.kv, kv.saved_tokens) == (None, kv, 6)

    second = Someone("t2")
    cache.sessions.use(slot, second)
    session_moves.lend(cache, slot)
    assert (second.kv, slot.kv) == (kv, None)
    cache.extend([(kv, 7)])
    fixture.events()
    session_moves.abandon(cache, slot)
    assert (second.kv, slot.kv, kv.allocated_tokens, kv.committed_tokens) == (None, kv, 6, 6)
    assert fixture.events() == [
        ("truncate", 1, 6), ("release", 1, [3, 4]), ("transfer_to_session", "t2", 1, "s"),
    ]  # fmt: skip

    session_moves.close_session(cache, slot)
    assert fixture.events() == [("close_session", "s")]
    session_moves.close_session(cache, slot)
    cache.sessions.unuse(slot)
    session_moves.settle(cache, slot)
    assert [name for name, *_ in fixture.events()] == [
        "unuse", "truncate", "release", "unbind_row", "close", "end_session",
    ]  # fmt: skip
    assert cache.free_pages == 8


def test_a_session_refuses_a_second_turn_and_what_comes_after_its_end() -> None:
    sessions = Fixture().cache.sessions
    slot = sessions.open("s")
    sessions.use(slot, Someone("t1"))
    with pytest.raises(InvalidInput, match="live turn 't1'"):
        sessions.use(slot, Someone("t2"))
    with pytest.raises(InvalidInput, match="open already"):
        sessions.open("s")
    sessions.unuse(slot)
    sessions.ask_close(slot)
    with pytest.raises(InvalidInput, match="closing"):
        sessions.use(slot, Someone("t3"))
    sessions.end(slot)
    with pytest.raises(InvalidInput, match="not open"):
        sessions.find("s")
