"""The kernels' meaning, in plain torch: what the CPU engine runs and every Triton kernel is compared with.

Written to be read and to be exact, not to be fast: one request at a time, one softmax over the whole length,
arithmetic in float32 whatever the cache holds. Same signatures as the Triton kernels. Unlike them, the
references look at the values of slots, pages and lengths, and raise `SlotOutOfRange` where a kernel would
touch memory it doesn't own.
"""

from __future__ import annotations

import torch

from .arguments import check_paged_decode, check_write_kv
from .errors import SlotOutOfRange


def write_kv(
    key: torch.Tensor, value: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Copy row i of `key` and `value` to slot `slots[i]` of the caches, in place.

    Args:
        key, value: [n, kv_heads, head_dim], the caches' dtype.
        k_cache, v_cache: [num_pages, page_size, kv_heads, head_dim], contiguous.
        slots: [n] int64, page * page_size + offset. A negative slot means "don't write this row". Page 0 is
            padding: writing to it is allowed, even twice, and nothing reads it. Other slots must be distinct.

    Raises:
        BadArgument: a shape, dtype, device or layout doesn't fit.
        SlotOutOfRange: a slot lies beyond the cache.
    """
    check_write_kv(key, value, k_cache, v_cache, slots)
    num_slots = k_cache.shape[0] * k_cache.shape[1]
    if slots.numel() and int(slots.max()) >= num_slots:
        raise SlotOutOfRange(f"slot {int(slots.max())} is beyond the cache's {num_slots} slots")
    written = slots >= 0
    target = slots[written]
    k_cache.view(num_slots, *k_cache.shape[2:])[target] = key[written]
    v_cache.view(num_slots, *v_cache.shape[2:])[target] = value[written]


def paged_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    seq_tokens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention of one new token per request over the request's paged KV.

    Token t of request i lies in slot page_table[i, t // page_size] * page_size + t % page_size. Query head h
    reads KV head h // (heads // kv_heads).

    Args:
        query: [b, heads, head_dim].
        k_cache, v_cache: [num_pages, page_size, kv_heads, head_dim], contiguous; page_size a power of two.
        page_table: [b, max_pages] int32. Entries past the request's last page may hold anything.
        seq_tokens: [b] int32, tokens to attend to, the one just written included. 0 makes a row of zeros.
        scale: factor on query . key, usually head_dim ** -0.5.

    Returns:
        [b, heads, head_dim], the query's dtype.

    Raises:
        BadArgument: a shape, dtype, device or layout doesn't fit.
        SlotOutOfRange: a length exceeds the page table, or a used page lies outside the cache.
    """
    check_paged_decode(query, k_cache, v_cache, page_table, seq_tokens)
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    for row, tokens in enumerate(seq_tokens.tolist()):
        if tokens:
            slots = _slots_of(page_table[row], tokens, k_cache)
            out[row] = _attend(query[row], _rows(k_cache, slots), _rows(v_cache, slots), scale)
    return out


def _slots_of(pages: torch.Tensor, tokens: int, cache: torch.Tensor) -> torch.Tensor:
    """Slots of tokens [0, tokens) of one request, [tokens] int64."""
    num_pages, page_size = cache.shape[:2]
    capacity_tokens = pages.shape[0] * page_size
    if not 0 < tokens <= capacity_tokens:
        raise SlotOutOfRange(f"{tokens} tokens don't fit a page table row for {capacity_tokens} tokens")
    token = torch.arange(tokens, device=cache.device)
    page = pages.to(torch.int64)[token // page_size]
    if int(page.min()) < 0 or int(page.max()) >= num_pages:
        raise SlotOutOfRange(f"pages {int(page.min())}..{int(page.max())}: the cache has {num_pages}")
    return page * page_size + token % page_size


def _rows(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The cache's rows at `slots`, in float32: [tokens, kv_heads, head_dim]."""
    return cache.view(-1, *cache.shape[2:])[slots].to(torch.float32)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """One request: query [heads, head_dim], key and value [tokens, kv_heads, head_dim]; out as the query."""
    heads, head_dim = query.shape
    kv_heads = key.shape[1]
    grouped = query.to(torch.float32).view(kv_heads, heads // kv_heads, head_dim)
    scores = torch.einsum("kgd,tkd->kgt", grouped, key) * scale
    return torch.einsum("kgt,tkd->kgd", torch.softmax(scores, dim=-1), value).reshape(heads, head_dim)
