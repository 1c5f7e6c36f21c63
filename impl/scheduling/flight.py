"""Forward steps that end before they are awaited: what executors without a stream or a worker answer with."""

from collections.abc import Callable


class Landed:
    """A `Flight` that is over."""

    def __init__(self, tokens: list[int | None] | None, error: Exception | None = None) -> None:
        self._tokens, self._error = tokens, error

    def ready(self) -> bool:
        """True."""
        return True

    def result(self) -> list[int | None]:
        """The tokens. Raises the error that the step ended with."""
        if self._error is not None:
            raise self._error
        return self._tokens or []


def run_now(compute: Callable[[], list[int | None]]) -> Landed:
    """Compute a step at once; what it raises comes out of `result`, as it would from a step on a stream."""
    try:
        return Landed(compute())
    except Exception as error:  # whatever a model, a driver or a kernel may raise
        return Landed(None, error)
