"""An executor without a model, for tests and campaigns that run thousands of steps a second."""

from collections.abc import Sequence

from freehold.impl.scheduling.flight import Landed
from freehold.impl.scheduling.ports import PENDING, BatchItem, ForwardBatch

# Constants of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


class NullExecutor:
    """An `Executor` whose next token depends on the last token and its position, and on nothing else.

    So the same prompt gets the same continuation, however its request is batched, chunked or retracted.
    """

    def __init__(self, vocabulary_tokens: int = 32_000) -> None:
        """`vocabulary_tokens`: tokens are drawn from 0 up to, not including, this number.

        Raises ValueError when it is not positive.
        """
        if vocabulary_tokens <= 0:
            raise ValueError(f"vocabulary_tokens must be positive, not {vocabulary_tokens}")
        self._vocabulary_tokens = vocabulary_tokens
        self._last: dict[int, int] = {}

    def launch(self, batch: ForwardBatch) -> Landed:
        """The step is over at once."""
        return Landed(self.execute(batch))

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """There are none."""

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        """The next token of each item, in order; None where `samples` is False."""
        return [self._next_token(item) if item.samples else None for item in batch.items]

    def _next_token(self, item: BatchItem) -> int:
        position = item.start_tokens + len(item.token_ids) - 1
        last = item.token_ids[-1]
        if last == PENDING:
            last = self._last[item.row]
        mixed = (last * _GOLDEN + position) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * _MIX_1) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * _MIX_2) & _MASK
        token = self._last[item.row] = (mixed ^ (mixed >> 31)) % self._vocabulary_tokens
        return token
