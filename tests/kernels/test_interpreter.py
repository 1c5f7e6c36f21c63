"""The Triton kernels, interpreted in float32, against the references: breadth of shapes.

16-bit types are left to test_compiled.py: the interpreter adds and compares bfloat16 as bit patterns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

RUN = Path(__file__).with_name("interpreter_run.py")
DECODE = [
    f"float32-page{page_size}-{2 * group}:2-d64-{lengths}"
    for page_size, lengths in ((1, "1+0+33"), (4, "100+3"), (16, "16+17+31"), (64, "64+65+1"))
    for group in (1, 3, 8)
]
LARGE_DECODE = ["float32-page16-20:1-d128-513+7", "float32-page64-9:3-d80-99"]
WRITE = [
    "float32-n1-page16-3-d64",
    "float32-n45-page1-2-d80",
    "float32-n67-page4-1-d128",
    "float32-n20-page64-36-d128",
]


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, str(RUN)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("name", [*DECODE, *LARGE_DECODE])
def test_decode_agrees_with_reference_and_reads_nothing_else(results, name):
    assert results[name]["passed"], results[name]


@pytest.mark.parametrize("name", WRITE)
def test_write_leaves_the_caches_the_reference_leaves(results, name):
    assert results[name]["passed"], results[name]


def test_a_request_has_the_same_bits_alone_and_in_a_batch(results):
    assert results["company"]["error"] == 0.0


def test_every_interpreted_case_is_asked_for(results):
    assert set(results) == {*DECODE, *LARGE_DECODE, *WRITE, "company"}
