"""Paged decode attention with grouped heads, split over the KV length (Triton, two kernels).

What: one query token per request, query [b, heads, head_dim], against the request's KV in pages; out [b,
heads, head_dim]. Token t of request i lies in slot page_table[i, t // page_size] * page_size + t % page_size.
Every K and V byte is needed once and does little arithmetic, so the only question is how well the loads
overlap.

Stage 1, `decode_split_kernel`, grid (request, KV head x head block, split): all query heads of a KV head form
one tile, so that K and V are read once for the group; the program walks `split_tokens` tokens with an online
softmax in base 2 and leaves a normalised partial output and its log2-sum-exp, both float32.
Stage 2, `decode_merge_kernel`, grid (request, head): weighs the partial outputs by exp2(lse - max), 16 at a
time, and counts the head's sink, if there are sinks, as one weight more that has no value.

Why the loop of stage 1 is written so:
* The page ids of the *next* tile are loaded in the body and carried to the next iteration. Were they loaded
  where they are used, the K and V addresses would hang on a load of the same iteration; the software
  pipeliner then keeps one buffer and waits for each copy right after issuing it, at 3 stages as at 4.
  `aot.AotReport.wait_depth` holds this in the tests.
* A token's page id is looked up per token (a gather), which serves every page size from 1 on with one kernel;
  the lanes of one page read one address.
* The loads are masked, not only the scores: a slot that isn't part of the request is never read, so whatever
  lies there (NaN included, for 0 * NaN is NaN) can't reach the result.

Why the split is a fixed number of tokens: it must not depend on who else is in the batch, or the same request
would give other bits in other company. Each split that runs has at least one token, and each tile too, so the
running maximum is finite from the first tile on and no -inf - (-inf) can arise; splits past the length return
at once (the grid follows the page table's width, so a captured graph replays), and stage 2 reads only the
splits that ran.

Why splits are counted from the window's first token: a request then has as many as the window needs, whatever
its length, and no tile is cut by the window's begin, so nothing is masked there. A request's bits still depend
on its own length alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from .arguments import check_paged_decode

LOG2_E = tl.constexpr(1.4426950408889634)

BLOCK_SPLITS = 16
"""Partial outputs stage 2 reads at once. One at a time, a long request would wait for memory once a split."""

MERGE_WARPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTuning:
    """How stage 1 is cut. Results are bit-equal for equal tunings, whatever the batch."""

    split_tokens: int
    """Tokens a program walks, a multiple of `tile_tokens`."""
    tile_tokens: int
    """Tokens an iteration reads, a power of two from 16 up."""
    num_stages: int
    """Pipeline depth: `num_stages - 1` tiles have shared memory, `num_stages - 2` fly during arithmetic."""
    num_warps: int


def default_tuning(dtype: torch.dtype, head_dim: int) -> DecodeTuning:
    """The tuning for a cache of `dtype`: the longest tile that doesn't spill registers."""
    longest = 64 if head_dim <= 128 else 32
    tile_tokens = 16 if dtype == torch.float32 else longest
    return DecodeTuning(split_tokens=512, tile_tokens=tile_tokens, num_stages=3, num_warps=4)


@triton.jit  # type: ignore[untyped-decorator]
def decode_split_kernel(
    query_ptr: tl.tensor,  # [b, KV_HEADS * GROUP, HEAD_DIM] with query_stride between requests
    k_cache_ptr: tl.tensor,  # [num_pages, PAGE_SIZE, KV_HEADS, HEAD_DIM]
    v_cache_ptr: tl.tensor,  # the same
    page_table_ptr: tl.tensor,  # [b, max_pages] int32 with table_stride between requests
    seq_tokens_ptr: tl.tensor,  # [b] int32
    partial_ptr: tl.tensor,  # [b, heads, splits, HEAD_DIM] float32
    lse_ptr: tl.tensor,  # [b, heads, splits] float32, log2
    query_stride: tl.tensor,
    table_stride: tl.tensor,
    scale_log2: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    HEAD_BLOCKS: tl.constexpr = (GROUP + BLOCK_HEADS - 1) // BLOCK_HEADS
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1) // HEAD_BLOCKS
    split = tl.program_id(2)
    seq_tokens = tl.load(seq_tokens_ptr + request)
    begin = split * SPLIT_TOKENS
    if WINDOW > 0:
        begin += tl.maximum(seq_tokens - WINDOW, 0)
    if begin >= seq_tokens:
        return
    end = tl.minimum(begin + SPLIT_TOKENS, seq_tokens)

    in_group = (tl.program_id(1) % HEAD_BLOCKS) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    head = kv_head * GROUP + in_group
    dim = tl.arange(0, BLOCK_DIM)
    lane = tl.arange(0, TILE_TOKENS)
    head_mask = (in_group < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    in_row = head[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + request * query_stride + in_row, mask=head_mask, other=0.0)

    table_ptr = page_table_ptr + request * table_stride
    token = begin + lane
    page = tl.load(table_ptr + token // PAGE_SIZE, mask=token < end, other=0)
    running_max = tl.full([BLOCK_HEADS], -float("inf"), tl.float32)
    running_sum = tl.zeros([BLOCK_HEADS], tl.float32)
    acc = tl.zeros([BLOCK_HEADS, BLOCK_DIM], tl.float32)
    for start in range(begin, end, TILE_TOKENS):
        token = start + lane
        row = ((page.to(tl.int64) * PAGE_SIZE + token % PAGE_SIZE) * KV_HEADS + kv_head) * HEAD_DIM
        address = row[:, None] + dim[None, :]
        kv_mask = (token < end)[:, None] & (dim < HEAD_DIM)[None, :]
        key = tl.load(k_cache_ptr + address, mask=kv_mask, other=0.0)
        value = tl.load(v_cache_ptr + address, mask=kv_mask, other=0.0)
        # For the next iteration, see the top of the file.
        ahead = token + TILE_TOKENS
        page = tl.load(table_ptr + ahead // PAGE_SIZE, mask=ahead < end, other=0)

        score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale_log2
        score = tl.where((token < end)[None, :], score, -float("inf"))
        new_max = tl.maximum(running_max, tl.max(score, 1))
        weight = tl.exp2(score - new_max[:, None])
        decay = tl.exp2(running_max - new_max)
        running_sum = running_sum * decay + tl.sum(weight, 1)
        acc = tl.dot(weight.to(value.dtype), value, acc * decay[:, None], input_precision=PRECISION)
        running_max = new_max

    place = (request * (KV_HEADS * GROUP) + head) * tl.num_programs(2) + split
    partial = acc / running_sum[:, None]
    tl.store(partial_ptr + place[:, None] * HEAD_DIM + dim[None, :], partial, mask=head_mask)
    tl.store(lse_ptr + place, running_max + tl.log2(running_sum), mask=in_group < GROUP)


@triton.jit  # type: ignore[untyped-decorator]
def decode_merge_kernel(
    partial_ptr: tl.tensor,  # [b, heads, splits, HEAD_DIM] float32
    lse_ptr: tl.tensor,  # [b, heads, splits] float32, log2
    seq_tokens_ptr: tl.tensor,  # [b] int32
    sinks_ptr: tl.tensor,  # [heads] float32, or None
    out_ptr: tl.tensor,  # [b, heads, HEAD_DIM]
    splits: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
) -> None:
    request = tl.program_id(0).to(tl.int64)
    place = request * tl.num_programs(1) + tl.program_id(1)
    tokens = tl.load(seq_tokens_ptr + request)
    if WINDOW > 0:
        tokens = tl.minimum(tokens, WINDOW)
    used = tl.cdiv(tokens, SPLIT_TOKENS)
    dim = tl.arange(0, BLOCK_DIM)
    running_max = -float("inf")
    running_sum = 0.0
    if sinks_ptr is not None:
        running_max = tl.load(sinks_ptr + tl.program_id(1)) * LOG2_E
        running_sum = 1.0
    acc = tl.zeros([BLOCK_DIM], tl.float32)
    for start in range(0, used, BLOCK_SPLITS):
        split = start + tl.arange(0, BLOCK_SPLITS)
        lse = tl.load(lse_ptr + place * splits + split, mask=split < used, other=-float("inf"))
        row = (place * splits + split) * HEAD_DIM
        mask = (split < used)[:, None] & (dim < HEAD_DIM)[None, :]
        partial = tl.load(partial_ptr + row[:, None] + dim[None, :], mask=mask, other=0.0)
        new_max = tl.maximum(running_max, tl.max(lse, 0))
        decay = tl.exp2(running_max - new_max)
        weight = tl.exp2(lse - new_max)
        acc = acc * decay + tl.sum(weight[:, None] * partial, 0)
        running_sum = running_sum * decay + tl.sum(weight, 0)
        running_max = new_max
    # No split ran for a request without tokens: its row is zeros, not 0 / 0.
    out = acc / tl.where(used > 0, running_sum, 1.0)
    tl.store(out_ptr + place * HEAD_DIM + dim, out.to(out_ptr.dtype.element_ty), mask=dim < HEAD_DIM)


def paged_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    seq_tokens: torch.Tensor,
    scale: float,
    *,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `freehold.kernels.reference.paged_decode`; pages and lengths are not looked at on the host.

    Scratch memory and empty programs grow with max_pages up to the window, so without one pass a table no wider than
    the batch (or the captured graph) needs: scratch is b * heads * ceil(n / 512) * (head_dim + 1) float32 for n =
    max_pages * page_size, at most the window.

    Raises:
        BadArgument: a shape, dtype, device or layout doesn't fit.
    """
    tuning = default_tuning(query.dtype, query.shape[-1])
    return paged_decode_tuned(
        query, k_cache, v_cache, page_table, seq_tokens, scale, tuning, window=window, sinks=sinks
    )


def paged_decode_tuned(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    seq_tokens: torch.Tensor,
    scale: float,
    tuning: DecodeTuning,
    *,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """`paged_decode` with the cut of the work given by `tuning`, for measurements."""
    check_paged_decode(query, k_cache, v_cache, page_table, seq_tokens, window, sinks)
    batch, heads, head_dim = query.shape
    page_size = k_cache.shape[1]
    most_tokens = page_table.shape[1] * page_size
    splits = max(1, triton.cdiv(min(most_tokens, window) if window else most_tokens, tuning.split_tokens))
    out = torch.empty(batch, heads, head_dim, dtype=query.dtype, device=query.device)
    if batch == 0:
        return out
    partial = torch.empty(batch, heads, splits, head_dim, dtype=torch.float32, device=query.device)
    lse = torch.empty(batch, heads, splits, dtype=torch.float32, device=query.device)
    constants = split_constants(heads, k_cache, window, tuning)
    head_blocks = triton.cdiv(constants["GROUP"], constants["BLOCK_HEADS"])
    decode_split_kernel[(batch, constants["KV_HEADS"] * head_blocks, splits)](
        query,
        k_cache,
        v_cache,
        page_table,
        seq_tokens,
        partial,
        lse,
        query.stride(0),
        page_table.stride(0),
        scale * LOG2_E.value,
        **constants,
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
    decode_merge_kernel[(batch, heads)](
        partial,
        lse,
        seq_tokens,
        sinks,
        out,
        splits,
        **merge_constants(head_dim, window, tuning),
        num_warps=MERGE_WARPS,
    )
    return out


def split_constants(heads: int, cache: torch.Tensor, window: int, tuning: DecodeTuning) -> dict[str, Any]:
    """Compile-time constants of `decode_split_kernel` for a cache and a query with `heads` heads.

    A tile has at least 16 heads, the fewest that tensor cores take, and no more than registers hold; a larger
    group takes several tiles, which read the same KV at about the same time.
    """
    page_size, kv_heads, head_dim = cache.shape[1:]
    group = heads // kv_heads
    most_heads = 16 if cache.dtype == torch.float32 or head_dim > 128 else 32
    return {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "PAGE_SIZE": page_size,
        "BLOCK_HEADS": min(most_heads, max(16, triton.next_power_of_2(group))),
        "BLOCK_DIM": max(16, triton.next_power_of_2(head_dim)),
        "WINDOW": window,
        "SPLIT_TOKENS": tuning.split_tokens,
        "TILE_TOKENS": tuning.tile_tokens,
        "PRECISION": "ieee" if cache.dtype == torch.float32 else "tf32",
    }


def merge_constants(head_dim: int, window: int, tuning: DecodeTuning) -> dict[str, Any]:
    """Compile-time constants of `decode_merge_kernel`."""
    return {
        "HEAD_DIM": head_dim,
        "BLOCK_DIM": max(16, triton.next_power_of_2(head_dim)),
        "WINDOW": window,
        "SPLIT_TOKENS": tuning.split_tokens,
        "BLOCK_SPLITS": BLOCK_SPLITS,
    }
