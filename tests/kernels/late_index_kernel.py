"""What paged decode must not compile to: the loop reads its page ids in the iteration that needs them.

The values would be right; the copies of K and V hang on the load just before them, and no buffer is filled ahead.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def late_index_kernel(
    query_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    table_ptr: tl.tensor,
    out_ptr: tl.tensor,
    tokens: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
) -> None:
    head = tl.arange(0, 16)
    dim = tl.arange(0, HEAD_DIM)
    lane = tl.arange(0, TILE_TOKENS)
    query = tl.load(query_ptr + head[:, None] * HEAD_DIM + dim[None, :])
    acc = tl.zeros([16, HEAD_DIM], tl.float32)
    for start in range(0, tokens, TILE_TOKENS):
        token = start + lane
        page = tl.load(table_ptr + token // PAGE_SIZE, mask=token < tokens, other=0)
        row = (page.to(tl.int64) * PAGE_SIZE + token % PAGE_SIZE) * (KV_HEADS * HEAD_DIM)
        address = row[:, None] + dim[None, :]
        mask = (token < tokens)[:, None]
        key = tl.load(k_cache_ptr + address, mask=mask, other=0.0)
        value = tl.load(v_cache_ptr + address, mask=mask, other=0.0)
        weight = tl.exp2(tl.dot(query, tl.trans(key)))
        acc = tl.dot(weight.to(value.dtype), value, acc)
    tl.store(out_ptr + head[:, None] * HEAD_DIM + dim[None, :], acc)
