"""Recurrent states of state-space layers: one slot for a record that runs, others as checkpoints in the prefix tree.

A state cannot be cut: it has seen all tokens up to its length, or is of no use. So a prefix hit must end at a page on
which a checkpoint hangs, whose state is copied to the slot of the new record, and a record that is cut back loses its
state.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from freehold.impl.memory.arrays import Pages
from freehold.impl.memory.events import EventSink
from freehold.impl.memory.pool import PagePool
from freehold.impl.memory.record import Holder, KvRecord
from freehold.spec.errors import RuleBroken

CopyStates = Callable[[Sequence[tuple[int, int]]], None]


class StateSlots:
    """The slots: free, with a waiting request, with a record, or on a page of the tree.

    snapshots: the slot that hangs on a page, least recently used first.
    copy: copies states between slots, (source, target) each; whoever runs the model says how.
    """

    def __init__(self, num_slots: int, sink: EventSink) -> None:
        self.pool = PagePool(num_slots)
        self.snapshots: OrderedDict[int, int] = OrderedDict()
        self.copy: CopyStates = lambda pairs: None
        self._sink = sink

    @property
    def used(self) -> bool:
        """Whether the model has recurrent states at all."""
        return self.pool.num_pages > 0

    def make_room(self, sparing_page: int | None) -> bool:
        """See to it that a slot is free: the checkpoint that was used longest ago goes, but not the spared page's."""
        if not self.pool.free_pages:
            page = next((page for page in self.snapshots if page != sparing_page), None)
            if page is not None:
                self.evict(page)
        return self.pool.free_pages > 0

    def claim(self, request: Holder) -> int:
        """A free slot goes to a request that has no record yet."""
        slot = int(self.pool.alloc(1)[0])
        self._sink.emit("claim_state", request.id, slot)
        return slot

    def adopt(self, request: Holder, kv: KvRecord, slot: int) -> None:
        """The slot that the request claimed becomes the running state of its record."""
        kv.state = slot
        self._sink.emit("adopt_state", request.id, kv.id, slot)

    def renew(self, kv: KvRecord) -> None:
        """A record whose state was given up gets a fresh one, from the free slots."""
        kv.state = int(self.pool.alloc(1)[0])
        self._sink.emit("take_state", kv.id, kv.state)

    def load(self, kv: KvRecord, page: int) -> None:
        """The record's state becomes a copy of the checkpoint on `page`, with which its prefix ends."""
        source, target = self.snapshots[page], slot_of(kv)
        self.snapshots.move_to_end(page)
        self._sink.emit("load_state", kv.id, target, page, source)
        self.copy([(source, target)])

    def advance(self, kv: KvRecord, tokens: int) -> None:
        """A forward step took the record's state along."""
        if kv.state is not None:
            self._sink.emit("advance_state", kv.id, kv.state, tokens)

    def checkpoint(self, kv: KvRecord, page: int) -> None:
        """A copy of the record's state hangs on `page`, with which its published prefix ends, if a slot can be had."""
        if page not in self.snapshots and self.make_room(None):
            slot = self.snapshots[page] = int(self.pool.alloc(1)[0])
            self._sink.emit("checkpoint_state", kv.id, slot_of(kv), page, slot)
            self.copy([(slot_of(kv), slot)])

    def donate(self, kv: KvRecord, page: int) -> None:
        """The record's state itself goes to `page`, if none hangs there."""
        if kv.state is not None and page not in self.snapshots:
            self.snapshots[page] = kv.state
            self._sink.emit("donate_state", kv.id, kv.state, page)
            kv.state = None

    def give_up(self, kv: KvRecord) -> None:
        """The record's state goes to the free slots."""
        if kv.state is not None:
            self.pool.free_one(kv.state)
            self._sink.emit("release_state", kv.id, [kv.state])
            kv.state = None

    def evict(self, page: int) -> None:
        """The checkpoint on `page` goes to the free slots."""
        slot = self.snapshots.pop(page)
        self.pool.free_one(slot)
        self._sink.emit("evict_state", page, [slot])

    def evict_all(self, pages: Pages) -> None:
        """Every checkpoint on any of the pages goes to the free slots."""
        for page in pages.tolist():
            if page in self.snapshots:
                self.evict(page)


def slot_of(kv: KvRecord) -> int:
    """The slot of a record's running state. Raises RuleBroken where it has none."""
    if kv.state is None:
        raise RuleBroken(f"record {kv.id} has no recurrent state where it must")
    return kv.state
