"""How fast the kernels are on a GPU, against peers in the same run.

Paged decode is held against torch's scaled_dot_product_attention over the same tokens in one dense, unpaged
tensor (it is spared the paging), the KV write against indexed assignment, and both against a plain device
copy that moves as many bytes: what the memory can do. Every contender is captured in a CUDA graph and
replayed, as an engine would, so Python and launch costs are out; the median of many replays is taken, with
the L2 cache flushed before each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import triton.testing
from torch.nn.functional import scaled_dot_product_attention

from . import paged_decode_triton as decode
from . import write_kv_triton as write

Work = Callable[[], object]
Bench = Callable[[Work], float]
"""Microseconds that one run of the work takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One row of the table. Ratios are the other's time over ours: above 1 we are faster."""

    name: str
    micros: float
    moved_bytes: int
    peer: str
    peer_micros: float
    copy_micros: float

    @property
    def gigabytes_per_second(self) -> float:
        return self.moved_bytes / self.micros / 1e3

    @property
    def over_peer(self) -> float:
        return self.peer_micros / self.micros

    @property
    def over_copy(self) -> float:
        """The share of a plain copy's speed that the kernel reaches."""
        return self.copy_micros / self.micros


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeShape:
    """Every request of the batch has the same length."""

    batch: int
    tokens: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 64
    dtype: torch.dtype = torch.bfloat16

    @property
    def name(self) -> str:
        return (
            f"decode B={self.batch} KV={self.tokens} {self.heads}:{self.kv_heads} "
            f"D{self.head_dim} page {self.page_size}"
        )

    @property
    def kv_bytes(self) -> int:
        return 2 * self.batch * self.tokens * self.kv_heads * self.head_dim * self.dtype.itemsize


DECODE_SHAPES = (
    DecodeShape(batch=32, tokens=4096),
    DecodeShape(batch=128, tokens=8192),
    DecodeShape(batch=1, tokens=32768),
)

WRITE_TOKENS = 16384


def graph_bench(work: Work) -> float:
    """Median microseconds of a CUDA graph replay of `work`, L2 flushed. Needs a GPU."""
    for _ in range(3):
        work()  # compiles, and takes memory from the allocator, neither of which a capture may do
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return float(triton.testing.do_bench(graph.replay, warmup=25, rep=150, return_mode="median")) * 1e3


def time_decode(shape: DecodeShape, bench: Bench, device: str) -> Timing:
    """Paged decode of a shape, with its page order random."""
    arguments = decode_arguments(shape, device)
    dense = (shape.batch, shape.kv_heads, shape.tokens, shape.head_dim)
    key, value = (torch.randn(dense, dtype=shape.dtype, device=device) for _ in "kv")
    query = arguments[0][:, :, None, :]
    return Timing(
        name=shape.name,
        micros=bench(partial(decode.paged_decode, *arguments)),
        moved_bytes=shape.kv_bytes,
        peer="torch SDPA, dense KV",
        peer_micros=bench(lambda: scaled_dot_product_attention(query, key, value, enable_gqa=True)),
        copy_micros=time_copy(shape.kv_bytes, bench, device),
    )


def time_write(tokens: int, bench: Bench, device: str) -> Timing:
    """KV write of `tokens` rows, 8 heads of 128, bfloat16, to random slots of a cache twice as large."""
    row = (8, 128)
    key, value = (torch.randn(tokens, *row, dtype=torch.bfloat16, device=device) for _ in "kv")
    caches = torch.zeros(2, 2 * tokens // 64, 64, *row, dtype=torch.bfloat16, device=device)
    slots = torch.randperm(2 * tokens, device=device)[:tokens]
    flat = caches.view(2, 2 * tokens, *row)

    def assign() -> None:
        flat[0].index_copy_(0, slots, key)
        flat[1].index_copy_(0, slots, value)

    moved_bytes = 2 * (key.nbytes + value.nbytes)
    return Timing(
        name=f"write_kv {tokens} tokens 8 x D128",
        micros=bench(lambda: write.write_kv(key, value, caches[0], caches[1], slots)),
        moved_bytes=moved_bytes,
        peer="torch index_copy_",
        peer_micros=bench(assign),
        copy_micros=time_copy(moved_bytes, bench, device),
    )


def time_copy(moved_bytes: int, bench: Bench, device: str) -> float:
    """Microseconds in which a device copy moves `moved_bytes`, half of them read and half written."""
    source = torch.zeros(moved_bytes // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return bench(lambda: target.copy_(source))


def sweep_decode(
    shapes: tuple[DecodeShape, ...], bench: Bench, device: str
) -> Iterator[tuple[DecodeShape, decode.DecodeTuning, float]]:
    """(shape, tuning, microseconds) around the default tuning: split length by pipeline depth by warps."""
    for shape in shapes:
        arguments = decode_arguments(shape, device)
        default = decode.default_tuning(shape.dtype, shape.head_dim)
        for split_tokens in (256, 512, 1024):
            for num_stages, num_warps in ((2, 4), (3, 4), (4, 4), (3, 8)):
                tuning = replace(default, split_tokens=split_tokens, num_stages=num_stages, num_warps=num_warps)
                yield shape, tuning, bench(partial(decode.paged_decode_tuned, *arguments, tuning))


def decode_arguments(
    shape: DecodeShape, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Random arguments of `paged_decode` for a shape."""
    width = -(-shape.tokens // shape.page_size)
    num_pages = 1 + shape.batch * width
    paged = (num_pages, shape.page_size, shape.kv_heads, shape.head_dim)
    query = torch.randn(shape.batch, shape.heads, shape.head_dim, dtype=shape.dtype, device=device)
    k_cache, v_cache = (torch.randn(paged, dtype=shape.dtype, device=device) for _ in "kv")
    page_table = (torch.randperm(num_pages - 1, device=device) + 1).view(shape.batch, width).to(torch.int32)
    seq_tokens = torch.full((shape.batch,), shape.tokens, dtype=torch.int32, device=device)
    return query, k_cache, v_cache, page_table, seq_tokens, shape.head_dim**-0.5
