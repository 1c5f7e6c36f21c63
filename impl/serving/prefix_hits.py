"""How much of a prompt was there already, seen where the scheduler hands out work."""

from collections.abc import Sequence

from freehold.impl.scheduling.ports import Executor, Flight, ForwardBatch


class PrefixHits:
    """An `Executor` in front of another: it notes at which token each awaited request starts to compute.

    What lies before that was found in the prefix tree, or saved by a session.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._awaited: set[str] = set()
        self._cached_tokens: dict[str, int] = {}

    def expect(self, request_id: str) -> None:
        """The next time that this request computes is its first."""
        self._awaited.add(request_id)

    def take(self, request_id: str) -> int:
        """Prompt tokens that the request did not compute; 0 if it never began. It is forgotten by this."""
        self._awaited.discard(request_id)
        return self._cached_tokens.pop(request_id, 0)

    def launch(self, batch: ForwardBatch) -> Flight:
        """As the executor behind it."""
        if self._awaited:
            for item in batch.items:
                if item.request_id in self._awaited:
                    self._awaited.discard(item.request_id)
                    self._cached_tokens[item.request_id] = item.start_tokens
        return self._executor.launch(batch)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As the executor behind it."""
        self._executor.copy_states(pairs)
