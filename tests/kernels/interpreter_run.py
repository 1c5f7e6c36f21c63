"""Run by test_interpreter.py in a process of its own, with TRITON_INTERPRET=1: one JSON line a case.

The variable must be set before Triton is imported, and changes what every kernel in the process is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import torch
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

from freehold.kernels import gpu_check, paged_decode_triton
from freehold.kernels.cases import DecodeCase, ExtendCase, WriteCase


def _extend(
    page_size: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    lengths: tuple[tuple[int, int], ...],
    window: int = 0,
    sinks: bool = False,
) -> ExtendCase:
    """`lengths` are (new tokens, all tokens) of each sequence."""
    return ExtendCase(
        page_size=page_size,
        kv_heads=kv_heads,
        group=group,
        head_dim=head_dim,
        extend_tokens=tuple(new for new, _ in lengths),
        seq_tokens=tuple(tokens for _, tokens in lengths),
        window=window,
        sinks=sinks,
    )


DECODE_CASES = [
    DecodeCase(page_size=page_size, kv_heads=2, group=group, head_dim=64, seq_tokens=lengths)
    for page_size, lengths in ((1, (1, 0, 33)), (4, (100, 3)), (16, (16, 17, 31)), (64, (64, 65, 1)))
    for group in (1, 3, 8)
]
LARGE_DECODE_CASES = [
    DecodeCase(page_size=16, kv_heads=1, group=20, head_dim=128, seq_tokens=(513, 7)),
    DecodeCase(page_size=64, kv_heads=3, group=3, head_dim=80, seq_tokens=(99,)),
]
WINDOW_DECODE_CASES = [
    DecodeCase(page_size=1, kv_heads=2, group=3, head_dim=64, seq_tokens=(1, 0, 30), window=1),
    DecodeCase(page_size=4, kv_heads=1, group=8, head_dim=64, seq_tokens=(50, 7, 6), window=7, sinks=True),
    DecodeCase(page_size=16, kv_heads=2, group=1, head_dim=64, seq_tokens=(600, 3), window=20),
    DecodeCase(page_size=64, kv_heads=1, group=20, head_dim=64, seq_tokens=(65, 0), sinks=True),
    DecodeCase(page_size=64, kv_heads=1, group=4, head_dim=64, seq_tokens=(1300, 529), window=530, sinks=True),
]
EXTEND_CASES = [
    _extend(1, 2, 1, 64, ((1, 1), (0, 5), (17, 17), (2, 40))),
    _extend(4, 1, 3, 64, ((11, 60), (6, 6))),
    _extend(16, 2, 8, 64, ((3, 33), (2, 66))),
    _extend(64, 1, 20, 64, ((2, 2), (1, 65)), sinks=True),
    _extend(16, 1, 4, 128, ((5, 20), (9, 9))),
    _extend(1, 1, 1, 64, ((20, 70), (3, 3)), window=1),
    _extend(4, 2, 2, 64, ((9, 100), (40, 40)), window=7, sinks=True),
    _extend(16, 1, 1, 80, ((50, 130), (1, 90)), window=33),
    _extend(64, 3, 3, 64, ((7, 300), (8, 9)), window=130, sinks=True),
]
WRITE_CASES = [
    WriteCase(n=1, page_size=16, kv_heads=3, head_dim=64),
    WriteCase(n=45, page_size=1, kv_heads=2, head_dim=80),
    WriteCase(n=67, page_size=4, kv_heads=1, head_dim=128),
    WriteCase(n=20, page_size=64, kv_heads=36, head_dim=128),
    WriteCase(n=67, page_size=4, kv_heads=2, head_dim=64, peers=True),
    WriteCase(n=30, page_size=1, kv_heads=1, head_dim=80, peers=True),
]

dot_of_interpreter = InterpreterBuilder.create_dot


def main() -> None:
    torch.set_num_threads(1)
    if not isinstance(paged_decode_triton.decode_split_kernel, InterpretedFunction):
        raise SystemExit("the kernels are not interpreted: set TRITON_INTERPRET=1")
    for seed, case in enumerate(DECODE_CASES + LARGE_DECODE_CASES + WINDOW_DECODE_CASES):
        _tell(case.name, gpu_check.check_decode(case, seed, "cpu"))
    for seed, case in enumerate(EXTEND_CASES):
        _tell(case.name, gpu_check.check_extend(case, seed, "cpu"))
    for seed, case in enumerate(WRITE_CASES):
        _tell(case.name, gpu_check.check_write(case, seed, "cpu"))
    company = DecodeCase(page_size=4, kv_heads=1, group=4, head_dim=64, seq_tokens=(700, 5, 530))
    _tell("company", gpu_check.check_company(company, "cpu"))
    extended = _extend(4, 1, 3, 64, ((7, 20), (3, 3), (13, 40)), window=9, sinks=True)
    _tell("extend company", gpu_check.check_extend_company(extended, "cpu"))
    short = DecodeCase(page_size=16, kv_heads=1, group=4, head_dim=64, seq_tokens=(80,), window=70)
    long = replace(short, seq_tokens=(900,))
    works = [_products(lambda case=case: gpu_check.check_decode(case, 0, "cpu")) for case in (short, long)]
    print(json.dumps({"name": "decode work", "products": works}), flush=True)
    short = _extend(16, 1, 4, 64, ((8, 80),), window=70)
    long = replace(short, seq_tokens=(900,))
    works = [_products(lambda case=case: gpu_check.check_extend(case, 0, "cpu")) for case in (short, long)]
    print(json.dumps({"name": "extend work", "products": works}), flush=True)


def _products(work: Callable[[], object]) -> int:
    """Matrix products that the interpreter carries out in `work`: two for each tile of KV."""
    with mock.patch.object(InterpreterBuilder, "create_dot", autospec=True) as dot:
        dot.side_effect = dot_of_interpreter
        work()
    return dot.call_count


def _tell(name: str, check: gpu_check.Check) -> None:
    print(json.dumps({"name": name, "error": check.error, "passed": check.passed}), flush=True)


if __name__ == "__main__":
    main()
