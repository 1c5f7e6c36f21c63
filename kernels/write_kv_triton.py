"""Write new K and V rows into the paged cache (Triton).

What: row i of key and value [n, kv_heads, head_dim] goes to slot slots[i] of the caches [num_pages,
page_size, kv_heads, head_dim]. With a table of peers, slots are those of the full pool and the caches belong to a
sliding-window layer: the row goes to the same place in its page's peer, or nowhere where the page has none. It is
a scatter of whole rows, so memory speed is the only limit: each byte is read once and written once.

Why it is written so:
* One program moves a tile of ROWS x COLS elements of both tensors. The elements of a row are adjacent in the
  source and in the cache, so every thread moves 16 bytes at a time; the slot is read once a row.
* Both tiles are loaded before either is stored: the two loads are in flight together.
* A slot is int64 from the load on. A cache passes 2**31 elements long before it fills a device, and a product
  taken in int32 would wrap and write into another request's page.
* Row length is a compile-time constant: the compiler then knows how far the addresses are aligned.
* The peer is looked up here, once a row: a launch of its own would cost more than the whole lookup.
* A slot beyond the cache is the caller's error. The kernel asserts it under TRITON_DEBUG and otherwise trusts
  the caller: dropping the row would turn an ownership bug into silently wrong text.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .arguments import check_write_kv

TILE_ELEMENTS = 4096
"""Elements of K, and as many of V, that a program moves: 32 a thread with 4 warps."""

NUM_WARPS = 4


@triton.jit  # type: ignore[untyped-decorator]
def write_kv_kernel(
    key_ptr: tl.tensor,  # [n, ROW] with key_stride between rows
    value_ptr: tl.tensor,  # [n, ROW] with value_stride between rows
    k_cache_ptr: tl.tensor,  # [num_slots, ROW]
    v_cache_ptr: tl.tensor,  # [num_slots, ROW]
    slots_ptr: tl.tensor,  # [n] int64
    peers_ptr: tl.tensor,  # [num_peers] int32, or None
    n: tl.tensor,
    num_slots: tl.tensor,
    num_peers: tl.tensor,
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    ROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    slot = tl.load(slots_ptr + row, mask=row < n, other=-1).to(tl.int64)
    if peers_ptr is not None:
        tl.device_assert(slot < num_peers * PAGE_SIZE, "slot beyond the peers")
        peer = tl.load(peers_ptr + slot // PAGE_SIZE, mask=slot >= 0, other=0).to(tl.int64)
        slot = tl.where(peer > 0, peer * PAGE_SIZE + slot % PAGE_SIZE, -1)
    tl.device_assert(slot < num_slots, "slot beyond the cache")
    moved = (slot >= 0)[:, None] & (col < ROW)[None, :]
    key = tl.load(key_ptr + row[:, None] * key_stride + col[None, :], mask=moved)
    value = tl.load(value_ptr + row[:, None] * value_stride + col[None, :], mask=moved)
    target = slot[:, None] * ROW + col[None, :]
    tl.store(k_cache_ptr + target, key, mask=moved)
    tl.store(v_cache_ptr + target, value, mask=moved)


def write_constants(row_elements: int, page_size: int) -> dict[str, int]:
    """Compile-time constants for rows of kv_heads * head_dim elements: a tile has whole rows where they fit."""
    cols = min(triton.next_power_of_2(row_elements), TILE_ELEMENTS)
    return {"PAGE_SIZE": page_size, "ROW": row_elements, "ROWS": TILE_ELEMENTS // cols, "COLS": cols}


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    peers: torch.Tensor | None = None,
) -> None:
    """See `freehold.kernels.reference.write_kv`; the values of slots and peers are not looked at on the host.

    Raises:
        BadArgument: a shape, dtype, device or layout doesn't fit.
    """
    check_write_kv(key, value, k_cache, v_cache, slots, peers)
    n, kv_heads, head_dim = key.shape
    if n == 0:
        return
    constants = write_constants(kv_heads * head_dim, k_cache.shape[1])
    grid = (triton.cdiv(n, constants["ROWS"]), triton.cdiv(constants["ROW"], constants["COLS"]))
    write_kv_kernel[grid](
        key,
        value,
        k_cache,
        v_cache,
        slots,
        peers,
        n,
        k_cache.shape[0] * k_cache.shape[1],
        0 if peers is None else peers.shape[0],
        key.stride(0),
        value.stride(0),
        **constants,
        num_warps=NUM_WARPS,
    )
