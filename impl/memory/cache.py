"""The KV cache: every move of ownership, one verb each, and the one place where each is told to the event sink.

Scheduling touches pages, rows, locks and records through this class only. Read it beside the law's events
(`freehold.spec.events`): each `emit` stands right behind the statements that do what the event of that name says.

    admit     claim_state? bind_row adopt_state? lock attach load_state?   a request starts, on whatever the tree has
    extend    evict? evict_peer? acquire pair? extend                      room for the tokens of the next forward step
    launch    lend_all                                                     the step is in flight
    land      close_all                                                    it has ended, well or not
    commit    advance_state? commit                                        what it wrote counts
    publish   lock repeer? attach release  publish                         whole written pages go to the tree
    slide     window_drop                                                  halves behind the window go free
    release   release_state? truncate release  unlock  unbind_row  close
    rewind    release_state? truncate release  unlock                      a record goes back to its beginning
    flush     reset                                                        the tree is emptied

`session_moves` has what turns do with their session's record.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from freehold.impl.memory.arrays import Pages, Tokens
from freehold.impl.memory.device_pages import DevicePages
from freehold.impl.memory.events import EventSink, NullSink, listens
from freehold.impl.memory.flights import StepLoan, Touched
from freehold.impl.memory.geometry import CacheGeometry
from freehold.impl.memory.pool import OutOfPages
from freehold.impl.memory.radix_tree import RadixTree
from freehold.impl.memory.record import Holder, KvRecord, record_of
from freehold.impl.memory.rows import RowPool
from freehold.impl.memory.sessions import SessionSlot, SessionTable
from freehold.impl.memory.states import StateSlots
from freehold.impl.memory.tables import KvTables
from freehold.impl.memory.tree_node import Match
from freehold.impl.memory.window import Mask, live_prefixes, longest
from freehold.spec.arithmetic import ceil_pages, floor_to_page, new_pages, window_cursor
from freehold.spec.errors import InvalidInput, RuleBroken
from freehold.spec.state import End


class Need(NamedTuple):
    """Pages that somebody needs, and how many of them with a half in the swa pool."""

    pages: int
    halves: int


class KvCache:
    """Pages, rows, recurrent states, the prefix tree and the sessions of one engine."""

    def __init__(self, geometry: CacheGeometry, sink: EventSink | None = None) -> None:
        self.geometry = geometry
        self.page_size = geometry.page_size
        self.sink = NullSink() if sink is None else sink
        self.pages = DevicePages(geometry)
        self.rows = RowPool(geometry.num_rows, geometry.row_pages)
        self.states = StateSlots(geometry.num_state_slots, self.sink)
        self.tree = RadixTree(geometry.page_size, self.pages.windowed)
        self.sessions = SessionTable(self.sink)
        self._record_ids, self._loan_ids = itertools.count(1), itertools.count(1)
        self._listened_to = listens(self.sink)

    @property
    def tables(self) -> KvTables:
        """What an executor may read; the tensors stay the same for the life of the cache."""
        pages = self.pages
        return KvTables(self.rows.page_table, pages.peers, pages.full.generations, pages.swa.generations)

    # Room: what can be had, and from whom -----------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        """Pages that can be had, each with its half, without taking anything from anyone."""
        pages = self.pages
        return min(pages.full.free_pages, pages.swa.free_pages) if pages.windowed else pages.full.free_pages

    def match(self, tokens: Tokens) -> Match:
        """The longest prefix of `tokens` in the tree that a next token can build on.

        With a sliding window its last pages must have their halves, and with recurrent states a checkpoint must hang on
        its end. Nothing changes, so the answer holds until the next eviction.
        """
        match = self.tree.match(tokens)
        if not (self.pages.windowed or self.states.used):
            return match
        pages = match.pages()
        usable = live_prefixes(self.pages.halves(pages) > 0, self.geometry.window_pages)
        if self.states.used:
            usable[1:] &= np.array([page in self.states.snapshots for page in pages.tolist()], np.bool_)
        return match.shortened(longest(usable), self.page_size)

    def make_room(
        self, need: Need, *, sparing_match: Match | None = None, sparing_slot: SessionSlot | None = None
    ) -> bool:
        """See to it that `extend` can have what is needed; False when it can't be done.

        Idle sessions lose their KV where the tree has too little to give. The pages of `sparing_match` do not count as
        evictable, and `sparing_slot` keeps its KV.
        """
        while not self.can_take(need, sparing_match):
            slot = self.sessions.idlest(sparing_slot)
            if slot is None or need.pages > self._most_pages(sparing_slot):
                return False
            self.release(slot)
        return True

    def _most_pages(self, sparing_slot: SessionSlot | None) -> int:
        """No more pages than this can be had, whatever the tree and the idle sessions give."""
        saved = [slot.kv for slot in self.sessions.slots.values() if slot.kv and slot is not sparing_slot]
        held = sum(ceil_pages(kv.allocated_tokens, self.page_size) for kv in saved)
        return self.pages.full.free_pages + self.tree.unlocked_pages + held

    def make_room_for_state(self, match: Match) -> bool:
        """The same for one slot of recurrent state; the checkpoint with which `match` ends stays."""
        spared = int(match.pages()[-1]) if match.matched_tokens else None
        while not self.states.make_room(spared):
            slot = self.sessions.idlest(None)
            if slot is None:
                return False
            self.release(slot)
        return True

    def can_take(self, need: Need, sparing_match: Match | None = None) -> bool:
        """Whether that much is free or can be had from the tree, beside the pages of `sparing_match`."""
        full, swa = self.pages.full.free_pages, self.pages.swa.free_pages
        if need.pages > full:
            spared = sparing_match.unlocked_pages() if sparing_match else 0
            if need.pages > full + self.tree.unlocked_pages - spared - self._orphaned_pages():
                return False
        if not self.pages.windowed or need.halves <= swa:
            return True
        return need.halves <= swa + self.pages.paired(but=self._kept(sparing_match))

    def _orphaned_pages(self) -> int:
        """Unlocked pages of the tree that a step in flight touches: they would have to wait before they are free.

        Of what a step touches, its records may have let go since: they are gone, or were cut back.
        """
        steps = self.pages.flights.steps
        if not steps:
            return 0
        touched = np.zeros(self.geometry.num_pages + 1, np.bool_)
        for step in steps:
            touched[step.pages.ids] = True
        for step in steps:
            touched[step.pages.waiting()] = False
        touched[self.rows.snapshot(list(self.rows.bound), self.geometry.row_pages)] = False  # locked, or private
        return int(np.count_nonzero(touched[1:]))

    def _kept(self, match: Match | None) -> Mask:
        """Which pages keep their half: private ones, those in some record's window, in `match`'s, or in flight."""
        kept = np.zeros(self.geometry.num_pages + 1, np.bool_)
        for kv in self.rows.bound.values():
            private = ceil_pages(min(self._window_start(kv.committed_tokens), kv.published_tokens), self.page_size)
            kept[self.rows.entries(kv.row, private, ceil_pages(kv.allocated_tokens, self.page_size))] = True
        if match:
            kept[match.pages()[ceil_pages(self._window_start(match.matched_tokens), self.page_size) :]] = True
        return kept | self.pages.in_flight()

    def _window_start(self, tokens: int) -> int:
        return window_cursor(tokens, self.geometry.window_tokens, self.page_size)

    def _acquire(self, count: int) -> Pages:
        """Pages and halves leave the free stacks; what is missing there, the tree gives up first.

        Raises OutOfPages before any of it.
        """
        full, swa = self.pages.full, self.pages.swa
        if not self.can_take(Need(count, count)):
            raise OutOfPages(
                f"{count} pages were asked for; {full.free_pages} are free and {self.tree.unlocked_pages} can be "
                f"evicted, {swa.free_pages} swa pages are free"
            )
        while (missing := count - full.free_pages) > 0 and self.tree.unlocked_pages:
            self._evict(missing)
        if self.pages.windowed and count > swa.free_pages:
            self._bury(count - swa.free_pages)
        return self.pages.alloc(count)

    def drop_unlocked(self) -> None:
        """All that nobody locks leaves the tree."""
        self._evict(self.tree.unlocked_pages)

    def _evict(self, count: int) -> None:
        """Up to so many pages go from the tree to the free stack, with their halves and checkpoints."""
        for pages in self.tree.evict(count):
            self.states.evict_all(pages)
            self.pages.give_back(pages)
            self._tell("evict", pages)

    def _bury(self, count: int) -> None:
        """So many pages of the tree lose their half and stay as tombstones."""
        paired = self.pages.peers.numpy() > 0
        for pages in self.tree.tombstones(count, paired, self._kept(None)):
            for page, half in zip(pages.tolist(), self.pages.halves(pages).tolist(), strict=True):
                self.sink.emit("evict_peer", page, half)
            self.pages.drop_halves(pages)

    # A request's life -------------------------------------------------------------------------------------------------

    def admit(self, request: Holder, match: Match) -> KvRecord:
        """`request` gets a record of its own, whose prefix is `match`, locked, and a recurrent state if there are any.

        A free row goes to the record; when there is none, an idle session gives one up. Raises OutOfRows first.
        """
        if request.kv is not None:
            raise RuleBroken(f"request {request.id!r} is admitted with KV of its own: it would be lost")
        while not self.rows.free_rows and (slot := self.sessions.idlest(None)):
            self.release(slot)
        state = self.states.claim(request) if self.states.used else None
        kv = request.kv = self.rows.bind(next(self._record_ids))
        self.sink.emit("bind_row", request.id, kv.id, kv.row)
        if state is not None:
            self.states.adopt(request, kv, state)
        if match.matched_tokens:
            self._attach(kv, match)
            if state is not None:
                self.states.load(kv, int(match.pages()[-1]))
        return kv

    def extend(self, growth: Sequence[tuple[KvRecord, int]]) -> None:
        """Each record gets room for so many more tokens: pages go from the free stack to it and into its row.

        Raises OutOfPages before anything is taken.
        """
        page_size, inside = self.page_size, []
        wanted = [new_pages(kv.allocated_tokens, kv.allocated_tokens + tokens, page_size) for kv, tokens in growth]
        total, start = sum(wanted), 0
        taken = self._acquire(total) if total else None
        for (kv, tokens), count in zip(growth, wanted, strict=True):
            kv.allocated_tokens += tokens
            if count and taken is not None:
                pages = taken[start : start + count]
                start += count
                self._tell_acquired(kv, pages)
                self.rows.write(kv.row, ceil_pages(kv.allocated_tokens - tokens, page_size), pages)
                self._tell("extend", kv.id, pages, kv.allocated_tokens)
            else:
                inside.append(kv)
        if len(inside) == 1:
            self.sink.emit("extend", inside[0].id, [], inside[0].allocated_tokens)
        elif inside and self._listened_to:
            self.sink.emit("grow_all", [kv.id for kv in inside], [kv.allocated_tokens for kv in inside])

    def launch(self, shares: Sequence[tuple[KvRecord, int]]) -> StepLoan:
        """A forward step sets out that writes the last so many tokens of each record's room, and reads what is before.

        Until it has landed, nothing of what the records map now is free, whoever gives it back.
        """
        flights, page_size = self.pages.flights, self.page_size
        longest_row = max(ceil_pages(kv.allocated_tokens, page_size) for kv, _ in shares)
        pages = self.rows.snapshot([kv.row for kv, _ in shares], longest_row)
        starts = [kv.allocated_tokens - tokens for kv, tokens in shares]
        step = StepLoan(
            loans={kv.id: next(self._loan_ids) for kv, _ in shares},
            starts=starts,
            first_written=[
                ceil_pages(max(floor_to_page(start, page_size), kv.published_tokens), page_size)
                for start, (kv, _) in zip(starts, shares, strict=True)
            ],
            pages=Touched(pages),
            halves=Touched(self.pages.halves(pages)),
        )
        if self._listened_to:
            records, loans = list(step.loans), list(step.loans.values())
            self.sink.emit("lend_all", loans, records, starts, [flights.before(record) for record in records])
        flights.steps.append(step)
        return step

    def land(self, step: StepLoan, how: End) -> None:
        """The first step in flight has ended: what was given back since and waited for it goes to the free units."""
        self.pages.flights.steps.remove(step)
        self.sink.emit("close_all", list(step.loans.values()), [how] * len(step.loans))
        self.pages.full.free(step.pages.waiting())
        self.pages.swa.free(step.halves.waiting())

    def commit(self, written: Sequence[tuple[KvRecord, int]]) -> None:
        """Each record's first so many tokens have been written."""
        for kv, tokens in written:
            self.states.advance(kv, tokens)
            kv.committed_tokens = tokens
        if len(written) == 1:
            self.sink.emit("commit", written[0][0].id, written[0][1])
        elif written and self._listened_to:
            self.sink.emit("commit_all", [kv.id for kv, _ in written], [tokens for _, tokens in written])

    def slide(self, kv: KvRecord) -> None:
        """The halves of private pages that the window of the next token has left go to the free swa pages."""
        if kv.committed_tokens - kv.cursor_tokens < self.page_size + self.geometry.window_tokens:
            return
        floor, cursor = kv.cursor_tokens, self._window_start(kv.committed_tokens)
        first = max(floor, kv.published_tokens)
        if cursor > first:
            page_size = self.page_size
            self.pages.drop_halves(
                self.rows.entries(kv.row, ceil_pages(first, page_size), ceil_pages(cursor, page_size))
            )
            kv.cursor_tokens = cursor
            self.sink.emit("window_drop", kv.id, floor, cursor)

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

    def checkpoint(self, kv: KvRecord) -> None:
        """A copy of the record's state goes to the tree, if all that the record has written is there."""
        if kv.state is not None and (page := self._last_published(kv)):
            self.states.checkpoint(kv, page)

    def donate(self, kv: KvRecord) -> None:
        """The state itself of a record that is done goes to the tree, if all that the record has written is there."""
        if kv.state is not None and (page := self._last_published(kv)):
            self.states.donate(kv, page)

    def _last_published(self, kv: KvRecord) -> int:
        """The tree page with which all that was written ends; 0 where there is none."""
        if not kv.published_tokens or kv.published_tokens != kv.committed_tokens:
            return 0
        last = ceil_pages(kv.published_tokens, self.page_size)
        return int(self.rows.entries(kv.row, last - 1, last)[0])

    def release(self, holder: Holder) -> None:
        """All that the holder's record has goes to the free units, the tree and the free rows; it holds none now."""
        kv = record_of(holder)
        self.states.give_up(kv)
        self._cut(kv, kv.published_tokens)
        self._unlock(kv, 0)
        self.rows.unbind(kv)
        self.sink.emit("unbind_row", kv.id, kv.row)
        holder.kv = None
        self.sink.emit("close", kv.id)

    def rewind(self, kv: KvRecord, tokens: int) -> None:
        """The record keeps its first `tokens` tokens, or as many of them as a next token can build on.

        What follows goes to the free units and the tree. A recurrent state can't go back: it starts afresh.
        """
        kept = self.usable_tokens(kv, tokens)
        if kept < kv.committed_tokens and kv.state is not None:
            self.states.give_up(kv)
            self.states.renew(kv)
        self._cut(kv, max(kept, kv.published_tokens))
        self._unlock(kv, kept)
        kv.saved_tokens = min(kv.saved_tokens, kept)

    def usable_tokens(self, kv: KvRecord, tokens: int) -> int:
        """At most `tokens`: how many of the record's first written tokens a next token could build on."""
        if tokens >= kv.committed_tokens:
            return kv.committed_tokens
        if kv.state is not None:
            return 0
        if tokens < kv.published_tokens:
            tokens = floor_to_page(tokens, self.page_size)
        if not self.pages.windowed:
            return tokens
        alive = self.pages.halves(self.rows.entries(kv.row, 0, ceil_pages(tokens, self.page_size))) > 0
        if alive[ceil_pages(self._window_start(tokens), self.page_size) :].all():
            return tokens
        whole = alive[: ceil_pages(floor_to_page(tokens, self.page_size), self.page_size)]
        return longest(live_prefixes(whole, self.geometry.window_pages)) * self.page_size

    def flush(self) -> None:
        """The tree is emptied. Raises InvalidInput while anybody holds KV, or anything is in flight."""
        if self.rows.bound or self.pages.flights.steps:
            raise InvalidInput("the cache is in use: wait for the running requests and close the sessions that hold KV")
        for pages in self.tree.evict(self.tree.unlocked_pages):
            for page in pages.tolist():
                if page in self.states.snapshots:
                    self.states.pool.free_one(self.states.snapshots.pop(page))
            self.pages.give_back(pages)
        self.sink.emit("reset")

    def _attach(self, kv: KvRecord, match: Match) -> None:
        """The record's prefix goes on with the tree's pages; its own with the same tokens go to the free stack."""
        kv.lock, pages = self.tree.lock(match, kv.lock)
        self._tell("lock", kv.id, pages)
        first = ceil_pages(kv.published_tokens, self.page_size)
        mapped = ceil_pages(kv.allocated_tokens, self.page_size)
        duplicates = self.rows.entries(kv.row, first, min(mapped, first + len(pages)))
        if self.pages.windowed:
            self._recover(kv, duplicates, pages)
        self.rows.write(kv.row, first, pages)
        kv.published_tokens += len(pages) * self.page_size
        kv.committed_tokens = max(kv.committed_tokens, kv.published_tokens)
        kv.allocated_tokens = max(kv.allocated_tokens, kv.published_tokens)
        self._tell("attach", kv.id, pages)
        self._release_pages(kv, duplicates)

    def _recover(self, kv: KvRecord, duplicates: Pages, pages: Pages) -> None:
        """Tombstones among the tree's `pages` take over the halves of the record's duplicates."""
        for own, page in zip(duplicates.tolist(), pages.tolist(), strict=False):
            ours, theirs = self.pages.halves(np.array([own, page]))
            if ours and not theirs:
                self.sink.emit("repeer", kv.id, own, page, self.pages.hand_over(own, page))

    def _cut(self, kv: KvRecord, tokens: int) -> None:
        """The record keeps its first `tokens` tokens; the pages behind them go to the free stack."""
        if kv.allocated_tokens == tokens:
            return
        mapped = ceil_pages(kv.allocated_tokens, self.page_size)
        pages = self.rows.clear(kv.row, ceil_pages(tokens, self.page_size), mapped)
        kv.allocated_tokens = tokens
        kv.committed_tokens = min(kv.committed_tokens, tokens)
        kv.cursor_tokens = min(kv.cursor_tokens, tokens)
        self.sink.emit("truncate", kv.id, tokens)
        self._release_pages(kv, pages)

    def _unlock(self, kv: KvRecord, tokens: int) -> None:
        """The record, which has nothing behind its prefix, lets go of it from `tokens` on."""
        if kv.lock is None or tokens >= kv.published_tokens:
            return
        first, last = ceil_pages(tokens, self.page_size), ceil_pages(kv.published_tokens, self.page_size)
        kv.lock = self.tree.shorten(kv.lock, last - first)
        self.rows.clear(kv.row, first, last)
        kv.published_tokens = kv.committed_tokens = kv.allocated_tokens = tokens
        kv.cursor_tokens = min(kv.cursor_tokens, tokens)
        self.sink.emit("unlock", kv.id, tokens)

    def _release_pages(self, kv: KvRecord, pages: Pages) -> None:
        """Pages that no row maps any more go from the record to the free stack."""
        if len(pages):
            self.pages.give_back(pages)
            self._tell("release", kv.id, pages)

    def _tell_acquired(self, kv: KvRecord, pages: Pages) -> None:
        self._tell("acquire", kv.id, pages)
        if self.pages.windowed and self._listened_to:
            for page, half in zip(pages.tolist(), self.pages.halves(pages).tolist(), strict=True):
                self.sink.emit("pair", kv.id, page, half)

    def _tell(self, name: str, *args: int | Pages) -> None:
        """Emit an event that names pages; their lists are built only where somebody listens."""
        if self._listened_to:
            self.sink.emit(name, *(arg if isinstance(arg, int) else arg.tolist() for arg in args))
