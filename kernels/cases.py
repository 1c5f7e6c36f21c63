"""Inputs to try the kernels on, with everything poisoned that a kernel must not read.

Requests get pages in random order. Slots that hold no token of a request are NaN (page 0 and free pages
included), and page table entries past a request's last page are wild numbers, so that a read too far shows in
the result or faults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

WILD_PAGE = -(2**31)
"""What page tables hold where nothing may look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCase:
    """The shape of one `paged_decode` call."""

    page_size: int
    kv_heads: int
    group: int
    """Query heads per KV head."""
    head_dim: int
    seq_tokens: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        lengths = "+".join(map(str, self.seq_tokens))
        heads = f"{self.kv_heads * self.group}:{self.kv_heads}"
        return f"{str(self.dtype)[6:]}-page{self.page_size}-{heads}-d{self.head_dim}-{lengths}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """Arguments of `paged_decode`, in its order."""

    query: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    seq_tokens: torch.Tensor
    scale: float

    def arguments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float]:
        """For `paged_decode(*inputs.arguments())`."""
        return self.query, self.k_cache, self.v_cache, self.page_table, self.seq_tokens, self.scale


def decode_inputs(case: DecodeCase, *, seed: int, device: str = "cpu", spare_pages: int = 3) -> DecodeInputs:
    """Random inputs of a case. `spare_pages` free pages (poisoned) and as many unused table columns are added."""
    random = torch.Generator().manual_seed(seed)
    pages_of = [math.ceil(tokens / case.page_size) for tokens in case.seq_tokens]
    num_pages = 1 + sum(pages_of) + spare_pages
    batch, width = len(case.seq_tokens), max(pages_of) + spare_pages
    page_table = torch.full((batch, width), WILD_PAGE, dtype=torch.int32)
    caches = torch.full((2, num_pages * case.page_size, case.kv_heads, case.head_dim), math.nan, dtype=case.dtype)
    order = torch.randperm(num_pages - 1, generator=random) + 1
    for row, pages in enumerate(torch.split(order[: sum(pages_of)], pages_of)):
        page_table[row, : len(pages)] = pages.to(torch.int32)
        slots = (pages[:, None] * case.page_size + torch.arange(case.page_size)).flatten()[: case.seq_tokens[row]]
        caches[:, slots] = torch.randn(2, len(slots), *caches.shape[2:], generator=random).to(case.dtype)
    query = torch.randn(batch, case.kv_heads * case.group, case.head_dim, generator=random).to(case.dtype)
    paged = caches.view(2, num_pages, case.page_size, case.kv_heads, case.head_dim).to(device)
    return DecodeInputs(
        query=query.to(device),
        k_cache=paged[0],
        v_cache=paged[1],
        page_table=page_table.to(device),
        seq_tokens=torch.tensor(case.seq_tokens, dtype=torch.int32, device=device),
        scale=case.head_dim**-0.5,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCase:
    """The shape of one `write_kv` call; every fifth row has a negative slot."""

    n: int
    page_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        return f"{str(self.dtype)[6:]}-n{self.n}-page{self.page_size}-{self.kv_heads}-d{self.head_dim}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteInputs:
    """Arguments of `write_kv`, in its order."""

    key: torch.Tensor
    value: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    slots: torch.Tensor

    def arguments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """For `write_kv(*inputs.arguments())`."""
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
    return WriteInputs(key=key, value=value, k_cache=caches[0], v_cache=caches[1], slots=slots.to(device))
