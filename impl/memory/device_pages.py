"""The pages of the device, and their halves in the sliding-window layers.

Where the model has a sliding window, a page that somebody owns may have a *half*: a page of the swa pool, in which the
window layers keep their KV of the same tokens. The half belongs to whoever owns the page. It goes when the window has
moved on, or when its page goes.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from freehold.impl.memory.arrays import Pages
from freehold.impl.memory.flights import Flights
from freehold.impl.memory.geometry import CacheGeometry
from freehold.impl.memory.pool import PagePool


class DevicePages:
    """Both pools, and who is whose half.

    peers: int32 [num_pages + 1]; the half of each page, 0 where it has none.
    """

    def __init__(self, geometry: CacheGeometry) -> None:
        self.full = PagePool(geometry.num_pages)
        self.swa = PagePool(geometry.num_swa_pages)
        self.windowed = geometry.window_tokens > 0
        self.flights = Flights(geometry.num_pages, geometry.num_swa_pages)
        self.peers = torch.zeros(geometry.num_pages + 1, dtype=torch.int32)
        self._peers: Pages = self.peers.numpy()  # same memory

    def halves(self, pages: Pages) -> Pages:
        """The half of each page, same shape; 0 where it has none."""
        return self._peers[pages]

    def alloc(self, count: int) -> Pages:
        """`count` free pages, each with a free half where there is a window, go to the caller."""
        pages = self.full.alloc(count)
        if self.windowed:
            self._peers[pages] = self.swa.alloc(count)
        return pages

    def give_back(self, pages: Pages) -> None:
        """Pages and their halves go from their owner to the free units, or wait for what is in flight."""
        if self.windowed:
            self.drop_halves(pages)
        self.full.free(self.flights.hold_pages(pages))

    def drop_halves(self, pages: Pages) -> None:
        """The halves of pages go to the free units, or wait for what is in flight; the pages stay with their owner."""
        halves = self._peers[pages]
        self._peers[pages] = 0
        self.swa.free(self.flights.hold_halves(halves[halves > 0]))

    def hand_over(self, source: int, target: int) -> int:
        """The half of page `source` becomes that of page `target`, which has none; returns it."""
        half = int(self._peers[source])
        self._peers[source], self._peers[target] = 0, half
        return half

    def in_flight(self) -> NDArray[np.bool_]:
        """Mask [num_pages + 1]: whose half something in flight touches, even if it was another page's at the launch."""
        touched = np.zeros(self.swa.num_pages + 1, np.bool_)
        for step in self.flights.steps:
            touched[step.halves.ids] = True
        touched[0] = False
        return touched[self._peers]

    def paired(self, but: NDArray[np.bool_]) -> int:
        """How many pages outside of the mask `but` [num_pages + 1] have a half."""
        return int(np.count_nonzero(self._peers[~but]))
