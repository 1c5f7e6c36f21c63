"""The free pages, as a stack on a torch tensor."""

import torch

from freehold.impl.memory.arrays import Pages
from freehold.spec.errors import FreeholdError, RuleBroken


class OutOfPages(FreeholdError):
    """More pages were asked for than can be had; nothing was taken."""


class PagePool:
    """Pages that belong to nobody.

    A page is free exactly while its id lies in `stack[:free_pages]`; there is no other mark of it anywhere.
    """

    def __init__(self, num_pages: int) -> None:
        """`num_pages` free pages with the ids 1..num_pages; the lowest is given out first."""
        self.num_pages = num_pages
        self.stack = torch.arange(num_pages, 0, -1, dtype=torch.int32)
        self.free_pages = num_pages
        self._stack: Pages = self.stack.numpy()  # same memory: small reads and writes cost less through numpy

    def alloc(self, count: int) -> Pages:
        """`count` pages go from the free stack to the caller, shape [count].

        Raises OutOfPages before anything is taken.
        """
        if count > self.free_pages:
            raise OutOfPages(f"{count} pages were asked for and {self.free_pages} of {self.num_pages} are free")
        rest = self.free_pages - count
        pages = self._stack[rest : self.free_pages][::-1].copy()
        self.free_pages = rest
        return pages

    def free(self, pages: Pages) -> None:
        """`pages` go from the caller to the free stack.

        Raises RuleBroken when more come back than ever left, which only a double free can cause.
        """
        total = self.free_pages + len(pages)
        if total > self.num_pages:
            raise RuleBroken(f"{total} pages would be free in a pool of {self.num_pages}: a page was freed twice")
        self._stack[self.free_pages : total] = pages[::-1]
        self.free_pages = total
