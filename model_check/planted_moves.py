"""Engine faults in moves of ownership: a unit that is leaked, has two owners, is freed under its user, or unlocked.

Each is a method of the engine, done wrongly: it gets the right method and its arguments. What it mirrors is a kind of
public bug; the letters are those of the law's bug bank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from freehold.impl.memory import session_moves
from freehold.impl.memory.cache import KvCache
from freehold.impl.memory.device_pages import DevicePages
from freehold.impl.memory.flights import Flights, Touched
from freehold.impl.memory.radix_tree import RadixTree
from freehold.impl.memory.states import StateSlots
from freehold.impl.memory.tree_node import TreeNode
from freehold.impl.scheduling.request import FinishReason, StepOutput
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.model_check.fault import plant, swapped
from freehold.spec.arithmetic import ceil_pages
from freehold.spec.state import End, Place

# A: a unit that nobody gives back -------------------------------------------------------------------------------------


@plant("leak", (KvCache, "_release_pages"))
def the_tail_is_not_released(right: Any, cache: Any, kv: Any, pages: Any) -> None:
    """A truncated tail leaves the row and never reaches the free stack."""


@plant("leak", (KvCache, "_attach"))
def duplicates_are_not_given_back(right: Any, cache: Any, kv: Any, match: Any) -> None:
    """The pages that the tree had already are forgotten when the tree's own take their place."""
    with swapped(KvCache, "_release_pages", lambda *args: None):
        right(cache, kv, match)


@plant("leak", (Scheduler, "abandon"))
def an_abort_while_parked_forgets_the_kv(right: Any, scheduler: Any, request: Any, *args: Any) -> Any:
    """An abort finds the request between two chunks, where nobody thought of what it holds."""
    if request.place is not Place.PARKED:
        return right(scheduler, request, *args)
    kv, request.kv = request.kv, None
    output = right(scheduler, request, *args)
    request.kv = kv
    return output


@plant("leak", (Scheduler, "_retract"))
def a_retract_releases_nothing(right: Any, scheduler: Any, request: Any) -> None:
    """The request waits again, with all its KV."""
    scheduler.queues.move(request, Place.WAITING)


@plant("leak", (session_moves, "settle"))
def a_session_ends_with_its_kv(right: Any, cache: Any, slot: Any) -> None:
    """The slot is dropped while it still has a record."""
    if slot.closing and slot.turn is None:
        del cache.sessions.slots[slot.id]
        cache.sink.emit("end_session", slot.id)


@plant("leak", (Scheduler, "_fail"))
def a_failed_step_forgets_its_requests(right: Any, scheduler: Any, step: Any, error: Any) -> Any:
    """Who was in a forward pass that raised is told so, and its KV stays."""
    outputs = []
    for request, _, _ in step.shares:
        if request.place is not Place.OUT:
            request.kv, request.error = None, error
            scheduler._leave(request, FinishReason.ERROR)
            outputs.append(StepOutput(request.id, None, FinishReason.ERROR))
    return outputs


@plant("leak", (KvCache, "land"))
def what_waited_for_a_step_stays_there(right: Any, cache: Any, step: Any, how: Any) -> None:
    """A step lands, and the pages that were given back meanwhile are forgotten with it."""
    step.pages.returned.clear()
    right(cache, step, how)


@plant("leak", (KvCache, "land"))
def a_failed_step_keeps_what_waits(right: Any, cache: Any, step: Any, how: Any) -> None:
    """Only a step that went well gives free what waited for it."""
    if how is End.FAILED:
        step.pages.returned.clear()
        step.halves.returned.clear()
    right(cache, step, how)


@plant("leak", (DevicePages, "give_back"))
def a_page_goes_free_and_its_half_stays(right: Any, pages: Any, ids: Any) -> None:
    """The swa pool never hears that the page went."""
    with swapped(DevicePages, "drop_halves", lambda *args: None):
        right(pages, ids)


@plant("leak", (KvCache, "slide"))
def a_window_never_slides(right: Any, cache: Any, kv: Any) -> None:
    """Private halves stay behind the window until the request ends."""


@plant("leak", (StateSlots, "give_up"))
def a_state_is_not_given_up(right: Any, states: Any, kv: Any) -> None:
    """A record ends with its state slot."""
    kv.state = None


@plant("leak", (StateSlots, "evict_all"))
def a_checkpoint_outlives_its_page(right: Any, states: Any, pages: Any) -> None:
    """A page is evicted, and the state that hangs on it is kept."""


@plant("leak", (KvCache, "flush"))
def a_flush_forgets_the_states(right: Any, cache: Any) -> None:
    """The tree's pages go free, and the checkpoints on them do not."""
    cache.states.snapshots.clear()
    right(cache)


@plant("leak", (KvCache, "flush"))
def a_flush_loses_the_pages(right: Any, cache: Any) -> None:
    """The tree is emptied, and its pages go nowhere."""
    with swapped(DevicePages, "give_back", lambda *args: None):
        right(cache)


# B: a unit with two owners, or freed twice ----------------------------------------------------------------------------


@plant("double owner", (session_moves, "_give_back"))
def the_request_keeps_its_record_on_save(right: Any, cache: Any, slot: Any) -> None:
    """Saving a turn forgets to clear `request.kv`: the request and the slot both hold the record."""
    turn, kv = slot.turn, slot.turn.kv
    right(cache, slot)
    turn.kv = kv


@plant("double owner", (session_moves, "lend"))
def the_slot_keeps_its_record_on_lend(right: Any, cache: Any, slot: Any) -> Any:
    """Lending forgets to clear `slot.kv`."""
    kv = right(cache, slot)
    slot.kv = kv
    return kv


@plant("double free", (KvCache, "_release_pages"))
def a_tail_is_freed_twice(right: Any, cache: Any, kv: Any, pages: Any) -> None:
    """The last page of what is released goes to the free stack a second time."""
    right(cache, kv, pages)
    full = cache.pages.full
    if len(pages) and full.free_pages < full.num_pages:
        full.free(pages[-1:])


@plant("double free", (session_moves, "_give_back"))
def a_row_is_freed_while_it_is_bound(right: Any, cache: Any, slot: Any) -> None:
    """A saved record's row goes to the free rows, as if the request had ended for good."""
    right(cache, slot)
    cache.rows.unbind(slot.kv)


@plant("double free", (KvCache, "slide"))
def a_half_behind_the_window_is_freed_twice(right: Any, cache: Any, kv: Any) -> None:
    """The window slides, and the peer map still has the half that went free."""
    before = cache.pages._peers.copy()
    right(cache, kv)
    cache.pages._peers[:] = before


@plant("double free", (KvCache, "slide"))
def the_cursor_stays_where_it_was(right: Any, cache: Any, kv: Any) -> None:
    """The next slide begins where the last one began."""
    cursor = kv.cursor_tokens
    right(cache, kv)
    kv.cursor_tokens = cursor


@plant("double free", (StateSlots, "donate"))
def a_donated_state_is_given_up_too(right: Any, states: Any, kv: Any, page: int) -> None:
    """The tree has the state, and the record gives it back."""
    slot = kv.state
    right(states, kv, page)
    kv.state = slot


@plant("double owner", (DevicePages, "hand_over"))
def a_half_is_handed_over_and_kept(right: Any, pages: Any, source: int, target: int) -> int:
    """A tombstone takes the half of a duplicate, which gives it free when it goes."""
    half: int = right(pages, source, target)
    pages._peers[source] = half
    return half


# C: a use after free, in a row or in flight ---------------------------------------------------------------------------


@plant("use after free", (KvCache, "_cut"))
def pages_are_freed_before_the_row_lets_go(right: Any, cache: Any, kv: Any, tokens: int) -> None:
    """Released first, unmapped after: right at the end, wrong in between."""
    first, last = ceil_pages(tokens, cache.page_size), ceil_pages(kv.allocated_tokens, cache.page_size)
    cache._release_pages(kv, cache.rows.entries(kv.row, first, last))
    with swapped(KvCache, "_release_pages", lambda *args: None):
        right(cache, kv, tokens)


@plant("use after free", (KvCache, "_attach"))
def a_row_keeps_its_duplicates(right: Any, cache: Any, kv: Any, match: Any) -> None:
    """The row still points at the request's own pages, which went free in favour of the tree's."""
    first, last = (ceil_pages(tokens, cache.page_size) for tokens in (kv.published_tokens, kv.allocated_tokens))
    before = cache.rows.entries(kv.row, first, last)
    right(cache, kv, match)
    cache.rows.write(kv.row, first, before)


@plant("use after free", (session_moves, "settle"))
def closing_a_busy_session_frees_its_turn(right: Any, cache: Any, slot: Any) -> None:
    """The close does not wait for the live turn."""
    if slot.closing and slot.turn is not None and slot.turn.kv is not None:
        cache.release(slot.turn)
    right(cache, slot)


@plant("use after free", (KvCache, "release"))
def a_row_goes_before_its_state(right: Any, cache: Any, holder: Any) -> None:
    """Right at the end, wrong in between: the row is free while its record still has a state."""
    kv = holder.kv
    cache._cut(kv, kv.published_tokens)
    cache._unlock(kv, 0)
    cache.rows.unbind(kv)
    cache.sink.emit("unbind_row", kv.id, kv.row)
    cache.states.give_up(kv)
    holder.kv = None
    cache.sink.emit("close", kv.id)


@plant("stale view", (KvCache, "launch"))
def a_step_in_flight_forgets_where_it_writes(right: Any, cache: Any, shares: Any) -> Any:
    """The loan names another first position than the launch did."""
    step = right(cache, shares)
    step.starts = [start + 1 for start in step.starts]
    return step


@plant("use before write", (Scheduler, "_launch"))
def a_chunk_is_published_before_it_is_written(right: Any, scheduler: Any, plan: Any) -> Any:
    """Others may match pages whose forward pass has not run."""
    for request in plan:
        if request.place is Place.PREFILL:
            kv = request.kv
            written, kv.committed_tokens = kv.committed_tokens, kv.allocated_tokens
            scheduler._publish(request)
            kv.committed_tokens = max(written, kv.published_tokens)
    return right(scheduler, plan)


@plant("freed in flight", (Flights, "hold_pages"))
def a_page_in_flight_goes_free_at_once(right: Any, flights: Any, pages: Any) -> Any:
    """Nobody asks whether the step that was launched still writes the page."""
    return pages


@plant("freed in flight", (Flights, "hold_halves"))
def a_half_in_flight_goes_free_at_once(right: Any, flights: Any, halves: Any) -> Any:
    """Nobody asks whether the step that was launched still reads the half."""
    return halves


@plant("freed in flight", (Touched, "keep"))
def only_the_first_page_waits_for_a_step(right: Any, touched: Any, units: Any, num_units: int) -> Any:
    """Of what is given back at once, one page waits, and the others go free under the step."""
    rest = right(touched, units, num_units)
    if len(rest) < len(units) and len(touched.returned[-1]) > 1:
        touched.returned[-1], more = touched.returned[-1][:1], touched.returned[-1][1:]
        return np.concatenate([rest, more])
    return rest


@plant("freed in flight", (KvCache, "launch"))
def a_step_is_launched_without_a_loan(right: Any, cache: Any, shares: Any) -> Any:
    """The launch is not written down, so nothing waits for it."""
    step = right(cache, shares)
    cache.pages.flights.steps.remove(step)
    return step


@plant("freed in flight", (Scheduler, "_plan"))
def what_waits_goes_free_before_the_fence(right: Any, scheduler: Any) -> Any:
    """What waits for a step goes free when the next one is planned, whatever the device does."""
    for step in scheduler.cache.pages.flights.steps:
        scheduler.cache.pages.full.free(step.pages.waiting())
        step.pages.returned.clear()
    return right(scheduler)


@plant("written in flight", (Scheduler, "_land"))
def a_result_is_taken_for_a_record_that_is_gone(right: Any, scheduler: Any) -> Any:
    """Who was aborted in flight, and is out, gets its token all the same."""
    step = scheduler.flights[0]
    outputs = right(scheduler)
    gone = [request for request, kv, _ in step.shares if request.kv is not kv and request.place is Place.OUT]
    return outputs + [StepOutput(request.id, 7, None) for request in gone if request.finish_reason == "abort"]


# F: locks and the tree ------------------------------------------------------------------------------------------------


@plant("lock", (RadixTree, "_let_go"))
def a_lock_is_leaked(right: Any, tree: Any, anchor: Any, kept: Any) -> None:
    """The receipt is thrown away, and its count stays."""


@plant("lock", (KvCache, "commit"))
def a_lock_is_dropped_before_the_last_use(right: Any, cache: Any, written: Any) -> None:
    """A request that writes its first token behind its prefix lets go of the prefix."""
    for kv, _ in written:
        if kv.lock and kv.committed_tokens == kv.published_tokens:
            cache.tree._let_go(kv.lock.anchor, None)
    right(cache, written)


@plant("lock", (RadixTree, "evict"))
def a_locked_leaf_is_evicted(right: Any, tree: Any, count: int) -> Iterator[Any]:
    """The leaf that was used longest ago goes, whoever locks it."""
    nodes = [*tree.root.children.values()]
    for node in nodes:
        nodes += node.children.values()
    oldest = min((node for node in nodes if not node.children), key=lambda leaf: leaf.last_used, default=None)
    if count > 0 and oldest is not None and oldest.locks:
        tree._remove(oldest)
        count -= len(oldest.pages)
        yield oldest.pages[::-1]
    yield from right(tree, count)


@plant("lock", (TreeNode, "evictable"))
def an_inner_node_is_evicted(right: Any, node: Any) -> bool:
    """Eviction does not ask for children."""
    return not node.locks and node.parent is not None


@plant("lock", (KvCache, "admit"))
def more_is_locked_than_is_mapped(right: Any, cache: Any, request: Any, match: Any) -> Any:
    """Who publishes nothing locks a whole run of the tree, and uses only what it matched."""
    kv = right(cache, request, match)
    if kv.lock and not request.publishes:
        child = next(iter(kv.lock.anchor.children.values()), None)
        if child is not None:
            kv.lock, pages = cache.tree.lock(type(match)(child, len(child.pages), 0), kv.lock)
            cache._tell("lock", kv.id, pages)
    return kv


@plant("lock", (KvCache, "_unlock"))
def a_rewind_into_the_prefix_keeps_the_lock(right: Any, cache: Any, kv: Any, tokens: int) -> None:
    """The row is cut, and the receipt still covers what was cut off."""
    with swapped(RadixTree, "shorten", lambda tree, lock, surplus: lock):
        right(cache, kv, tokens)


@plant("lock", (RadixTree, "_split"))
def a_split_forgets_who_locks(right: Any, tree: Any, node: Any, pages: int) -> Any:
    """The beginning of a run that is cut in two is locked by nobody."""
    head = right(tree, node, pages)
    if head is not node:
        tree.unlocked_pages += len(head.pages) if head.locks else 0
        head.locks = 0
    return head
