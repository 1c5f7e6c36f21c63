"""The kernels as Triton's front end compiles them, executed on the CPU: 16-bit types, bounds and races.

The tests are in compiled_suite.py. They run in one process of their own, because the executor (ttsem, an optional
package) makes torch report a GPU, which no other test should see; each of them is reported here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
pytest.importorskip("ttsem", reason="optional: pip install --no-deps --ignore-requires-python ttsem")

SUITE = Path(__file__).with_name("compiled_suite.py")
NAMES = re.findall(r"^def (test_\w+)", SUITE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The failure texts of every run of each test of the suite, by the test's name; no text means that it passed."""
    report = tmp_path_factory.mktemp("compiled") / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(SUITE), f"--junitxml={report}", "-p", "no:cacheprovider"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failures = found.setdefault(case.attrib["name"].split("[")[0], [])
        failures += [f"{case.attrib['name']}: {child.text}" for child in case if child.tag in ("failure", "error")]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_on_compiled_code(outcomes, name):
    assert outcomes[name] == []
