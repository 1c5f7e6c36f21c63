"""Every planted bug is caught, and no check is decoration."""

import pytest

from freehold.model_check import planted
from freehold.model_check.engine_faults import EngineFaultReport, hunt, plant_all
from freehold.model_check.programs import random_program, run_program
from freehold.model_check.watch import ALL, Check


@pytest.fixture(scope="module")
def report() -> EngineFaultReport:
    return plant_all()


def test_every_fault_is_caught(report: EngineFaultReport) -> None:
    assert len(report.results) >= 200
    assert report.survivors == ()


def test_each_fault_has_a_name_of_its_own(report: EngineFaultReport) -> None:
    """A hunt finds its fault by name, so of two with one name the second would never be planted."""
    names = [result.fault for result in report.results]
    assert len(set(names)) == len(names)


def test_each_check_sees_something_that_no_other_does(report: EngineFaultReport) -> None:
    assert report.idle == ()


def test_each_check_is_the_first_to_see_something(report: EngineFaultReport) -> None:
    assert {result.caught_by for result in report.results} == ALL


def test_wrong_content_is_seen_where_the_law_has_nothing_to_say(report: EngineFaultReport) -> None:
    assert "a history lacks its last token" in {r.fault for r in report.results if r.caught_by is Check.CONTENT}


def test_a_verdict_names_both_owners_and_says_of_which_kind_it_is(report: EngineFaultReport) -> None:
    verdicts = {r.fault: r.violation.verdict for r in report.results if r.violation}
    leaked, doubled = verdicts["the tail is not released"], verdicts["a locked leaf is evicted"]
    assert leaked is not None
    assert doubled is not None
    assert leaked.kind == "deficit"
    assert doubled.kind == "excess"
    assert len(doubled.owners) >= 2
    assert doubled.unit.startswith("page ")


def test_no_fault_outlives_its_with() -> None:
    owners = {owner for fault in planted.FAULTS for owner, _ in fault.places}
    before = {owner: dict(vars(owner)) for owner in owners}
    for fault in planted.FAULTS:
        with fault.planted():
            assert all(vars(owner)[name] is not before[owner][name] for owner, name in fault.places)
    assert all(dict(vars(owner)) == before[owner] for owner in owners)


def test_checks_look_and_never_touch() -> None:
    """The ablation leaves out runs because of this."""
    program = random_program(3, 40)
    whole = run_program(program)
    for check in Check:
        assert run_program(program, ALL - {check}).events == whole.events


def test_the_right_engine_survives_the_hunt() -> None:
    violation, _, steps = hunt()
    assert violation is None
    assert steps > 300
