"""The command line: what it prints, and how it exits."""

import json
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from server.tiny_model import CHAT_TEMPLATE, write_tiny_model
from typer.testing import CliRunner, Result

from freehold import __version__
from freehold.cli import app
from freehold.spec.state import Place
from freehold.spec.trace import Header, TraceWriter

HEADER = Header(page_size=4, pages=8, rows=2, row_width=32)
STARTED = [
    ("place", "a", Place.WAITING),
    ("bind_row", "a", 1, 2),
    ("place", "a", Place.PREFILL),
    ("acquire", 1, [1, 2]),
]
WHOLE = [
    *STARTED,
    ("extend", 1, [1, 2], 5),
    ("commit", 1, 5),
    ("place", "a", Place.RUNNING),
    ("truncate", 1, 0),
    ("release", 1, [1, 2]),
    ("unbind_row", 1, 2),
    ("close", 1),
    ("place", "a", Place.OUT),
    ("mark", "quiescent"),
]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def write_trace(path: Path, events: list[Any]) -> Path:
    with TraceWriter(path, HEADER) as writer:
        for event in events:
            writer.emit(*event)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", CHAT_TEMPLATE))


def test_a_trace_that_holds(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.jsonl", WHOLE)
    result = run("check", str(path))
    assert result.exit_code == 0, result.output
    assert "OK: 13 events" in result.stdout
    assert ["place", "4"] in [line.split() for line in result.stdout.splitlines()]
    report = json.loads(run("check", str(path), "--json").stdout)
    assert (report["holds"], report["events"], report["verdict"]) == (True, 13, None)
    assert report["counts"]["place"] == 4


def test_a_trace_that_breaks_a_rule_ends_in_its_verdict(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.jsonl.gz", [*STARTED, ("acquire", 1, [2]), ("mark", "step")])
    result = run("check", str(path))
    assert result.exit_code == 1
    assert "BROKEN after 5 events" in result.stdout
    assert "event 5: acquire(k=1, pages=2)" in result.stdout
    result = run("check", str(path), "--json")
    assert result.exit_code == 1
    verdict = json.loads(result.stdout)["verdict"]
    assert (verdict["rule"], verdict["kind"], verdict["unit"]) == ("acquire", "excess", "page 2")
    assert verdict["owners"]


def test_a_log_that_is_none_is_invalid_input(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.jsonl", WHOLE)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    cut_off = run("check", str(path))
    assert cut_off.exit_code == 2
    assert "cut off" in cut_off.stderr
    assert "OK" not in cut_off.stdout
    missing = run("check", str(tmp_path / "none.jsonl"))
    assert missing.exit_code == 2
    assert missing.stderr.startswith("freehold: ")
    assert missing.stderr.count("\n") == 1


def test_version_help_and_wrong_usage() -> None:
    assert run("--version").stdout == f"freehold {__version__}\n"
    assert "generate" in run("--help").stdout
    assert run("nonsense").exit_code == 2
    assert run("check").exit_code == 2


def test_generate_asks_or_continues_and_its_trace_holds(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    common = ("--model", tiny, "--device", "cpu", "--max-tokens", "8", "--page-size", "4")
    asked = run("generate", "Hi", *common, "--trace", str(path))
    assert asked.exit_code == 0, asked.output
    assert run("check", str(path)).exit_code == 0
    chat, raw = run("generate", "Hi", *common, "--chat"), run("generate", "Hi", *common, "--raw")
    assert asked.stdout == chat.stdout
    assert raw.exit_code == 0
    assert raw.stdout != chat.stdout
    drawn = [run("generate", "Hi", *common, "--temperature", "1.5", "--seed", seed).stdout for seed in "112"]
    assert drawn[0] == drawn[1] != drawn[2]
    stop = asked.stdout[3]
    assert run("generate", "Hi", *common, "--stop", stop).stdout == asked.stdout[: asked.stdout.index(stop)] + "\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--page-size", "3"), "power of two"),
        (("--max-tokens", "0"), "max_tokens"),
        (("--model", "/no/model"), "there is no model at"),
        (("--trace", "/no/folder/x"), "existing folder"),
    ],
)
def test_generate_refuses_in_one_line(arguments: tuple[str, ...], says: str) -> None:
    result = run("generate", "Hi", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.startswith("freehold: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_prompt_longer_than_the_context_is_refused(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    result = run("generate", "x" * 200, "--model", tiny, "--device", "cpu", "--raw", "--trace", str(path))
    assert result.exit_code == 2
    assert "shorten the prompt" in result.stderr
    assert run("check", str(path)).exit_code == 0  # whole, with nothing in it


def test_ctrl_c_ends_cleanly(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: object, token: int) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("freehold.impl.serving.text.TextStream.push", interrupt)
    path = tmp_path / "trace.jsonl"
    result = run("generate", "Hi", "--model", tiny, "--device", "cpu", "--trace", str(path))
    assert result.exit_code == 130
    assert run("check", str(path)).exit_code == 0


def test_the_base_install_checks_traces_and_says_what_else_it_needs(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.jsonl", WHOLE)
    heavy = "torch z3 triton transformers fastapi uvicorn msgspec"
    start = f"import sys; sys.modules.update(dict.fromkeys({heavy.split()!r})); from freehold.cli import main; main()"

    def without_extras(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", start, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    checked = without_extras("check", str(path))
    assert checked.returncode == 0, checked.stderr
    assert "OK: 13 events" in checked.stdout
    for command in (("generate", "Hi"), ("serve",)):
        refused = without_extras(*command)
        assert refused.returncode == 3
        assert refused.stderr == "freehold: this needs the package torch: pip install 'freehold[engine]'\n"


def test_the_bundled_model_answers(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    command = [sys.executable, "-m", "freehold.cli", "generate", "What is the capital of France?", "--max-tokens", "16"]
    done = subprocess.run([*command, "--trace", str(path)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert run("check", str(path)).exit_code == 0


def test_serve_runs_until_it_is_told_to_stop(tiny: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "freehold.cli", "serve", "--port", "0", "--model", tiny, "--trace"]
    paths = {signal.SIGTERM: tmp_path / "term.jsonl", signal.SIGINT: tmp_path / "int.jsonl"}
    with ExitStack() as stack:
        servers = {
            sent: stack.enter_context(subprocess.Popen([*command, str(path)], stderr=subprocess.PIPE, text=True))
            for sent, path in paths.items()
        }
        for sent, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
            stderr = servers[sent].stderr
            assert stderr is not None
            line = stderr.readline()
            assert line.startswith("Serving tiny at http://127.0.0.1:"), line
            body = json.dumps({"prompt": "Hi", "max_tokens": 5, "temperature": 0}).encode()
            with urllib.request.urlopen(f"{line.split()[-1]}/v1/completions", body, timeout=60) as response:
                assert json.load(response)["usage"]["completion_tokens"] == 5
            servers[sent].send_signal(sent)
            assert servers[sent].wait(timeout=60) == code
            assert stderr.read() == ""
            assert run("check", str(paths[sent])).exit_code == 0
