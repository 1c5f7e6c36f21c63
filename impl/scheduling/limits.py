"""What the scheduler must keep to: seats, chunks, time."""

from dataclasses import dataclass

from freehold.impl.memory.sessions import SessionSlot
from freehold.impl.scheduling.request import Request
from freehold.spec.state import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one scheduler.

    max_running: requests that may hold KV at once. chunk_tokens: prefill tokens in one step, over all requests.
    longest_chunk_tokens: of one request, so that its window and its chunk fit the swa pool.
    steps_ahead: forward steps in flight between two steps; 0 without overlap, else 1.
    waiting_timeout_s, running_timeout_s: how long a request may wait for its first token, and take in all; None for
        ever. session_timeout_s: how long a session stays open with no live turn; None for ever.
    """

    max_running: int
    chunk_tokens: int
    longest_chunk_tokens: int
    steps_ahead: int = 0
    waiting_timeout_s: float | None = None
    running_timeout_s: float | None = None
    session_timeout_s: float | None = None

    @property
    def timeouts(self) -> bool:
        """Whether anything can run out of time."""
        return any(s is not None for s in (self.waiting_timeout_s, self.running_timeout_s, self.session_timeout_s))

    def is_late(self, request: Request, now_s: float) -> bool:
        """Whether the request waited or ran for too long."""
        age = now_s - request.arrived_s
        waits = self.waiting_timeout_s is not None and request.place is Place.WAITING
        if waits and request.first_token_s is None and age > (self.waiting_timeout_s or 0):
            return True
        return self.running_timeout_s is not None and age > self.running_timeout_s

    def is_idle(self, slot: SessionSlot, now_s: float) -> bool:
        """Whether the session has had no live turn for too long. One that is in use never is."""
        if self.session_timeout_s is None or slot.turn is not None:
            return False
        return now_s - slot.idle_since_s > self.session_timeout_s
