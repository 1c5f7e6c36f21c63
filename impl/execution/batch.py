"""From the scheduler's batch to tensors: one ragged sequence of new tokens, and where its KV lies.

Decodes come first, then prefills. The model sees one sequence `[1, tokens]` with explicit positions, so that
decodes and prefills of all requests share every matrix product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from freehold.impl.execution.attention import KvWriter, PagedStep, Segment
from freehold.impl.execution.kv_storage import KvStorage
from freehold.impl.execution.segments import (
    GatheredDecode,
    KernelDecode,
    Prefill,
    write_kv,
    write_kv_kernel,
)
from freehold.impl.scheduling.ports import BatchItem, ForwardBatch
from freehold.spec.arithmetic import ceil_pages
from freehold.spec.errors import InvalidInput

# Decodes of up to this many tokens share one padded batch; longer ones share it per power of two.
_SHORT_DECODE_TOKENS = 128
# A prefill behind a prefix needs a mask; longer chunks attend in blocks of this many rows to bound its size.
_MASKED_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class RaggedStep:
    """One forward step as tensors.

    input_ids, position_ids: `[1, tokens]`. logit_rows: `[samples]`, the tokens whose logits are wanted.
    samples: for each of them, the index of its item in the batch.
    """

    input_ids: Tensor
    position_ids: Tensor
    logit_rows: Tensor
    samples: tuple[int, ...]
    paged: PagedStep


@dataclass(frozen=True, slots=True)
class PageMap:
    """Where tokens lie: a page table `[rows + 1, max_pages]` int32 (row 0 padding) that someone else fills.

    It is read at each step and never written here.
    """

    page_table: Tensor
    page_size: int
    device: torch.device

    def pages(self, rows: Sequence[int], kv_tokens: int) -> Tensor:
        """`[rows, pages]`: the pages that hold the first `kv_tokens` tokens of each row."""
        indices = torch.tensor(rows, device=self.page_table.device)
        return self.page_table[:, : ceil_pages(kv_tokens, self.page_size)].index_select(0, indices).to(self.device)

    def slots(self, row: int, start_tokens: int, stop_tokens: int) -> Tensor:
        """`[stop - start]` int64: the slots of one row's tokens start..stop."""
        positions = torch.arange(start_tokens, stop_tokens, device=self.device)
        return self._slots(self.pages([row], stop_tokens)[0], positions)

    def padded_slots(self, rows: Sequence[int], seq_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The slots of the first `seq_tokens` `[rows]` tokens of each row, padded with the row's first slot.

        Returns slots `[rows, longest]` int64, and whether each is real.
        """
        longest = int(seq_tokens.max())
        positions = torch.arange(longest, device=self.device)
        slots = self._slots(self.pages(rows, longest), positions)
        real = positions < seq_tokens[:, None]
        return torch.where(real, slots, slots[:, :1]), real

    def _slots(self, pages: Tensor, positions: Tensor) -> Tensor:
        if self.page_size == 1:
            return pages.index_select(-1, positions).long()
        page_of = positions // self.page_size
        first_slots = pages.index_select(-1, page_of).long() * self.page_size
        return first_slots + (positions - page_of * self.page_size)


class AttentionPath(Protocol):
    """How one kind of device writes KV and attends for decodes."""

    @property
    def write_kv(self) -> KvWriter: ...

    def decodes(self, items: Sequence[BatchItem], page_map: PageMap, dtype: torch.dtype) -> list[Segment]:
        """Segments over `items`, one new token each, sorted by length; they start at token 0 of the step."""
        ...


class TorchPath:
    """Plain torch: gathers the KV of decodes of like length into one padded batch."""

    write_kv = staticmethod(write_kv)

    def decodes(self, items: Sequence[BatchItem], page_map: PageMap, dtype: torch.dtype) -> list[Segment]:
        segments: list[Segment] = []
        start = 0
        for _, group in groupby(items, key=_padding_class):
            members = list(group)
            lengths = torch.tensor([item.start_tokens + 1 for item in members], device=page_map.device)
            slots, real = page_map.padded_slots([item.row for item in members], lengths)
            stop = start + len(members)
            segments.append(GatheredDecode(start, stop, slots.flatten(), _additive_mask(real, dtype)))
            start = stop
        return segments


class KernelPath:
    """Triton kernels on a GPU: they read the page table themselves and need no padding."""

    write_kv = staticmethod(write_kv_kernel)

    def decodes(self, items: Sequence[BatchItem], page_map: PageMap, dtype: torch.dtype) -> list[Segment]:
        if not items:
            return []
        lengths = [item.start_tokens + 1 for item in items]
        pages = page_map.pages([item.row for item in items], max(lengths))
        seq_tokens = torch.tensor(lengths, dtype=torch.int32, device=page_map.device)
        return [KernelDecode(0, len(items), pages, seq_tokens)]


@dataclass(frozen=True, slots=True)
class StepPlanner:
    """Turns batches into ragged steps over fixed storage."""

    storage: KvStorage
    page_map: PageMap
    path: AttentionPath

    def plan(self, batch: ForwardBatch) -> RaggedStep:
        """The step that computes `batch`.

        Raises InvalidInput for an empty batch or item, a row outside of the table, or tokens beyond a row's
        width.
        """
        check_batch(batch, rows=self.page_map.page_table.shape[0], width_tokens=self._width_tokens)
        order = sorted(range(len(batch.items)), key=lambda index: _step_order(batch.items[index]))
        items = [batch.items[index] for index in order]
        token_ids = [token for item in items for token in item.token_ids]
        positions = [item.start_tokens + offset for item in items for offset in range(len(item.token_ids))]
        logit_rows: list[int] = []
        samples: list[int] = []
        token = 0
        for index, item in zip(order, items, strict=True):
            token += len(item.token_ids)
            if item.samples:
                logit_rows.append(token - 1)
                samples.append(index)
        device = self.page_map.device
        return RaggedStep(
            input_ids=torch.tensor([token_ids], device=device),
            position_ids=torch.tensor([positions], device=device),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
            samples=tuple(samples),
            paged=self._paged_step(items),
        )

    @property
    def _width_tokens(self) -> int:
        return self.page_map.page_table.shape[1] * self.page_map.page_size

    def _paged_step(self, items: Sequence[BatchItem]) -> PagedStep:
        """The attention of `items`, which stand in step order."""
        decodes = [item for item in items if len(item.token_ids) == 1]
        dtype = self.storage.keys[0].dtype
        segments = self.path.decodes(decodes, self.page_map, dtype)
        write_slots = [self._decode_slots(decodes)] if decodes else []
        token = len(decodes)
        for item in items[len(decodes) :]:
            slots = self.page_map.slots(item.row, 0, item.start_tokens + len(item.token_ids))
            write_slots.append(slots[item.start_tokens :])
            segments.extend(_prefill(item.start_tokens, slots, token, dtype))
            token += len(item.token_ids)
        return PagedStep(self.storage, torch.cat(write_slots), self.path.write_kv, segments)

    def _decode_slots(self, decodes: Sequence[BatchItem]) -> Tensor:
        """`[decodes]` int64: the slot of each one's new token."""
        table = self.page_map.page_table
        page_size = self.page_map.page_size
        rows = torch.tensor([item.row for item in decodes], device=table.device)
        positions = torch.tensor([item.start_tokens for item in decodes], device=table.device)
        page_of = positions // page_size
        slots = table[rows, page_of].long() * page_size + (positions - page_of * page_size)
        return slots.to(self.page_map.device)


def check_batch(batch: ForwardBatch, *, rows: int, width_tokens: int) -> None:
    """Raise InvalidInput unless every item brings tokens, on a row of its own, within the row's width."""
    if not batch.items:
        raise InvalidInput("an empty batch has nothing to compute; skip the step instead")
    taken: set[int] = set()
    for item in batch.items:
        stop_tokens = item.start_tokens + len(item.token_ids)
        if not item.token_ids:
            raise InvalidInput(f"request {item.request_id} brings no new token; leave it out of the batch")
        if not 0 < item.row < rows or item.row in taken:
            raise InvalidInput(
                f"request {item.request_id} is on row {item.row}; give it a row of its own in 1..{rows - 1}"
            )
        if item.start_tokens < 0 or stop_tokens > width_tokens:
            raise InvalidInput(
                f"request {item.request_id} spans tokens {item.start_tokens}..{stop_tokens}; a row of the "
                f"page table holds {width_tokens}"
            )
        taken.add(item.row)


def _step_order(item: BatchItem) -> tuple[bool, int]:
    """Decodes before prefills, and decodes by length."""
    return len(item.token_ids) > 1, item.start_tokens


def _padding_class(item: BatchItem) -> int:
    return max(item.start_tokens + 1, _SHORT_DECODE_TOKENS).bit_length()


def _additive_mask(real: Tensor, dtype: torch.dtype) -> Tensor | None:
    """`[rows, 1, 1, longest]`: 0 where `real`, -inf elsewhere; None where everything is real."""
    if bool(real.all()):
        return None
    mask = torch.zeros(real.shape, dtype=dtype, device=real.device).masked_fill_(~real, float("-inf"))
    return mask[:, None, None, :]


def _prefill(start_tokens: int, slots: Tensor, first_token: int, dtype: torch.dtype) -> list[Segment]:
    """Attention of one request, its new tokens from `first_token` of the step on, over `slots`."""
    kv_tokens = slots.shape[0]
    if start_tokens == 0:
        return [Prefill(first_token, first_token + kv_tokens, slots, None)]
    segments: list[Segment] = []
    for block_start in range(start_tokens, kv_tokens, _MASKED_BLOCK_TOKENS):
        block_stop = min(block_start + _MASKED_BLOCK_TOKENS, kv_tokens)
        shape = (block_stop - block_start, block_stop)
        mask = torch.full(shape, float("-inf"), dtype=dtype, device=slots.device).triu_(block_start + 1)
        offset = first_token - start_tokens
        segments.append(Prefill(offset + block_start, offset + block_stop, slots[:block_stop], mask))
    return segments
