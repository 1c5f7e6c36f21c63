"""The engine: one cache, one scheduler and one executor, behind a few verbs.

Everything happens on the caller's thread, inside `step`; `submit`, `abort` and the session verbs may be called between
steps or, from an executor, during one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import torch

from freehold.impl.memory.cache import KvCache
from freehold.impl.memory.events import EventSink
from freehold.impl.memory.geometry import CacheGeometry
from freehold.impl.observe import Observation, observe
from freehold.impl.scheduling.policy import AdmissionPolicy, FirstCome, LongestPrefix
from freehold.impl.scheduling.ports import Clock, Executor, Sampling
from freehold.impl.scheduling.request import Request, StepOutput
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.spec.errors import InvalidInput

POLICIES: dict[str, Callable[[], AdmissionPolicy]] = {"first_come": FirstCome, "longest_prefix": LongestPrefix}


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The sizes and the policy of an engine. Raises InvalidInput for those with which none could run.

    page_size: tokens in a page, a power of two.
    num_pages: pages in the pool.
    max_context_tokens: the longest that prompt and output can be together.
    max_running: requests that may hold KV at once.
    chunk_tokens: prefill tokens in one step, over all requests.
    num_rows: rows of the page table, for running requests and saved sessions; 0 for twice `max_running`.
    policy: who is admitted first.
    """

    page_size: int = 16
    num_pages: int = 1024
    max_context_tokens: int = 2048
    max_running: int = 64
    chunk_tokens: int = 512
    num_rows: int = 0
    policy: Literal["first_come", "longest_prefix"] = "first_come"

    def __post_init__(self) -> None:
        if self.max_running < 1:
            raise InvalidInput(f"max_running must be at least 1, not {self.max_running}")
        if self.chunk_tokens < 1:
            raise InvalidInput(f"chunk_tokens must be at least 1, not {self.chunk_tokens}")
        if self.num_rows and self.num_rows < self.max_running:
            raise InvalidInput(f"num_rows={self.num_rows} must be at least max_running={self.max_running}")
        if self.policy not in POLICIES:
            raise InvalidInput(f"policy must be one of {', '.join(POLICIES)}, not {self.policy!r}")
        _ = self.geometry  # checks the rest

    @property
    def geometry(self) -> CacheGeometry:
        """The sizes of the cache."""
        return CacheGeometry(
            page_size=self.page_size,
            num_pages=self.num_pages,
            num_rows=self.num_rows or 2 * self.max_running,
            max_context_tokens=self.max_context_tokens,
        )


class Engine:
    """Generates tokens for many requests at once."""

    def __init__(
        self,
        config: EngineConfig,
        make_executor: Callable[[torch.Tensor], Executor],
        *,
        clock: Clock | None = None,
        sink: EventSink | None = None,
    ) -> None:
        """`make_executor` gets the page table (int32 [rows + 1, row_pages], on the host) and returns what reads it."""
        self.config = config
        self.cache = KvCache(config.geometry, sink)
        self.scheduler = Scheduler(
            self.cache,
            make_executor(self.cache.rows.page_table),
            clock or MonotonicClock(),
            max_running=config.max_running,
            chunk_tokens=config.chunk_tokens,
            policy=POLICIES[config.policy](),
        )
        self._names = count(1)

    def submit(
        self,
        prompt: Sequence[int],
        *,
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        stop_ids: Sequence[int] = (),
        sampling: Sampling | None = None,
        session_id: str | None = None,
        publishes: bool = True,
    ) -> Request:
        """Queue a request; of a session's turn, `prompt` is what is new. The request shows its output as it grows.

        max_new_tokens: None for as many as the context has room for.
        publishes: whether others may use its KV later; a turn's never is.
        Raises InvalidInput when the prompt is empty or too long, the name is taken, or the session is not open or busy.
        """
        request = Request(
            request_id or f"request-{next(self._names)}",
            prompt,
            context_tokens=self.config.max_context_tokens,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            sampling=sampling,
            session=self.cache.sessions.find(session_id) if session_id is not None else None,
            publishes=publishes,
        )
        self.scheduler.submit(request)
        return request

    def abort(self, request_id: str) -> None:
        """The request ends at the top of the next step; nothing happens when it is not live."""
        self.scheduler.abort(request_id)

    def step(self) -> list[StepOutput]:
        """One scheduler step: at most one forward pass."""
        return self.scheduler.step()

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self.scheduler.queues)

    def run_until_idle(self) -> list[StepOutput]:
        """Step until no request is live; every output, in order."""
        outputs: list[StepOutput] = []
        while self.busy:
            outputs += self.step()
        return outputs

    def open_session(self, session_id: str | None = None) -> str:
        """A new streaming session; returns its name. Raises InvalidInput when the name is taken."""
        return self.cache.sessions.open(session_id or f"session-{next(self._names)}").id

    def close_session(self, session_id: str) -> None:
        """The session ends and its KV goes free, now or with its live turn. Raises InvalidInput when it is not open."""
        self.cache.close_session(self.cache.sessions.find(session_id))

    def observe(self) -> Observation:
        """Who holds what, read from the structures themselves."""
        return observe(self.scheduler)
