"""The kernels' meaning, in plain torch: what the CPU engine runs and every Triton kernel is compared with.

Written to be read and to be exact, not to be fast: one request at a time, one softmax over all it attends to,
arithmetic in float32 whatever the cache holds. Same signatures as the Triton kernels. Unlike them, the
references look at the values of slots, pages and lengths, and raise `SlotOutOfRange` where a kernel would
touch memory it doesn't own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .arguments import check_paged_decode, check_paged_extend, check_write_kv
from .errors import SlotOutOfRange


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    peers: torch.Tensor | None = None,
) -> None:
    """Copy row i of `key` and `value` to slot `slots[i]` of the caches, in place.

    Args:
        key, value: [n, kv_heads, head_dim], the caches' dtype.
        k_cache, v_cache: [num_pages, page_size, kv_heads, head_dim], contiguous.
        slots: [n] int64, page * page_size + offset. A negative slot means "don't write this row". Page 0 is
            padding: writing to it is allowed, even twice, and nothing reads it. Other slots must be distinct.
        peers: [p] int32, the peer of each page of the full pool. Given them, the caches are those of a sliding-window
            layer and slots are the full pool's: a row goes to the same place in its page's peer, peers[page] *
            page_size + offset. A peer of 0 means that the page has none: its rows aren't written.

    Raises:
        BadArgument: a shape, dtype, device or layout doesn't fit.
        SlotOutOfRange: a slot lies beyond the cache or the peers, or a peer outside of the cache.
    """
    check_write_kv(key, value, k_cache, v_cache, slots, peers)
    if peers is not None:
        slots = _peer_slots(slots, peers, k_cache.shape[1])
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
    *,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of one new token per request over the request's paged KV.

    Token t of request i lies in slot page_table[i, t // page_size] * page_size + t % page_size. Query head h
    reads KV head h // (heads // kv_heads).

    Args:
        query: [b, heads, head_dim].
        k_cache, v_cache: [num_pages, page_size, kv_heads, head_dim], contiguous; page_size a power of two.
        page_table: [b, max_pages] int32. Entries past the request's last page, and entries of pages that lie wholly
            before its window, may hold anything.
        seq_tokens: [b] int32, tokens of the request, the one just written included. 0 makes a row of zeros.
        scale: factor on query . key, usually head_dim ** -0.5.
        window: how many of the last tokens are attended to, the query's own included; 0 for all of them.
        sinks: [heads] float32. A logit of each head that joins the softmax's denominator and brings no value; it is
            not scaled.

    Returns:
        [b, heads, head_dim], the query's dtype.

    Raises:
        BadArgument: a shape, dtype, device or layout doesn't fit.
        SlotOutOfRange: a length exceeds the page table, or a used page lies outside the cache.
    """
    check_paged_decode(query, k_cache, v_cache, page_table, seq_tokens, window, sinks)
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    for row, tokens in enumerate(seq_tokens.tolist()):
        if tokens:
            span = _Span(new_tokens=1, seq_tokens=tokens, window=window)
            out[row] = _attend(query[row, None], k_cache, v_cache, page_table[row], span, scale, sinks)[0]
    return out


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
    """Causal attention of the new tokens of several sequences, each over the sequence's paged KV up to itself.

    The new tokens are the last ones of their sequence, and their KV is in the cache already.

    Args:
        query: [tokens, heads, head_dim], one sequence's new tokens after the other's.
        k_cache, v_cache: as in `paged_decode`.
        page_table: [seqs, max_pages] int32. Entries past the sequence's last page, and entries of pages that lie
            wholly before the window of its first new token, may hold anything.
        query_start: [seqs + 1] int32. Sequence i has rows query_start[i] .. query_start[i + 1], half-open, of the
            query; the first is 0, the last `tokens`, and none is smaller than the one before.
        seq_tokens: [seqs] int32, tokens of each sequence, the new ones included.
        scale, window, sinks: as in `paged_decode`; the window of a token ends with the token.

    Returns:
        [tokens, heads, head_dim], the query's dtype.

    Raises:
        BadArgument: a shape, dtype, device or layout doesn't fit.
        SlotOutOfRange: the starts aren't as above, a sequence has fewer tokens than new ones or more than its page
            table, or a used page lies outside the cache.
    """
    check_paged_extend(query, k_cache, v_cache, page_table, query_start, seq_tokens, window, sinks)
    starts = query_start.tolist()
    if starts[0] != 0 or starts[-1] != query.shape[0] or starts != sorted(starts):
        raise SlotOutOfRange(f"query_start {starts} must rise from 0 to the query's {query.shape[0]} tokens")
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    for seq, tokens in enumerate(seq_tokens.tolist()):
        start, stop = starts[seq], starts[seq + 1]
        if start < stop:
            span = _Span(new_tokens=stop - start, seq_tokens=tokens, window=window)
            out[start:stop] = _attend(query[start:stop], k_cache, v_cache, page_table[seq], span, scale, sinks)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Which tokens of a sequence its last `new_tokens` attend to; `window` 0 for no window."""

    new_tokens: int
    seq_tokens: int
    window: int

    @property
    def first(self) -> int:
        """The first token that any of the new ones sees."""
        return max(0, self.seq_tokens - self.new_tokens + 1 - self.window) if self.window else 0

    def seen(self, device: torch.device) -> torch.Tensor:
        """Whether new token i sees token `first` + j: [new_tokens, seq_tokens - first] bool."""
        token = torch.arange(self.first, self.seq_tokens, device=device)
        behind = torch.arange(self.seq_tokens - self.new_tokens, self.seq_tokens, device=device)[:, None] - token
        return (behind >= 0) & (behind < self.window) if self.window else behind >= 0


def _peer_slots(slots: torch.Tensor, peers: torch.Tensor, page_size: int) -> torch.Tensor:
    """The slots in the peers of the pages of `slots`, -1 where there is none to write to."""
    page = torch.div(slots, page_size, rounding_mode="floor")
    if slots.numel() and int(page.max()) >= peers.shape[0]:
        raise SlotOutOfRange(f"slot {int(slots.max())} lies in page {int(page.max())} of {peers.shape[0]} with a peer")
    peer = peers.to(torch.int64)[page.clamp(min=0)]
    if bool((peer < 0).any()):
        raise SlotOutOfRange(f"peer {int(peer.min())} is no page")
    return torch.where((slots >= 0) & (peer > 0), peer * page_size + slots % page_size, -1)


def _slots_of(pages: torch.Tensor, span: _Span, cache: torch.Tensor) -> torch.Tensor:
    """Slots of the tokens from `span.first` on, [seq_tokens - first] int64."""
    num_pages, page_size = cache.shape[:2]
    capacity_tokens = pages.shape[0] * page_size
    if not span.new_tokens <= span.seq_tokens <= capacity_tokens:
        raise SlotOutOfRange(
            f"{span.seq_tokens} tokens, {span.new_tokens} of them new, don't fit a page table row for "
            f"{capacity_tokens} tokens"
        )
    token = torch.arange(span.first, span.seq_tokens, device=cache.device)
    page = pages.to(torch.int64)[token // page_size]
    if int(page.min()) < 0 or int(page.max()) >= num_pages:
        raise SlotOutOfRange(f"pages {int(page.min())}..{int(page.max())}: the cache has {num_pages}")
    return page * page_size + token % page_size


def _attend(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    pages: torch.Tensor,
    span: _Span,
    scale: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One sequence: query [new_tokens, heads, head_dim], pages [max_pages]; float32 of the query's shape."""
    new_tokens, heads, head_dim = query.shape
    slots = _slots_of(pages, span, k_cache)
    key, value = (cache.view(-1, *cache.shape[2:])[slots].to(torch.float32) for cache in (k_cache, v_cache))
    kv_heads = key.shape[1]
    grouped = query.to(torch.float32).view(new_tokens, kv_heads, heads // kv_heads, head_dim)
    scores = torch.einsum("nkgd,tkd->kgnt", grouped, key) * scale
    scores = scores.masked_fill(~span.seen(query.device), -torch.inf)
    if sinks is not None:
        sink = sinks.view(kv_heads, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[0]]
    return torch.einsum("kgnt,tkd->nkgd", weights, value).reshape(new_tokens, heads, head_dim)
