"""The variants of our kernels that are held to a budget, as a launch on a GPU would compile them.

Types and constants come from the same functions that the launches use, so the catalogue can't drift from
them. Register budgets are the measured figures with a little room; they may only be raised with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from . import paged_decode_triton as decode
from . import paged_extend_triton as extend
from . import write_kv_triton as write
from .aot import AotBudget, AotVariant

TYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}

ARCHITECTURES = (80, 90)


def split_variant(
    dtype: torch.dtype,
    head_dim: int,
    page_size: int,
    *,
    kv_heads: int = 8,
    group: int = 4,
    window: int = 0,
    tuning: decode.DecodeTuning | None = None,
) -> AotVariant:
    """Stage 1 of paged decode."""
    tuning = tuning or decode.default_tuning(dtype, head_dim)
    cache = torch.empty(1, page_size, kv_heads, head_dim, dtype=dtype, device="meta")
    element = f"*{TYPE_NAMES[dtype]}"
    return AotVariant(
        name=f"decode_split-{TYPE_NAMES[dtype]}-d{head_dim}-page{page_size}-group{group}{_window_name(window)}",
        kernel=decode.decode_split_kernel,
        types={
            "query_ptr": element,
            "k_cache_ptr": element,
            "v_cache_ptr": element,
            "page_table_ptr": "*i32",
            "seq_tokens_ptr": "*i32",
            "partial_ptr": "*fp32",
            "lse_ptr": "*fp32",
            "query_stride": "i32",
            "table_stride": "i32",
            "scale_log2": "fp32",
        },
        constants=decode.split_constants(kv_heads * group, cache, window, tuning),
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
        aligned=("query_stride",),
    )


def merge_variant(dtype: torch.dtype, head_dim: int, *, window: int = 0, sinks: bool = False) -> AotVariant:
    """Stage 2 of paged decode."""
    sink_types, sink_constants = _optional("sinks_ptr", "*fp32", sinks)
    return AotVariant(
        name=f"decode_merge-{TYPE_NAMES[dtype]}-d{head_dim}{_window_name(window)}{'-sinks' if sinks else ''}",
        kernel=decode.decode_merge_kernel,
        types={
            "partial_ptr": "*fp32",
            "lse_ptr": "*fp32",
            "seq_tokens_ptr": "*i32",
            "out_ptr": f"*{TYPE_NAMES[dtype]}",
            "splits": "i32",
            **sink_types,
        },
        constants={
            **decode.merge_constants(head_dim, window, decode.default_tuning(dtype, head_dim)),
            **sink_constants,
        },
        num_warps=decode.MERGE_WARPS,
    )


def extend_variant(
    dtype: torch.dtype,
    head_dim: int,
    page_size: int,
    arch: int,
    *,
    kv_heads: int = 8,
    group: int = 4,
    window: int = 0,
    sinks: bool = False,
) -> AotVariant:
    """Paged extend, as it is tuned for `arch`."""
    tuning = extend.default_tuning(dtype, head_dim, arch)
    cache = torch.empty(1, page_size, kv_heads, head_dim, dtype=dtype, device="meta")
    element = f"*{TYPE_NAMES[dtype]}"
    sink_types, sink_constants = _optional("sinks_ptr", "*fp32", sinks)
    extras = f"{_window_name(window)}{'-sinks' if sinks else ''}"
    return AotVariant(
        name=f"extend-{TYPE_NAMES[dtype]}-d{head_dim}-page{page_size}-group{group}{extras}",
        kernel=extend.paged_extend_kernel,
        types={
            "query_ptr": element,
            "k_cache_ptr": element,
            "v_cache_ptr": element,
            "page_table_ptr": "*i32",
            "query_start_ptr": "*i32",
            "seq_tokens_ptr": "*i32",
            "out_ptr": element,
            "seqs": "i32",
            "query_stride": "i32",
            "table_stride": "i32",
            "scale_log2": "fp32",
            **sink_types,
        },
        constants={**extend.extend_constants(kv_heads * group, cache, window, tuning), **sink_constants},
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
        aligned=("query_stride",),
    )


def write_variant(dtype: torch.dtype, row_elements: int, *, peers: bool = False) -> AotVariant:
    """The KV write, for rows of kv_heads * head_dim elements."""
    peer_types, peer_constants = _optional("peers_ptr", "*i32", peers)
    element = f"*{TYPE_NAMES[dtype]}"
    return AotVariant(
        name=f"write_kv-{TYPE_NAMES[dtype]}-row{row_elements}{'-peers' if peers else ''}",
        kernel=write.write_kv_kernel,
        types={
            "key_ptr": element,
            "value_ptr": element,
            "k_cache_ptr": element,
            "v_cache_ptr": element,
            "slots_ptr": "*i64",
            "n": "i32",
            "num_slots": "i32",
            "num_peers": "i32",
            "key_stride": "i32",
            "value_stride": "i32",
            **peer_types,
        },
        constants={**write.write_constants(row_elements, 64), **peer_constants},
        num_warps=write.NUM_WARPS,
        aligned=("key_stride", "value_stride"),
    )


def _window_name(window: int) -> str:
    return f"-w{window}" if window else ""


def _optional(name: str, type_name: str, given: bool) -> tuple[dict[str, str], dict[str, None]]:
    """(types, constants) of a pointer that a launch may leave out."""
    return ({name: type_name}, {}) if given else ({}, {name: None})


def catalogue(arch: int) -> Iterator[tuple[AotVariant, AotBudget]]:
    """Every variant with its budget, for one of `ARCHITECTURES`."""
    yield from _decode_catalogue()
    yield from _extend_catalogue(arch)
    for dtype in (torch.bfloat16, torch.float32):
        yield write_variant(dtype, 1024), AotBudget(registers=96)
    yield write_variant(torch.bfloat16, 3 * 64), AotBudget(registers=96)
    yield write_variant(torch.bfloat16, 1024, peers=True), AotBudget(registers=96)


def _decode_catalogue() -> Iterator[tuple[AotVariant, AotBudget]]:
    for page_size in (1, 16, 64):
        for head_dim in (64, 128):
            yield split_variant(torch.bfloat16, head_dim, page_size), AotBudget(registers=168, wait_depth=2)
            yield split_variant(torch.float32, head_dim, page_size), AotBudget(registers=80, wait_depth=2)
    yield split_variant(torch.bfloat16, 80, 16), AotBudget(registers=168, wait_depth=2)
    yield split_variant(torch.bfloat16, 256, 16), AotBudget(registers=168, wait_depth=2)
    yield split_variant(torch.float16, 128, 16), AotBudget(registers=168, wait_depth=2)
    yield split_variant(torch.bfloat16, 128, 16, kv_heads=2, group=32), AotBudget(registers=200, wait_depth=2)
    yield split_variant(torch.bfloat16, 64, 64, group=8, window=128), AotBudget(registers=168, wait_depth=2)
    yield split_variant(torch.bfloat16, 128, 16, window=1024), AotBudget(registers=168, wait_depth=2)
    yield split_variant(torch.float32, 128, 16, window=1024), AotBudget(registers=80, wait_depth=2)
    for dtype in (torch.bfloat16, torch.float32):
        yield merge_variant(dtype, 128), AotBudget(registers=64)
    yield merge_variant(torch.bfloat16, 64, window=128, sinks=True), AotBudget(registers=64)


def _extend_catalogue(arch: int) -> Iterator[tuple[AotVariant, AotBudget]]:
    """Threads hold more where `mma.sync` takes its operands from registers; see `extend.default_tuning`."""
    budget = AotBudget(registers=192 if arch == 90 else 224, wait_depth=2)
    yield extend_variant(torch.bfloat16, 128, 64, arch), budget
    yield extend_variant(torch.bfloat16, 128, 16, arch, window=1024, sinks=True), budget
    yield extend_variant(torch.float16, 128, 16, arch, group=1), budget
    yield extend_variant(torch.bfloat16, 64, 64, arch, group=8, window=128, sinks=True), budget
    yield extend_variant(torch.bfloat16, 64, 1, arch, kv_heads=3, group=3), budget
    yield extend_variant(torch.bfloat16, 80, 16, arch, sinks=True), budget
    yield extend_variant(torch.float32, 64, 16, arch, window=128, sinks=True), budget
    yield extend_variant(torch.float32, 128, 16, arch), AotBudget(registers=80, wait_depth=2)
    budget = AotBudget(registers=192 if arch == 90 else 255, wait_depth=2)
    yield extend_variant(torch.bfloat16, 256, 16, arch, group=2, window=512), budget
