"""How a run of a step's tokens attends: decodes gathered or by kernel, prefills one request at a time."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from freehold.impl.execution.kv_storage import slot_rows


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Write `key`, `value` `[tokens, kv_heads, head_dim]` to `slots` `[tokens]` of one layer (torch path)."""
    slot_rows(key_cache).index_copy_(0, slots, key.reshape(key.shape[0], -1))
    slot_rows(value_cache).index_copy_(0, slots, value.reshape(value.shape[0], -1))


def write_kv_kernel(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """The same through the kernel (CUDA path)."""
    from freehold.kernels import write_kv as kernel  # needs Triton: loaded only where a GPU runs it

    kernel(key.contiguous(), value.contiguous(), key_cache, value_cache, slots)


@dataclass(frozen=True, slots=True)
class GatheredDecode:
    """One token each of several requests, over KV gathered into a padded batch (torch path).

    slots: `[requests * longest]`, each request's slots by position. The padding repeats the request's own
    first slot, so that nobody else's page is ever read.
    mask: `[requests, 1, 1, longest]`, 0 to read and -inf for padding, or None where all lengths are equal.
    """

    start: int
    stop: int
    slots: Tensor
    mask: Tensor | None

    def attend(self, query: Tensor, key_cache: Tensor, value_cache: Tensor, scale: float) -> Tensor:
        requests = self.stop - self.start
        heads, head_dim = query.shape[1], query.shape[3]
        kv_heads = key_cache.shape[2]
        key = slot_rows(key_cache).index_select(0, self.slots).view(requests, -1, kv_heads, head_dim)
        value = slot_rows(value_cache).index_select(0, self.slots).view(requests, -1, kv_heads, head_dim)
        # The query heads that share a KV head stand as its query rows: no repeated keys, no special GQA
        # kernel.
        grouped = query[0].transpose(0, 1).reshape(requests, kv_heads, heads // kv_heads, head_dim)
        out = F.scaled_dot_product_attention(
            grouped, key.transpose(1, 2), value.transpose(1, 2), attn_mask=self.mask, scale=scale
        )
        return out.reshape(requests, heads, head_dim)


@dataclass(frozen=True, slots=True)
class KernelDecode:
    """One token each of several requests, through the paged decode kernel (CUDA path).

    page_table: `[requests, pages]` int32; seq_tokens: `[requests]` int32, lengths with the new token.
    """

    start: int
    stop: int
    page_table: Tensor
    seq_tokens: Tensor

    def attend(self, query: Tensor, key_cache: Tensor, value_cache: Tensor, scale: float) -> Tensor:
        from freehold.kernels import paged_decode  # needs Triton: loaded only where a GPU runs it

        rows = query[0].transpose(0, 1).contiguous()
        return paged_decode(rows, key_cache, value_cache, self.page_table, self.seq_tokens, scale)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Several consecutive tokens of one request, over its whole KV so far.

    slots: `[kv_tokens]`, the request's slots by position.
    mask: `[stop - start, kv_tokens]`, 0 to read and -inf for later positions; None where there is no prefix,
    so that plain causal attention serves.
    """

    start: int
    stop: int
    slots: Tensor
    mask: Tensor | None

    def attend(self, query: Tensor, key_cache: Tensor, value_cache: Tensor, scale: float) -> Tensor:
        kv_heads, head_dim = key_cache.shape[2], key_cache.shape[3]
        key = slot_rows(key_cache).index_select(0, self.slots).view(1, -1, kv_heads, head_dim)
        value = slot_rows(value_cache).index_select(0, self.slots).view(1, -1, kv_heads, head_dim)
        out = F.scaled_dot_product_attention(
            query,
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=self.mask,
            is_causal=self.mask is None,
            scale=scale,
            enable_gqa=kv_heads != query.shape[1],
        )
        return out[0].transpose(0, 1)
