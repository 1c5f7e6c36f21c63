"""How fast the kernels are on a GPU, against peers in the same run.

Paged decode is held against torch's scaled_dot_product_attention over the same tokens in one dense, unpaged
tensor (it is spared the paging), the KV write against indexed assignment, and both against a plain device
copy that moves as many bytes: what the memory can do. Paged extend is held against the same attention, and with a
window against itself without one, its time scaled by the scores that the window leaves: what it would take if cost
followed the window. Every contender is captured in a CUDA graph and
replayed, as an engine would, so Python and launch costs are out; the median of many replays is taken, with
the L2 cache flushed before each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import triton.testing
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from . import paged_decode_triton as decode
from . import paged_extend_triton as extend
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

    @property
    def line(self) -> str:
        return (
            f"{self.name:<52} {self.micros:9.1f} us {self.gigabytes_per_second:7.0f} GB/s"
            f" | {self.over_peer:5.2f} x {self.peer} | {self.over_copy:4.0%} of a copy"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendTiming:
    """One row of the table, for work that arithmetic limits."""

    name: str
    micros: float
    flop: int
    """Of both products, for the pairs of tokens that attend."""
    peer: str
    peer_micros: float

    @property
    def teraflops(self) -> float:
        return self.flop / self.micros / 1e6

    @property
    def over_peer(self) -> float:
        return self.peer_micros / self.micros

    @property
    def line(self) -> str:
        return (
            f"{self.name:<52} {self.micros:9.1f} us {self.teraflops:7.0f} TFLOP/s | {self.over_peer:5.2f} x {self.peer}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeShape:
    """Every request of the batch has the same length."""

    batch: int
    tokens: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 64
    window: int = 0
    dtype: torch.dtype = torch.bfloat16

    @property
    def name(self) -> str:
        window = f" window {self.window}" if self.window else ""
        return (
            f"decode B={self.batch} KV={self.tokens} {self.heads}:{self.kv_heads} "
            f"D{self.head_dim} page {self.page_size}{window}"
        )

    @property
    def read_tokens(self) -> int:
        """Tokens of a request that are attended to."""
        return min(self.tokens, self.window) if self.window else self.tokens

    @property
    def kv_bytes(self) -> int:
        return 2 * self.batch * self.read_tokens * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendShape:
    """Every sequence of the batch has the same length and as many new tokens."""

    batch: int
    new_tokens: int
    tokens: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 64
    window: int = 0
    dtype: torch.dtype = torch.bfloat16

    @property
    def name(self) -> str:
        window = f" window {self.window}" if self.window else ""
        return (
            f"extend B={self.batch} {self.new_tokens} of {self.tokens} {self.heads}:{self.kv_heads} "
            f"D{self.head_dim}{window}"
        )

    @property
    def flop(self) -> int:
        prefix = self.tokens - self.new_tokens
        window = self.window or self.tokens
        pairs = sum(min(token + 1, window) for token in range(prefix, self.tokens))
        return 4 * self.batch * pairs * self.heads * self.head_dim


DECODE_SHAPES = (
    DecodeShape(batch=32, tokens=4096),
    DecodeShape(batch=128, tokens=8192),
    DecodeShape(batch=1, tokens=32768),
    DecodeShape(batch=32, tokens=32768, window=1024),
)

EXTEND_SHAPES = (
    ExtendShape(batch=1, new_tokens=8192, tokens=8192),
    ExtendShape(batch=4, new_tokens=1024, tokens=8192),
    ExtendShape(batch=1, new_tokens=32768, tokens=32768, window=1024),
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
    """Paged decode of a shape, with its page order random. The peer is given the window's tokens only."""
    arguments = decode_arguments(shape, device)
    dense = (shape.batch, shape.kv_heads, shape.read_tokens, shape.head_dim)
    key, value = (torch.randn(dense, dtype=shape.dtype, device=device) for _ in "kv")
    query = arguments[0][:, :, None, :]
    return Timing(
        name=shape.name,
        micros=bench(partial(decode.paged_decode, *arguments, window=shape.window)),
        moved_bytes=shape.kv_bytes,
        peer="torch SDPA, dense KV",
        peer_micros=bench(lambda: scaled_dot_product_attention(query, key, value, enable_gqa=True)),
        copy_micros=time_copy(shape.kv_bytes, bench, device),
    )


def time_extend(shape: ExtendShape, bench: Bench, device: str) -> ExtendTiming:
    """Paged extend of a shape, with its page order random."""
    arguments = extend_arguments(shape, device)
    micros = bench(partial(extend.paged_extend, *arguments, window=shape.window))
    if shape.window:
        full = replace(shape, window=0)
        peer = "ours without window, scaled"
        peer_micros = bench(partial(extend.paged_extend, *arguments)) * shape.flop / full.flop
    else:
        rows = (shape.batch, shape.new_tokens, shape.heads, shape.head_dim)
        query = arguments[0].view(rows).transpose(1, 2)
        dense = (shape.batch, shape.kv_heads, shape.tokens, shape.head_dim)
        key, value = (torch.randn(dense, dtype=shape.dtype, device=device) for _ in "kv")
        causal = causal_lower_right(shape.new_tokens, shape.tokens)
        peer = "torch SDPA, dense KV"
        peer_micros = bench(lambda: scaled_dot_product_attention(query, key, value, attn_mask=causal, enable_gqa=True))
    return ExtendTiming(name=shape.name, micros=micros, flop=shape.flop, peer=peer, peer_micros=peer_micros)


def time_write(tokens: int, bench: Bench, device: str, *, with_peers: bool = False) -> Timing:
    """KV write of `tokens` rows, 8 heads of 128, bfloat16, to random slots of a cache twice as large.

    With peers each page is its own, so that the same bytes go to the same places.
    """
    row = (8, 128)
    key, value = (torch.randn(tokens, *row, dtype=torch.bfloat16, device=device) for _ in "kv")
    caches = torch.zeros(2, 2 * tokens // 64, 64, *row, dtype=torch.bfloat16, device=device)
    slots = torch.randperm(2 * tokens, device=device)[:tokens]
    peers = torch.arange(caches.shape[1], dtype=torch.int32, device=device) if with_peers else None
    flat = caches.view(2, 2 * tokens, *row)

    def assign() -> None:
        flat[0].index_copy_(0, slots, key)
        flat[1].index_copy_(0, slots, value)

    moved_bytes = 2 * (key.nbytes + value.nbytes)
    return Timing(
        name=f"write_kv {tokens} tokens 8 x D128{' through peers' if with_peers else ''}",
        micros=bench(lambda: write.write_kv(key, value, caches[0], caches[1], slots, peers=peers)),
        moved_bytes=moved_bytes,
        peer="torch index_copy_",
        peer_micros=bench(assign),
        copy_micros=time_copy(moved_bytes, bench, device),
    )


def time_all(bench: Bench, device: str) -> Iterator[Timing | ExtendTiming]:
    """Every row of the table."""
    for decode_shape in DECODE_SHAPES:
        yield time_decode(decode_shape, bench, device)
    for extend_shape in EXTEND_SHAPES:
        yield time_extend(extend_shape, bench, device)
    for with_peers in (False, True):
        yield time_write(WRITE_TOKENS, bench, device, with_peers=with_peers)


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
                yield shape, tuning, bench(partial(decode.paged_decode_tuned, *arguments, tuning, window=shape.window))


def decode_arguments(
    shape: DecodeShape, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Random arguments of `paged_decode` for a shape."""
    query = torch.randn(shape.batch, shape.heads, shape.head_dim, dtype=shape.dtype, device=device)
    k_cache, v_cache, page_table, seq_tokens = _paged_kv(shape, device)
    return query, k_cache, v_cache, page_table, seq_tokens, shape.head_dim**-0.5


def extend_arguments(
    shape: ExtendShape, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Random arguments of `paged_extend` for a shape."""
    rows = (shape.batch * shape.new_tokens, shape.heads, shape.head_dim)
    query = torch.randn(rows, dtype=shape.dtype, device=device)
    k_cache, v_cache, page_table, seq_tokens = _paged_kv(shape, device)
    query_start = torch.arange(shape.batch + 1, dtype=torch.int32, device=device) * shape.new_tokens
    return query, k_cache, v_cache, page_table, query_start, seq_tokens, shape.head_dim**-0.5


def _paged_kv(
    shape: DecodeShape | ExtendShape, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random caches, a page table in random order, and the lengths."""
    width = -(-shape.tokens // shape.page_size)
    num_pages = 1 + shape.batch * width
    paged = (num_pages, shape.page_size, shape.kv_heads, shape.head_dim)
    k_cache, v_cache = (torch.randn(paged, dtype=shape.dtype, device=device) for _ in "kv")
    page_table = (torch.randperm(num_pages - 1, device=device) + 1).view(shape.batch, width).to(torch.int32)
    return k_cache, v_cache, page_table, torch.full((shape.batch,), shape.tokens, dtype=torch.int32, device=device)
