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
WINDOW_DECODE = [
    "float32-page1-6:2-d64-1+0+30-w1",
    "float32-page4-8:1-d64-50+7+6-w7-sinks",
    "float32-page16-2:2-d64-600+3-w20",
    "float32-page64-20:1-d64-65+0-sinks",
    "float32-page64-4:1-d64-1300+529-w530-sinks",
]
EXTEND = [
    "float32-page1-2:2-d64-1of1+0of5+17of17+2of40",
    "float32-page4-3:1-d64-11of60+6of6",
    "float32-page16-16:2-d64-3of33+2of66",
    "float32-page64-20:1-d64-2of2+1of65-sinks",
    "float32-page16-4:1-d128-5of20+9of9",
    "float32-page1-1:1-d64-20of70+3of3-w1",
    "float32-page4-4:2-d64-9of100+40of40-w7-sinks",
    "float32-page16-1:1-d80-50of130+1of90-w33",
    "float32-page64-9:3-d64-7of300+8of9-w130-sinks",
]
WRITE = [
    "float32-n1-page16-3-d64",
    "float32-n45-page1-2-d80",
    "float32-n67-page4-1-d128",
    "float32-n20-page64-36-d128",
    "float32-n67-page4-2-d64-peers",
    "float32-n30-page1-1-d80-peers",
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


@pytest.mark.parametrize("name", [*DECODE, *LARGE_DECODE, *WINDOW_DECODE])
def test_decode_agrees_with_reference_and_reads_nothing_else(results, name):
    assert results[name]["passed"], results[name]


@pytest.mark.parametrize("name", EXTEND)
def test_extend_agrees_with_reference_and_reads_nothing_else(results, name):
    assert results[name]["passed"], results[name]


@pytest.mark.parametrize("name", WRITE)
def test_write_leaves_the_caches_the_reference_leaves(results, name):
    assert results[name]["passed"], results[name]


def test_a_request_has_the_same_bits_alone_and_in_a_batch(results):
    assert results["company"]["error"] == results["extend company"]["error"] == 0.0


def test_work_follows_the_window_and_not_the_length(results):
    """Tiles of 16 and 32 tokens: 70 in the window of a decode, 73 in those of a tile of 4 new tokens."""
    assert results["decode work"]["products"] == [2 * 5, 2 * 5]
    assert results["extend work"]["products"] == [2 * 2 * 3, 2 * 2 * 3]


def test_every_interpreted_case_is_asked_for(results):
    asked = {
        *DECODE,
        *LARGE_DECODE,
        *WINDOW_DECODE,
        *EXTEND,
        *WRITE,
        "company",
        "extend company",
        "decode work",
        "extend work",
    }
    assert set(results) == asked
