"""Forward steps on a CUDA stream: the scheduler plans the next step while the GPU runs one. The fence is an event."""

from collections.abc import Sequence

import torch
from torch import Tensor

from freehold.impl.execution.batch import ForwardStep
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.scheduling.ports import ForwardBatch


class StreamFlight:
    """A `Flight` on a stream. It keeps the step's tensors alive until the fence."""

    def __init__(
        self, fence: torch.cuda.Event, step: ForwardStep, tokens: Tensor | None, error: Exception | None
    ) -> None:
        self._fence, self._step, self._tokens, self._error = fence, step, tokens, error

    def ready(self) -> bool:
        """Whether the GPU is past the step."""
        return bool(self._fence.query())  # type: ignore[no-untyped-call]

    def result(self) -> list[int | None]:
        """Waits for the fence: the next token of each item. Raises what the step raised."""
        self._fence.synchronize()
        if self._error is not None:
            raise self._error
        return self._step.tokens(self._step.sample_rows if self._tokens is None else self._tokens)


class StreamExecutor:
    """An `Executor` that enqueues the steps of a `ModelRunner` on one stream, in order, and doesn't wait for them."""

    def __init__(self, runner: ModelRunner) -> None:
        """`runner` must be on a CUDA device, and belongs to the executor: nobody else runs its steps."""
        self._runner = runner
        self._stream = torch.cuda.Stream(runner.planner.device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(runner.planner.device))  # the caches are being zeroed there

    def launch(self, batch: ForwardBatch) -> StreamFlight:
        """Enqueue the step. Raises as `ModelRunner.prepare`; what enqueuing raises comes out of `result`."""
        with torch.cuda.stream(self._stream):
            step = self._runner.prepare(batch)
            tokens: Tensor | None = None
            error: Exception | None = None
            try:
                tokens = self._to_host(self._runner.compute(step))
            except Exception as raised:  # kernels before it may be running: only behind the fence is the step over
                error = raised
            fence = torch.cuda.Event()  # type: ignore[no-untyped-call]
            fence.record(self._stream)
        return StreamFlight(fence, step, tokens, error)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy recurrent states behind all that was launched before. Raises as `ModelRunner.copy_states`."""
        with torch.cuda.stream(self._stream):
            self._runner.copy_states(pairs)

    def close(self) -> None:
        """Wait for all that was launched."""
        self._stream.synchronize()

    @staticmethod
    def _to_host(tokens: Tensor) -> Tensor:
        """A pinned copy that is filled when the fence is passed."""
        host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        return host.copy_(tokens, non_blocking=True)
