"""Engine faults: bugs that real engines had. Those in moves of ownership are in `planted_moves`; here are the others.

Each is a method of the engine, done wrongly: it gets the right method and its arguments. What it mirrors is a kind of
public bug; the letters are those of the law's bug bank.
"""

from __future__ import annotations

from typing import Any

from freehold.impl.engine import Engine
from freehold.impl.memory import cache as cache_module
from freehold.impl.memory import session_moves
from freehold.impl.memory.cache import KvCache
from freehold.impl.memory.device_pages import DevicePages
from freehold.impl.memory.geometry import CacheGeometry
from freehold.impl.memory.radix_tree import RadixTree
from freehold.impl.memory.rows import RowPool
from freehold.impl.memory.sessions import SessionTable
from freehold.impl.memory.states import StateSlots
from freehold.impl.scheduling.limits import Limits
from freehold.impl.scheduling.policy import FirstCome, LongestPrefix, Priority
from freehold.impl.scheduling.queues import Queues
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.model_check import planted_moves
from freehold.model_check.fault import FAULTS, Fault, plant, swapped
from freehold.spec.arithmetic import ceil_pages, ceil_to_page
from freehold.spec.state import Place

__all__ = ["FAULTS", "Fault", "planted_moves"]

# G: page arithmetic ---------------------------------------------------------------------------------------------------


@plant("arithmetic", (cache_module, "floor_to_page"))
def a_partial_page_is_published(right: Any, tokens: int, page_size: int) -> int:
    """The last page goes to the tree though it is not full: rounded up instead of down."""
    return ceil_to_page(tokens, page_size)


@plant("arithmetic", (cache_module, "new_pages"))
def a_page_too_few_at_a_border(right: Any, allocated: int, wanted: int, page_size: int) -> int:
    """A token that begins a page finds no page there: rounded down instead of up."""
    return wanted // page_size - allocated // page_size


@plant("arithmetic", (cache_module, "window_cursor"))
def the_window_is_a_page_too_short(right: Any, tokens: int, window_tokens: int, page_size: int) -> Any:
    """Halves go a page before the window has left them."""
    return int(min(tokens // page_size * page_size, right(tokens, window_tokens, page_size) + page_size))


@plant("arithmetic", (KvCache, "usable_tokens"))
def a_rewind_into_the_prefix_is_not_aligned(right: Any, cache: Any, kv: Any, tokens: int) -> Any:
    """The prefix is cut inside a page."""
    return int(tokens if kv.state is None and tokens < kv.published_tokens else right(cache, kv, tokens))


@plant("arithmetic", (CacheGeometry, "longest_chunk_tokens"))
def a_chunk_is_longer_than_the_swa_pool(right: Any, geometry: Any) -> Any:
    """Chunks are cut to the budget alone."""
    return int(geometry.max_context_tokens)


@plant("arithmetic", (Scheduler, "_chunk"))
def a_last_chunk_is_a_token_too_long(right: Any, scheduler: Any, request: Any, start: int, budget: int) -> Any:
    """A chunk goes on behind what is known."""
    tokens: int = right(scheduler, request, start, budget)
    return int(tokens + (start + tokens == request.length_tokens < request.limit_tokens))


# H, K: accounting, and a second view that disagrees -------------------------------------------------------------------


@plant("stale view", (RowPool, "clear"))
def a_row_map_survives_its_release(right: Any, rows: Any, row: int, first: int, last: int) -> Any:
    """A row that is given back still points at its pages."""
    return rows.entries(row, first, last)


@plant("stale view", (Scheduler, "_settle"))
def two_rows_swap_a_page(right: Any, scheduler: Any, request: Any, kv: Any) -> None:
    """Two running requests each end up with the other's last page; every count is right."""
    right(scheduler, request, kv)
    rows, size = scheduler.cache.rows, scheduler.cache.page_size
    private = [r.kv for r in scheduler.queues.running.values() if r.kv.allocated_tokens > r.kv.published_tokens]
    if len(private) > 1:
        (here, there) = ((kv.row, ceil_pages(kv.allocated_tokens, size) - 1) for kv in private[:2])
        mine, other = (rows.page_table[entry].item() for entry in (here, there))
        rows.page_table[here], rows.page_table[there] = other, mine


@plant("stale view", (DevicePages, "drop_halves"))
def the_peer_map_keeps_what_was_dropped(right: Any, pages: Any, ids: Any) -> None:
    """The half is free, and the page still names it."""
    before = pages._peers.copy()
    right(pages, ids)
    pages._peers[ids] = before[ids]


@plant("accounting", (KvCache, "_tell"))
def an_eviction_is_not_told(right: Any, cache: Any, name: str, *args: Any) -> None:
    """Pages move, and the event is missing."""
    if name != "evict":
        right(cache, name, *args)


@plant("accounting", (KvCache, "_acquire"))
def an_evicted_page_stays_counted(right: Any, cache: Any, count: int) -> Any:
    """The tree goes on counting what was evicted as evictable, so that more is promised than there is."""
    before = cache.tree.unlocked_pages
    pages = right(cache, count)
    cache.tree.unlocked_pages = before
    return pages


@plant("accounting", (KvCache, "can_take"))
def a_match_counts_as_room(right: Any, cache: Any, need: Any, sparing_match: Any = None) -> bool:
    """The pages of a prefix hit are promised to its own request as if they could be evicted."""
    promised: bool = right(cache, need, None)
    return promised


@plant("accounting", (KvCache, "can_take"))
def the_swa_pool_is_not_asked(right: Any, cache: Any, need: Any, sparing_match: Any = None) -> bool:
    """Admission counts the full pool alone."""
    promised: bool = right(cache, need._replace(halves=0), sparing_match)
    return promised


@plant("accounting", (KvCache, "_orphaned_pages"))
def a_page_in_flight_counts_as_free(right: Any, cache: Any) -> int:
    """A tree page that a dead record's step still reads is promised to the next request."""
    return 0


# J, M: right pages, wrong content -------------------------------------------------------------------------------------


@plant("wrong content", (RadixTree, "_common_pages"))
def only_the_first_page_of_a_run_is_compared(right: Any, tree: Any, run: Any, tokens: Any) -> int:
    """A prefix hit on tokens that differ further on."""
    return ceil_pages(min(len(run), len(tokens)) // tree.page_size * tree.page_size, tree.page_size)


@plant("wrong content", (session_moves, "save"))
def a_history_lacks_its_last_token(right: Any, cache: Any, slot: Any, history: Any) -> None:
    """The next turn continues a sequence that is one token short."""
    right(cache, slot, history[:-1])


@plant("wrong content", (session_moves, "abandon"))
def an_aborted_turn_leaves_its_kv(right: Any, cache: Any, slot: Any) -> None:
    """The slot keeps what the aborted turn wrote, behind what the history says."""
    if slot.turn.kv is not None and slot.turn.kv.saved_tokens:
        slot.turn.kv.saved_tokens = slot.turn.kv.committed_tokens
    right(cache, slot)


@plant("wrong content", (session_moves, "resume"))
def a_turn_that_goes_back_keeps_its_kv(right: Any, cache: Any, slot: Any, kept_tokens: int) -> Any:
    """The tokens are cut, and the KV behind them is used for other tokens."""
    return session_moves.lend(cache, slot)


@plant("wrong content", (KvCache, "usable_tokens"))
def a_state_is_cut_like_pages(right: Any, cache: Any, kv: Any, tokens: int) -> Any:
    """A recurrent state is taken to be right for any beginning of its tokens."""
    return int(min(tokens, kv.committed_tokens) if kv.state is not None else right(cache, kv, tokens))


@plant("wrong content", (StateSlots, "load"))
def a_checkpoint_is_not_copied(right: Any, states: Any, kv: Any, page: int) -> None:
    """A prefix hit starts from whatever its slot had."""
    copy, states.copy = states.copy, lambda pairs: None
    right(states, kv, page)
    states.copy = copy


@plant("wrong content", (KvCache, "match"))
def a_hit_does_not_ask_for_the_window(right: Any, cache: Any, tokens: Any) -> Any:
    """A prefix hit ends on a tombstone."""
    return cache.tree.match(tokens) if cache.pages.windowed else right(cache, tokens)


@plant("wrong content", (KvCache, "match"))
def a_hit_does_not_ask_for_a_checkpoint(right: Any, cache: Any, tokens: Any) -> Any:
    """A prefix hit goes on from a page without a state."""
    return cache.tree.match(tokens)


@plant("wrong content", (KvCache, "_kept"))
def a_window_in_use_is_buried(right: Any, cache: Any, match: Any) -> Any:
    """Tombstones are made of pages that some record's window still looks back on."""
    return right(cache, match) & cache.pages.in_flight()


# E, I: nobody gets on, or nothing ends --------------------------------------------------------------------------------


@plant("starvation", (FirstCome, "candidates"), (LongestPrefix, "candidates"), (Priority, "candidates"))
def nobody_is_admitted(right: Any, policy: Any, waiting: Any, limit: int, cache: Any) -> list[Any]:
    """The policy waits for more room than the pool has."""
    return []


@plant("starvation", (FirstCome, "candidates"))
def the_last_comes_first(right: Any, policy: Any, waiting: Any, limit: int, cache: Any) -> list[Any]:
    """Newcomers pass those who wait."""
    return [*waiting.values()][::-1][:limit]


@plant("starvation", (Scheduler, "_plan"))
def a_parked_prefill_is_not_resumed(right: Any, scheduler: Any) -> Any:
    """Chunks are planned for newcomers only."""
    return dict.fromkeys(scheduler.queues.running.values(), 1)


@plant("starvation", (Scheduler, "_start"))
def a_turn_waits_for_the_room_of_its_own_session(right: Any, scheduler: Any, request: Any, *args: Any) -> Any:
    """A turn that goes back waits beside KV that nobody needs."""
    with swapped(KvCache, "release", lambda *args: None):
        return right(scheduler, request, *args)


@plant("starvation", (SessionTable, "idlest"))
def idle_sessions_keep_their_kv(right: Any, sessions: Any, sparing: Any) -> None:
    """Nobody reclaims what sessions hold, and the pool stays full."""


@plant("held for ever", (Queues, "find"))
def an_abort_is_not_found(right: Any, queues: Any, request_id: str) -> Any:
    """The abort looks where running requests are, and its request waits elsewhere for ever."""
    return queues.running.get(request_id)


@plant("held for ever", (Limits, "is_late"))
def time_runs_for_those_who_run_alone(right: Any, limits: Any, request: Any, now_s: float) -> bool:
    """Who waits is never late."""
    return request.place is not Place.WAITING and right(limits, request, now_s)


@plant("held for ever", (Limits, "is_idle"))
def a_session_never_expires(right: Any, limits: Any, slot: Any, now_s: float) -> bool:
    """Nobody looks at the time of idle sessions."""
    return False


# L: sessions ----------------------------------------------------------------------------------------------------------


@plant("session", (Scheduler, "_leave"))
def a_deferred_close_is_lost(right: Any, scheduler: Any, request: Any, reason: Any) -> None:
    """A session that was closed under its turn is not looked at again when the turn ends."""
    slot = request.session
    if slot is None or not slot.closing:
        right(scheduler, request, reason)
        return
    slot.closing = False
    right(scheduler, request, reason)
    slot.closing = True


@plant("session", (SessionTable, "use"))
def a_second_turn_is_accepted(right: Any, sessions: Any, slot: Any, turn: Any) -> None:
    """Two turns share one slot."""
    slot.turn = None
    right(sessions, slot, turn)


@plant("session", (Limits, "is_idle"))
def a_busy_session_expires(right: Any, limits: Any, slot: Any, now_s: float) -> bool:
    """The time of a session runs on while its turn is live."""
    return limits.session_timeout_s is not None and now_s - slot.idle_since_s > limits.session_timeout_s


@plant("session", (Scheduler, "_leave"))
def idle_time_is_counted_from_the_opening(right: Any, scheduler: Any, request: Any, reason: Any) -> None:
    """A session that was just used expires as if it never had been."""
    slot = request.session
    since = slot.idle_since_s if slot else 0.0
    right(scheduler, request, reason)
    if slot:
        slot.idle_since_s = since


@plant("session", (session_moves, "abandon"))
def an_aborted_turn_takes_its_session_along(right: Any, cache: Any, slot: Any) -> None:
    """An abort closes the whole session."""
    right(cache, slot)
    cache.sessions.ask_close(slot)


@plant("session", (Engine, "flush"))
def a_flush_does_not_wait(right: Any, engine: Any) -> None:
    """The tree is emptied under requests that run."""
    rows, flights = engine.cache.rows, engine.cache.pages.flights
    bound, steps = rows.bound, flights.steps
    rows.bound, flights.steps = {}, []
    engine.cache.flush()
    rows.bound, flights.steps = bound, steps
