"""Which prefixes of a sequence a next token can build on, where layers look back through a sliding window."""

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


def live_prefixes(alive: Mask, window_pages: int) -> Mask:
    """For each length of 0..n pages, whether the last `window_pages` pages of it are alive.

    alive: shape [n], whether each page of a sequence has its half. Returns shape [n + 1]; the empty prefix always is.
    """
    ends = np.arange(1, len(alive) + 1)
    last_dead = np.maximum.accumulate(np.where(alive, 0, ends)) if len(alive) else ends
    live: Mask = np.concatenate([[True], (last_dead == 0) | (last_dead <= ends - window_pages)])
    return live


def longest(prefixes: Mask) -> int:
    """The longest length that a mask over lengths allows; length 0 always is."""
    return int(np.flatnonzero(prefixes)[-1])
