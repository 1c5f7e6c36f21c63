"""What the fuzzer finds is kept: shrunk, as a program that fails again, and as a log that the law rejects."""

from pathlib import Path

import pytest

from freehold.model_check.fuzz import Failure, FuzzReport, fuzz, replay
from freehold.model_check.planted import FAULTS, Fault
from freehold.model_check.programs import BadProgram, Program
from freehold.spec.errors import InvalidInput
from freehold.spec.monitor import Monitor
from freehold.spec.trace import read
from freehold.spec.verdict import Verdict


def fault(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


def found(folder: Path) -> Failure:
    """The first failure that some seed finds."""
    return next(failure for seed in range(1, 30) for failure in fuzz(0, seed, folder).failures)


def judge(trace: Path) -> Verdict | None:
    """What the law says about a log, without any engine."""
    header, events = read(trace)
    monitor = Monitor(header)
    for event in events:
        monitor.feed(event)
    return monitor.verdict


@pytest.mark.parametrize(
    ("name", "rule", "kind"),
    [
        ("a tail is freed twice", "acquire", "excess"),
        ("the tail is not released", "unbind_row", "deficit"),
        ("closing a busy session frees its turn", "admitted_request_holds", "excess"),
    ],
)
def test_a_failure_is_kept_shrunk_with_its_verdict(tmp_path: Path, name: str, rule: str, kind: str) -> None:
    with fault(name).planted():
        failure = found(tmp_path / "failures")
        assert len(Program.load(failure.program).verbs) <= 6
        assert replay(failure.program).violation == failure.violation
    assert replay(failure.program).violation is None
    verdict = judge(failure.trace)
    assert failure.in_law
    assert verdict is not None
    assert verdict == failure.violation.verdict
    assert (verdict.rule, verdict.kind) == (rule, kind)
    assert failure.replay == f"freehold fuzz --replay {failure.program}"


def test_what_the_law_does_not_say_is_kept_as_a_program_only(tmp_path: Path) -> None:
    with fault("a history lacks its last token").planted():
        failure = found(tmp_path)
        assert replay(failure.program).violation == failure.violation
    assert not failure.in_law
    assert judge(failure.trace) is None


def test_a_sound_engine_leaves_nothing_behind_and_tells_how_far_it_is(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def tell(report: FuzzReport) -> None:
        told.append((report.seeds, report.events))

    report = fuzz(0, 7, tmp_path, tell)
    assert told == [(1, report.events)]
    assert report.events > 0
    assert report.failures == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a program"),
        ("[]", "not a program"),
        ('{"config": {}, "verbs": [1]}', "not a program"),
        ('{"config": {"pages": 3}, "verbs": []}', "not a program"),
        ('{"config": {"page_size": 3}, "verbs": []}', "power of two"),
        ('{"config": {}, "verbs": [["dance"]]}', "unknown verb"),
        ('{"config": {}, "verbs": [[]]}', "unknown verb"),
        ('{"config": {}, "verbs": [["step", "x"]]}', "step takes"),
        ('{"config": {}, "verbs": [["submit", [-1], 1, true, 0, 0]]}', "token ids"),
    ],
)
def test_a_file_that_holds_no_program_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "program.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=says):
        replay(path)


def test_a_program_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadProgram, match="give the path"):
        replay(tmp_path / "nothing")


def test_failures_need_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="folder"):
        fuzz(0, 1, tmp_path / "file")
