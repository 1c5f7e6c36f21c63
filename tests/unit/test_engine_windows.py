"""Sliding windows: the cursor, tombstones, and admission that counts both pools."""

import numpy as np
import pytest
from unit.stepped import Stepped, text

from freehold.impl.memory.record import record_of
from freehold.spec.arithmetic import ceil_pages, window_cursor
from freehold.spec.errors import InvalidInput
from freehold.spec.state import Place

WINDOW = {"window_tokens": 8, "num_swa_pages": 32}


def halves_of(engine: Stepped, prompt: list[int]) -> list[bool]:
    """Which pages of the tree's prefix of `prompt`, tombstones and all, have their half."""
    pages = engine.cache.tree.match(np.array(prompt, np.int32)).pages()
    return [bool(half) for half in engine.cache.pages.halves(pages)]


def match(engine: Stepped, prompt: list[int]) -> int:
    return engine.cache.match(np.array(prompt, np.int32)).matched_tokens


def test_the_cursor_follows_the_window_in_whole_pages_and_private_pages_before_it_lose_their_half() -> None:
    engine = Stepped(**WINDOW)
    request = engine.submit(text(1, 6), max_new_tokens=30, publishes=False)
    cursors = set()
    while engine.engine.busy:
        engine.step()
        if kv := request.kv:
            cursors.add(kv.cursor_tokens)
            assert kv.cursor_tokens == window_cursor(kv.committed_tokens, 8, 4)
            mapped = engine.cache.rows.entries(kv.row, 0, ceil_pages(kv.allocated_tokens, 4))
            dropped = ceil_pages(kv.cursor_tokens, 4)
            assert not engine.cache.pages.halves(mapped)[:dropped].any()
            assert engine.cache.pages.halves(mapped)[dropped:].all()
    assert cursors == {0, 4, 8, 12, 16, 20, 24}
    assert engine.cache.pages.swa.free_pages == 32


def test_the_cursor_stays_where_there_is_no_kv_or_the_window_has_not_moved_by_a_page() -> None:
    engine = Stepped(**WINDOW)
    request = engine.submit(text(1, 11), max_new_tokens=4, publishes=False)
    engine.step()
    engine.step()
    kv = record_of(request)
    assert kv.committed_tokens == 12
    assert engine.events("window_drop") == [("window_drop", kv.id, 0, 4)]
    engine.cache.slide(kv)
    fresh = engine.cache.rows.bind(99)
    engine.cache.slide(fresh)
    assert (fresh.cursor_tokens, kv.cursor_tokens, engine.events()) == (0, 4, [])


def test_a_request_that_lost_its_kv_in_flight_drops_nothing_when_its_step_lands() -> None:
    engine = Stepped(**WINDOW, overlap=True)
    request = engine.submit(text(1, 6), request_id="r", max_new_tokens=30, publishes=False)
    while not (request.kv and request.kv.committed_tokens == 11):
        engine.step()
    engine.engine.abort("r")
    engine.events()
    engine.run()
    assert [event[0] for event in engine.events("window_drop", "loan_close")] == ["loan_close"]
    assert engine.cache.pages.swa.free_pages == 32


def test_published_pages_keep_their_halves_behind_the_cursor_of_who_wrote_them() -> None:
    engine = Stepped(**WINDOW)
    prompt = text(1, 24)
    request = engine.submit(prompt, max_new_tokens=2)
    engine.step()
    engine.step()
    assert record_of(request).published_tokens == 24
    assert halves_of(engine, prompt) == [True] * 6


def finished(engine: Stepped, prompt: list[int], new_tokens: int) -> list[int]:
    """The tokens of a request that has finished; those that it wrote while it ran are published now."""
    request = engine.submit(prompt, max_new_tokens=new_tokens)
    engine.run()
    return request.tokens(0, request.length_tokens).tolist()


def test_pages_that_lost_their_half_are_published_as_tombstones_and_no_match_ends_behind_them() -> None:
    engine = Stepped(**WINDOW)
    written = finished(engine, text(1, 8), 24)
    assert halves_of(engine, written) == [True, True, False, False, False, True, True]
    assert {length: match(engine, written[:length]) for length in (8, 12, 20, 24, 27, 28, 31)} == {
        8: 8, 12: 8, 20: 8, 24: 8, 27: 8, 28: 28, 31: 28,
    }  # fmt: skip
    hit = engine.submit(written[:30], max_new_tokens=4)
    miss = engine.submit(written[:26], max_new_tokens=4)
    engine.run()
    assert (engine.starts_of(hit)[0], engine.starts_of(miss)[0]) == (28, 8)


def test_who_publishes_what_is_there_as_a_tombstone_gives_it_a_half() -> None:
    engine = Stepped(**WINDOW)
    written = finished(engine, text(1, 8), 24)
    engine.submit([*written[:24], 49], max_new_tokens=4)
    engine.events()
    engine.step()
    assert [event[0] for event in engine.events("repeer")] == ["repeer"] * 3
    assert halves_of(engine, written) == [True] * 7
    assert match(engine, written[:24]) == 24
    engine.run()
    assert engine.cache.pages.swa.free_pages == 32 - 8  # with the page of the new tokens


def test_under_pressure_the_tree_loses_halves_before_pages_oldest_use_first() -> None:
    engine = Stepped(window_tokens=8, num_swa_pages=9)
    old, new = text(1, 16), text(2, 16)
    for prompt in (old, new):
        engine.submit(prompt, max_new_tokens=1)
        engine.run()
    assert engine.cache.pages.swa.free_pages == 1
    engine.events()
    engine.submit(text(3, 8), max_new_tokens=1)
    engine.run()
    assert len(engine.events("evict", "evict_peer")) == 1
    assert halves_of(engine, old) == [False, True, True, True]
    assert halves_of(engine, new) == [True] * 4
    assert match(engine, old) == 16


def test_the_halves_in_a_live_window_stay_whatever_the_pressure() -> None:
    engine = Stepped(window_tokens=8, num_swa_pages=9, max_running=2)
    prompt = text(1, 16)
    engine.submit(prompt, max_new_tokens=8)
    engine.step()
    engine.submit(text(2, 30), max_new_tokens=8)
    while engine.engine.busy:
        engine.step()
        if any(request.kv for request in engine.requests[:1]):
            assert halves_of(engine, prompt)[2:] == [True, True]
    assert engine.events("evict_peer") != []


@pytest.mark.parametrize(("num_swa_pages", "place"), [(6, Place.WAITING), (12, Place.RUNNING)])
def test_who_fits_the_full_pool_waits_until_it_fits_the_swa_pool_too(num_swa_pages: int, place: Place) -> None:
    engine = Stepped(window_tokens=8, num_swa_pages=num_swa_pages, chunk_tokens=64)
    first = engine.submit(text(1, 10), max_new_tokens=9, publishes=False)
    engine.step()
    second = engine.submit(text(2, 10), max_new_tokens=2, publishes=False)
    engine.step()
    assert engine.cache.pages.full.free_pages > 20
    assert second.place is place
    while first.place is Place.RUNNING:
        engine.step()
    engine.run()
    assert len(second.output) == 2


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("page_size", "window"), [(1, 1), (1, 5), (4, 3), (4, 8), (8, 9)])
def test_the_smallest_swa_pool_serves_long_chunks_to_the_end(page_size: int, window: int, overlap: bool) -> None:
    least = min(ceil_pages(48, page_size), ceil_pages(window, page_size) + 2)
    sizes = {"page_size": page_size, "num_pages": 96 // page_size, "window_tokens": window, "overlap": overlap}
    with pytest.raises(InvalidInput, match=f"at least {least} pages"):
        Stepped(**sizes, num_swa_pages=least - 1)
    engine = Stepped(**sizes, num_swa_pages=least, chunk_tokens=48)
    for n in range(4):
        engine.submit(text(n % 3, 22 + 6 * n), max_new_tokens=8, publishes=n % 2 == 0)
    engine.run()
    assert all(len(request.output) == 8 for request in engine.requests)
