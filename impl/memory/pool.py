"""Free units of one kind, as a stack on a torch tensor."""

import numpy as np
import torch
from numpy.typing import NDArray

from freehold.impl.memory.arrays import Pages
from freehold.spec.errors import FreeholdError, RuleBroken


class OutOfPages(FreeholdError):
    """More units were asked for than can be had; nothing was taken."""


class PagePool:
    """Units that belong to nobody: pages, swa pages or state slots.

    A unit is free exactly while its id lies in `stack[:free_pages]`; there is no other mark of it anywhere.

    generations: int64 [num_pages + 1], how often each unit was given out; who reads content can tell by it whether that
        is older than the unit's owner.
    withheld: units under quarantine; they are given out to nobody, and leave the pool when they come back.
    """

    def __init__(self, num_pages: int) -> None:
        """`num_pages` free units with the ids 1..num_pages; the lowest is given out first."""
        self.num_pages = num_pages
        self.stack = torch.arange(num_pages, 0, -1, dtype=torch.int32)
        self.free_pages = num_pages
        self.generations = torch.zeros(num_pages + 1, dtype=torch.int64)
        self.withheld: set[int] = set()
        self._stack: Pages = self.stack.numpy()  # same memory: small reads and writes cost less through numpy
        self._generations: NDArray[np.int64] = self.generations.numpy()

    def alloc(self, count: int) -> Pages:
        """`count` units go from the free stack to the caller, shape [count].

        Raises OutOfPages before anything is taken.
        """
        if count > self.free_pages:
            raise OutOfPages(f"{count} pages were asked for and {self.free_pages} of {self.num_pages} are free")
        rest = self.free_pages - count
        pages = self._stack[rest : self.free_pages][::-1].copy()
        self.free_pages = rest
        self._generations[pages] += 1
        return pages

    def free(self, pages: Pages) -> None:
        """`pages` go from the caller to the free stack.

        Raises RuleBroken when more come back than ever left, which only a double free can cause.
        """
        if self.withheld:
            pages = np.array([page for page in pages.tolist() if page not in self.withheld], np.int32)
        total = self.free_pages + len(pages)
        if total > self.num_pages:
            raise RuleBroken(f"{total} pages would be free in a pool of {self.num_pages}: a page was freed twice")
        self._stack[self.free_pages : total] = pages[::-1]
        self.free_pages = total

    def free_one(self, unit: int) -> None:
        """One unit goes from the caller to the free stack. Raises RuleBroken as `free` does."""
        self.free(np.array([unit], np.int32))

    def withhold(self, pages: set[int]) -> None:
        """Nobody gets these units any more: free ones leave the stack now, others when they are given back."""
        self.withheld |= pages
        kept = [page for page in self._stack[: self.free_pages].tolist() if page not in self.withheld]
        self._stack[: len(kept)] = kept
        self.free_pages = len(kept)
