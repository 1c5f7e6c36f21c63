"""Run by test_compiled.py in a process of its own: the kernels' compiled intermediate code, executed on the CPU.

`ttsem` runs the TTIR that Triton's front end makes over the tensors of a launch, and stops at any access outside them
and at any two programs that touch one element. It makes torch report a GPU for the rest of the process.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch
from ttsem import sanitize

from freehold.kernels import (
    gpu_check,
    gpu_timing,
    paged_decode,
    paged_decode_triton,
    paged_extend_triton,
    write_kv_triton,
)
from freehold.kernels.cases import DecodeCase, ExtendCase, WriteCase, decode_inputs, extend_inputs, write_inputs

DECODE_CASES = [
    DecodeCase(page_size=1, kv_heads=2, group=1, head_dim=64, seq_tokens=(1, 0, 70)),
    DecodeCase(page_size=4, kv_heads=1, group=3, head_dim=64, seq_tokens=(100, 64)),
    DecodeCase(page_size=16, kv_heads=2, group=8, head_dim=128, seq_tokens=(65,)),
    DecodeCase(page_size=64, kv_heads=1, group=4, head_dim=80, seq_tokens=(530, 128)),
    DecodeCase(page_size=16, kv_heads=1, group=40, head_dim=128, seq_tokens=(33,)),
]
WINDOW_DECODE_CASES = [
    DecodeCase(page_size=1, kv_heads=2, group=1, head_dim=64, seq_tokens=(1, 0, 70, 6), window=5),
    DecodeCase(page_size=64, kv_heads=1, group=8, head_dim=64, seq_tokens=(400, 3), window=128, sinks=True),
    DecodeCase(page_size=16, kv_heads=1, group=40, head_dim=128, seq_tokens=(1300, 601), window=600, sinks=True),
]
EXTEND_CASES = [
    ExtendCase(page_size=1, kv_heads=2, group=1, head_dim=64, extend_tokens=(1, 0, 150), seq_tokens=(70, 5, 150)),
    ExtendCase(page_size=4, kv_heads=1, group=3, head_dim=64, extend_tokens=(50, 43), seq_tokens=(300, 43), sinks=True),
    ExtendCase(page_size=16, kv_heads=2, group=4, head_dim=128, extend_tokens=(40, 3), seq_tokens=(40, 200)),
    ExtendCase(page_size=64, kv_heads=1, group=200, head_dim=64, extend_tokens=(2,), seq_tokens=(66,)),
]
WINDOW_EXTEND_CASES = [
    ExtendCase(
        page_size=64,
        kv_heads=1,
        group=8,
        head_dim=64,
        extend_tokens=(20, 5),
        seq_tokens=(400, 5),
        window=128,
        sinks=True,
    ),
    ExtendCase(page_size=16, kv_heads=1, group=1, head_dim=80, extend_tokens=(140, 1), seq_tokens=(340, 90), window=33),
    ExtendCase(page_size=1, kv_heads=1, group=4, head_dim=256, extend_tokens=(33,), seq_tokens=(99,), window=1),
]
WRITE_CASES = [
    WriteCase(n=70, page_size=4, kv_heads=3, head_dim=64),
    WriteCase(n=9, page_size=16, kv_heads=36, head_dim=128),
    WriteCase(n=70, page_size=4, kv_heads=2, head_dim=64, peers=True),
]


@pytest.fixture(autouse=True)
def executed():
    with sanitize.session(cuda_is_cpu=False) as session:
        yield session
    assert session.races_unchecked == 0


@pytest.mark.parametrize(
    "case",
    [replace(case, dtype=torch.bfloat16) for case in DECODE_CASES + WINDOW_DECODE_CASES]
    + [replace(case, dtype=torch.float16) for case in (DECODE_CASES[1], WINDOW_DECODE_CASES[1])]
    + [WINDOW_DECODE_CASES[1]],
    ids=lambda case: case.name,
)
def test_decode_agrees_with_reference(case, executed):
    check = gpu_check.check_decode(case, 1, "cpu")
    assert check.passed, check
    assert executed.launches == 2


@pytest.mark.parametrize(
    "case",
    [replace(case, dtype=torch.bfloat16) for case in EXTEND_CASES + WINDOW_EXTEND_CASES]
    + [replace(case, dtype=torch.float16) for case in (EXTEND_CASES[1], WINDOW_EXTEND_CASES[0])]
    + [EXTEND_CASES[2], WINDOW_EXTEND_CASES[0]],
    ids=lambda case: case.name,
)
def test_extend_agrees_with_reference(case, executed):
    check = gpu_check.check_extend(case, 1, "cpu")
    assert check.passed, check
    assert executed.launches == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("case", WRITE_CASES, ids=lambda case: case.name)
def test_write_leaves_the_caches_the_reference_leaves(case, dtype, executed):
    check = gpu_check.check_write(replace(case, dtype=dtype), 1, "cpu")
    assert check.passed, check
    assert executed.launches == 1


def test_a_request_has_the_same_bits_alone_and_in_a_batch():
    case = DecodeCase(page_size=16, kv_heads=1, group=4, head_dim=64, seq_tokens=(700, 5, 530), dtype=torch.bfloat16)
    assert gpu_check.check_company(case, "cpu").passed
    assert gpu_check.check_company(replace(case, window=600, sinks=True), "cpu").passed
    case = replace(WINDOW_EXTEND_CASES[1], extend_tokens=(7, 140), seq_tokens=(90, 340), dtype=torch.bfloat16)
    assert gpu_check.check_extend_company(case, "cpu").passed


def test_a_slot_beyond_the_cache_is_caught():
    inputs = write_inputs(WRITE_CASES[0], seed=0)
    inputs.slots[3] = inputs.k_cache.shape[0] * inputs.k_cache.shape[1]
    with pytest.raises(sanitize.KernelFault, match="k_cache_ptr"):
        write_kv_triton.write_kv(*inputs.arguments())


@pytest.mark.parametrize("peer", ["beyond the cache", "beyond the peers"])
def test_a_peer_beyond_is_caught(peer):
    inputs = write_inputs(WRITE_CASES[2], seed=0)
    if peer == "beyond the cache":
        inputs.peers[inputs.slots[3] // 4] = inputs.k_cache.shape[0]
    else:
        inputs.slots[3] = len(inputs.peers) * 4
    with pytest.raises(sanitize.KernelFault, match="k_cache_ptr" if peer == "beyond the cache" else "peers_ptr"):
        write_kv_triton.write_kv(*inputs.arguments(), peers=inputs.peers)


def test_two_rows_in_one_slot_are_caught():
    inputs = write_inputs(WRITE_CASES[0], seed=0)
    inputs.slots[68] = inputs.slots[3]
    with pytest.raises(sanitize.KernelFault, match="both touch element"):
        write_kv_triton.write_kv(*inputs.arguments())


def test_a_length_beyond_the_pages_is_caught():
    inputs = decode_inputs(DECODE_CASES[1], seed=0)
    inputs.seq_tokens[1] += inputs.k_cache.shape[1]
    with pytest.raises(sanitize.KernelFault, match="cache_ptr"):
        paged_decode_triton.paged_decode(*inputs.arguments())


def test_a_length_beyond_the_pages_of_an_extend_is_caught():
    inputs = extend_inputs(EXTEND_CASES[1], seed=0)
    inputs.seq_tokens[1] += 2 * inputs.k_cache.shape[1]
    with pytest.raises(sanitize.KernelFault, match="cache_ptr"):
        paged_extend_triton.paged_extend(*inputs.arguments(), **inputs.options())


def test_a_window_one_token_wider_reads_what_is_gone():
    decode = decode_inputs(WINDOW_DECODE_CASES[1], seed=0)
    out = paged_decode_triton.paged_decode(*decode.arguments(), window=decode.window + 1)
    assert out[0].isnan().all()
    extend = extend_inputs(WINDOW_EXTEND_CASES[0], seed=0)
    out = paged_extend_triton.paged_extend(*extend.arguments(), window=extend.window + 1)
    assert out[0].isnan().all()


def test_the_end_of_a_large_cache_is_reached():
    assert gpu_check.check_far_pages("cpu", elements=2**18).passed


def test_what_is_timed_is_what_is_checked():
    shape = gpu_timing.DecodeShape(batch=2, tokens=70, heads=4, kv_heads=2, head_dim=64, page_size=16)
    outputs = []

    def bench(work: gpu_timing.Work) -> float:
        outputs.append(work())
        return 2.0

    row = gpu_timing.time_decode(shape, bench, "cpu")
    assert outputs[0].shape == outputs[1].squeeze(2).shape == (2, 4, 64)
    assert row.moved_bytes == 2 * 2 * 70 * 2 * 64 * 2
    assert row.over_peer == row.over_copy == 1.0
    assert outputs[2].nbytes == row.moved_bytes // 2
    for with_peers in (False, True):
        row = gpu_timing.time_write(128, bench, "cpu", with_peers=with_peers)
        assert row.moved_bytes == 4 * 128 * 8 * 128 * 2
    tunings = [tuning for _, tuning, _ in islice(gpu_timing.sweep_decode((shape,), bench, "cpu"), 6)]
    assert paged_decode_triton.default_tuning(shape.dtype, shape.head_dim) in tunings
    swept = outputs[-len(tunings) :]
    expected = paged_decode(*gpu_timing.decode_arguments(shape, "cpu")).shape
    assert {tuple(out.shape) for out in swept} == {expected}


def test_what_is_timed_of_extend_is_what_is_checked():
    shape = gpu_timing.ExtendShape(batch=2, new_tokens=30, tokens=70, heads=4, kv_heads=2, head_dim=64, page_size=16)
    outputs = []

    def bench(work: gpu_timing.Work) -> float:
        outputs.append(work())
        return 2.0

    row = gpu_timing.time_extend(shape, bench, "cpu")
    pairs = sum(range(41, 71))
    assert row.flop == 2 * pairs * 4 * 2 * 64 * 2
    assert outputs[0].shape == outputs[1].transpose(1, 2).flatten(0, 1).shape == (60, 4, 64)
    windowed = gpu_timing.time_extend(replace(shape, window=10), bench, "cpu")
    assert windowed.flop == 2 * 300 * 4 * 2 * 64 * 2
    assert windowed.over_peer == pytest.approx(300 / pairs)
    assert not torch.equal(outputs[2], outputs[3])


def test_every_row_of_the_table_can_be_timed_and_told(monkeypatch):
    shape = {"heads": 2, "kv_heads": 1, "head_dim": 64, "page_size": 16}
    decode = gpu_timing.DecodeShape(batch=1, tokens=40, **shape)
    extend = gpu_timing.ExtendShape(batch=1, new_tokens=20, tokens=20, **shape)
    monkeypatch.setattr(gpu_timing, "DECODE_SHAPES", (decode, replace(decode, window=10)))
    monkeypatch.setattr(gpu_timing, "EXTEND_SHAPES", (extend, replace(extend, window=10)))
    monkeypatch.setattr(gpu_timing, "WRITE_TOKENS", 64)

    def bench(work: gpu_timing.Work) -> float:
        work()
        return 2.0

    lines = [row.line for row in gpu_timing.time_all(bench, "cpu")]
    assert [line.split()[0] for line in lines] == ["decode", "decode", "extend", "extend", "write_kv", "write_kv"]
    assert ["TFLOP/s" in line for line in lines] == [False, False, True, True, False, False]
    assert ["window 10" in line for line in lines] == [False, True, False, True, False, False]
