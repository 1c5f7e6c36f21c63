"""An executor that computes with what the pages really hold, so that a wrong page shows in the tokens.

The KV of a position stands for all tokens up to it, as a model's does: it is a checksum of its token and of the KV
before it, read through the page table. The next token is a checksum of the KV of the whole sequence, of what the
window of the last token holds in the swa pool, and of the recurrent state, where there are such pools. One stale,
foreign or unwritten slot anywhere changes what is generated from there on.

A step runs as late as it may: when its result is waited for. What it touches was read from the tables at its launch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freehold.impl.memory.tables import KvTables
from freehold.impl.memory.tree_node import TreeNode
from freehold.impl.scheduling.ports import PENDING, BatchItem, ForwardBatch
from freehold.spec.arithmetic import ceil_pages, window_cursor

VOCABULARY = 50

Kv = NDArray[np.uint32]
"""What the cache slots of consecutive positions hold, shape [tokens]."""


def right_kv(tokens: Iterable[int], before: int = 0) -> Kv:
    """What must be cached for `tokens`, which follow a position whose KV is `before` (0 at the start)."""
    kv = []
    for token in tokens:
        before = zlib.crc32(int(token).to_bytes(4, "little"), before)
        kv.append(before)
    return np.array(kv, np.uint32)


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of model the content stands for.

    window_tokens: tokens before the last one that the window layers look back on; 0 where there are none.
    stateful: whether there is a recurrent state.
    """

    window_tokens: int = 0
    stateful: bool = False

    def next_token(self, kv: Kv, window: Kv | None = None, state: int | None = None) -> int:
        """The continuation of a sequence, from the KV of all its positions.

        window, state: what the window layers and the state hold; None for what is right, which `kv` says.
        """
        seen = [kv.tobytes()]
        if self.window_tokens:
            seen.append((kv[-1 - self.window_tokens :] if window is None else window).tobytes())
        if self.stateful:
            seen.append(int(kv[-1] if state is None else state).to_bytes(4, "little"))
        return zlib.crc32(b"".join(seen)) % VOCABULARY


PLAIN = Shape()


def continuation(prompt: Sequence[int], count: int, stop_ids: Sequence[int] = (), shape: Shape = PLAIN) -> list[int]:
    """What an engine with all the room in the world generates: up to `count` tokens, up to the first stop id."""
    kv = right_kv(prompt)
    output: list[int] = []
    while len(output) < count and (not output or output[-1] not in stop_ids):
        output.append(shape.next_token(kv))
        kv = np.append(kv, right_kv(output[-1:], int(kv[-1])))
    return output


@dataclass(slots=True)
class _Share:
    """One item with the slots that it touches, by position, as the tables said at its launch."""

    item: BatchItem
    slots: NDArray[np.int64]
    swa_slots: NDArray[np.int64]


class LazyFlight:
    """A `Flight` whose step runs when somebody waits for it, or for one behind it."""

    def __init__(self, run: Callable[[], list[int | None]], before: LazyFlight | None) -> None:
        self._run, self._before = run, before
        self._tokens: list[int | None] | None = None
        self._error: Exception | None = None

    def ready(self) -> bool:
        """Whether it has run."""
        return self._tokens is not None or self._error is not None

    def land(self) -> None:
        """Run it, and what was launched before it first."""
        if self._before:
            self._before.land()
            self._before = None
        if not self.ready():
            try:
                self._tokens = self._run()
            except Exception as error:
                self._error = error

    def result(self) -> list[int | None]:
        """The tokens; raises what the step raised."""
        self.land()
        if self._error:
            raise self._error
        return self._tokens or []


class ContentExecutor:
    """An `Executor` whose answers depend on every slot behind a row of the page table.

    before: called with each batch before it runs; may raise, as a device may.
    batches: all that were asked for.
    """

    def __init__(self, tables: KvTables, page_size: int, shape: Shape = PLAIN, state_slots: int = 0) -> None:
        self.tables, self.page_size, self.shape = tables, page_size, shape
        self.slots: Kv = np.zeros((tables.num_pages + 1) * page_size, np.uint32)
        self.swa_slots: Kv = np.zeros((tables.num_swa_pages + 1) * page_size, np.uint32)
        self.states: Kv = np.zeros(state_slots + 1, np.uint32)
        self.before: Callable[[ForwardBatch], None] = lambda batch: None
        self.batches: list[ForwardBatch] = []
        self._sampled: dict[int, int] = {}
        self._last: LazyFlight | None = None

    def launch(self, batch: ForwardBatch) -> LazyFlight:
        """The step reads the tables now, and runs when its result is waited for."""
        self.batches.append(batch)
        shares = [self._share(item) for item in batch.items]
        self._last = LazyFlight(lambda: self._run(batch, shares), self._last)
        return self._last

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies what slots hold, behind all that was launched."""
        if self._last:
            self._last.land()
        for source, target in pairs:
            self.states[target] = self.states[source]

    def _share(self, item: BatchItem) -> _Share:
        pages = self.tables.page_table[item.row].numpy()
        length = item.start_tokens + len(item.token_ids)
        halves = self.tables.peers.numpy()[pages]
        return _Share(item, self.slots_of(pages, length), self.slots_of(halves, length))

    def _run(self, batch: ForwardBatch, shares: Sequence[_Share]) -> list[int | None]:
        self.before(batch)
        return [self._compute(share) for share in shares]

    def _compute(self, share: _Share) -> int | None:
        item, slots, swa_slots = share.item, share.slots, share.swa_slots
        start, window = item.start_tokens, self.shape.window_tokens
        tokens = [self._sampled.get(item.row, 0) if token == PENDING else token for token in item.token_ids]
        last = int(self.slots[slots[start - 1]]) if start else 0
        self.slots[slots[start:]] = right_kv(tokens, last)
        if window:
            last = int(self.swa_slots[swa_slots[start - 1]]) if start else 0
            self.swa_slots[swa_slots[start:]] = right_kv(tokens, last)
        if self.shape.stateful:
            before = int(self.states[item.state_slot]) if start else 0
            self.states[item.state_slot] = right_kv(tokens, before)[-1]
        if not item.samples:
            return None
        token = self._sampled[item.row] = self.shape.next_token(
            self.slots[slots],
            self.swa_slots[swa_slots[-1 - window :]] if window else None,
            int(self.states[item.state_slot]),
        )
        return token

    def slots_of(self, pages: NDArray[np.int32], tokens: int) -> NDArray[np.int64]:
        """The slots of the first `tokens` positions of a sequence that lies in `pages`."""
        positions = np.arange(tokens)
        found: NDArray[np.int64] = pages[positions // self.page_size] * np.int64(self.page_size)
        return found + positions % self.page_size

    def read(self, pages: NDArray[np.int32], tokens: int) -> Kv:
        """What is cached for the first `tokens` positions of a sequence that lies in `pages`."""
        return self.slots[self.slots_of(pages, tokens)]

    def wrong_halves(self, pages: NDArray[np.int32], tokens: int, right: Kv) -> bool:
        """Whether a half of any of the pages holds something else than the KV `right` of the first `tokens`."""
        halves = self.tables.peers.numpy()[pages]
        slots = self.slots_of(halves, tokens)
        there = slots >= self.page_size  # page 0 is padding
        return not np.array_equal(self.swa_slots[slots][there], right[:tokens][there])


def wrong_row(executor: ContentExecutor, row: NDArray[np.int32], written_tokens: int, right: Kv) -> str | None:
    """What is wrong with the first `written_tokens` positions behind a row, whose sequence has the KV `right`."""
    if written_tokens > len(right):
        return f"it has KV of {written_tokens} tokens for a sequence of {len(right)}"
    if not np.array_equal(executor.read(row, written_tokens), right[:written_tokens]):
        return f"the pages {row.tolist()} don't hold the KV of its first {written_tokens} tokens"
    if executor.shape.window_tokens:
        start = window_cursor(written_tokens, executor.shape.window_tokens, executor.page_size)
        live = row[ceil_pages(start, executor.page_size) : ceil_pages(written_tokens, executor.page_size)]
        if not executor.tables.peers.numpy()[live].all():
            return f"the window of its {written_tokens} tokens lacks a half of the pages {live.tolist()}"
        if executor.wrong_halves(row, written_tokens, right):
            return f"the halves of the pages {row.tolist()} don't hold the KV of its first {written_tokens} tokens"
    return None


def wrong_tree(executor: ContentExecutor, node: TreeNode, before: int = 0) -> Iterator[str]:
    """What is wrong with the pages of a node and of all below it; `before` is the KV that its run continues."""
    right = right_kv(node.tokens.tolist(), before)
    if not np.array_equal(executor.read(node.pages, len(right)), right):
        yield f"the tree's pages {node.pages.tolist()} don't hold the KV of {node.tokens.tolist()}"
    if executor.shape.window_tokens and executor.wrong_halves(node.pages, len(right), right):
        yield f"the halves of the tree's pages {node.pages.tolist()} don't hold the KV of {node.tokens.tolist()}"
    for child in node.children.values():
        yield from wrong_tree(executor, child, int(right[-1]) if len(right) else before)
