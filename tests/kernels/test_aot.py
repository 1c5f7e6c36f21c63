"""The compiled kernels keep to their budgets on sm_80 and sm_90, and the gate sees a kernel that doesn't."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from freehold.kernels import AotFailed

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from freehold.kernels import aot_catalogue
from freehold.kernels.aot import AotBudget, AotVariant, compile_variant, violations, wait_depth
from freehold.kernels.paged_decode_triton import default_tuning

CATALOGUE = [
    pytest.param(variant, budget, arch, id=f"{variant.name}-{arch}")
    for arch in aot_catalogue.ARCHITECTURES
    for variant, budget in aot_catalogue.catalogue(arch)
]


@pytest.mark.parametrize(("variant", "budget", "arch"), CATALOGUE)
def test_variant_keeps_to_its_budget(variant, budget, arch):
    report = compile_variant(variant, arch)
    assert violations(report, budget) == []
    assert report.wide_copies + report.wide_loads > 0


def _late_index_variant() -> AotVariant:
    path = Path(__file__).with_name("late_index_kernel.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return AotVariant(
        name="late_index",
        kernel=module.late_index_kernel,
        types=dict.fromkeys(("query_ptr", "k_cache_ptr", "v_cache_ptr"), "*bf16")
        | {"table_ptr": "*i32", "out_ptr": "*fp32", "tokens": "i32"},
        constants={"PAGE_SIZE": 64, "KV_HEADS": 8, "HEAD_DIM": 128, "TILE_TOKENS": 64},
        num_warps=4,
    )


@pytest.mark.parametrize("arch", aot_catalogue.ARCHITECTURES)
def test_the_gate_sees_page_ids_loaded_where_they_are_used(arch):
    report = compile_variant(_late_index_variant(), arch)
    assert report.wait_depth == 0
    assert any("not prefetched" in word for word in violations(report, AotBudget(registers=255, wait_depth=1)))


def test_the_gate_sees_spilled_registers():
    tuning = replace(default_tuning(torch.float32, 128), tile_tokens=32)
    report = compile_variant(aot_catalogue.split_variant(torch.float32, 128, 16, tuning=tuning), 90)
    assert any("spill" in word for word in violations(report, AotBudget(registers=255)))


def test_the_gate_sees_shared_memory_beyond_the_architecture():
    tuning = replace(default_tuning(torch.bfloat16, 128), num_stages=7)
    variant = aot_catalogue.split_variant(torch.bfloat16, 128, 16, tuning=tuning)
    budget = AotBudget(registers=255, wait_depth=2)
    assert violations(compile_variant(variant, 90), budget) == []
    assert any("shared" in word for word in violations(compile_variant(variant, 80), budget))


def test_the_gate_sees_registers_over_budget():
    report = compile_variant(aot_catalogue.merge_variant(torch.bfloat16, 128), 90)
    budget = AotBudget(registers=report.registers - 1)
    assert violations(report, budget) == [f"{report.registers} registers, budget {report.registers - 1}"]


def test_16_bit_decode_uses_tensor_cores():
    report = compile_variant(aot_catalogue.split_variant(torch.bfloat16, 128, 64), 90)
    assert report.matrix_unit == "mma.sync"


def test_16_bit_extend_uses_the_tensor_cores_of_its_architecture():
    for arch, unit in ((80, "mma.sync"), (90, "wgmma")):
        variant = aot_catalogue.extend_variant(torch.bfloat16, 128, 64, arch)
        assert compile_variant(variant, arch).matrix_unit == unit


def test_only_the_edges_of_a_window_compare_positions():
    """The loop over KV is there three times with a window, twice without; the middle one selects no scores."""
    for window, masks in ((0, [False, True]), (1024, [True, False, True])):
        variant = aot_catalogue.extend_variant(torch.bfloat16, 128, 16, 90, window=window, sinks=window > 0)
        loops = compile_variant(variant, 90).ttir.split("scf.for ")[1:]
        assert ["arith.select" in loop.split("scf.yield")[0] for loop in loops] == masks


def test_offsets_into_the_caches_are_64_bit():
    split = compile_variant(aot_catalogue.split_variant(torch.bfloat16, 128, 16, kv_heads=7), 90)
    products = re.findall(r"arith\.muli .* : tensor<64(?:x1)?x(i\d+)>", split.ttir)
    assert products == ["i64", "i64", "i64"]  # page * page size, slot * heads, row * head_dim
    extend = compile_variant(aot_catalogue.extend_variant(torch.bfloat16, 128, 16, 90, kv_heads=7), 90)
    products = re.findall(r"arith\.muli .* : tensor<64(?:x1)?x(i\d+)>", extend.ttir)
    assert products == 2 * ["i64", "i64", "i64"]  # the same, once a loop
    write = compile_variant(aot_catalogue.write_variant(torch.bfloat16, 1024), 90)
    products = re.findall(r"arith\.muli .* : tensor<\S*?x(i\d+)>", write.ttir)
    assert products == ["i64", "i64", "i64"]  # row * stride of key and of value, slot * row length


def test_an_argument_without_type_or_value_is_named():
    variant = aot_catalogue.merge_variant(torch.bfloat16, 128)
    with pytest.raises(AotFailed, match="splits"):
        compile_variant(replace(variant, types={k: v for k, v in variant.types.items() if k != "splits"}), 90)


def test_a_kernel_that_does_not_compile_is_named():
    variant = aot_catalogue.merge_variant(torch.bfloat16, 128)
    with pytest.raises(AotFailed, match="decode_merge-bf16-d128 does not compile"):
        compile_variant(replace(variant, constants={**variant.constants, "BLOCK_DIM": 100}), 90)


def test_wait_depth_reads_waits_inside_loops_only():
    text = """
  module {
    %a = ttg.async_wait %t {num = 7 : i32}
    %r = scf.for %i = %c0 to %n step %c1 iter_args(%x = %y) -> (i32) : i32 {
      %b = ttg.async_wait %t, %u {num = 4 : i32}
      scf.if %p {
        %c = ttg.async_wait %t {num = 3 : i32}
      }
      scf.yield %x : i32
    }
    %d = ttg.async_wait {num = 0 : i32}
  }
"""
    assert wait_depth(text) == 3
    assert wait_depth("    %a = ttg.async_wait %t {num = 2 : i32}") is None
