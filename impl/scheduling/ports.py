"""The ports of the scheduler: what one step hands out, and what it expects back.

The scheduler knows no model, no device and no wall clock. It plans a `ForwardBatch`, an `Executor` runs it, a
`Clock` tells the time. So the same scheduler runs a real model, a null one, or a simulated one with faults.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from freehold.impl.memory.arrays import Tokens

PENDING = -1
"""Stands for a token that is not known yet: the one that the forward step before this samples for the same row."""


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


class BatchItem(NamedTuple):
    """One request's share of a forward step.

    token_ids: the new tokens whose KV this step writes (a chunk of a prefill, or one token of a decode); a decode may
        bring `PENDING` instead.
    start_tokens: position of the first of them, which is the request's KV length before the step.
    row: the request's row of the page table; row 0 is padding.
    samples: whether the token after the last new one is wanted (the last chunk, or a decode).
    prefix: the tokens before the new ones, shape [start_tokens]; a view that no later step changes.
    state_slot: where the recurrent state of a state-space model lies; 0 where there is none. With `start_tokens` 0 the
        step starts from a fresh state, whatever the slot holds.
    """

    request_id: str
    token_ids: tuple[int, ...]
    start_tokens: int
    row: int
    samples: bool
    sampling: Sampling
    prefix: Tokens | None = None
    state_slot: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """Everything that one forward step computes; no two items share a row."""

    items: tuple[BatchItem, ...]


class Flight(Protocol):
    """A forward step that was launched; steps end in the order of their launch. This is its fence."""

    def ready(self) -> bool:
        """Whether `result` would return at once."""
        ...

    def result(self) -> list[int | None]:
        """Waits for the end: the next token of each item, in order; None where `samples` is False.

        Raises what the step raised. Once it has returned or raised, the step touches no page any more.
        """
        ...


class Executor(Protocol):
    """Runs forward steps. It reads the tables and writes KV into their pages; it owns no page."""

    def launch(self, batch: ForwardBatch) -> Flight:
        """Start the step behind all that were launched before. The tables are read before this returns.

        Raises when the step can't be started; then it touches nothing.
        """
        ...

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy recurrent states between slots, (source, target) each, behind all that was launched before."""
        ...


class Clock(Protocol):
    """Time as the scheduler sees it."""

    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...
