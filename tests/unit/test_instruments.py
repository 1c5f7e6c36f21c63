"""The commands of the instruments: what they say, and their exit codes; and that a gap is never swallowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from freehold.cli import app
from freehold.model_check.report import Planted, Report, Row, show
from freehold.model_check.verify import DEPTHS, Verification
from freehold.spec.law import law

runner = CliRunner()


def test_the_law_is_printed() -> None:
    done = runner.invoke(app, ["law"])
    assert done.exit_code == 0
    assert "### `acquire(k: Record, pages: set of Page)`" in done.stdout


def test_a_scope_is_searched() -> None:
    done = runner.invoke(app, ["explore", "--scope", "tiny"])
    assert done.exit_code == 0, done.output
    assert "every reachable state was seen" in done.stdout


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["explore", "--scope", "nowhere"], "choose one of: tiny, ci, deep"),
        (["verify", "--depth", "bottomless"], "choose one of ci, deep"),
        (["fuzz", "--replay", "no-such-file.json"], "no-such-file.json"),
    ],
)
def test_bad_input_is_exit_code_2(command: list[str], says: str) -> None:
    done = runner.invoke(app, command)
    assert done.exit_code == 2
    assert says in done.output


def test_no_gpu_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = runner.invoke(app, ["gpu-check"])
    assert done.exit_code == 3
    assert "nothing was checked" in done.output


def test_fuzz_keeps_going_for_its_time_and_reports(tmp_path: Path) -> None:
    done = runner.invoke(app, ["fuzz", "--seconds", "1", "--seed", "7", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "0 failures" in done.output


def only(monkeypatch: pytest.MonkeyPatch, **instruments: object) -> None:
    """A verification in which all instruments but these hold at once."""
    for name in INSTRUMENTS:
        calm = instruments.get(name, lambda _, name=name: Row(name, "tested", "", "", 0.0))
        monkeypatch.setattr(Verification, name, calm)
        getattr(Verification, name).__name__ = name


INSTRUMENTS = (
    "page_arithmetic", "unbounded_proof", "law_faults", "needed_invariants", "public_bugs", "waived_law",
    "bounded_search", "exhaustive_search", "large_search", "pools_search", "readings", "progress", "real_scheduler",
    "engine_faults", "simulated_world", "real_model",
)  # fmt: skip


def test_an_instrument_that_raises_is_a_gap_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Verification) -> Row:
        raise RuntimeError("out of ink")

    only(monkeypatch, readings=broken)
    report = Verification(DEPTHS["ci"]).run()
    assert [r.instrument for r in report.rows if not r.holds] == ["readings"]
    assert len(report.rows) == len(INSTRUMENTS)
    assert report.rows[INSTRUMENTS.index("readings")].gaps == ("RuntimeError: out of ink",)
    assert not report.holds


def test_a_gap_makes_the_command_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, unbounded_proof=lambda _: Row("Z3", "proved", "", "", 0.0, ("evict: unknown",)))
    done = runner.invoke(app, ["verify", "--json"])
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert answer["holds"] is False
    assert [i["gaps"] for i in answer["instruments"] if i["gaps"]] == [["evict: unknown"]]


def test_no_gap_makes_it_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    assert runner.invoke(app, ["verify"]).exit_code == 0


def test_the_table_names_faults_and_gaps() -> None:
    console = Console(record=True, width=120)
    rows = [Row("search", "searched", "a scope", "7 states", 1.0, ("a page leaks",))]
    show(Report(rows, [Planted("engine", "a lock is leaked", "observe", "8 steps")], ["a note"]), console)
    text = console.export_text()
    for words in ("a lock is leaked", "observe", "a note", "1 gap", "a page leaks"):
        assert words in text


def test_every_event_belongs_to_an_operation() -> None:
    taken = {step.action.name for o in law.operations.values() for step in o.steps}
    assert taken == set(law.actions)
