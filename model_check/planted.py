"""Engine faults: bugs that real engines had, planted in memory for as long as a `with` lasts; no file is changed.

Each is a method of the engine, done wrongly: it gets the right method and its arguments. What it mirrors is a kind of
public bug (a leak, a double free, a use after free, a lock, page arithmetic, a stale view, wrong content, starvation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from freehold.impl.memory import cache as cache_module
from freehold.impl.memory.cache import KvCache
from freehold.impl.memory.radix_tree import RadixTree
from freehold.impl.memory.rows import RowPool
from freehold.impl.memory.sessions import SessionTable
from freehold.impl.memory.tree_node import TreeNode
from freehold.impl.scheduling.policy import FirstCome, LongestPrefix
from freehold.impl.scheduling.queues import Queues
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.spec.arithmetic import ceil_pages, ceil_to_page
from freehold.spec.state import Place


@contextmanager
def _swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@dataclass(frozen=True, slots=True)
class Fault:
    """One bug: which attribute of which class or module is done wrongly, and how."""

    name: str
    kind: str
    says: str
    places: tuple[tuple[Any, str], ...]
    wrong: Callable[..., Any]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The engine has the bug inside the `with`."""
        with ExitStack() as stack:
            for owner, name in self.places:
                stack.enter_context(_swapped(owner, name, self._around(vars(owner)[name])))
            yield

    def _around(self, original: Any) -> Any:
        right = original.fget if isinstance(original, property) else original

        def method(*args: Any, **named: Any) -> Any:
            return self.wrong(right, *args, **named)

        return property(method) if isinstance(original, property) else method


FAULTS: list[Fault] = []


def plant(kind: str, *places: tuple[Any, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function becomes a fault: its name says what is forgotten or wrong, its docstring what that means."""

    def register(wrong: Callable[..., Any]) -> Callable[..., Any]:
        says = (wrong.__doc__ or "").strip()
        FAULTS.append(Fault(wrong.__name__.replace("_", " "), kind, says, places, wrong))
        return wrong

    return register


# A unit that nobody gives back ----------------------------------------------------------------------------------------


@plant("leak", (KvCache, "_release_pages"))
def the_tail_is_not_released(right: Any, cache: Any, kv: Any, pages: Any) -> None:
    """A truncated tail leaves the row and never reaches the free stack."""


@plant("leak", (KvCache, "_attach"))
def duplicates_are_not_given_back(right: Any, cache: Any, kv: Any, match: Any) -> None:
    """The pages that the tree had already are forgotten when the tree's own take their place."""
    with _swapped(KvCache, "_release_pages", lambda *args: None):
        right(cache, kv, match)


@plant("leak", (Scheduler, "_abandon"))
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


@plant("leak", (KvCache, "settle"))
def a_session_ends_with_its_kv(right: Any, cache: Any, slot: Any) -> None:
    """The slot is dropped while it still has a record."""
    if slot.closing and slot.turn is None:
        del cache.sessions.slots[slot.id]
        cache.sink.emit("end_session", slot.id)


@plant("held for ever", (Scheduler, "_leave"))
def a_deferred_close_is_lost(right: Any, scheduler: Any, request: Any, reason: Any) -> None:
    """A session that was closed under its turn is not looked at again when the turn ends."""
    slot = request.session
    if slot is None or not slot.closing:
        right(scheduler, request, reason)
        return
    slot.closing = False
    right(scheduler, request, reason)
    slot.closing = True


# A unit with two owners -----------------------------------------------------------------------------------------------


@plant("double owner", (KvCache, "_give_back"))
def the_request_keeps_its_record_on_save(right: Any, cache: Any, slot: Any) -> None:
    """Saving a turn forgets to clear `request.kv`: the request and the slot both hold the record."""
    turn, kv = slot.turn, slot.turn.kv
    right(cache, slot)
    turn.kv = kv


@plant("double free", (KvCache, "_release_pages"))
def a_tail_is_freed_twice(right: Any, cache: Any, kv: Any, pages: Any) -> None:
    """The last page of what is released goes to the free stack a second time."""
    right(cache, kv, pages)
    if len(pages) and cache.pool.free_pages < cache.pool.num_pages:
        cache.pool.free(pages[-1:])


@plant("double free", (KvCache, "_give_back"))
def a_row_is_freed_while_it_is_bound(right: Any, cache: Any, slot: Any) -> None:
    """A saved record's row goes to the free rows, as if the request had ended for good."""
    right(cache, slot)
    cache.rows.unbind(slot.kv.row)


# A use after free -----------------------------------------------------------------------------------------------------


@plant("use after free", (KvCache, "_cut"))
def pages_are_freed_before_the_row_lets_go(right: Any, cache: Any, kv: Any, tokens: int) -> None:
    """Released first, unmapped after: right at the end, wrong in between."""
    first, last = ceil_pages(tokens, cache.page_size), ceil_pages(kv.allocated_tokens, cache.page_size)
    cache._release_pages(kv, cache.rows.entries(kv.row, first, last))
    with _swapped(KvCache, "_release_pages", lambda *args: None):
        right(cache, kv, tokens)


@plant("use after free", (KvCache, "_attach"))
def a_row_keeps_its_duplicates(right: Any, cache: Any, kv: Any, match: Any) -> None:
    """The row still points at the request's own pages, which went free in favour of the tree's."""
    first, last = (ceil_pages(tokens, cache.page_size) for tokens in (kv.published_tokens, kv.allocated_tokens))
    before = cache.rows.entries(kv.row, first, last)
    right(cache, kv, match)
    cache.rows.write(kv.row, first, before)


@plant("use after free", (KvCache, "settle"))
def closing_a_busy_session_frees_its_turn(right: Any, cache: Any, slot: Any) -> None:
    """The close does not wait for the live turn."""
    if slot.closing and slot.turn is not None and slot.turn.kv is not None:
        cache.release(slot.turn)
    right(cache, slot)


@plant("use before write", (Scheduler, "_run"))
def a_chunk_is_published_before_it_is_written(right: Any, scheduler: Any, plan: Any) -> Any:
    """Others may match pages whose forward pass has not run."""
    for request in plan:
        if request.place is Place.PREFILL:
            kv = request.kv
            written, kv.committed_tokens = kv.committed_tokens, kv.allocated_tokens
            scheduler._publish(request)
            kv.committed_tokens = max(written, kv.published_tokens)
    return right(scheduler, plan)


# Locks and the tree ---------------------------------------------------------------------------------------------------


@plant("lock", (RadixTree, "unlock"))
def a_lock_is_leaked(right: Any, tree: Any, lock: Any) -> None:
    """The receipt is thrown away, and its count stays."""


@plant("lock", (KvCache, "commit"))
def a_lock_is_dropped_before_the_last_use(right: Any, cache: Any, kv: Any) -> None:
    """A request that writes its first token behind its prefix lets go of the prefix."""
    if kv.lock and kv.committed_tokens == kv.published_tokens:
        cache.tree.unlock(kv.lock)
    right(cache, kv)


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


# Page arithmetic ------------------------------------------------------------------------------------------------------


@plant("arithmetic", (cache_module, "floor_to_page"))
def a_partial_page_is_published(right: Any, tokens: int, page_size: int) -> int:
    """The last page goes to the tree though it is not full: rounded up instead of down."""
    return ceil_to_page(tokens, page_size)


@plant("arithmetic", (cache_module, "new_pages"))
def a_page_too_few_at_a_border(right: Any, allocated: int, wanted: int, page_size: int) -> int:
    """A token that begins a page finds no page there: rounded down instead of up."""
    return wanted // page_size - allocated // page_size


# A second view that disagrees -----------------------------------------------------------------------------------------


@plant("stale view", (RowPool, "clear"))
def a_row_map_survives_its_release(right: Any, rows: Any, row: int, first: int, last: int) -> Any:
    """A row that is given back still points at its pages."""
    return rows.entries(row, first, last)


@plant("stale view", (Scheduler, "_commit"))
def two_rows_swap_a_page(right: Any, scheduler: Any, request: Any) -> None:
    """Two running requests each end up with the other's last page; every count is right."""
    right(scheduler, request)
    rows, size = scheduler.cache.rows, scheduler.cache.page_size
    private = [r.kv for r in scheduler.queues.running.values() if r.kv.allocated_tokens > r.kv.published_tokens]
    if len(private) > 1:
        (here, there) = ((kv.row, ceil_pages(kv.allocated_tokens, size) - 1) for kv in private[:2])
        mine, other = (rows.page_table[entry].item() for entry in (here, there))
        rows.page_table[here], rows.page_table[there] = other, mine


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


# Right pages, wrong content -------------------------------------------------------------------------------------------


@plant("wrong content", (RadixTree, "_common_pages"))
def only_the_first_page_of_a_run_is_compared(right: Any, tree: Any, run: Any, tokens: Any) -> int:
    """A prefix hit on tokens that differ further on."""
    return ceil_pages(min(len(run), len(tokens)) // tree.page_size * tree.page_size, tree.page_size)


@plant("wrong content", (KvCache, "save"))
def a_history_lacks_its_last_token(right: Any, cache: Any, slot: Any, history: Any) -> None:
    """The next turn continues a sequence that is one token short."""
    right(cache, slot, history[:-1])


@plant("wrong content", (KvCache, "abandon"))
def an_aborted_turn_leaves_its_kv(right: Any, cache: Any, slot: Any) -> None:
    """The slot keeps what the aborted turn wrote, behind what the history says."""
    if slot.turn.kv is not None and slot.turn.kv.saved_tokens:
        slot.turn.kv.saved_tokens = slot.turn.kv.committed_tokens
    right(cache, slot)


# Nobody gets on -------------------------------------------------------------------------------------------------------


@plant("starvation", (FirstCome, "candidates"), (LongestPrefix, "candidates"))
def nobody_is_admitted(right: Any, policy: Any, waiting: Any, limit: int, cache: Any) -> list[Any]:
    """The policy waits for more room than the pool has."""
    return []


@plant("starvation", (Scheduler, "_plan"))
def a_parked_prefill_is_not_resumed(right: Any, scheduler: Any) -> Any:
    """Chunks are planned for newcomers only."""
    return dict.fromkeys(scheduler.queues.running.values(), 1)


@plant("held for ever", (Queues, "find"))
def an_abort_is_not_found(right: Any, queues: Any, request_id: str) -> Any:
    """The abort looks where running requests are, and its request waits elsewhere for ever."""
    return queues.running.get(request_id)


@plant("refusal", (SessionTable, "use"))
def a_second_turn_is_accepted(right: Any, sessions: Any, slot: Any, turn: Any) -> None:
    """Two turns share one slot."""
    slot.turn = None
    right(sessions, slot, turn)
