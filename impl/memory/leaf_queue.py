"""Which leaf of the prefix tree goes first: the one that was let go of longest ago."""

import heapq
from itertools import count

from freehold.impl.memory.tree_node import TreeNode


class LeafQueue:
    """Unlocked leaves, least recently used first.

    A heap that is repaired on the way out: a node is queued at most once, and one that was locked, used again or
    given a child meanwhile is noticed when it is popped. Both operations are O(log n), and the heap is never
    larger than the tree.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TreeNode]] = []
        self._queued: set[TreeNode] = set()
        self._ticket = count()  # equal ticks leave in the order in which they came

    def push(self, leaf: TreeNode) -> None:
        """Queue the leaf, unless it is queued already."""
        if leaf not in self._queued:
            self._queued.add(leaf)
            heapq.heappush(self._heap, (leaf.last_used, next(self._ticket), leaf))

    def pop(self) -> TreeNode | None:
        """The unlocked leaf that was used longest ago leaves the queue; None when there is none."""
        while self._heap:
            tick, _, leaf = heapq.heappop(self._heap)
            self._queued.remove(leaf)
            if not leaf.evictable:
                continue  # whoever makes it an unlocked leaf again pushes it again
            if tick == leaf.last_used:
                return leaf
            self.push(leaf)
        return None
