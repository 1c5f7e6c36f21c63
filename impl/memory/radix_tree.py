"""The prefix tree: KV pages that any sequence with the same tokens may use.

A compressed radix tree in units of whole pages. Runs are compared as arrays, so that a match costs a few vector
compares and not a step for each token; a holder that publishes more continues from its anchor and never walks its
prefix again. Compression is invisible to the law, for which every page is a node: `_split` moves no page and no lock.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from freehold.impl.memory.arrays import Pages, Tokens
from freehold.impl.memory.tree_node import Match, TreeLock, TreeNode
from freehold.impl.memory.use_queue import UseQueue
from freehold.spec.arithmetic import ceil_pages, floor_to_page
from freehold.spec.errors import RuleBroken

_NO_PAGES: Pages = np.empty(0, np.int32)


class RadixTree:
    """Owns the pages in its nodes. Locks are closed upwards: a locked node's parent is locked.

    unlocked_pages: pages in unlocked nodes, all of which eviction can reach, leaf by leaf.
    """

    def __init__(self, page_size: int, windowed: bool = False) -> None:
        """`windowed`: whether its pages may have halves in the swa pool, which `tombstones` can take."""
        self.page_size = page_size
        self.windowed = windowed
        self.root = TreeNode(tokens=_NO_PAGES, pages=_NO_PAGES, parent=None)
        self.unlocked_pages = 0
        self._leaves = UseQueue(lambda node: node.evictable)
        self._paired = UseQueue(lambda node: node.in_tree)  # nodes that may have halves in the swa pool
        self._tick = 0

    def match(self, tokens: Tokens, below: TreeLock | None = None) -> Match:
        """The longest run of whole pages of `tokens` that continues `below`, or starts at the root. Changes nothing."""
        node = below.anchor if below else self.root
        node_pages, matched, wanted = len(node.pages), 0, floor_to_page(len(tokens), self.page_size)
        while matched < wanted and node_pages == len(node.pages):
            rest = tokens[matched:]
            child = node.children.get(self._key(rest))
            if child is None:
                break
            node, node_pages = child, self._common_pages(child.tokens, rest)
            matched += node_pages * self.page_size
        return Match(node, node_pages, matched)

    def lock(self, match: Match, held: TreeLock | None) -> tuple[TreeLock, Pages]:
        """A receipt for the whole match; `held`, which the match continues, merges into it.

        Returns the receipt, and the pages that are locked beyond `held`, from the root down.
        """
        anchor = self._split(match.node, match.node_pages)
        above = held.anchor if held else self.root
        self._tick += 1
        pages = []
        for node in anchor.upwards(above):
            if not node.locks:
                self.unlocked_pages -= len(node.pages)
            node.locks += 1
            node.last_used = self._tick
            pages.append(node.pages)
            if self.windowed:
                self._paired.push(node)
        return TreeLock(anchor), np.concatenate([*reversed(pages), _NO_PAGES])

    def shorten(self, lock: TreeLock, surplus_pages: int) -> TreeLock | None:
        """The receipt loses its last `surplus_pages` pages; None when nothing is left of it.

        Whatever no other receipt covers can be evicted from now on.
        """
        node = lock.anchor
        while node.in_tree and surplus_pages >= len(node.pages):
            surplus_pages -= len(node.pages)
            node = above(node)
        if surplus_pages:
            node = self._split(node, len(node.pages) - surplus_pages)
        self._let_go(lock.anchor, node)
        return TreeLock(node) if node.in_tree else None

    def _let_go(self, anchor: TreeNode, kept: TreeNode | None) -> None:
        """A receipt leaves the nodes from `anchor` upwards, before `kept`."""
        self._tick += 1
        for node in anchor.upwards(kept):
            node.locks -= 1
            node.last_used = self._tick
            if not node.locks:
                self.unlocked_pages += len(node.pages)
                if not node.children:
                    self._leaves.push(node)

    def insert(self, tokens: Tokens, pages: Pages, held: TreeLock | None) -> TreeLock:
        """`pages`, which hold `tokens`, go from their record to the tree, behind the end of `held`.

        Returns the receipt that covers them too; `held` merges into it. Match first: no run there may begin with the
        same page.
        """
        parent = held.anchor if held else self.root
        node = TreeNode(tokens=tokens.copy(), pages=pages, parent=parent, locks=1, last_used=self._tick)
        parent.children[self._key(tokens)] = node
        if self.windowed:
            self._paired.push(node)
        return TreeLock(node)

    def evict(self, count: int) -> Iterator[Pages]:
        """Up to `count` pages go from the tree to the caller, leaf by leaf, each leaf's last page first.

        A leaf that is longer than what is still wanted keeps its beginning.
        """
        while count > 0 and (leaf := self._leaves.pop()):
            kept = max(0, len(leaf.pages) - count)
            pages = leaf.pages[kept:][::-1]
            self.unlocked_pages -= len(pages)
            count -= len(pages)
            if kept:
                leaf.pages, leaf.tokens = leaf.pages[:kept], leaf.tokens[: kept * self.page_size]
                self._leaves.push(leaf)
            else:
                self._remove(leaf)
            yield pages

    def tombstones(self, count: int, paired: NDArray[np.bool_], kept: NDArray[np.bool_]) -> Iterator[Pages]:
        """Up to `count` pages whose half in the swa pool is to go, of the node that was used longest ago first.

        paired, kept: masks over page ids; which pages have a half, and whose half somebody needs. A node loses the
        halves at its beginning first: a match that ends in it looks back on its end.
        """
        looked_at: list[TreeNode] = []
        while count > 0 and (node := self._paired.pop()):
            pages = node.pages[paired[node.pages] & ~kept[node.pages]][:count]
            count -= len(pages)
            looked_at.append(node)
            if len(pages):
                yield pages
        for node in looked_at:
            self._paired.push(node)

    def _remove(self, leaf: TreeNode) -> None:
        parent = above(leaf)
        del parent.children[self._key(leaf.tokens)]
        leaf.parent = None
        if parent.evictable:
            self._leaves.push(parent)

    def _split(self, node: TreeNode, pages: int) -> TreeNode:
        """The node that ends behind the first `pages` of `node`, which keeps the rest, and with it its receipts."""
        if pages == len(node.pages):
            return node
        parent = above(node)
        cut = pages * self.page_size
        head = TreeNode(
            tokens=node.tokens[:cut],
            pages=node.pages[:pages],
            parent=parent,
            children={self._key(node.tokens[cut:]): node},
            locks=node.locks,
            last_used=node.last_used,
        )
        parent.children[self._key(node.tokens)] = head
        node.tokens, node.pages, node.parent = node.tokens[cut:], node.pages[pages:], head
        if self.windowed:
            self._paired.push(head)
        return head

    def _key(self, tokens: Tokens) -> bytes:
        return tokens[: self.page_size].tobytes()

    def _common_pages(self, run: Tokens, tokens: Tokens) -> int:
        """Whole pages that both begin with."""
        length = min(len(run), len(tokens))
        differs = run[:length] != tokens[:length]
        first = int(differs.argmax())
        same = first if differs[first] else length
        return ceil_pages(floor_to_page(same, self.page_size), self.page_size)


def above(node: TreeNode) -> TreeNode:
    """The node's parent. Raises RuleBroken where it has none: it left the tree, or is its root."""
    if node.parent is None:
        raise RuleBroken(f"the run of pages {node.pages.tolist()} is in no tree: a match outlived an eviction")
    return node.parent
