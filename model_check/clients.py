"""What a client knows: its own idea of every conversation, and the one right answer to each of its requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from freehold.impl.scheduling.request import FinishReason, Request
from freehold.model_check.content import Kv


@dataclass(slots=True, eq=False)
class Talk:
    """A session as its client knows it. idle_since_s: when it was opened, or its last turn left."""

    history: list[int] = field(default_factory=list)
    turn: Asked | None = None
    closing: bool = False
    idle_since_s: float = 0.0


@dataclass(slots=True, eq=False)
class Asked:
    """A request as its client knows it: `prompt` with the session's history, and the one right `output`.

    since_s: when it was asked for. aborted: whether its client hung up.
    """

    request: Request
    prompt: list[int]
    output: list[int]
    talk: Talk | None
    kv: Kv
    since_s: float = 0.0
    streamed: list[int] = field(default_factory=list)
    aborted: bool = False

    def wrong(self) -> str | None:
        """What is wrong with what came out so far."""
        length = len(self.streamed)
        if self.streamed != self.output[:length] or self.request.output != self.streamed:
            return f"request {self.request.id} said {self.streamed} ({self.request.output}), not {self.output}"
        if self.request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH) and length < len(self.output):
            return f"request {self.request.id} ended after {length} of {len(self.output)} tokens"
        return None
