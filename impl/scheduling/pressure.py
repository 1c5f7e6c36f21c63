"""How much room to keep for tokens that nobody has generated yet: the memory-pressure controller.

A request may generate up to its limit, but most stop earlier. Who keeps room for all of it runs few requests; who keeps
none has to retract. So a share of what is left to generate is kept: it falls a little in each step that goes well and
jumps up when somebody had to give way.
"""

from freehold.impl.memory.cache import Need
from freehold.impl.memory.geometry import CacheGeometry
from freehold.impl.memory.record import record_of
from freehold.impl.scheduling.request import Request
from freehold.spec.arithmetic import new_pages

_FALL_PER_STEP = 0.0025
_RISE = 0.2


class Pressure:
    """share: of the tokens that are left to generate, how many get room at admission; in [floor, 1]."""

    def __init__(self, geometry: CacheGeometry, start: float = 0.4, floor: float = 0.05) -> None:
        self._geometry = geometry
        self.share, self._floor = start, floor

    def step_went_well(self) -> None:
        """Nobody had to give way."""
        self.share = max(self._floor, self.share - _FALL_PER_STEP)

    def somebody_gave_way(self) -> None:
        """Too many were admitted."""
        self.share = min(1.0, self.share + _RISE)

    def reserve(self, request: Request) -> Need:
        """Pages that a request which holds KV is likely to need yet, at least one."""
        return self.between(record_of(request).allocated_tokens, request)

    def between(self, allocated_tokens: int, request: Request) -> Need:
        """Pages for the rest of the prompt and the share of the output, behind so many tokens of room."""
        geometry = self._geometry
        expected = request.length_tokens + int(self.share * (request.limit_tokens - request.length_tokens)) + 1
        wanted = max(allocated_tokens, min(expected, request.limit_tokens - 1))
        pages = max(1, new_pages(allocated_tokens, wanted, geometry.page_size))
        return Need(pages, min(pages, geometry.window_pages + 1) if geometry.window_tokens else 0)
