"""The wheel holds the four parts under one name, and its base needs neither torch nor a solver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from freehold.spec.trace import Header, TraceWriter

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "z3", "triton", "transformers", "hypothesis", "crosshair", "fastapi", "uvicorn", "msgspec", "gguf")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    project = tmp_path_factory.mktemp("project")
    for part in ("spec", "impl", "kernels", "model_check", "src"):
        shutil.copytree(ROOT / part, project / part, symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project)
    command = [
        sys.executable, "-m", "pip", "wheel", str(project), "--no-deps", "--no-build-isolation", "--quiet",
        "--wheel-dir", str(out),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, cwd=out)
    (found,) = out.glob("freehold-*.whl")
    return found


def test_the_wheel_holds_the_four_parts(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for part in ("spec/law", "impl/engine", "impl/memory/cache", "kernels/__init__", "model_check/prove"):
        assert f"freehold/{part}.py" in names
    assert "freehold/py.typed" in names
    assert "freehold/cli.py" in names
    tops = {name.split("/")[0] for name in names}
    assert all(top == "freehold" or top.endswith(".dist-info") for top in tops), tops


def run_bare(wheel: Path, tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run with the wheel's files, in a Python where nothing heavy can be imported."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in HEAVY)
    code = f"import sys; sys.path.insert(0, {str(site)!r}); {blocked}{command[0]}"
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *command[1:]], capture_output=True, text=True, cwd=tmp_path, env=environment,
        check=False,
    )  # fmt: skip


def test_the_base_checks_a_trace_without_torch_and_z3(wheel: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with TraceWriter(path, Header(page_size=4, pages=4, rows=1, row_width=8)) as writer:
        writer.emit("open_session", "s")
        writer.emit("mark", "quiescent")
    code = "import freehold.spec.law, freehold.cli as c; print(c.__file__); c.main()"
    done = run_bare(wheel, tmp_path, code, "check", str(path))
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site") in done.stdout
    assert "OK: 2 events" in done.stdout


def test_what_needs_an_extra_says_so_with_exit_code_3(wheel: Path, tmp_path: Path) -> None:
    code = "import freehold.cli as c; c.main()"
    for command, extra in (("generate", "engine"), ("verify", "check")):
        done = run_bare(wheel, tmp_path, code, command, *(["hello"] if command == "generate" else []))
        assert done.returncode == 3, done.stderr
        assert f"pip install 'freehold[{extra}]'" in done.stderr
