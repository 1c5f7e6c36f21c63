"""Run by test_interpreter.py in a process of its own, with TRITON_INTERPRET=1: one JSON line a case.

The variable must be set before Triton is imported, and changes what every kernel in the process is.
"""

from __future__ import annotations

import json

import torch
from triton.runtime.interpreter import InterpretedFunction

from freehold.kernels import gpu_check, paged_decode_triton
from freehold.kernels.cases import DecodeCase, WriteCase

DECODE_CASES = [
    DecodeCase(page_size=page_size, kv_heads=2, group=group, head_dim=64, seq_tokens=lengths)
    for page_size, lengths in ((1, (1, 0, 33)), (4, (100, 3)), (16, (16, 17, 31)), (64, (64, 65, 1)))
    for group in (1, 3, 8)
]
LARGE_DECODE_CASES = [
    DecodeCase(page_size=16, kv_heads=1, group=20, head_dim=128, seq_tokens=(513, 7)),
    DecodeCase(page_size=64, kv_heads=3, group=3, head_dim=80, seq_tokens=(99,)),
]
WRITE_CASES = [
    WriteCase(n=1, page_size=16, kv_heads=3, head_dim=64),
    WriteCase(n=45, page_size=1, kv_heads=2, head_dim=80),
    WriteCase(n=67, page_size=4, kv_heads=1, head_dim=128),
    WriteCase(n=20, page_size=64, kv_heads=36, head_dim=128),
]


def main() -> None:
    torch.set_num_threads(1)
    if not isinstance(paged_decode_triton.decode_split_kernel, InterpretedFunction):
        raise SystemExit("the kernels are not interpreted: set TRITON_INTERPRET=1")
    for seed, case in enumerate(DECODE_CASES + LARGE_DECODE_CASES):
        _tell(case.name, gpu_check.check_decode(case, seed, "cpu"))
    for seed, case in enumerate(WRITE_CASES):
        _tell(case.name, gpu_check.check_write(case, seed, "cpu"))
    company = DecodeCase(page_size=4, kv_heads=1, group=4, head_dim=64, seq_tokens=(700, 5, 530))
    _tell("company", gpu_check.check_company(company, "cpu"))


def _tell(name: str, check: gpu_check.Check) -> None:
    print(json.dumps({"name": name, "error": check.error, "passed": check.passed}), flush=True)


if __name__ == "__main__":
    main()
