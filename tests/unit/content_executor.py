"""An executor that computes with what the pages really hold, so that a wrong page shows in the tokens."""

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch

from freehold.impl.scheduling.ports import ForwardBatch

VOCABULARY = 50


def next_token(tokens: Sequence[int]) -> int:
    """The one right continuation of a sequence."""
    return zlib.crc32(np.asarray(tokens, np.int32).tobytes()) % VOCABULARY


def continuation(prompt: Sequence[int], count: int, stop_ids: Sequence[int] = ()) -> list[int]:
    """What an engine with all the room in the world generates."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(prompt) :]


class ContentExecutor:
    """Writes token ids as KV through the page table, and reads whole sequences back from it to choose the next token.

    before: called with each batch before it runs; may raise, as a device may.
    """

    def __init__(self, page_table: torch.Tensor, num_pages: int, page_size: int) -> None:
        self.page_table, self.page_size = page_table, page_size
        self.slots = np.full((num_pages + 1) * page_size, -1, np.int32)
        self.before: Callable[[ForwardBatch], None] = lambda batch: None
        self.batches: list[ForwardBatch] = []

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        self.batches.append(batch)
        self.before(batch)
        answers: list[int | None] = []
        for item in batch.items:
            length = item.start_tokens + len(item.token_ids)
            positions = np.arange(length)
            pages = self.page_table[item.row].numpy()[positions // self.page_size]
            slots = pages * self.page_size + positions % self.page_size
            self.slots[slots[item.start_tokens :]] = item.token_ids
            answers.append(next_token(self.slots[slots].tolist()) if item.samples else None)
        return answers
