"""Causal attention of new tokens over their paged KV: prefix and new tokens alike, in one pass (Triton).

What: the new tokens of all sequences lie one after another in query [tokens, heads, head_dim]; sequence i has
rows query_start[i] .. query_start[i + 1], the last of its seq_tokens[i] tokens. Token t of it lies in slot
page_table[i, t // page_size] * page_size + t % page_size, the new tokens' KV already there. With many rows a
tile the arithmetic is the limit, not memory, so the loop must keep the tensor cores busy.

Grid: tile x (KV head x head block), in one axis, for the others end at 65535. A tile is BLOCK_TOKENS tokens of one
sequence times the query heads of one KV head: one K and V serves them all, and a chunk of few tokens still fills the
rows that tensor cores take.

Why it is written so:
* How many tiles a sequence needs is known on the device only. Sequence i gets the tiles from
  query_start[i] // BLOCK_TOKENS + i on, which are enough whatever the lengths; a tile finds its sequence by
  bisection, and one past the sequence's end returns at once. The grid depends on shapes alone, so nothing waits
  for the device and a captured graph replays.
* The loop over KV runs in up to three parts: tiles that the window cuts, tiles that every row sees whole, tiles
  that causality cuts. Only the outer two compare positions. It starts at the window of the tile's first token, so
  that the cost follows the window and not the length.
* The page ids of the next KV tile are carried across iterations and across the parts, see
  `paged_decode_triton`: loaded where they are used they would stop the prefetch.
* Only slots of tokens in the window of some row of the tile are read, whatever lies elsewhere.
* The running maximum starts at a finite number. A row whose window begins behind a tile then gets weights of
  exp2(-inf) = 0 from it, and no -inf - (-inf) arises. With sinks it starts at the sink, with a sum of 1.
* Tiles of late tokens see most KV, so they are taken first: the short ones fill the gaps at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from .arguments import check_paged_extend
from .paged_decode_triton import LOG2_E

LOWEST = tl.constexpr(-1.0e38)
"""Below every score, and far enough from float32's end that a difference to it stays finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendTuning:
    """How the work is cut. Results are bit-equal for equal tunings, whatever the batch."""

    block_rows: int
    """Rows of a tile, tokens times heads; a power of two from 16 up."""
    tile_tokens: int
    """KV tokens an iteration reads, a power of two from 16 up."""
    num_stages: int
    num_warps: int


def default_tuning(dtype: torch.dtype, head_dim: int, arch: int) -> ExtendTuning:
    """The tuning for a cache of `dtype` on compute capability `arch` (80, 90): the largest tile that doesn't spill.

    Where operands come from registers (`mma.sync`) a tile has to be smaller than where they come from shared memory
    (`wgmma` of sm_90 and what followed it on data centre cards).
    """
    if dtype == torch.float32:
        return ExtendTuning(block_rows=16, tile_tokens=32 if head_dim <= 64 else 16, num_stages=3, num_warps=4)
    if head_dim > 128:
        return ExtendTuning(block_rows=64, tile_tokens=32, num_stages=3, num_warps=8)
    return ExtendTuning(block_rows=128, tile_tokens=64 if arch in (90, 100, 103) else 32, num_stages=3, num_warps=8)


@triton.jit  # type: ignore[untyped-decorator]
def paged_extend_kernel(
    query_ptr: tl.tensor,  # [tokens, KV_HEADS * GROUP, HEAD_DIM] with query_stride between tokens
    k_cache_ptr: tl.tensor,  # [num_pages, PAGE_SIZE, KV_HEADS, HEAD_DIM]
    v_cache_ptr: tl.tensor,  # the same
    page_table_ptr: tl.tensor,  # [seqs, max_pages] int32 with table_stride between sequences
    query_start_ptr: tl.tensor,  # [seqs + 1] int32
    seq_tokens_ptr: tl.tensor,  # [seqs] int32
    sinks_ptr: tl.tensor,  # [heads] float32, or None
    out_ptr: tl.tensor,  # [tokens, heads, HEAD_DIM]
    seqs: tl.tensor,
    query_stride: tl.tensor,
    table_stride: tl.tensor,
    scale_log2: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    HEAD_BLOCKS: tl.constexpr = (GROUP + BLOCK_HEADS - 1) // BLOCK_HEADS
    BLOCK_TOKENS: tl.constexpr = BLOCK_ROWS // BLOCK_HEADS
    PROGRAMS: tl.constexpr = KV_HEADS * HEAD_BLOCKS
    kv_head = tl.program_id(0) % PROGRAMS // HEAD_BLOCKS
    head_block = tl.program_id(0) % HEAD_BLOCKS
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) // PROGRAMS
    seq = _sequence_of(query_start_ptr, seqs, tile, BLOCK_TOKENS)
    seq_start = tl.load(query_start_ptr + seq)
    seq_stop = tl.load(query_start_ptr + seq + 1)
    tile_start = seq_start + (tile - seq_start // BLOCK_TOKENS - seq) * BLOCK_TOKENS
    if tile_start >= seq_stop:
        return
    # A token's position in its sequence is its row in the query plus `shift`.
    shift = tl.load(seq_tokens_ptr + seq) - seq_stop
    first = tile_start + shift
    end = tl.minimum(tile_start + BLOCK_TOKENS, seq_stop) + shift

    row = tl.arange(0, BLOCK_ROWS)
    dim = tl.arange(0, BLOCK_DIM)
    lane = tl.arange(0, TILE_TOKENS)
    in_group = head_block * BLOCK_HEADS + row % BLOCK_HEADS
    head = kv_head * GROUP + in_group
    token = tile_start + row // BLOCK_HEADS
    row_mask = (in_group < GROUP) & (row < BLOCK_TOKENS * BLOCK_HEADS) & (token < seq_stop)
    mask = row_mask[:, None] & (dim < HEAD_DIM)[None, :]
    in_query = token.to(tl.int64) * query_stride + head * HEAD_DIM
    query = tl.load(query_ptr + in_query[:, None] + dim[None, :], mask=mask, other=0.0)
    position = tl.minimum(token + shift, end - 1)

    running_sum = tl.zeros([BLOCK_ROWS], tl.float32)
    running_max = tl.full([BLOCK_ROWS], LOWEST, tl.float32)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head, mask=row_mask, other=0.0) * LOG2_E
        running_max = tl.maximum(sink, LOWEST)
        running_sum += 1.0
    acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)

    # KV tokens [begin, whole) are outside of some row's window, those in [cut, end) later than some row.
    begin = 0
    whole = 0
    if WINDOW > 0:
        begin = tl.maximum(first - (WINDOW - 1), 0)
        whole = begin + tl.cdiv(tl.maximum(end - WINDOW, 0) - begin, TILE_TOKENS) * TILE_TOKENS
    cut = tl.maximum(begin + (first + 1 - begin) // TILE_TOKENS * TILE_TOKENS, whole)

    table_ptr = page_table_ptr + seq.to(tl.int64) * table_stride
    page = tl.load(table_ptr + (begin + lane) // PAGE_SIZE, mask=begin + lane < end, other=0)
    for part in tl.static_range(0 if WINDOW > 0 else 1, 3):
        low = begin if part == 0 else (whole if part == 1 else cut)
        high = whole if part == 0 else (cut if part == 1 else end)
        for start in range(low, high, TILE_TOKENS):
            kv_token = start + lane
            slot = page.to(tl.int64) * PAGE_SIZE + kv_token % PAGE_SIZE
            address = ((slot * KV_HEADS + kv_head) * HEAD_DIM)[:, None] + dim[None, :]
            kv_mask = (dim < HEAD_DIM)[None, :]
            if part != 1:
                kv_mask = kv_mask & (kv_token < end)[:, None]
            key = tl.load(k_cache_ptr + address, mask=kv_mask, other=0.0)
            value = tl.load(v_cache_ptr + address, mask=kv_mask, other=0.0)
            # For the next iteration, or for the first one of the next part.
            ahead = kv_token + TILE_TOKENS
            page = tl.load(table_ptr + ahead // PAGE_SIZE, mask=ahead < end, other=0)

            score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale_log2
            if part != 1:
                seen = kv_token[None, :] <= position[:, None]
                if WINDOW > 0:
                    seen = seen & (kv_token[None, :] > position[:, None] - WINDOW)
                score = tl.where(seen, score, -float("inf"))
            new_max = tl.maximum(running_max, tl.max(score, 1))
            weight = tl.exp2(score - new_max[:, None])
            decay = tl.exp2(running_max - new_max)
            running_sum = running_sum * decay + tl.sum(weight, 1)
            acc = tl.dot(weight.to(value.dtype), value, acc * decay[:, None], input_precision=PRECISION)
            running_max = new_max

    in_out = (token.to(tl.int64) * (KV_HEADS * GROUP) + head) * HEAD_DIM
    out = acc / running_sum[:, None]
    tl.store(out_ptr + in_out[:, None] + dim[None, :], out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _sequence_of(query_start_ptr: tl.tensor, seqs: tl.tensor, tile: tl.tensor, BLOCK_TOKENS: tl.constexpr) -> tl.tensor:
    """The last sequence whose first tile is not past `tile`."""
    low = 0
    high = seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start_ptr + middle) // BLOCK_TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


def paged_extend(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_tokens: torch.Tensor,
    scale: float,
    *,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `freehold.kernels.reference.paged_extend`; starts, pages and lengths are not looked at on the host.

    Raises:
        BadArgument: a shape, dtype, device or layout doesn't fit.
    """
    check_paged_extend(query, k_cache, v_cache, page_table, query_start, seq_tokens, window, sinks)
    tokens, heads, head_dim = query.shape
    tuning = default_tuning(query.dtype, head_dim, _arch(query.device))
    seqs = seq_tokens.shape[0]
    out = torch.empty(tokens, heads, head_dim, dtype=query.dtype, device=query.device)
    if tokens == 0 or seqs == 0:
        return out
    constants = extend_constants(heads, k_cache, window, tuning)
    head_blocks = triton.cdiv(constants["GROUP"], constants["BLOCK_HEADS"])
    tiles = tokens // (constants["BLOCK_ROWS"] // constants["BLOCK_HEADS"]) + seqs
    paged_extend_kernel[(tiles * constants["KV_HEADS"] * head_blocks,)](
        query,
        k_cache,
        v_cache,
        page_table,
        query_start,
        seq_tokens,
        sinks,
        out,
        seqs,
        query.stride(0),
        page_table.stride(0),
        scale * LOG2_E.value,
        **constants,
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
    return out


def extend_constants(heads: int, cache: torch.Tensor, window: int, tuning: ExtendTuning) -> dict[str, Any]:
    """Compile-time constants of `paged_extend_kernel` for a cache and a query with `heads` heads."""
    page_size, kv_heads, head_dim = cache.shape[1:]
    group = heads // kv_heads
    return {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "PAGE_SIZE": page_size,
        "WINDOW": window,
        "BLOCK_ROWS": tuning.block_rows,
        "BLOCK_HEADS": min(group, tuning.block_rows),
        "BLOCK_DIM": max(16, triton.next_power_of_2(head_dim)),
        "TILE_TOKENS": tuning.tile_tokens,
        "PRECISION": "ieee" if cache.dtype == torch.float32 else "tf32",
    }


def _arch(device: torch.device) -> int:
    """Compute capability of a CUDA device, 90 for any other (there an executor of compiled code stands in)."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor
