"""The real scheduler, driven by Hypothesis in the CI profile, with every check on."""

import pytest

from freehold.model_check.coverage import LAWS, NOT_YET
from freehold.model_check.planted import FAULTS
from freehold.model_check.programs import run_program
from freehold.model_check.refinement import CI, Profile, RefinementReport, refine
from freehold.spec.events import EDGES
from freehold.spec.state import Place


@pytest.fixture(scope="module")
def report() -> RefinementReport:
    return refine(CI)


def test_twenty_thousand_steps_break_no_rule(report: RefinementReport) -> None:
    assert report.violation is None, report.program
    assert report.steps >= 20_000


def test_they_go_through_every_clause_and_every_operation(report: RefinementReport) -> None:
    assert report.coverage.unseen == ()
    assert report.coverage.never_held == ()
    assert report.coverage.never_refused == ()
    assert report.coverage.operations_unseen == ()
    assert report.coverage.operations.keys() >= {
        "prefix hit", "publish", "same pages published by another", "duplicates given back", "evict",
        "parked to waiting", "running to waiting",  # retracts
        "waiting to out", "parked to out", "prefill to out", "running to out",  # aborts, failures, and what ended well
        "transfer to session", "transfer to request", "saved KV reclaimed", "saved KV closed",
        "closed while busy", "closed while idle", "end session",
    }  # fmt: skip


def test_what_the_engine_cannot_do_yet_is_in_its_law_and_never_happens(report: RefinementReport) -> None:
    """So that the list gets shorter when the engine learns something."""
    edges = {f"{here.name.lower()} to {there.name.lower()}" for here, there in EDGES}
    places = {place.name.lower() for place in Place}
    assert NOT_YET.keys() <= {name for law in LAWS for name in (*law.actions, *law.operations)} | places | edges
    seen = report.coverage
    taken = seen.actions.keys() | seen.law_operations.keys() | seen.operations.keys()
    taken |= {place for edge in seen.operations if edge in edges for place in edge.split(" to ")}
    assert not NOT_YET.keys() & taken


def test_the_machine_does_the_same_every_time() -> None:
    small = Profile("small", examples=4, verbs=20)
    first, second = refine(small), refine(small)
    assert first.coverage.events == second.coverage.events
    assert (first.verbs, first.steps) == (second.verbs, second.steps)
    other = refine(Profile("other", examples=4, verbs=20, seed=5))
    assert other.coverage.events != first.coverage.events


def test_what_the_machine_finds_is_shrunk_and_can_be_run_again() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "only the first page of a run is compared")
    with fault.planted():
        report = refine(CI)
        assert report.program is not None
        assert len(report.program.verbs) <= 4
        assert run_program(report.program).violation == report.violation
    assert run_program(report.program).violation is None
