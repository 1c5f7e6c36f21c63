"""The engine: one cache, one scheduler and one executor, behind a few verbs.

Everything happens on the caller's thread, inside `step`; `submit`, `abort` and the session verbs may be called between
steps or, from an executor, during one.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from freehold.impl.containment import Containment, Withholds
from freehold.impl.containment import Policy as OnBreach
from freehold.impl.damage import Damage
from freehold.impl.execution.canary import ContentBroken
from freehold.impl.memory import session_moves
from freehold.impl.memory.cache import KvCache
from freehold.impl.memory.events import EventSink
from freehold.impl.memory.geometry import CacheGeometry
from freehold.impl.memory.tables import KvTables
from freehold.impl.observe import Observation, observe
from freehold.impl.scheduling.limits import Limits
from freehold.impl.scheduling.policy import (
    AdmissionPolicy,
    FirstCome,
    LongestPrefix,
    Priority,
    VictimKey,
    least_done,
    least_urgent,
    youngest,
)
from freehold.impl.scheduling.ports import Clock, Executor, Sampling
from freehold.impl.scheduling.recovery import end_everybody, end_now
from freehold.impl.scheduling.request import Request, StepOutput
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.spec.errors import InvalidInput, RuleBroken
from freehold.spec.trace import Header

Policy = Literal["first_come", "longest_prefix", "priority"]
Retraction = Literal["youngest", "length", "priority"]
POLICIES: dict[str, Callable[[], AdmissionPolicy]] = {
    "first_come": FirstCome,
    "longest_prefix": LongestPrefix,
    "priority": Priority,
}
GIVES_WAY: dict[str, VictimKey] = {"youngest": youngest, "length": least_done, "priority": least_urgent}


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
    policy: who is admitted first. retraction: who gives way first when pages run out. The defaults are those that are
        proved to let every request finish.
    window_tokens, num_swa_pages, num_state_slots: of the model's other pools, see `CacheGeometry`.
    overlap: the scheduler runs one step ahead of the forward pass. Not with recurrent states.
    waiting_timeout_s, running_timeout_s, session_timeout_s: see `Limits`; None for ever.
    """

    page_size: int = 16
    num_pages: int = 1024
    max_context_tokens: int = 2048
    max_running: int = 64
    chunk_tokens: int = 512
    num_rows: int = 0
    policy: Policy = "first_come"
    retraction: Retraction = "youngest"
    window_tokens: int = 0
    num_swa_pages: int = 0
    num_state_slots: int = 0
    overlap: bool = False
    waiting_timeout_s: float | None = None
    running_timeout_s: float | None = None
    session_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_running < 1:
            raise InvalidInput(f"max_running must be at least 1, not {self.max_running}")
        if self.chunk_tokens < 1:
            raise InvalidInput(f"chunk_tokens must be at least 1, not {self.chunk_tokens}")
        if self.num_rows and self.num_rows < self.max_running:
            raise InvalidInput(f"num_rows={self.num_rows} must be at least max_running={self.max_running}")
        if self.policy not in POLICIES:
            raise InvalidInput(f"policy must be one of {', '.join(POLICIES)}, not {self.policy!r}")
        if self.retraction not in GIVES_WAY:
            raise InvalidInput(f"retraction must be one of {', '.join(GIVES_WAY)}, not {self.retraction!r}")
        if self.num_state_slots and self.overlap:
            raise InvalidInput("overlap is not for models with recurrent states: a state can't be ahead of its tokens")
        if 0 < self.num_state_slots < self.max_running:
            raise InvalidInput(
                f"num_state_slots={self.num_state_slots} must be at least max_running={self.max_running}: each running "
                "request has one"
            )
        timeouts = (self.waiting_timeout_s, self.running_timeout_s, self.session_timeout_s)
        if any(seconds is not None and seconds <= 0 for seconds in timeouts):
            raise InvalidInput("a timeout must be above 0 seconds; leave it out for none")
        _ = self.geometry  # checks the rest

    @property
    def geometry(self) -> CacheGeometry:
        """The sizes of the cache."""
        return CacheGeometry(
            page_size=self.page_size,
            num_pages=self.num_pages,
            num_rows=self.num_rows or 2 * self.max_running,
            max_context_tokens=self.max_context_tokens,
            window_tokens=self.window_tokens,
            num_swa_pages=self.num_swa_pages,
            num_state_slots=self.num_state_slots,
        )

    @property
    def header(self) -> Header:
        """The pools as an event log or a monitor of this engine names them."""
        geometry = self.geometry
        return Header(
            page_size=geometry.page_size,
            pages=geometry.num_pages,
            rows=geometry.num_rows,
            row_width=geometry.max_context_tokens,
            swa_pages=geometry.num_swa_pages,
            state_slots=geometry.num_state_slots,
            window=geometry.window_tokens,
            in_flight=self.overlap,
        )

    @property
    def limits(self) -> Limits:
        """What the scheduler keeps to."""
        return Limits(
            max_running=self.max_running,
            chunk_tokens=self.chunk_tokens,
            longest_chunk_tokens=self.geometry.longest_chunk_tokens,
            steps_ahead=int(self.overlap),
            waiting_timeout_s=self.waiting_timeout_s,
            running_timeout_s=self.running_timeout_s,
            session_timeout_s=self.session_timeout_s,
        )


class Engine:
    """Generates tokens for many requests at once.

    after_step: called with the cache after each step, for debugging aids that look at what is free then.
    """

    def __init__(
        self,
        config: EngineConfig,
        make_executor: Callable[[KvTables], Executor],
        *,
        clock: Clock | None = None,
        sink: EventSink | None = None,
        containment: Containment | None = None,
    ) -> None:
        """`make_executor` gets the tables of the memory and returns what reads them.

        sink: hears of every event. containment: what follows when a rule is broken; where it is not (a part of) the
        sink, it hears of nothing.
        """
        self.config = config
        self.containment = containment
        self.after_step: Callable[[KvCache], None] | None = None
        self.cache = KvCache(config.geometry, sink)
        self.scheduler = Scheduler(
            self.cache,
            make_executor(self.cache.tables),
            clock or MonotonicClock(),
            config.limits,
            policy=POLICIES[config.policy](),
            gives_way=GIVES_WAY[config.retraction],
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
        rewind_to: int | None = None,
        publishes: bool = True,
        priority: int = 0,
    ) -> Request:
        """Queue a request; of a session's turn, `prompt` is what is new. The request shows its output as it grows.

        max_new_tokens: None for as many as the context has room for.
        publishes: whether others may use its KV later; a turn's never is.
        rewind_to: a turn goes on from the first so many tokens of its session; None for all of them.
        priority: higher is more urgent, where the policies look at it.
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
            priority=priority,
            rewind_to=rewind_to,
        )
        self.scheduler.submit(request)
        return request

    def abort(self, request_id: str) -> None:
        """The request ends at the top of the next step; nothing happens when it is not live."""
        self.scheduler.abort(request_id)

    def step(self) -> list[StepOutput]:
        """One scheduler step: at most one forward pass.

        Raises RuleBroken when a rule of the law was broken, unless the containment lives with that.
        """
        outputs = self._contained_step(self.containment) if self.containment else self.scheduler.step()
        if self.after_step:
            self.after_step(self.cache)
        return outputs

    def _contained_step(self, contained: Containment) -> list[StepOutput]:
        try:
            outputs = self.scheduler.step()
        except RuleBroken as error:
            if contained.policy is OnBreach.RAISE:
                raise
            contained.stopped(error)
            outputs = end_everybody(self.scheduler, error)
        for broken in {id(cause): cause for cause in self._wrong_content()}.values():  # one for all of its batch
            contained.report("content", str(broken), {"full": broken.pages, "swa": broken.swa_pages})
        contained.settle(self.scheduler, self._pools(), lambda damage: outputs.extend(self._end_damaged(damage)))
        return outputs

    def _wrong_content(self) -> Iterator[ContentBroken]:
        """Why requests ended with this step, where it was that the canary saw wrong KV before they read it."""
        for request in self.scheduler.departed:
            cause = request.error.__cause__ if request.error else None
            if isinstance(cause, ContentBroken):
                yield cause

    def _pools(self) -> dict[str, Withholds]:
        cache = self.cache
        return {"full": cache.pages.full, "swa": cache.pages.swa, "state": cache.states.pool, "row": cache.rows}

    def _end_damaged(self, damage: Damage) -> list[StepOutput]:
        """Whose KV can't be trusted ends with an error; sessions lose their KV, and the tree what is unlocked."""
        error = RuleBroken("a rule of KV ownership was broken, and this request's KV can't be trusted: ask again")
        live = [request for name in damage.requests if (request := self.scheduler.queues.find(name))]
        outputs = [end_now(self.scheduler, request, error) for request in live]
        for name in damage.sessions:
            slot = self.cache.sessions.find(name)
            if slot.kv:
                self.cache.release(slot)
        if damage.tree:
            self.cache.drop_unlocked()
        return outputs

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do: somebody is live, or a forward pass is in flight."""
        return bool(self.scheduler.queues or self.scheduler.flights)

    def run_until_idle(self) -> list[StepOutput]:
        """Step until no request is live; every output, in order."""
        outputs: list[StepOutput] = []
        while self.busy:
            outputs += self.step()
        return outputs

    def open_session(self, session_id: str | None = None) -> str:
        """A new streaming session; returns its name. Raises InvalidInput when the name is taken."""
        slot = self.cache.sessions.open(session_id or f"session-{next(self._names)}")
        slot.idle_since_s = self.scheduler.clock.now()
        return slot.id

    def close_session(self, session_id: str) -> None:
        """The session ends and its KV goes free, now or with its live turn. Raises InvalidInput when it is not open."""
        session_moves.close_session(self.cache, self.cache.sessions.find(session_id))

    def flush(self) -> None:
        """The prefix tree is emptied, and idle sessions give their KV back; they stay open.

        Raises InvalidInput while any request holds KV.
        """
        if self.scheduler.flights or self.scheduler.queues.count_holders():
            raise InvalidInput("requests are running: wait until they have finished, then flush")
        for slot in self.cache.sessions.slots.values():
            if slot.kv:
                self.cache.release(slot)
        self.cache.flush()

    def observe(self) -> Observation:
        """Who holds what, read from the structures themselves."""
        return observe(self.scheduler)
