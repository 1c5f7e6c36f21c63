"""A node of the prefix tree: a run of whole pages that every sequence through it shares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from freehold.impl.memory.arrays import Pages, Tokens
from freehold.spec.arithmetic import ceil_pages


@dataclass(slots=True, eq=False)
class TreeNode:
    """One run of pages. The tree owns them, whoever wrote them.

    tokens: what the pages hold, shape [pages * page_size].
    pages: shape [pages]; empty in the root only.
    parent: the run before this one; None for the root, and for a run that left the tree.
    children: the runs that may follow, by the bytes of their first page's tokens.
    locks: receipts whose path goes through the node. It caches what the records' receipts say, so that a node need not
        ask all of them; `observe` counts them again.
    last_used: tick of the last lock or unlock, which orders eviction.
    """

    tokens: Tokens
    pages: Pages
    parent: TreeNode | None
    children: dict[bytes, TreeNode] = field(default_factory=dict)
    locks: int = 0
    last_used: int = 0

    @property
    def evictable(self) -> bool:
        """An unlocked leaf: nobody needs it, and nothing in the tree stands on it."""
        return not self.locks and not self.children and self.parent is not None

    @property
    def in_tree(self) -> bool:
        """Whether it is a run of the tree still, and not its root."""
        return self.parent is not None

    def upwards(self, above: TreeNode | None = None) -> Iterator[TreeNode]:
        """This node, its parent, and so on; ends before `above`, or before the root."""
        node = self
        while node is not above and node.parent is not None:
            yield node
            node = node.parent


@dataclass(frozen=True, slots=True)
class TreeLock:
    """A receipt: its holder keeps the path from the root through all of `anchor` from eviction."""

    anchor: TreeNode


@dataclass(frozen=True, slots=True)
class Match:
    """How far a token sequence is in the tree: a promise that the next eviction may break, unless it is locked.

    node, node_pages: the last node reached, and how many of its pages agree.
    matched_tokens: whole pages of tokens that agree, counted from the start of the walk.
    """

    node: TreeNode
    node_pages: int
    matched_tokens: int

    def unlocked_pages(self) -> int:
        """Pages of the match that could be evicted now: what locking it takes from the evictable ones."""
        unlocked = 0
        for node in self.node.upwards():
            if node.locks:
                break
            unlocked += self.node_pages if node is self.node else len(node.pages)
        return unlocked

    def pages(self) -> Pages:
        """Its pages, from the root down."""
        runs = [node.pages for node in self.node.upwards()]
        if runs:
            runs[0] = runs[0][: self.node_pages]
        return np.concatenate([*reversed(runs), np.empty(0, np.int32)])

    def shortened(self, pages: int, page_size: int) -> Match:
        """The first `pages` pages of a match that starts at the root."""
        node, node_pages, surplus = self.node, self.node_pages, ceil_pages(self.matched_tokens, page_size) - pages
        while surplus > node_pages or (surplus and surplus == node_pages):
            surplus -= node_pages
            if node.parent is None:
                break
            node = node.parent
            node_pages = len(node.pages)
        return Match(node, node_pages - surplus, pages * page_size)
