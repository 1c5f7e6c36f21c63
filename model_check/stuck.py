"""A limit for what may never return: a broken engine can loop for ever, and nobody should wait for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stuck(RuntimeError):
    """A verb did not return."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises Stuck inside the `with` when that takes longer. Outside of the main thread there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise Stuck(f"it did not return in {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
