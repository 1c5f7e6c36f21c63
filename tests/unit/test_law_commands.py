"""The commands that read, prove and search the law: what they write, their JSON, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from freehold import law_commands
from freehold.cli import app
from freehold.model_check import prove as prove_module
from freehold.model_check import search as search_module
from freehold.model_check.mutators import faults
from freehold.model_check.obligations import Obligations
from freehold.model_check.prove import ProofReport, Proved
from freehold.model_check.prove_only import about, names, prove_only
from freehold.spec import law as law_module
from freehold.spec.errors import InvalidInput
from freehold.spec.language import Law
from freehold.spec.law import law

runner = CliRunner()


def run(*words: str) -> Result:
    return runner.invoke(app, list(words))


def answer(*words: str) -> dict[str, Any]:
    done = runner.invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Law:
    """The law in which a page is given to a second record without being free, as what the commands load."""
    changed = next(f.law for f in faults(law) if f.subject == "acquire" and "each page is free" in f.change)
    monkeypatch.setattr(law_module, "law", changed)
    return changed


# law -----------------------------------------------------------------------------------------------------------------


def test_a_page_is_written_and_found_current(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "law.md"
    assert run("law", "--check", str(page)).exit_code == 1
    assert run("law", "--write", str(page)).exit_code == 0
    assert run("law", "--check", str(page)).exit_code == 0
    assert page.read_text(encoding="utf-8") == run("law").stdout


def test_a_page_that_is_not_current_says_what_to_do(tmp_path: Path) -> None:
    page = tmp_path / "law.md"
    run("law", "--write", str(page))
    page.write_text(page.read_text(encoding="utf-8").replace("∀", "∃", 1), encoding="utf-8")
    done = run("law", "--check", str(page))
    assert done.exit_code == 1
    assert f"run `freehold law --write {page}`" in done.output


def test_the_module_and_its_configuration_are_written(tmp_path: Path) -> None:
    assert run("law", "--tla", "tiny", "--write", str(tmp_path)).exit_code == 0
    module, config = (tmp_path / f"Freehold.{end}" for end in ("tla", "cfg"))
    printed = run("law", "--tla", "tiny").stdout
    assert module.read_text(encoding="utf-8") in printed
    assert config.read_text(encoding="utf-8") in printed


# prove ---------------------------------------------------------------------------------------------------------------


def test_one_event_is_proved() -> None:
    found = answer("prove", "--only", "open_session")
    assert found["holds"] is True
    assert {o["name"].split(" keeps ")[0] for o in found["obligations"]} == {"open_session"}
    assert {o["page_size"] for o in found["obligations"]} == set(prove_module.SEEDS_BY_PAGE_SIZE)


@pytest.mark.parametrize(
    ("name", "subjects", "claims"),
    [
        ("unuse", {"unuse"}, None),
        ("resume", {"operation resume"}, None),
        ("grow: room is as asked", {"grow"}, {"grow: room is as asked"}),
    ],
)
def test_a_name_leads_to_its_obligations(name: str, subjects: set[str], claims: set[str] | None) -> None:
    found = list(about(name, Obligations(prove_module.reading(1), law)))
    assert {subject for subject, _ in found} == subjects
    assert claims is None or {o.claim for _, o in found} == claims


def test_an_invariant_is_an_obligation_of_every_event() -> None:
    found = list(about("ladder", Obligations(prove_module.reading(1), law)))
    assert {o.claim for _, o in found} == {"ladder"}
    assert {subject for subject, _ in found} >= {"initial", "grow", "extend", "truncate"}
    assert {subject for subject, _ in found} <= {"initial", *law.actions}


def test_every_name_is_one_that_the_law_has() -> None:
    assert set(law.operations) | set(law.invariants) <= set(names())
    with pytest.raises(InvalidInput, match="nonsense"):
        prove_only("nonsense")


def test_an_open_obligation_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    open_one = Proved("event", "evict", "evict keeps ladder", 1, ("unsat", "unknown"), 0.1)
    monkeypatch.setattr(prove_module, "prove", lambda **_: ProofReport((open_one,), 0.1))
    done = run("prove")
    assert done.exit_code == 1
    assert "open: evict keeps ladder (page size 1): unsat, unknown" in done.output
    assert "no counterexample" in done.output


# search and explore --------------------------------------------------------------------------------------------------


def test_a_bounded_search_of_the_law_finds_nothing() -> None:
    short = answer("search", "--scope", "tiny", "--depth", "2")
    assert (short["found"], short["settled"]) == (False, None)
    done = run("search", "--scope", "tiny", "--depth", "9")
    assert done.exit_code == 0
    assert "nothing within 9 operations, nor within any number" in done.stdout
    assert f"depth, within tiny: {search_module.LOOK_BACK - 1} of 9" in done.stderr


def test_a_witness_is_reached_or_not() -> None:
    found = answer("search", "--scope", "tiny", "--witness", "close_is_deferred", "--depth", "5")
    assert [step["operation"] for step in found["trace"]].count("close_busy") == 1
    assert {"unit": "row 0", "before": "free", "after": "record 0 (request 0)"} in [
        owner for step in found["trace"] for owner in step["owners"]
    ]
    assert run("search", "--scope", "tiny", "--witness", "close_is_deferred", "--depth", "3").exit_code == 1


def test_both_searches_print_the_owners_of_a_broken_rule(faulty: Law) -> None:
    for command in (["search", "--depth", "6"], ["explore"]):
        done = run(*command, "--scope", "ci")
        assert done.exit_code == 1, faulty.name
        assert "  ->  " in done.stdout
        assert " and record " in done.stdout


def test_exhaustive_counts_come_as_json(faulty: Law) -> None:
    done = run("explore", "--scope", "ci", "--json")
    assert done.exit_code == 1, faulty.name
    found = json.loads(done.stdout)
    assert found["closed"] is False
    assert found["violation"]["odd"]
    assert len(found["violation"]["trace"]) == found["depth"]


def test_a_whole_scope_is_counted() -> None:
    found = answer("explore", "--scope", "tiny")
    assert found["closed"] is True
    assert found["violation"] is None
    assert found["stand_for"] > found["distinct"]
    assert sum(found["per_operation"].values()) == found["generated"]


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["law", "--tla", "nowhere"], "choose one of: tiny"),
        (["law", "--check", "a", "--write", "b"], "stands alone"),
        (["prove", "--only", "evicted"], "near it: evict"),
        (["search", "--scope", "nowhere"], "choose one of: tiny"),
        (["search", "--witness", "fork"], "near it: fork_in_the_tree"),
    ],
)
def test_bad_input_is_exit_code_2_with_names_that_look_like_it(command: list[str], says: str) -> None:
    done = run(*command)
    assert done.exit_code == 2
    assert says in done.output


def test_a_page_that_cannot_be_written_is_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = run("law", "--write", str(tmp_path / "file" / "law.md"))
    assert done.exit_code == 2
    assert "can't be written" in done.output


def test_a_name_like_no_other_lists_all() -> None:
    with pytest.raises(InvalidInput, match="there are: ape, bee"):
        law_commands.known("animal", "xyzzy", ["bee", "ape"])
    assert law_commands.known("animal", "bee", ["bee"]) == "bee"
