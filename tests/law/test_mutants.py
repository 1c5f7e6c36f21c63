"""Mutants: that every small change is made, that each instrument can see one, and that none is seen where none is."""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from freehold import commands_mutate
from freehold.cli import app
from freehold.model_check import lawful
from freehold.model_check.killers import DIFFERENT, STRONGER, WEAKER, Judge, equivalent
from freehold.model_check.lawful import Corpus, Setting, missing
from freehold.model_check.mutate import EQUIVALENT, LOST, SURVIVOR, Court, MutationReport, Verdict, choose
from freehold.model_check.mutators import Mutant, faults, mutants, sample
from freehold.model_check.successors import Grain
from freehold.spec import text
from freehold.spec.errors import InvalidInput
from freehold.spec.language import Action, Operation
from freehold.spec.law import law
from freehold.spec.terms import And, Not, Or, Quantified

ALL = mutants(law)


@pytest.fixture(scope="module")
def court() -> Court:
    return Court(law)


def named(name: str) -> Mutant:
    (found,) = (m for m in ALL if m.name == name)
    return found


def never(operation: str) -> Mutant:
    return named(f"operation {operation}: guard made false")


def unchanged(item: Action | Operation) -> Mutant:
    return Mutant("as it is", item, law)


SMALL = Setting(
    "small",
    {"Page": 3, "Row": 1, "Record": 1, "Request": 1, "Session": 1},
    {"page_size": 2, "row_width": 5, "window": 0, "namespaces": 1},
)


@functools.cache
def examples(grain: Grain) -> Corpus:
    return Corpus(law, grain, SMALL)


# Making them ---------------------------------------------------------------------------------------------------------


def test_each_clause_update_and_step_is_changed_and_no_name_comes_twice() -> None:
    assert len({m.name for m in ALL}) == len(ALL)
    changes: dict[tuple[bool, str], list[str]] = {}
    for m in ALL:
        changes.setdefault((m.of_action, m.subject), []).append(m.change)
    for item in (*law.actions.values(), *law.operations.values()):
        said = changes[isinstance(item, Action), item.name]
        assert "guard made false" in said
        for clause in item.guard:
            assert f"without “{clause.text}”" in said
            assert f"“{clause.text}” negated" in said or isinstance(clause.term, Not)
        parts = item.updates if isinstance(item, Action) else item.steps
        what = "update" if isinstance(item, Action) else "step"
        for number in range(1, len(parts) + 1):
            assert sum(c.startswith(f"without {what} {number} ") for c in said) == 1
            assert any(c.startswith(f"{what} {number} ") for c in said) or not isinstance(item, Action)


def test_a_clause_is_changed_inside_in_each_way() -> None:
    said = [m.change.removeprefix("“the page before it is locked” ") for m in ALL if m.subject == "lock"]
    for change in (
        "with exists for forall",
        "with ∧ in `¬parent(p, q) ∧ locks(k, q)`",
        "without the part `locks(k, q)`",
        "without ¬ before `parent(p, q)`",
        "with `parent(q, p)`",
    ):
        assert change in said
    said = [m.change for m in ALL if m.subject == "commit"]
    assert "“committed tokens have a page behind them” with `c < A(k)` for `c ≤ A(k)`" in said
    assert "update 1 `C(k) := c` becomes `c + 1`" in said


def test_no_change_reads_like_the_law() -> None:
    for m in ALL:
        if isinstance(m.item, Action):
            assert read(m.item) != read(law.actions[m.subject]), m.name
        else:
            base = law.operations[m.subject]
            assert m.item.guard != base.guard or m.item.steps != base.steps, m.name


def read(action: Action) -> tuple[list[str], list[str]]:
    return [text.formula(c.term) for c in action.guard], [text.update(u) for u in action.updates]


def test_a_changed_event_is_in_all_operations_that_take_it() -> None:
    m = named("event close: guard made false")
    taking = {o.name for o in law.operations.values() if any(s.action.name == "close" for s in o.steps)}
    assert {o.name for o in m.operations()} == taking
    for name, operation in m.law.operations.items():
        used = {s.action for s in operation.steps if s.action.name == "close"}
        assert used == ({m.item} if name in taking else set())
    assert m.law.actions["close"] is m.item


def test_a_sample_is_the_same_each_time_and_has_some_of_each_event_and_operation() -> None:
    drawn = sample(ALL, 200, seed=3)
    assert [m.name for m in drawn] == [m.name for m in sample(ALL, 200, seed=3)]
    assert [m.name for m in drawn] != [m.name for m in sample(ALL, 200, seed=4)]
    assert len({m.name for m in drawn}) == 200
    assert len({(m.of_action, m.subject) for m in drawn}) == len(law.actions) + len(law.operations)
    with_plain = choose(law, 200, plain=True)
    assert {m.name for m in faults(law)} <= {m.name for m in with_plain}
    assert sum(not m.dropped for m in with_plain) == 200
    assert len(choose(law, len(ALL))) == len(choose(law)) == len(ALL)


# Seeing them ---------------------------------------------------------------------------------------------------------


def test_the_law_itself_is_seen_by_nobody(court: Court) -> None:
    for item in (*law.actions.values(), *law.operations.values())[::4]:
        assert court.judge.breaks(item) == [], item.name
    for item in (law.actions["publish"], law.operations["save"]):
        assert court.verdict(unchanged(item)).killer == EQUIVALENT


def test_each_operation_is_possible_in_the_scope_of_the_judge(court: Court) -> None:
    for name, operation in law.operations.items():
        assert court.judge.loses(replace(never(name), item=operation)) is None
        assert court.judge.possible[name], name


@pytest.mark.parametrize(
    ("name", "killer", "by"),
    [
        ("event acquire: without “each page is free”", "invariant", "page_has_one_record"),
        ("event open_session: without “the session is not open”", "contract", "open_session: session is open"),
        ("operation write: guard made false", LOST, "write"),
        ("event open_session: guard made false", LOST, "begin_session"),
        ("operation match_page: without step 2 `attach`", "step invariant", "locked_page_is_mapped"),
    ],
)
def test_who_sees_it_is_named(court: Court, name: str, killer: str, by: str) -> None:
    verdict = court.verdict(named(name))
    assert verdict.killer == killer
    assert by in verdict.by


def test_plain_faults_of_some_events_break_a_rule(court: Court) -> None:
    for m in faults(law):
        if m.subject in ("commit", "transfer_to_session", "save"):
            assert court.verdict(m).killer in ("invariant", "contract", "step invariant"), m.name


def test_examples_tell_weaker_stronger_and_different_apart() -> None:
    corpus = examples(Grain.OPERATIONS)
    write = law.operations["write"]
    for item, shown in (
        (write, ()),
        (replace(write, guard=never("write").item.guard), (STRONGER,)),
        (replace(law.operations["save"], guard=()), (WEAKER,)),
        (replace(law.operations["abort_waiting"], steps=()), (DIFFERENT,)),
    ):
        assert corpus.compare(unchanged(item)) == shown
    resume = law.operations["resume"]
    both = named("operation resume: “the request is parked” negated")
    assert corpus.compare(both) == (WEAKER, STRONGER)
    assert corpus.compare(replace(both, item=resume)) == ()


def test_an_event_is_tried_as_a_step_of_its_own() -> None:
    m = named("event unlock: “the cut lies in the published prefix” with `0 = a` for `0 ≤ a`")
    assert examples(Grain.EVENTS).compare(m) == (STRONGER,)


def test_the_examples_are_the_same_for_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lawful, "LEVELS", {Grain.OPERATIONS: 6})
    first, second, other = (Corpus(law, Grain.OPERATIONS, SMALL, seed).codes for seed in (1, 1, 2))
    assert first is not None
    assert second is not None
    assert other is not None
    assert first.equal(second)
    assert not first.equal(other)


def test_equivalence_is_proved_and_only_where_it_holds() -> None:
    same = named("operation admit: step 1 `bind_row` after `place`")
    assert equivalent(same) == "unsat"
    for name in ("event grow: “the row is wide enough” with `a < row_width` for `a ≤ row_width`",):
        assert equivalent(named(name)) != "unsat"


def test_how_a_mutant_differs_is_sorted() -> None:
    judge = Judge(law)
    weaker = named("operation save: without “only written tokens are kept”")
    stronger = named("operation save: “only written tokens are kept” with `a = C(k)` for `a ≤ C(k)`")
    assert judge.differs(weaker) == (WEAKER,)
    assert judge.differs(stronger) == (STRONGER,)
    assert judge.differs(named("operation park: without step 1 `place`")) == (WEAKER, DIFFERENT)
    assert judge.differs(unchanged(law.operations["save"])) == ()


def test_what_no_example_shows_is_named() -> None:
    corpora = [examples(Grain.OPERATIONS)]
    absent = missing(law, corpora)
    assert "admit_state" in absent, "it takes a state slot, and the setting has none"
    assert "write" not in absent
    assert "decode_page" not in absent


# Reporting -----------------------------------------------------------------------------------------------------------

REPORT = MutationReport(
    (
        Verdict("event a: x", "contract", ("c",), (), True),
        Verdict("event a: y", "replay of lawful steps", ("by events",), (STRONGER, DIFFERENT)),
        Verdict("event b: z", EQUIVALENT, ("same",)),
    ),
    5,
    1.0,
)
LEFT = replace(REPORT, verdicts=(*REPORT.verdicts, Verdict("event c: w", SURVIVOR, ("not seen",), (WEAKER,))))


def test_a_report_counts_by_who_sees() -> None:
    assert REPORT.counts() == Counter({"contract": 1, "replay of lawful steps": 1, EQUIVALENT: 1})
    assert REPORT.sole_witness() == {"c": ["event a: x"]}
    assert REPORT.sorts() == {STRONGER: 1}
    assert REPORT.summary().startswith("3 of 5 mutants: 2 killed (1 contract, 1 replay of lawful steps), 1 proved")
    assert "0 left; 1 seen by examples only (1 stronger)" in REPORT.summary()


@pytest.mark.parametrize(("report", "code"), [(REPORT, 0), (LEFT, 1)])
def test_the_command_fails_when_a_mutant_is_left(
    monkeypatch: pytest.MonkeyPatch, report: MutationReport, code: int
) -> None:
    asked: list[object] = []

    def run(*args: object, **_: object) -> MutationReport:
        asked.append(args)
        return report

    monkeypatch.setattr(commands_mutate, "mutate", run)
    done = CliRunner().invoke(app, ["mutate", "--sample", "7", "--seed", "2", "--json"])
    assert done.exit_code == code
    answer = json.loads(done.stdout)
    assert answer["holds"] is (code == 0)
    assert answer["verdicts"][0] == {"mutant": "event a: x", "killer": "contract", "by": ["c"], "shown": []}
    done = CliRunner().invoke(app, ["mutate", "--all"])
    assert done.exit_code == code
    for words in (
        "proved equivalent",
        "stronger, different: event a: y",
        "3 of 5" if code == 0 else "weaker: event c: w",
    ):
        assert words in done.output
    assert asked == [(7, 2, ""), (None, 0, "")]


def test_an_unknown_mutant_is_refused() -> None:
    with pytest.raises(InvalidInput, match="names begin like this: event"):
        choose(law, only="no such thing")


def test_a_term_is_only_changed_in_one_place() -> None:
    def size(term: object) -> int:
        match term:
            case And(parts) | Or(parts):
                return 1 + sum(map(size, parts))
            case Not(body) | Quantified(_, _, body):
                return 1 + size(body)
        return 1

    base = {c.text: size(c.term) for c in law.actions["place"].guard}
    for m in ALL:
        if m.of_action and m.subject == "place" and m.change.startswith("“") and len(m.item.guard) == 1:
            (clause,) = m.item.guard
            assert abs(size(clause.term) - base[clause.text]) <= 3, m.name
