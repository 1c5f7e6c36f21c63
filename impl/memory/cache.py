"""The KV cache: every move of ownership, one verb each, and the one place where each is told to the event sink.

Scheduling touches pages, rows, locks and records through this class only. Read it beside the law's events
(`freehold.spec.events`): each `emit` stands right behind the statements that do what the event of that name says.

    admit     bind_row  lock attach            a request starts, on whatever prefix the tree has
    extend    evict? acquire? extend           room for the tokens of the next forward step
    commit    commit                           the forward step wrote them
    publish   lock attach release  publish     whole written pages go to the tree
    release   truncate release  unlock  unbind_row  close
    lend      transfer_to_request              a turn takes what its session saved
    save      truncate release  transfer_to_session
    abandon   as save, back to the last finished turn; or as release
    reclaim   as release, from an idle session
    settle    as release, then end_session, where the session was asked to close
"""

import itertools
from collections.abc import Sequence

from freehold.impl.memory.arrays import Pages, Tokens
from freehold.impl.memory.events import EventSink, NullSink, listens
from freehold.impl.memory.geometry import CacheGeometry
from freehold.impl.memory.pool import OutOfPages, PagePool
from freehold.impl.memory.radix_tree import RadixTree
from freehold.impl.memory.record import Holder, KvRecord
from freehold.impl.memory.rows import RowPool
from freehold.impl.memory.sessions import SessionSlot, SessionTable
from freehold.impl.memory.tree_node import Match
from freehold.spec.arithmetic import ceil_pages, floor_to_page, new_pages


class KvCache:
    """Pages, rows, the prefix tree and the sessions of one engine."""

    def __init__(self, geometry: CacheGeometry, sink: EventSink | None = None) -> None:
        self.geometry = geometry
        self.page_size = geometry.page_size
        self.sink = NullSink() if sink is None else sink
        self.pool = PagePool(geometry.num_pages)
        self.rows = RowPool(geometry.num_rows, geometry.row_pages)
        self.tree = RadixTree(geometry.page_size)
        self.sessions = SessionTable(self.sink)
        self._record_ids = itertools.count(1)
        self._listened_to = listens(self.sink)

    # Room: what can be had, and from whom -----------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        """Pages that can be had without taking anything from anyone."""
        return self.pool.free_pages

    def match(self, tokens: Tokens) -> Match:
        """The longest prefix of `tokens` in the tree. Nothing changes, so the answer holds until the next eviction."""
        return self.tree.match(tokens)

    def make_room(
        self, pages: int, *, sparing_match: Match | None = None, sparing_slot: SessionSlot | None = None
    ) -> bool:
        """See to it that `extend` can have `pages` more; False when it can't be done.

        Idle sessions lose their KV where the tree has too little to evict. The pages of `sparing_match` do not count
        as evictable, and `sparing_slot` keeps its KV.
        """
        while pages > self.pool.free_pages:
            spared = sparing_match.unlocked_pages() if sparing_match else 0
            if pages <= self.pool.free_pages + self.tree.unlocked_pages - spared:
                return True
            slot = self.sessions.idlest(sparing_slot)
            if slot is None:
                return False
            self.reclaim(slot)
        return True

    def _acquire(self, count: int) -> Pages:
        """Pages leave the free stack; what is missing there, the tree gives up first. OutOfPages before any of it."""
        free, evictable = self.pool.free_pages, self.tree.unlocked_pages
        if count > free + evictable:
            raise OutOfPages(f"{count} pages were asked for; {free} are free and {evictable} can be evicted")
        for pages in self.tree.evict(count - free):
            self.pool.free(pages)
            self._tell("evict", pages)
        return self.pool.alloc(count)

    # A request's life -------------------------------------------------------------------------------------------------

    def admit(self, request: Holder, match: Match) -> KvRecord:
        """`request` gets a record of its own, whose prefix is `match`, locked.

        A free row goes to the record; when there is none, an idle session gives one up. Raises OutOfRows first.
        """
        assert request.kv is None
        while not self.rows.free_rows and (slot := self.sessions.idlest(None)):
            self.reclaim(slot)
        kv = request.kv = KvRecord(id=next(self._record_ids), row=self.rows.bind())
        self.sink.emit("bind_row", request.id, kv.id, kv.row)
        if match.matched_tokens:
            self._attach(kv, match)
        return kv

    def extend(self, growth: Sequence[tuple[KvRecord, int]]) -> None:
        """Each record gets room for so many more tokens: pages go from the free stack to it and into its row.

        Raises OutOfPages before anything is taken.
        """
        page_size = self.page_size
        wanted = [new_pages(kv.allocated_tokens, kv.allocated_tokens + tokens, page_size) for kv, tokens in growth]
        taken, start = self._acquire(sum(wanted)), 0
        for (kv, tokens), count in zip(growth, wanted, strict=True):
            pages = taken[start : start + count]
            start += count
            if count:
                self._tell("acquire", kv.id, pages)
                self.rows.write(kv.row, ceil_pages(kv.allocated_tokens, page_size), pages)
            kv.allocated_tokens += tokens
            self._tell("extend", kv.id, pages, kv.allocated_tokens)

    def commit(self, kv: KvRecord) -> None:
        """All the room of the record has been written."""
        kv.committed_tokens = kv.allocated_tokens
        self.sink.emit("commit", kv.id, kv.committed_tokens)

    def publish(self, kv: KvRecord, tokens: Tokens) -> None:
        """The record's whole written pages go to the tree, where others may match them; the record locks them.

        tokens: those at positions [published_tokens, committed_tokens). Pages that the tree has already, from another
        record, take the place of the record's own, which go to the free stack.
        """
        end = floor_to_page(kv.committed_tokens, self.page_size)
        tokens = tokens[: end - kv.published_tokens]
        match = self.tree.match(tokens, below=kv.lock)
        if match.matched_tokens:
            self._attach(kv, match)
        if kv.published_tokens < end:
            first, last = ceil_pages(kv.published_tokens, self.page_size), ceil_pages(end, self.page_size)
            rest = tokens[len(tokens) - (end - kv.published_tokens) :]
            kv.lock = self.tree.insert(rest, self.rows.entries(kv.row, first, last), kv.lock)
            kv.published_tokens = end
            self.sink.emit("publish", kv.id, end)

    def release(self, holder: Holder) -> None:
        """All that the holder's record has goes to the free stack, the tree and the free rows; it holds none now."""
        kv = holder.kv
        assert kv is not None
        self._cut(kv, kv.published_tokens)
        if kv.lock is not None:
            self.tree.unlock(kv.lock)
            self.rows.clear(kv.row, 0, ceil_pages(kv.published_tokens, self.page_size))
            kv.lock, kv.published_tokens, kv.committed_tokens, kv.allocated_tokens = None, 0, 0, 0
            self.sink.emit("unlock", kv.id, 0)
        self.rows.unbind(kv.row)
        self.sink.emit("unbind_row", kv.id, kv.row)
        holder.kv = None
        self.sink.emit("close", kv.id)

    def _attach(self, kv: KvRecord, match: Match) -> None:
        """The record's prefix goes on with the tree's pages; its own with the same tokens go to the free stack."""
        kv.lock, pages = self.tree.lock(match, kv.lock)
        self._tell("lock", kv.id, pages)
        first = ceil_pages(kv.published_tokens, self.page_size)
        mapped = ceil_pages(kv.allocated_tokens, self.page_size)
        duplicates = self.rows.entries(kv.row, first, min(mapped, first + len(pages)))
        self.rows.write(kv.row, first, pages)
        kv.published_tokens += len(pages) * self.page_size
        kv.committed_tokens = max(kv.committed_tokens, kv.published_tokens)
        kv.allocated_tokens = max(kv.allocated_tokens, kv.published_tokens)
        self._tell("attach", kv.id, pages)
        self._release_pages(kv, duplicates)

    def _cut(self, kv: KvRecord, tokens: int) -> None:
        """The record keeps its first `tokens` tokens; the pages behind them go to the free stack."""
        if kv.allocated_tokens == tokens:
            return
        mapped = ceil_pages(kv.allocated_tokens, self.page_size)
        pages = self.rows.clear(kv.row, ceil_pages(tokens, self.page_size), mapped)
        kv.allocated_tokens = tokens
        kv.committed_tokens = min(kv.committed_tokens, tokens)
        self.sink.emit("truncate", kv.id, tokens)
        self._release_pages(kv, pages)

    def _release_pages(self, kv: KvRecord, pages: Pages) -> None:
        """Pages that no row maps any more go from the record to the free stack."""
        if len(pages):
            self.pool.free(pages)
            self._tell("release", kv.id, pages)

    # A session's life -------------------------------------------------------------------------------------------------

    def lend(self, slot: SessionSlot) -> KvRecord:
        """The record goes from the slot to its live turn."""
        turn, kv = slot.turn, slot.kv
        assert turn is not None
        assert turn.kv is None
        assert kv is not None
        turn.kv, slot.kv = slot.kv, None
        self.sink.emit("transfer_to_request", slot.id, kv.id, turn.id)
        return kv

    def save(self, slot: SessionSlot, history: Tokens) -> None:
        """The record goes from the live turn, which has finished, to the slot. `history`: all tokens up to here."""
        turn = slot.turn
        assert turn is not None
        assert turn.kv is not None
        self._cut(turn.kv, turn.kv.committed_tokens)
        turn.kv.saved_tokens = turn.kv.committed_tokens
        slot.history = history.copy()
        self._give_back(slot)

    def abandon(self, slot: SessionSlot) -> None:
        """The live turn ends unfinished: what finished turns wrote goes to the slot, what this one wrote goes free."""
        turn = slot.turn
        assert turn is not None
        if turn.kv is None:
            return
        if turn.kv.saved_tokens:
            self._cut(turn.kv, turn.kv.saved_tokens)
            self._give_back(slot)
        else:
            self.release(turn)

    def _give_back(self, slot: SessionSlot) -> None:
        """The record goes from the live turn to the slot."""
        turn = slot.turn
        assert turn is not None
        assert turn.kv is not None
        assert slot.kv is None
        slot.kv, turn.kv = turn.kv, None
        self.sessions.touch(slot)
        self.sink.emit("transfer_to_session", turn.id, slot.kv.id, slot.id)

    def reclaim(self, slot: SessionSlot) -> None:
        """An idle session's KV goes free. It stays open: its history lets the next turn compute it again."""
        self.release(slot)

    def close_session(self, slot: SessionSlot) -> None:
        """The session ends: now, or with its live turn."""
        self.sessions.ask_close(slot)
        self.settle(slot)

    def settle(self, slot: SessionSlot) -> None:
        """If the session was asked to close and no turn is live, its KV goes free and it is gone."""
        if slot.closing and slot.turn is None:
            if slot.kv is not None:
                self.release(slot)
            self.sessions.end(slot)

    def _tell(self, name: str, *args: int | Pages) -> None:
        """Emit an event that names pages; their lists are built only where somebody listens."""
        if self._listened_to:
            self.sink.emit(name, *(arg if isinstance(arg, int) else arg.tolist() for arg in args))
