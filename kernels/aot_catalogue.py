"""The variants of our kernels that are held to a budget, as a launch on a GPU would compile them.

Types and constants come from the same functions that the launches use, so the catalogue can't drift from
them. Register budgets are the measured figures with a little room; they may only be raised with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from . import paged_decode_triton as decode
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
    tuning: decode.DecodeTuning | None = None,
) -> AotVariant:
    """Stage 1 of paged decode."""
    tuning = tuning or decode.default_tuning(dtype, head_dim)
    cache = torch.empty(1, page_size, kv_heads, head_dim, dtype=dtype, device="meta")
    element = f"*{TYPE_NAMES[dtype]}"
    return AotVariant(
        name=f"decode_split-{TYPE_NAMES[dtype]}-d{head_dim}-page{page_size}-group{group}",
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
        constants=decode.split_constants(kv_heads * group, cache, tuning),
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
        aligned=("query_stride",),
    )


def merge_variant(dtype: torch.dtype, head_dim: int) -> AotVariant:
    """Stage 2 of paged decode."""
    return AotVariant(
        name=f"decode_merge-{TYPE_NAMES[dtype]}-d{head_dim}",
        kernel=decode.decode_merge_kernel,
        types={
            "partial_ptr": "*fp32",
            "lse_ptr": "*fp32",
            "seq_tokens_ptr": "*i32",
            "out_ptr": f"*{TYPE_NAMES[dtype]}",
            "splits": "i32",
        },
        constants=decode.merge_constants(head_dim, decode.default_tuning(dtype, head_dim)),
        num_warps=decode.MERGE_WARPS,
    )


def write_variant(dtype: torch.dtype, row_elements: int) -> AotVariant:
    """The KV write, for rows of kv_heads * head_dim elements."""
    element = f"*{TYPE_NAMES[dtype]}"
    return AotVariant(
        name=f"write_kv-{TYPE_NAMES[dtype]}-row{row_elements}",
        kernel=write.write_kv_kernel,
        types={
            "key_ptr": element,
            "value_ptr": element,
            "k_cache_ptr": element,
            "v_cache_ptr": element,
            "slots_ptr": "*i64",
            "n": "i32",
            "num_slots": "i32",
            "key_stride": "i32",
            "value_stride": "i32",
        },
        constants=write.write_constants(row_elements),
        num_warps=write.NUM_WARPS,
        aligned=("key_stride", "value_stride"),
    )


def catalogue() -> Iterator[tuple[AotVariant, AotBudget]]:
    """Every variant with its budget, the same for all of `ARCHITECTURES`."""
    for page_size in (1, 16, 64):
        for head_dim in (64, 128):
            yield split_variant(torch.bfloat16, head_dim, page_size), AotBudget(registers=168, wait_depth=2)
            yield split_variant(torch.float32, head_dim, page_size), AotBudget(registers=80, wait_depth=2)
    yield split_variant(torch.bfloat16, 80, 16), AotBudget(registers=168, wait_depth=2)
    yield split_variant(torch.bfloat16, 256, 16), AotBudget(registers=168, wait_depth=2)
    yield split_variant(torch.float16, 128, 16), AotBudget(registers=168, wait_depth=2)
    yield split_variant(torch.bfloat16, 128, 16, kv_heads=2, group=32), AotBudget(registers=200, wait_depth=2)
    for dtype in (torch.bfloat16, torch.float32):
        yield merge_variant(dtype, 128), AotBudget(registers=64)
        yield write_variant(dtype, 1024), AotBudget(registers=96)
    yield write_variant(torch.bfloat16, 3 * 64), AotBudget(registers=96)
