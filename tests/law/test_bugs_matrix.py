"""The hunt for public bugs: what counts as a gap, what the monitor sees of a trace, and the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from freehold.cli import app
from freehold.model_check.bugs import bank, hunt
from freehold.model_check.bugs.bug import Bug
from freehold.model_check.bugs.document import markdown, opening
from freehold.model_check.bugs.hunt import Instrument, MatrixReport
from freehold.model_check.bugs.logged import objection
from freehold.model_check.explore import explore
from freehold.spec.errors import InvalidInput
from freehold.spec.law import law

PAGE = Path(__file__).parents[2] / "docs" / "bugs.md"
LOST_CLAIM = bank.bugs_named("sglang#12693")[0]


def test_a_bug_that_is_not_there_is_a_gap() -> None:
    found = hunt.hunt(replace(LOST_CLAIM, law=lambda law: law), ())
    assert "is not found" in found.gap
    assert found.trace == ()


def test_a_bug_that_takes_too_long_is_a_gap() -> None:
    found = hunt.hunt(replace(LOST_CLAIM, steps=2), ())
    assert found.gap.endswith("takes 3 steps instead of 2")


def test_a_law_that_has_the_bug_itself_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt, "the_law", LOST_CLAIM.law(law))
    found = hunt.hunt(replace(LOST_CLAIM, law=lambda law: law), (), lawful_states=1_000)
    assert "the law as it is breaks claimant_waits" in found.gap


def test_a_scope_that_is_too_large_to_speak_for_the_law_is_a_gap() -> None:
    assert "reach only to depth" in hunt.hunt(LOST_CLAIM, (), lawful_states=3).gap


def shown(bug: Bug, observed: bool, steps: int | None = None) -> tuple[int, str] | None:
    """The number and the rule of the monitor's objection to the first steps of a bug's shortest trace."""
    changed = bug.law(law)
    found = explore(changed, bug.scope).violation
    assert found is not None
    said = objection(bug.scope, changed, found.trace[:steps], observed=observed)
    return None if said is None else (said[0], said[1].clause)


def test_the_monitor_objects_to_a_bad_event_at_its_number() -> None:
    bug = bank.bugs_named("sglang#35270")[0]
    assert shown(bug, observed=False) == (6, "only written pages are published")
    assert shown(bug, observed=True, steps=3) is None


def test_the_monitor_objects_at_the_mark_behind_an_incomplete_operation() -> None:
    said = shown(LOST_CLAIM, observed=False)
    assert said is not None
    assert said[0] == 3
    assert shown(LOST_CLAIM, observed=True, steps=2) is None


def test_a_wrong_effect_shows_only_in_the_real_state() -> None:
    bug = bank.bugs_named("kvcached#463")[0]
    assert shown(bug, observed=False) is None
    said = shown(bug, observed=True)
    assert said is not None
    assert said[1] == "free(1): the engine has it, the events don't"


def test_each_instrument_speaks_for_itself() -> None:
    found = hunt.hunt(bank.bugs_named("sglang-jax#1147")[0], tuple(Instrument), lawful_states=1_000)
    steps = {f.instrument: f.steps for f in found.findings}
    assert steps == {
        Instrument.EXPLORE: 3, Instrument.MONITOR: None, Instrument.OBSERVE: 5, Instrument.PROOF: 1,
        Instrument.CONTRACT: 1, Instrument.SEARCH: 3,
    }  # fmt: skip
    report = MatrixReport((found,), 1.0)
    assert report.found_by(Instrument.SEARCH) == 1
    assert not report.gaps
    text = markdown(report)
    assert "| `entry_is_allocated` | 3 | - | 5 | extend breaks entry_is_allocated |" in text
    assert "3. extend_page(k=0, p=0, a=1)" in text


def test_the_page_has_the_bugs_of_the_bank() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line.startswith("| [")]
    assert len(entries) == len(bank.BUGS), "run `freehold bugs --write docs/bugs.md`"
    for line, bug in zip(entries, bank.BUGS, strict=True):
        assert line.startswith(opening(bug)), "run `freehold bugs --write docs/bugs.md`"


def test_bugs_differ() -> None:
    assert len({b.reference for b in bank.BUGS}) == len(bank.BUGS)
    assert len({b.title for b in bank.BUGS}) == len(bank.BUGS)
    assert {b.kind for b in bank.BUGS} <= set(bank.KINDS)


def test_the_command_prints_the_matrix_and_writes_json() -> None:
    done = CliRunner().invoke(app, ["bugs", "--only", LOST_CLAIM.reference, "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["bugs"]
    assert row["instruments"]["explore"] == {"steps": 3, "says": "claimant_waits"} | {
        "seconds": row["instruments"]["explore"]["seconds"]
    }
    assert row["the law as it is"] == "all 88 states"


def test_an_unknown_bug_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no bug is named"):
        bank.bugs_named("nobody/nothing#0")
    done = CliRunner().invoke(app, ["bugs", "--only", "A", "--write", "page.md"])
    assert done.exit_code == 2
    assert "leave out --only" in done.output
