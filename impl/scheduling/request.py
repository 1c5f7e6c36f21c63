"""A request: what was asked for, what was said so far, and the KV it holds, if any."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from freehold.impl.memory.arrays import Tokens, as_tokens
from freehold.impl.memory.record import KvRecord
from freehold.impl.memory.sessions import SessionSlot
from freehold.impl.scheduling.ports import Sampling
from freehold.spec.errors import FreeholdError, InvalidInput
from freehold.spec.state import Place


class FinishReason(StrEnum):
    """Why a request left."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"


class StepOutput(NamedTuple):
    """What a step has to say about one request: its next token, its end, or both.

    token: None when the request ended without another one (abort, error).
    finish_reason: None while it goes on.
    """

    request_id: str
    token: int | None
    finish_reason: FinishReason | None


class Request:
    """One generation, from its arrival to its end.

    kv: the record it holds; None exactly while it is WAITING or OUT.
    place: where the scheduler has it; only `Queues.move` writes it.
    session: the open session whose turn this is. A turn builds on its session's history, saves its KV there, and
        publishes nothing to the prefix tree, so that what a conversation keeps is always the session's alone.
    kept_tokens: of a turn, how many tokens of its session's history it goes on from.
    priority: higher is more urgent; the policies `priority` read it, others don't.
    publishes: whether its whole written pages may go to the tree, for others to use.
    arrival: position in the order of arrival; age in every decision of the scheduler.
    arrived_s, first_token_s, finished_s: by the scheduler's clock.
    """

    __slots__ = (
        "_tokens", "arrival", "arrived_s", "error", "finish_reason", "finished_s", "first_token_s", "id", "kept_tokens",
        "kv", "length_tokens", "limit_tokens", "place", "priority", "prompt_tokens", "publishes", "sampling", "session",
        "stop_ids",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        prompt: Sequence[int] | Tokens,
        *,
        context_tokens: int,
        max_new_tokens: int | None = None,
        stop_ids: Sequence[int] = (),
        sampling: Sampling | None = None,
        session: SessionSlot | None = None,
        publishes: bool = True,
        priority: int = 0,
        rewind_to: int | None = None,
    ) -> None:
        """`prompt`: token ids; of a turn, those that are new after the session's history.

        `rewind_to`: of a turn, go on from the first so many tokens of the history; None for all of it.
        `max_new_tokens`: at most this many are generated; None for as many as `context_tokens` has room for.
        Raises InvalidInput when the prompt is empty, prompt and output cannot fit `context_tokens` together, or there
        is nothing to rewind to.
        """
        new = as_tokens(prompt)
        if not len(new):
            raise InvalidInput("the prompt is empty: give at least one token")
        if max_new_tokens is not None and max_new_tokens < 1:
            raise InvalidInput(f"max_new_tokens must be at least 1, not {max_new_tokens}")
        history = _history(session, rewind_to)
        start = np.concatenate([history, new]) if session else new
        limit = len(start) + (max_new_tokens or 1)
        if limit > context_tokens:
            raise InvalidInput(
                f"{len(start)} prompt tokens and {max_new_tokens or 1} new ones exceed the context of "
                f"{context_tokens}: shorten the prompt or lower max_new_tokens"
            )
        self.id = request_id
        self.prompt_tokens = self.length_tokens = len(start)
        self.limit_tokens = limit if max_new_tokens else context_tokens
        self.stop_ids = frozenset(stop_ids)
        self.sampling = sampling or Sampling()
        self.kept_tokens = len(history)
        self.priority = priority
        self.session = session
        self.publishes = publishes and session is None
        self.kv: KvRecord | None = None
        self.place = Place.OUT
        self.arrival = -1
        self.arrived_s = 0.0
        self.first_token_s: float | None = None
        self.finished_s: float | None = None
        self.finish_reason: FinishReason | None = None
        self.error: FreeholdError | None = None
        self._tokens = np.empty(self.limit_tokens, np.int32)
        self._tokens[: len(start)] = start

    def __repr__(self) -> str:
        return f"Request({self.id!r}, {self.place.name}, {self.length_tokens} tokens, kv={self.kv})"

    @property
    def output(self) -> list[int]:
        """The generated tokens so far."""
        return list(self.token_ids(self.prompt_tokens, self.length_tokens))

    def tokens(self, start: int, stop: int) -> Tokens:
        """Prompt and output at the positions [start, stop), as a view that stays valid while the output grows."""
        return self._tokens[start:stop]

    def token_ids(self, start: int, stop: int) -> tuple[int, ...]:
        """The same as plain integers."""
        if stop - start == 1:  # every decode, every step
            return (self._tokens.item(start),)
        return tuple(self._tokens[start:stop].tolist())

    def append(self, token: int) -> FinishReason | None:
        """The next output token; returns why the request ends with it, or None."""
        self._tokens[self.length_tokens] = token
        self.length_tokens += 1
        if token in self.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.length_tokens == self.limit_tokens else None


def _history(session: SessionSlot | None, rewind_to: int | None) -> Tokens:
    """The tokens of earlier turns that a turn goes on from; none where there is no session."""
    if session is None:
        if rewind_to is not None:
            raise InvalidInput("rewind_to is for a session's turn: name the session")
        return np.empty(0, np.int32)
    if rewind_to is None:
        return session.history
    if not 0 <= rewind_to <= len(session.history):
        raise InvalidInput(
            f"session {session.id!r} has {len(session.history)} tokens: rewind_to must lie in [0, "
            f"{len(session.history)}], not {rewind_to}"
        )
    return session.history[:rewind_to]
