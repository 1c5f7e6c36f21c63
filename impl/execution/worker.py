"""Forward steps on a thread of their own, so that the scheduler plans the next step while one runs."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from freehold.impl.scheduling.ports import ForwardBatch
from freehold.spec.errors import InvalidInput


class Runner(Protocol):
    """An executor in two parts. `ModelRunner` is one; simulated ones need no tensors."""

    def prepare(self, batch: ForwardBatch) -> Any:
        """A step that `run` takes; it reads the tables now, and nothing reads them later. Raises what `launch` does."""
        ...

    def run(self, step: Any, /) -> list[int | None]:
        """Compute the step: the next token of each item, None where none is wanted."""
        ...

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As in `Executor`."""
        ...


class FutureFlight:
    """A `Flight` on the worker's thread."""

    def __init__(self, future: "Future[list[int | None]]") -> None:
        self._future = future

    def ready(self) -> bool:
        """Whether the step is over."""
        return self._future.done()

    def result(self) -> list[int | None]:
        """Waits for the step: the next token of each item. Raises what the step raised."""
        return self._future.result()


class Worker:
    """An `Executor` that prepares steps on the caller's thread and runs them on one of its own, in order."""

    def __init__(self, runner: Runner) -> None:
        """`runner` belongs to the worker until `close`: nobody else runs its steps."""
        self._runner = runner
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="freehold-forward")
        self._copies: list[Future[None]] = []
        self._closed = False

    def launch(self, batch: ForwardBatch) -> FutureFlight:
        """Start the step behind all that were launched before.

        Raises what the runner's `prepare` raises, InvalidInput once the worker is closed; then nothing is started.
        """
        self._check_open()
        step = self._runner.prepare(batch)
        copies, self._copies = self._copies, []
        return FutureFlight(self._thread.submit(self._run, step, copies))

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy recurrent states behind all that was launched before. What it raises comes out of the next step."""
        self._check_open()
        self._copies.append(self._thread.submit(self._runner.copy_states, tuple(pairs)))

    def close(self) -> None:
        """Let the steps that were launched end, and stop the thread. A second call does nothing."""
        self._closed = True
        self._thread.shutdown(wait=True)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("the forward worker is closed: nothing can be launched any more")

    def _run(self, step: Any, copies: "list[Future[None]]") -> list[int | None]:
        for copy in copies:
            copy.result()  # over already: it stood before this step in the queue
        return self._runner.run(step)
