"""Which node of the prefix tree goes first: the one that was used longest ago."""

import heapq
from collections.abc import Callable
from itertools import count

from freehold.impl.memory.tree_node import TreeNode


class UseQueue:
    """Nodes from which something can be taken, least recently used first.

    A heap that is repaired on the way out: a node is queued at most once, and one from which nothing can be taken any
    more, or that was used again meanwhile, is noticed when it is popped. Both operations are O(log n), and the heap is
    never larger than the tree and what left it since.
    """

    def __init__(self, eligible: Callable[[TreeNode], bool]) -> None:
        """`eligible`: whether something can be taken from a node; whoever makes one so pushes it."""
        self._eligible = eligible
        self._heap: list[tuple[int, int, TreeNode]] = []
        self._queued: set[TreeNode] = set()
        self._ticket = count()  # equal ticks leave in the order in which they came

    def push(self, node: TreeNode) -> None:
        """Queue the node, unless it is queued already."""
        if node not in self._queued:
            self._queued.add(node)
            heapq.heappush(self._heap, (node.last_used, next(self._ticket), node))

    def pop(self) -> TreeNode | None:
        """The eligible node that was used longest ago leaves the queue; None when there is none."""
        while self._heap:
            tick, _, node = heapq.heappop(self._heap)
            self._queued.remove(node)
            if not self._eligible(node):
                continue  # whoever makes it eligible again pushes it again
            if tick == node.last_used:
                return node
            self.push(node)
        return None
