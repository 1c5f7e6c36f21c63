"""An executor that computes with what the pages really hold, so that a wrong page shows in the tokens.

The KV of a position stands for all tokens up to it, as a model's does: it is a checksum of its token and of the KV
before it, read through the page table. The next token is a checksum of the KV of the whole sequence. One stale, foreign
or unwritten slot anywhere changes what is generated from there on.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from freehold.impl.memory.tree_node import TreeNode
from freehold.impl.scheduling.ports import ForwardBatch

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


def next_token(kv: Kv) -> int:
    """The one right continuation of a sequence, from the KV of all its positions."""
    return zlib.crc32(kv.tobytes()) % VOCABULARY


def continuation(prompt: Sequence[int], count: int, stop_ids: Sequence[int] = ()) -> list[int]:
    """What an engine with all the room in the world generates: up to `count` tokens, up to the first stop id."""
    kv = right_kv(prompt)
    output: list[int] = []
    while len(output) < count and (not output or output[-1] not in stop_ids):
        output.append(next_token(kv))
        kv = np.append(kv, right_kv(output[-1:], int(kv[-1])))
    return output


class ContentExecutor:
    """An `Executor` whose answers depend on every slot behind a row of the page table.

    before: called with each batch before it runs; may raise, as a device may.
    batches: all that were asked for.
    """

    def __init__(self, page_table: torch.Tensor, num_pages: int, page_size: int) -> None:
        """`page_table`: int32 [rows + 1, row_pages]; pages are 0..num_pages, and page 0 is padding."""
        self.page_table, self.page_size = page_table, page_size
        self.slots: Kv = np.zeros((num_pages + 1) * page_size, np.uint32)
        self.before: Callable[[ForwardBatch], None] = lambda batch: None
        self.batches: list[ForwardBatch] = []

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        """Writes the KV of each item's new tokens; the next token of each item that samples, None for the others."""
        self.batches.append(batch)
        self.before(batch)
        answers: list[int | None] = []
        for item in batch.items:
            start, length = item.start_tokens, item.start_tokens + len(item.token_ids)
            slots = self.slots_of(self.page_table[item.row].numpy(), length)
            last = int(self.slots[slots[start - 1]]) if start else 0
            self.slots[slots[start:]] = right_kv(item.token_ids, last)
            answers.append(next_token(self.slots[slots]) if item.samples else None)
        return answers

    def slots_of(self, pages: NDArray[np.int32], tokens: int) -> NDArray[np.int64]:
        """The slots of the first `tokens` positions of a sequence that lies in `pages`."""
        positions = np.arange(tokens)
        found: NDArray[np.int64] = pages[positions // self.page_size] * np.int64(self.page_size)
        return found + positions % self.page_size

    def read(self, pages: NDArray[np.int32], tokens: int) -> Kv:
        """What is cached for the first `tokens` positions of a sequence that lies in `pages`."""
        return self.slots[self.slots_of(pages, tokens)]


def wrong_row(executor: ContentExecutor, row: torch.Tensor, written_tokens: int, right: Kv) -> str | None:
    """What is wrong with the first `written_tokens` positions behind a row, whose sequence has the KV `right`."""
    if written_tokens > len(right):
        return f"it has KV of {written_tokens} tokens for a sequence of {len(right)}"
    if not np.array_equal(executor.read(row.numpy(), written_tokens), right[:written_tokens]):
        return f"the pages {row.tolist()} don't hold the KV of its first {written_tokens} tokens"
    return None


def wrong_tree(executor: ContentExecutor, node: TreeNode, before: int = 0) -> Iterator[str]:
    """What is wrong with the pages of a node and of all below it; `before` is the KV that its run continues."""
    right = right_kv(node.tokens.tolist(), before)
    if not np.array_equal(executor.read(node.pages, len(right)), right):
        yield f"the tree's pages {node.pages.tolist()} don't hold the KV of {node.tokens.tolist()}"
    for child in node.children.values():
        yield from wrong_tree(executor, child, int(right[-1]) if len(right) else before)
