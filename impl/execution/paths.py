"""How one kind of device writes KV and attends: the segments of a step over one pool."""

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Protocol

import torch
from torch import Tensor

from freehold.impl.execution.attention import KvWriter, Segment
from freehold.impl.execution.page_map import PageMap
from freehold.impl.execution.segments import (
    GatheredDecode,
    KernelDecode,
    KernelExtend,
    Prefill,
    visible,
    write_kv,
    write_kv_kernel,
)
from freehold.impl.scheduling.ports import BatchItem

# Decodes of up to this many tokens share one padded batch; longer ones share it per power of two.
_SHORT_DECODE_TOKENS = 128
# A prefill behind a prefix needs a mask; longer chunks attend in blocks of this many rows to bound its size.
_MASKED_BLOCK_TOKENS = 512


class AttentionPath(Protocol):
    """Plans attention. `like` gives the dtype and device of masks."""

    @property
    def write_kv(self) -> KvWriter: ...

    def decodes(self, items: Sequence[BatchItem], page_map: PageMap, like: Tensor) -> list[Segment]:
        """Segments over `items`, one new token each, sorted by length; they start at token 0 of the step."""
        ...

    def prefills(self, items: Sequence[BatchItem], first_token: int, page_map: PageMap, like: Tensor) -> list[Segment]:
        """Segments over `items`, whose tokens begin at `first_token` of the step."""
        ...


class TorchPath:
    """Plain torch: gathers the KV of decodes of like length into one padded batch."""

    write_kv = staticmethod(write_kv)

    def decodes(self, items: Sequence[BatchItem], page_map: PageMap, like: Tensor) -> list[Segment]:
        segments: list[Segment] = []
        start = 0
        for _, group in groupby(items, key=lambda item: _padding_class(item, page_map)):
            members = list(group)
            slots, real = page_map.read_slots(members)
            stop = start + len(members)
            segments.append(GatheredDecode(start, stop, slots.flatten(), _additive_mask(real, like)))
            start = stop
        return segments

    def prefills(self, items: Sequence[BatchItem], first_token: int, page_map: PageMap, like: Tensor) -> list[Segment]:
        segments: list[Segment] = []
        for item in items:
            segments.extend(_prefill(item, first_token, page_map, like))
            first_token += len(item.token_ids)
        return segments


class KernelPath:
    """Triton kernels on a GPU: they read the page table themselves and need no padding."""

    write_kv = staticmethod(write_kv_kernel)

    def decodes(self, items: Sequence[BatchItem], page_map: PageMap, like: Tensor) -> list[Segment]:
        if not items:
            return []
        lengths = [item.start_tokens + 1 for item in items]
        pages = page_map.table([item.row for item in items], max(lengths))
        seq_tokens = torch.tensor(lengths, dtype=torch.int32, device=page_map.device)
        return [KernelDecode(0, len(items), pages, seq_tokens)]

    def prefills(self, items: Sequence[BatchItem], first_token: int, page_map: PageMap, like: Tensor) -> list[Segment]:
        if not items:
            return []
        counts = [len(item.token_ids) for item in items]
        lengths = [item.start_tokens + count for item, count in zip(items, counts, strict=True)]
        starts, seq_tokens = (
            torch.tensor(numbers, dtype=torch.int32, device=page_map.device)
            for numbers in (list(accumulate(counts, initial=0)), lengths)
        )
        pages = page_map.table([item.row for item in items], max(lengths))
        return [KernelExtend(first_token, first_token + sum(counts), pages, starts, seq_tokens)]


def _padding_class(item: BatchItem, page_map: PageMap) -> int:
    read_tokens = item.start_tokens + 1 - page_map.first_read(item)
    return max(read_tokens, _SHORT_DECODE_TOKENS).bit_length()


def _additive_mask(real: Tensor, like: Tensor) -> Tensor | None:
    """`[rows, 1, 1, longest]`: 0 where `real`, -inf elsewhere; None where everything is real."""
    if bool(real.all()):
        return None
    mask = torch.zeros(real.shape, dtype=like.dtype, device=like.device).masked_fill_(~real, float("-inf"))
    return mask[:, None, None, :]


def _prefill(item: BatchItem, first_token: int, page_map: PageMap, like: Tensor) -> list[Segment]:
    """Attention of one request, its new tokens from `first_token` of the step on."""
    start_tokens, window_tokens = item.start_tokens, page_map.window_tokens
    stop_tokens = start_tokens + len(item.token_ids)
    first_read = page_map.first_read(item)
    slots = page_map.slots(item.row, first_read, stop_tokens)
    if start_tokens == 0 and (not window_tokens or stop_tokens <= window_tokens + 1):
        return [Prefill(first_token, first_token + stop_tokens, slots, None)]
    segments: list[Segment] = []
    for block_start in range(start_tokens, stop_tokens, _MASKED_BLOCK_TOKENS):
        block_stop = min(block_start + _MASKED_BLOCK_TOKENS, stop_tokens)
        block_read = max(0, block_start - window_tokens) if window_tokens else 0
        mask = visible(block_stop - block_start, block_stop - block_read, window_tokens, like)
        offset = first_token - start_tokens
        read = slots[block_read - first_read : block_stop - first_read]
        segments.append(Prefill(offset + block_start, offset + block_stop, read, mask))
    return segments
