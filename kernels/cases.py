"""Inputs to try the kernels on, with everything poisoned that a kernel must not read.

Requests get pages in random order. Slots that hold no token of a request are NaN (page 0 and free pages
included), and so are those of tokens before every window; page table entries past a request's last page, and of
pages wholly before every window, are wild numbers. So a read too far shows in the result or faults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

import torch

WILD_PAGE = -(2**31)
"""What page tables hold where nothing may look."""

WILD_PEER = 2**31 - 1
"""What peers hold for pages that nothing is written to; the kernel takes a negative one for no peer."""


class AttentionOptions(TypedDict):
    """Keyword arguments of `paged_decode` and `paged_extend`."""

    window: int
    sinks: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCase:
    """The shape of one `paged_decode` call."""

    page_size: int
    kv_heads: int
    group: int
    """Query heads per KV head."""
    head_dim: int
    seq_tokens: tuple[int, ...]
    window: int = 0
    sinks: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        heads = f"{self.kv_heads * self.group}:{self.kv_heads}"
        extras = (f"-w{self.window}" if self.window else "") + ("-sinks" if self.sinks else "")
        return f"{str(self.dtype)[6:]}-page{self.page_size}-{heads}-d{self.head_dim}-{self.lengths}{extras}"

    @property
    def lengths(self) -> str:
        return "+".join(map(str, self.seq_tokens))

    @property
    def new_tokens(self) -> tuple[int, ...]:
        """Query tokens of each sequence."""
        return (1,) * len(self.seq_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendCase(DecodeCase):
    """The shape of one `paged_extend` call. `seq_tokens` count the new ones."""

    extend_tokens: tuple[int, ...]

    @property
    def lengths(self) -> str:
        return "+".join(f"{new}of{all_}" for new, all_ in zip(self.extend_tokens, self.seq_tokens, strict=True))

    @property
    def new_tokens(self) -> tuple[int, ...]:
        return self.extend_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """Arguments of `paged_decode`, in its order."""

    query: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    seq_tokens: torch.Tensor
    scale: float
    window: int
    sinks: torch.Tensor | None

    def arguments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float]:
        """For `paged_decode(*inputs.arguments(), **inputs.options())`."""
        return self.query, self.k_cache, self.v_cache, self.page_table, self.seq_tokens, self.scale

    def options(self) -> AttentionOptions:
        """The keyword arguments."""
        return {"window": self.window, "sinks": self.sinks}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendInputs:
    """Arguments of `paged_extend`, in its order."""

    query: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    query_start: torch.Tensor
    seq_tokens: torch.Tensor
    scale: float
    window: int
    sinks: torch.Tensor | None

    def arguments(
        self,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float]:
        """For `paged_extend(*inputs.arguments(), **inputs.options())`."""
        tables = self.page_table, self.query_start, self.seq_tokens
        return self.query, self.k_cache, self.v_cache, *tables, self.scale

    def options(self) -> AttentionOptions:
        """The keyword arguments."""
        return {"window": self.window, "sinks": self.sinks}


def decode_inputs(case: DecodeCase, *, seed: int, device: str = "cpu", spare_pages: int = 3) -> DecodeInputs:
    """Random inputs of a case. `spare_pages` free pages (poisoned) and as many unused table columns are added."""
    random = torch.Generator().manual_seed(seed)
    caches, page_table = _paged_kv(case, random, spare_pages)
    query, sinks = _query_and_sinks(case, random)
    return DecodeInputs(
        query=query.to(device),
        k_cache=caches[0].to(device),
        v_cache=caches[1].to(device),
        page_table=page_table.to(device),
        seq_tokens=torch.tensor(case.seq_tokens, dtype=torch.int32, device=device),
        scale=case.head_dim**-0.5,
        window=case.window,
        sinks=None if sinks is None else sinks.to(device),
    )


def extend_inputs(case: ExtendCase, *, seed: int, device: str = "cpu", spare_pages: int = 3) -> ExtendInputs:
    """Random inputs of a case, as `decode_inputs`; rows of the query are strided, as slices of a projection are."""
    random = torch.Generator().manual_seed(seed)
    caches, page_table = _paged_kv(case, random, spare_pages)
    query, sinks = _query_and_sinks(case, random)
    starts = torch.tensor((0, *case.extend_tokens), dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return ExtendInputs(
        query=torch.stack([query, query], 1).to(device)[:, 1],
        k_cache=caches[0].to(device),
        v_cache=caches[1].to(device),
        page_table=page_table.to(device),
        query_start=starts.to(device),
        seq_tokens=torch.tensor(case.seq_tokens, dtype=torch.int32, device=device),
        scale=case.head_dim**-0.5,
        window=case.window,
        sinks=None if sinks is None else sinks.to(device),
    )


def _paged_kv(case: DecodeCase, random: torch.Generator, spare_pages: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Caches [2, num_pages, page_size, kv_heads, head_dim] and page table of a case, poisoned."""
    pages_of = [math.ceil(tokens / case.page_size) for tokens in case.seq_tokens]
    num_pages = 1 + sum(pages_of) + spare_pages
    page_table = torch.full((len(pages_of), max(pages_of) + spare_pages), WILD_PAGE, dtype=torch.int32)
    caches = torch.full((2, num_pages * case.page_size, case.kv_heads, case.head_dim), math.nan, dtype=case.dtype)
    order = torch.randperm(num_pages - 1, generator=random) + 1
    for row, pages in enumerate(torch.split(order[: sum(pages_of)], pages_of)):
        tokens = case.seq_tokens[row]
        first = max(0, tokens - case.new_tokens[row] + 1 - case.window) if case.window else 0
        first_page = first // case.page_size
        page_table[row, first_page : len(pages)] = pages[first_page:].to(torch.int32)
        slots = (pages[:, None] * case.page_size + torch.arange(case.page_size)).flatten()[first:tokens]
        caches[:, slots] = torch.randn(2, len(slots), *caches.shape[2:], generator=random).to(case.dtype)
    return caches.view(2, num_pages, case.page_size, case.kv_heads, case.head_dim), page_table


def _query_and_sinks(case: DecodeCase, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sinks are large enough to matter beside the scores of a window."""
    heads = case.kv_heads * case.group
    query = torch.randn(sum(case.new_tokens), heads, case.head_dim, generator=random).to(case.dtype)
    return query, 3.0 + torch.randn(heads, generator=random) if case.sinks else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCase:
    """The shape of one `write_kv` call; every fifth row has a negative slot, with peers every third page has none."""

    n: int
    page_size: int
    kv_heads: int
    head_dim: int
    peers: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        extras = "-peers" if self.peers else ""
        return f"{str(self.dtype)[6:]}-n{self.n}-page{self.page_size}-{self.kv_heads}-d{self.head_dim}{extras}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteInputs:
    """Arguments of `write_kv`, in its order."""

    key: torch.Tensor
    value: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    slots: torch.Tensor
    peers: torch.Tensor | None

    def arguments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """For `write_kv(*inputs.arguments(), peers=inputs.peers)`."""
        return self.key, self.value, self.k_cache, self.v_cache, self.slots


def write_inputs(case: WriteCase, *, seed: int, device: str = "cpu") -> WriteInputs:
    """Random inputs of a case. Rows of key and value are strided, each its own way, as slices of projections are."""
    random = torch.Generator().manual_seed(seed)
    num_pages = 2 + math.ceil(case.n / case.page_size)
    row = (case.kv_heads, case.head_dim)
    fused = torch.randn(case.n, 5, *row, generator=random).to(case.dtype)
    key, value = fused[:, :2].contiguous().to(device)[:, 1], fused[:, 2:].contiguous().to(device)[:, 2]
    caches = torch.randn(2, num_pages, case.page_size, *row, generator=random).to(case.dtype).to(device)
    slots = torch.randperm(num_pages * case.page_size, generator=random)[: case.n]
    slots[::5] = -1 - torch.arange(len(slots[::5]))
    peers = _peers(slots, case.page_size, num_pages, random).to(device) if case.peers else None
    slots = slots.to(device)
    return WriteInputs(key=key, value=value, k_cache=caches[0], v_cache=caches[1], slots=slots, peers=peers)


def _peers(slots: torch.Tensor, page_size: int, num_pages: int, random: torch.Generator) -> torch.Tensor:
    """Peers within the cache for a full pool twice its size; `slots` move to random pages of that pool.

    Every third page that is written to has no peer, as has page 0; pages that aren't written to have a wild one.
    """
    peers = torch.full((2 * num_pages,), WILD_PEER, dtype=torch.int32)
    full_pages = torch.randperm(2 * num_pages - 1, generator=random)[:num_pages] + 1
    full_pages[0] = 0
    targets = torch.randperm(num_pages - 1, generator=random).to(torch.int32) + 1
    peers[full_pages[1:]] = targets
    peers[full_pages[::3]] = 0
    written = slots >= 0
    slots[written] = full_pages[slots[written] // page_size] * page_size + slots[written] % page_size
    return peers
