"""The ports of the scheduler: what one step hands out, and what it expects back.

The scheduler knows no model, no device and no wall clock. It plans a `ForwardBatch`, an `Executor` runs it, a
`Clock` tells the time. So the same scheduler runs a real model, a null one, or a simulated one with faults.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token of one request is chosen.

    temperature: 0 is greedy; above 0 the logits are divided by it.
    top_p: keep the fewest tokens whose probability reaches this share; 1 keeps all.
    top_k: keep this many tokens; 0 keeps all.
    seed: with the token's position it fixes every draw; None takes a seed from the request's name.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """One request's share of a forward step.

    token_ids: the new tokens whose KV this step writes (a chunk of a prefill, or one token of a decode).
    start_tokens: position of the first of them, which is the request's KV length before the step.
    row: the request's row of the page table; row 0 is padding.
    samples: whether the token after the last new one is wanted (the last chunk, or a decode).
    """

    request_id: str
    token_ids: tuple[int, ...]
    start_tokens: int
    row: int
    samples: bool
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """Everything that one forward step computes; no two items share a row."""

    items: tuple[BatchItem, ...]


class Executor(Protocol):
    """Runs forward steps. It reads page-table rows and writes KV into their pages; it owns no page."""

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        """The next token of each item, in order; None where `samples` is False."""
        ...


class Clock(Protocol):
    """Time as the scheduler sees it."""

    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...
