"""The engine on a thread of its own.

Nobody else touches it: what others want of it goes through an inbox of calls, which the thread answers between two
steps. Tokens go out through a function that each submission brings along; `streams` has the two kinds in use.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from types import TracebackType
from typing import NamedTuple, TypeVar

from freehold.impl.engine import Engine
from freehold.impl.scheduling.ports import Sampling
from freehold.impl.scheduling.request import FinishReason, Request, StepOutput
from freehold.impl.serving.prefix_hits import PrefixHits
from freehold.spec.errors import FreeholdError

T = TypeVar("T")
_log = logging.getLogger(__name__)


class EngineUnavailable(FreeholdError):
    """The engine takes no requests: it has not started, it has failed, or it is shutting down."""

    exit_code = 1


class RequestTimedOut(FreeholdError):
    """The request waited or ran for longer than the engine allows; it was ended and holds nothing."""

    exit_code = 1


class StepFailed(FreeholdError):
    """A step raised something that is no error of ours; what the engine holds is not to be trusted any more."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One generation to run.

    request_id: a name that no live request has. max_new_tokens: None for as many as the context has room for.
    """

    request_id: str
    prompt: Sequence[int]
    max_new_tokens: int | None = None
    stop_ids: frozenset[int] = frozenset()
    sampling: Sampling = field(default_factory=Sampling)


class Update(NamedTuple):
    """News of one job.

    token: the next one; None when the job ended without another. finish_reason: None while it goes on.
    cached_tokens: prompt tokens that were not computed again. error: why the job ended, if it did not end by itself.
    """

    request_id: str
    token: int | None
    finish_reason: FinishReason | None
    cached_tokens: int = 0
    error: FreeholdError | None = None


Deliver = Callable[[Update], None]
"""Takes an update, on the engine's thread; it must not block. RuntimeError means that nobody listens any more."""


@dataclass(slots=True)
class _Live:
    request: Request
    deliver: Deliver
    cached_tokens: int = -1  # not known before its first token


class EngineLoop:
    """Drives one engine. Start and close it, or use it as a context manager."""

    def __init__(self, engine: Engine) -> None:
        """The engine goes from the caller to the loop's thread, and comes back with `close`."""
        self._engine = engine
        self._prefix_hits = PrefixHits(engine.scheduler.executor)
        engine.scheduler.executor = self._prefix_hits
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._inbox_lock = Lock()
        self._inbox_open = True
        self._live: dict[str, _Live] = {}
        self._unable: str | None = "the engine has not been started"
        self._failure: FreeholdError | None = None
        self._deadline_s: float | None = None
        self._thread = Thread(target=self._run, name="freehold-engine", daemon=True)

    # From any thread --------------------------------------------------------------------------------------------------

    @property
    def unable(self) -> str | None:
        """Why no request is taken now, in words; None when the engine is able."""
        return self._unable

    @property
    def failure(self) -> FreeholdError | None:
        """What broke a step, if one ever did. The engine does not step again after that."""
        return self._failure

    @property
    def max_context_tokens(self) -> int:
        """The longest that prompt and output can be together."""
        return self._engine.config.max_context_tokens

    def start(self) -> None:
        """The thread begins to take calls."""
        self._unable = None
        self._thread.start()

    def close(self, grace_s: float = 0.0) -> None:
        """Take no more requests, let those that are live go on for `grace_s` seconds, abort the rest, end the thread.

        Afterwards no request and no session holds anything, unless a step has failed. Closing again changes nothing.
        """
        if self._thread.ident is not None:
            self._inbox.put(lambda: self._begin_to_close(grace_s))
            self._thread.join()

    def __enter__(self) -> EngineLoop:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def call(self, verb: Callable[[Engine], T]) -> Future[T]:
        """Run `verb` on the engine's thread between two steps; the future has its answer or its error.

        It is answered after a failed step too, to look at what is left; after `close` it raises EngineUnavailable.
        """
        future: Future[T] = Future()

        def answer() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(verb(self._engine))
                except Exception as error:
                    future.set_exception(error)

        with self._inbox_lock:
            if self._inbox_open:
                self._inbox.put(answer)
            else:
                future.set_exception(EngineUnavailable("the engine has been shut down: start another one"))
        return future

    def submit(self, jobs: Sequence[Job], deliver: Deliver) -> Future[None]:
        """Queue all jobs, or none: the future is done when they are accepted, and then `deliver` gets their updates.

        The future raises InvalidInput as `Engine.submit` does, and EngineUnavailable when the engine takes nothing.
        """
        return self.call(lambda engine: self._submit(engine, jobs, deliver))

    def abort(self, request_ids: Iterable[str]) -> None:
        """These jobs end with the next step, and there is no further update. Unknown and finished ones are skipped."""
        names = list(request_ids)
        if names:
            self.call(lambda engine: self._abort(engine, names))

    # On the engine's thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._answer_calls()
        while not self._ends:
            if self._working:
                self._step()
            self._answer_calls()
        self._wind_down()
        with self._inbox_lock:
            self._inbox_open = False
        self._answer_waiting()

    @property
    def _ends(self) -> bool:
        return self._deadline_s is not None and not (self._working and time.monotonic() < self._deadline_s)

    @property
    def _working(self) -> bool:
        return self._engine.busy and self._failure is None

    def _answer_calls(self) -> None:
        """Answer every call that waits; with nothing to do and no end in sight, sleep until one comes."""
        if not self._working and self._deadline_s is None:
            self._inbox.get()()
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        while True:
            try:
                call = self._inbox.get_nowait()
            except Empty:
                return
            call()

    def _submit(self, engine: Engine, jobs: Sequence[Job], deliver: Deliver) -> None:
        if self._unable:
            raise EngineUnavailable(self._unable)
        accepted: list[str] = []
        try:
            for job in jobs:
                request = engine.submit(
                    job.prompt,
                    request_id=job.request_id,
                    max_new_tokens=job.max_new_tokens,
                    stop_ids=tuple(job.stop_ids),
                    sampling=job.sampling,
                )
                accepted.append(job.request_id)
                self._live[job.request_id] = _Live(request, deliver)
                self._prefix_hits.expect(job.request_id)
        except FreeholdError:
            self._abort(engine, accepted)
            raise

    def _abort(self, engine: Engine, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if self._live.pop(request_id, None):
                self._prefix_hits.take(request_id)
                engine.abort(request_id)

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except Exception as error:
            self._fail(error)
            return
        for output in outputs:
            live = self._live.get(output.request_id)
            if live:
                self._pass_on(live, output)

    def _pass_on(self, live: _Live, output: StepOutput) -> None:
        """Deliver what a step said about a live job."""
        request_id, token, reason = output
        if live.cached_tokens < 0:
            live.cached_tokens = self._prefix_hits.take(request_id)
        error = live.request.error
        if error:
            _log.error("request %s: %s", request_id, error)
        if reason is FinishReason.ABORT:
            error = EngineUnavailable(self._unable or "the request was aborted: send it again")
        if reason is FinishReason.TIMEOUT:
            error = RequestTimedOut("the request ran out of time: ask for less, or send it again later")
        if reason:
            del self._live[request_id]
        try:
            live.deliver(Update(request_id, token, reason, live.cached_tokens, error))
        except RuntimeError:
            self._abort(self._engine, [request_id])

    def _fail(self, cause: Exception) -> None:
        """A step broke: its state is not to be trusted, so every live job ends and none is taken any more."""
        failure = cause if isinstance(cause, FreeholdError) else StepFailed(f"a step of the engine raised {cause!r}")
        if failure is not cause:
            failure.__cause__ = cause
        _log.error("the engine has failed and takes no more requests", exc_info=failure)
        self._failure = failure
        self._unable = f"the engine has failed and must be started again: {failure}"
        live, self._live = self._live, {}
        for request_id, job in live.items():
            try:
                job.deliver(Update(request_id, None, FinishReason.ERROR, max(job.cached_tokens, 0), failure))
            except RuntimeError:
                continue

    def _begin_to_close(self, grace_s: float) -> None:
        self._unable = self._unable or "the engine is shutting down: send the request elsewhere"
        self._deadline_s = time.monotonic() + grace_s

    def _wind_down(self) -> None:
        """End every request and every session, so that nobody holds anything."""
        if self._failure:
            return
        for queue in self._engine.scheduler.queues.by_place.values():
            for request_id in queue:
                self._engine.abort(request_id)
        for session_id in list(self._engine.cache.sessions.slots):
            self._engine.close_session(session_id)
        while self._working:
            self._step()
