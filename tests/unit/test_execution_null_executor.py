"""The null executor: cheap, and blind to batching."""

import pytest

from freehold.impl.scheduling.null_executor import NullExecutor
from freehold.impl.scheduling.ports import BatchItem, ForwardBatch, Sampling


def item(token_ids: tuple[int, ...], start_tokens: int, samples: bool = True) -> BatchItem:
    return BatchItem(
        request_id="r", token_ids=token_ids, start_tokens=start_tokens, row=1, samples=samples, sampling=Sampling()
    )


def test_the_next_token_depends_on_the_last_token_and_its_position_only() -> None:
    executor = NullExecutor(1000)
    whole = executor.execute(ForwardBatch(items=(item((4, 5, 6), 0),)))
    chunk = executor.execute(ForwardBatch(items=(item((9,), 0, samples=False), item((6,), 2))))
    assert chunk == [None, *whole]
    other = {
        executor.execute(ForwardBatch(items=(item((token,), position),)))[0] for token in (6, 7) for position in (2, 3)
    }
    assert len(other) == 4


def test_tokens_cover_the_vocabulary_and_stay_in_it() -> None:
    executor = NullExecutor(50)
    tokens = executor.execute(ForwardBatch(items=tuple(item((i % 7,), i) for i in range(2000))))
    assert set(tokens) == set(range(50))


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        NullExecutor(0)
