"""Kernels of the KV path: Triton on a CUDA device, the torch reference of the same signature elsewhere.

`write_kv` fills slots of the paged cache; `paged_decode` attends over it with one new token a request, `paged_extend`
with several. What they mean is `reference.py`; how they are fast is `write_kv_triton.py`, `paged_decode_triton.py` and
`paged_extend_triton.py`. Triton is imported at the first call that needs it, so this package loads on a machine that
has neither Triton nor a GPU.
"""

from __future__ import annotations

import torch

from . import reference
from .errors import AotFailed, BadArgument, KernelError, NoGpu, NoTriton, SlotOutOfRange

__all__ = [
    "AotFailed",
    "BadArgument",
    "KernelError",
    "NoGpu",
    "NoTriton",
    "SlotOutOfRange",
    "paged_decode",
    "paged_extend",
    "write_kv",
]


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    peers: torch.Tensor | None = None,
) -> None:
    """Write row i of key and value [n, kv_heads, head_dim] to slot slots[i] of the caches, in place.

    With `peers` the caches are a sliding-window layer's, and the row goes to the peer of the slot's page.
    Arguments and errors as in `reference.write_kv`. On CUDA the values of slots and peers are trusted.
    """
    if not k_cache.is_cuda:
        reference.write_kv(key, value, k_cache, v_cache, slots, peers=peers)
        return
    try:
        from .write_kv_triton import write_kv as launch
    except ImportError as error:
        raise _no_triton() from error
    launch(key, value, k_cache, v_cache, slots, peers=peers)


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
    """Attention of one new token per request over its paged KV: [b, heads, head_dim], the query's dtype.

    Arguments and errors as in `reference.paged_decode`. On CUDA the pages' and lengths' values are trusted.
    """
    if not k_cache.is_cuda:
        return reference.paged_decode(
            query, k_cache, v_cache, page_table, seq_tokens, scale, window=window, sinks=sinks
        )
    try:
        from .paged_decode_triton import paged_decode as launch
    except ImportError as error:
        raise _no_triton() from error
    return launch(query, k_cache, v_cache, page_table, seq_tokens, scale, window=window, sinks=sinks)


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
    """Causal attention of the new tokens of several sequences over their paged KV: [tokens, heads, head_dim].

    Arguments and errors as in `reference.paged_extend`. On CUDA the values of starts, pages and lengths are trusted.
    """
    if not k_cache.is_cuda:
        return reference.paged_extend(
            query, k_cache, v_cache, page_table, query_start, seq_tokens, scale, window=window, sinks=sinks
        )
    try:
        from .paged_extend_triton import paged_extend as launch
    except ImportError as error:
        raise _no_triton() from error
    return launch(query, k_cache, v_cache, page_table, query_start, seq_tokens, scale, window=window, sinks=sinks)


def _no_triton() -> NoTriton:
    return NoTriton("the cache is on a CUDA device, but Triton can't be imported: install freehold[engine]")
