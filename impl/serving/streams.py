"""Updates of jobs as iterators: one for asyncio, one that blocks. Leaving either early aborts what is unfinished."""

import asyncio
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from freehold.impl.serving.loop import EngineLoop, Job, Update


class AsyncUpdates:
    """The updates of some jobs, in an asyncio program.

    Entering it submits the jobs and returns when the engine has accepted them; it raises what `EngineLoop.submit`
    raises. Iterating gives the updates of all jobs as they come. Leaving it aborts those that have not finished.
    """

    def __init__(self, loop: EngineLoop, jobs: Sequence[Job]) -> None:
        self._loop = loop
        self._jobs = jobs
        self._unfinished = {job.request_id for job in jobs}
        self._queue: asyncio.Queue[Update] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        here = asyncio.get_running_loop()

        def deliver(update: Update) -> None:
            here.call_soon_threadsafe(self._queue.put_nowait, update)

        try:
            await asyncio.wrap_future(self._loop.submit(self._jobs, deliver))
        except BaseException:  # cancelled too: the submission may be under way already
            self._abort()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._abort()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Update:
        while self._unfinished:
            update = await self._queue.get()
            if update.request_id in self._unfinished:
                if update.finish_reason:
                    self._unfinished.discard(update.request_id)
                return update
        raise StopAsyncIteration

    def drop(self, request_id: str) -> None:
        """The job is aborted, and none of its updates comes any more."""
        self._unfinished.discard(request_id)
        self._loop.abort([request_id])

    def _abort(self) -> None:
        self._loop.abort(self._unfinished)
        self._unfinished = set()


def blocking_updates(loop: EngineLoop, job: Job) -> Iterator[Update]:
    """The updates of one job, which is submitted when the first is asked for.

    Raises what `EngineLoop.submit` raises. Closing the iterator early aborts the job.
    """
    updates: SimpleQueue[Update] = SimpleQueue()
    finished = False
    try:
        loop.submit([job], updates.put).result()
        while not finished:
            update = updates.get()
            finished = update.finish_reason is not None
            yield update
    finally:
        if not finished:
            loop.abort([job.request_id])
