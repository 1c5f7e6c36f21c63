"""How a run of a step's tokens attends: by kernel, or gathered by torch, decodes in groups and prefills one by one."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from freehold.impl.execution.kv_storage import LayerCache, slot_rows
from freehold.spec.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Scoring:
    """What a layer does with query . key.

    scale: the factor. softcap: c bounds the scores by c * tanh(score / c). sinks: `[heads]`, a score per head that
    takes its share of the softmax and gives no value.
    """

    scale: float
    softcap: float | None
    sinks: Tensor | None

    @property
    def plain(self) -> bool:
        """Whether a softmax of the scaled scores is all."""
        return self.softcap is None and self.sinks is None


@dataclass(frozen=True, slots=True)
class GatheredDecode:
    """One token each of several requests, over KV gathered into a padded batch (torch path).

    slots: `[requests * longest]`, what each request reads, by position. The padding repeats a slot of the request's
    own, so that nobody else's page is ever read.
    mask: `[requests, 1, 1, longest]`, 0 to read and -inf for padding, or None where all lengths are equal.
    """

    start: int
    stop: int
    slots: Tensor
    mask: Tensor | None

    def attend(self, query: Tensor, cache: LayerCache, scoring: Scoring) -> Tensor:
        requests = self.stop - self.start
        heads, head_dim = query.shape[1], query.shape[3]
        kv_heads = cache.keys.shape[2]
        key, value = (
            slot_rows(rows).index_select(0, self.slots).view(requests, -1, kv_heads, head_dim).transpose(1, 2)
            for rows in (cache.keys, cache.values)
        )
        # The query heads that share a KV head stand as its query rows: no repeated keys, no special GQA kernel.
        grouped = query[0].transpose(0, 1).reshape(requests, kv_heads, heads // kv_heads, head_dim)
        if scoring.plain:
            out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=self.mask, scale=scoring.scale)
        else:
            sinks = None if scoring.sinks is None else scoring.sinks.view(kv_heads, heads // kv_heads, 1)
            out = _weigh(_scores(grouped, key, scoring), self.mask, sinks, value)
        return out.reshape(requests, heads, head_dim)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Several consecutive tokens of one request, over all of its KV that they read (torch path).

    slots: `[kv_tokens]`, by position; the last ones are those of the new tokens.
    mask: `[stop - start, kv_tokens]`, 0 to read and -inf for what a token doesn't see; None for plain causal attention
    of as many tokens as there are slots.
    """

    start: int
    stop: int
    slots: Tensor
    mask: Tensor | None

    def attend(self, query: Tensor, cache: LayerCache, scoring: Scoring) -> Tensor:
        heads, kv_heads, head_dim = query.shape[1], cache.keys.shape[2], query.shape[3]
        key, value = (
            slot_rows(rows).index_select(0, self.slots).view(1, -1, kv_heads, head_dim).transpose(1, 2)
            for rows in (cache.keys, cache.values)
        )
        if scoring.plain:
            out = F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=self.mask,
                is_causal=self.mask is None,
                scale=scoring.scale,
                enable_gqa=kv_heads != heads,
            )
            return out[0].transpose(0, 1)
        grouped = query[0].reshape(kv_heads, heads // kv_heads, -1, head_dim)
        scores = _scores(grouped, key[0][:, None], scoring)
        mask = visible(scores.shape[-2], scores.shape[-1], 0, scores) if self.mask is None else self.mask
        sinks = None if scoring.sinks is None else scoring.sinks.view(kv_heads, heads // kv_heads, 1, 1)
        return _weigh(scores, mask, sinks, value[0][:, None]).reshape(heads, -1, head_dim).transpose(0, 1)


@dataclass(frozen=True, slots=True)
class KernelDecode:
    """One token each of several requests, through the paged decode kernel (CUDA path).

    page_table: `[requests, pages]` int32; seq_tokens: `[requests]` int32, lengths with the new token.
    """

    start: int
    stop: int
    page_table: Tensor
    seq_tokens: Tensor

    def attend(self, query: Tensor, cache: LayerCache, scoring: Scoring) -> Tensor:
        from freehold.kernels import paged_decode  # needs Triton: loaded only where a GPU runs it

        return paged_decode(
            query[0].transpose(0, 1).contiguous(),
            cache.keys,
            cache.values,
            self.page_table,
            self.seq_tokens,
            scoring.scale,
            window=_kernel_window(cache, scoring),
            sinks=None if scoring.sinks is None else scoring.sinks.float(),
        )


@dataclass(frozen=True, slots=True)
class KernelExtend:
    """New tokens of several requests behind their prefixes, through the paged extend kernel (CUDA path).

    page_table: `[requests, pages]` int32. query_start: `[requests + 1]` int32, where each request's tokens begin in
    the segment. seq_tokens: `[requests]` int32, lengths with the new tokens.
    """

    start: int
    stop: int
    page_table: Tensor
    query_start: Tensor
    seq_tokens: Tensor

    def attend(self, query: Tensor, cache: LayerCache, scoring: Scoring) -> Tensor:
        from freehold.kernels import paged_extend  # needs Triton: loaded only where a GPU runs it

        return paged_extend(
            query[0].transpose(0, 1).contiguous(),
            cache.keys,
            cache.values,
            self.page_table,
            self.query_start,
            self.seq_tokens,
            scoring.scale,
            window=_kernel_window(cache, scoring),
            sinks=None if scoring.sinks is None else scoring.sinks.float(),
        )


def write_kv(key: Tensor, value: Tensor, cache: LayerCache, slots: Tensor) -> None:
    """Write `key`, `value` `[tokens, kv_heads, head_dim]` to `slots` `[tokens]` of one layer (torch path)."""
    slot_rows(cache.keys).index_copy_(0, slots, key.reshape(key.shape[0], -1))
    slot_rows(cache.values).index_copy_(0, slots, value.reshape(value.shape[0], -1))


def write_kv_kernel(key: Tensor, value: Tensor, cache: LayerCache, slots: Tensor) -> None:
    """The same through the kernel (CUDA path)."""
    from freehold.kernels import write_kv as kernel  # needs Triton: loaded only where a GPU runs it

    kernel(key.contiguous(), value.contiguous(), cache.keys, cache.values, slots)


def visible(queries: int, keys: int, window_tokens: int, like: Tensor) -> Tensor:
    """`[queries, keys]`: 0 where a query sees a key, -inf where it does not. The queries are the last of the keys.

    window_tokens: how many tokens before its own a query sees; 0 for all. like: for dtype and device.
    """
    mask = torch.full((queries, keys), float("-inf"), dtype=like.dtype, device=like.device)
    first = keys - queries
    later = mask.triu(first + 1)
    return later if not window_tokens else later + mask.tril(first - window_tokens - 1)


def _scores(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
    """query . key of `[..., queries, head_dim]` and `[..., keys, head_dim]`, scaled and capped, in float32."""
    scores = (query @ key.transpose(-1, -2)).float() * scoring.scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    return scores


def _weigh(scores: Tensor, mask: Tensor | None, sinks: Tensor | None, value: Tensor) -> Tensor:
    """Softmax over `scores` `[..., queries, keys]`, and the sum of `value` `[..., keys, head_dim]` by it."""
    if mask is not None:
        scores = scores + mask
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        beside = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat((scores, beside), dim=-1), dim=-1)[..., :-1]
    return weights.to(value.dtype) @ value


def _kernel_window(cache: LayerCache, scoring: Scoring) -> int:
    """The kernels' window, which counts the current token too; 0 for none."""
    if scoring.softcap is not None:
        raise Unsupported("the GPU kernels know no soft cap: run this model on the CPU")
    return cache.window_tokens + 1 if cache.window_tokens else 0
