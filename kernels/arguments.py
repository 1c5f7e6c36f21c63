"""What the kernels demand of their tensors, checked from metadata alone: nothing waits for the device.

The Triton kernels and the references call the same functions, so that a call which the CPU accepts is one
that a GPU accepts. Only layouts that the address arithmetic relies on are demanded: caches are dense, rows
may be strided.
"""

from __future__ import annotations

import torch

from .errors import BadArgument

CACHE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    peers: torch.Tensor | None,
) -> None:
    """Raise `BadArgument` unless the tensors fit `write_kv`."""
    _check_caches(k_cache, v_cache)
    if key.dim() != 3 or key.shape[1:] != k_cache.shape[2:] or value.shape != key.shape:
        raise BadArgument(
            f"key {tuple(key.shape)} and value {tuple(value.shape)} must both be [n, kv_heads, head_dim], "
            f"the last two as in the cache {tuple(k_cache.shape)}"
        )
    if key.dtype != k_cache.dtype or value.dtype != k_cache.dtype:
        raise BadArgument(f"key is {key.dtype}, value {value.dtype}, the cache {k_cache.dtype}: cast them")
    if slots.shape != key.shape[:1] or slots.dtype != torch.int64 or not slots.is_contiguous():
        raise BadArgument(f"slots must be dense int64 [{key.shape[0]}], not {slots.dtype} {[*slots.shape]}")
    for name, rows in (("key", key), ("value", value)):
        _check_rows(name, rows)
    if peers is not None and (peers.dim() != 1 or peers.dtype != torch.int32 or not peers.is_contiguous()):
        raise BadArgument(f"peers must be a dense int32 [num_pages + 1], not {peers.dtype} {tuple(peers.shape)}")
    _check_device(k_cache, key, value, v_cache, slots, peers)


def check_paged_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    seq_tokens: torch.Tensor,
    window: int,
    sinks: torch.Tensor | None,
) -> None:
    """Raise `BadArgument` unless the arguments fit `paged_decode`."""
    _check_caches(k_cache, v_cache)
    _check_query(query, k_cache, "b")
    _check_sequences(query.shape[0], page_table, seq_tokens)
    _check_window(window, sinks, query.shape[1])
    _check_device(k_cache, query, v_cache, page_table, seq_tokens, sinks)


def check_paged_extend(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_tokens: torch.Tensor,
    window: int,
    sinks: torch.Tensor | None,
) -> None:
    """Raise `BadArgument` unless the arguments fit `paged_extend`."""
    _check_caches(k_cache, v_cache)
    _check_query(query, k_cache, "tokens")
    seqs = seq_tokens.shape[0] if seq_tokens.dim() else 0
    _check_sequences(seqs, page_table, seq_tokens)
    _check_int32("query_start", query_start, seqs + 1)
    _check_window(window, sinks, query.shape[1])
    _check_device(k_cache, query, v_cache, page_table, query_start, seq_tokens, sinks)


def _check_query(query: torch.Tensor, k_cache: torch.Tensor, rows: str) -> None:
    page_size, kv_heads, head_dim = k_cache.shape[1:]
    if page_size & (page_size - 1):
        raise BadArgument(f"page size {page_size} must be a power of two")
    if query.dim() != 3 or query.shape[2] != head_dim or query.shape[1] % kv_heads or not query.shape[1]:
        raise BadArgument(
            f"query {tuple(query.shape)} must be [{rows}, heads, {head_dim}], heads a multiple of {kv_heads}"
        )
    if query.dtype != k_cache.dtype:
        raise BadArgument(f"query is {query.dtype}, the caches {k_cache.dtype}: cast the query")
    _check_rows("query", query)


def _check_sequences(seqs: int, page_table: torch.Tensor, seq_tokens: torch.Tensor) -> None:
    if page_table.dim() != 2 or page_table.shape[0] != seqs or page_table.dtype != torch.int32:
        raise BadArgument(
            f"page_table must be int32 [{seqs}, max_pages], not {page_table.dtype} {tuple(page_table.shape)}"
        )
    if page_table.stride(1) != 1 and page_table.shape[1] > 1:
        raise BadArgument("page_table must be dense along max_pages")
    _check_int32("seq_tokens", seq_tokens, seqs)


def _check_int32(name: str, numbers: torch.Tensor, length: int) -> None:
    if numbers.shape != (length,) or numbers.dtype != torch.int32 or not numbers.is_contiguous():
        raise BadArgument(f"{name} must be a dense int32 [{length}], not {numbers.dtype} {tuple(numbers.shape)}")


def _check_window(window: int, sinks: torch.Tensor | None, heads: int) -> None:
    if not 0 <= window < 2**31:
        raise BadArgument(f"window {window} must be a number of tokens, the query's own included, or 0 for none")
    if sinks is not None and (sinks.shape != (heads,) or sinks.dtype != torch.float32 or not sinks.is_contiguous()):
        raise BadArgument(f"sinks must be a dense float32 [{heads}], not {sinks.dtype} {tuple(sinks.shape)}")


def _check_caches(k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    if k_cache.dim() != 4 or k_cache.shape != v_cache.shape or 0 in k_cache.shape:
        raise BadArgument(
            f"caches must both be [num_pages, page_size, kv_heads, head_dim] and hold a page, "
            f"not {tuple(k_cache.shape)} and {tuple(v_cache.shape)}"
        )
    if k_cache.dtype not in CACHE_DTYPES or k_cache.dtype != v_cache.dtype:
        raise BadArgument(f"caches are {k_cache.dtype}, {v_cache.dtype}: both must be one of {CACHE_DTYPES}")
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise BadArgument("caches must be contiguous: a slot is an offset into them")


def _check_rows(name: str, rows: torch.Tensor) -> None:
    """A row may lie anywhere (a slice of a fused projection does), but inside it heads lie densely."""
    heads, head_dim = rows.shape[1:]
    dense = (rows.stride(2) == 1 or head_dim == 1) and (rows.stride(1) == head_dim or heads == 1)
    if not dense:
        raise BadArgument(f"{name} must be dense inside a row; its strides are {rows.stride()}")


def _check_device(cache: torch.Tensor, *others: torch.Tensor | None) -> None:
    for tensor in others:
        if tensor is not None and tensor.device != cache.device:
            raise BadArgument(f"a tensor is on {tensor.device}, the cache on {cache.device}: move it there")
