"""The proof, and that it can fail."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import z3

from freehold.model_check.corrupt import ablate
from freehold.model_check.mutators import faults
from freehold.model_check.obligations import Obligations
from freehold.model_check.prove import ask, reading
from freehold.model_check.refute import Refuter, explain
from freehold.model_check.search import Found, Nothing, Search
from freehold.model_check.steps import ReadingsDisagree
from freehold.spec import concrete
from freehold.spec.absent import without as without_sorts
from freehold.spec.language import Law
from freehold.spec.law import law
from freehold.spec.state import HostPage, Loan, StateSlot, SwaPage


def test_every_obligation_of_some_events_is_proved() -> None:
    obligations = Obligations(reading(4), law)
    for subject in ("initial", "lemma", "theorem", "quiescent", "acquire", "publish", "attach", "operation retract"):
        for obligation in obligations.of(subject):
            assert ask(obligation, seed=0) == "unsat", obligation.name


def test_every_action_and_operation_has_obligations() -> None:
    obligations = Obligations(reading(1), law)
    subjects = obligations.subjects()
    assert set(law.actions) <= set(subjects)
    assert {f"operation {o}" for o in law.operations} <= set(subjects)
    contracts = {c.group for c in law.contracts.values()}
    assert contracts == set(law.actions), "each event has a contract"


def without(action: str, clause: str) -> Law:
    (fault,) = (f for f in faults(law) if f.subject == action and clause in f.change)
    return fault.law


@pytest.mark.parametrize(
    ("action", "clause", "prop"),
    [
        ("acquire", "each page is free", "page_has_one_record"),
        ("evict", "no record locks the page", "locked_page_is_in_tree"),
        ("evict", "no page comes behind it", "parent_is_in_tree"),
        ("release", "no row entry keeps", "private_entry_is_owned"),
    ],
)
def test_a_dropped_guard_is_refuted_by_a_state_that_replays(action: str, clause: str, prop: str) -> None:
    changed = without(action, clause)
    refuter = Refuter(changed)
    questions = refuter.obligations.of_action(changed.actions[action])
    (example,) = (e for e in map(refuter.refute, questions) if e is not None and e.property == prop)
    assert concrete.holds(law.invariants[prop].term, {}, example.before)
    assert not concrete.holds(law.invariants[prop].term, {}, example.after)


def test_a_counterexample_is_printed_as_a_state_before_and_after() -> None:
    changed = without("evict", "no record locks the page")
    text = explain(changed, "evict", "evict keeps locked_page_is_in_tree")
    assert text.startswith("evict(p=")
    assert "breaks locked_page_is_in_tree" in text
    assert re.search(r"\n  page \d  in tree  ->  free\n", text)
    assert "locks" in text
    assert "no counterexample" in explain(law, "evict", "evict keeps locked_page_is_in_tree")


def test_the_unbounded_proof_does_not_go_through_without_a_guard() -> None:
    changed = without("evict", "no record locks the page")
    smt = replace(reading(4), law=changed)
    verdicts = [ask(o, seed=0) for o in Obligations(smt, changed).of("evict")]
    assert "sat" in verdicts or "unknown" in verdicts


def test_each_invariant_sees_a_corruption_that_no_other_one_sees() -> None:
    """Of the core law here, as the whole one takes a minute: `make verify` does that."""
    core = without_sorts(law, [SwaPage, StateSlot, HostPage, Loan], {"window": 0, "namespaces": 1})
    assert ablate(core).idle == ("cursor_is_behind_written",), "without a window the cursor has nothing to say"


def test_a_counterexample_that_does_not_replay_is_an_error() -> None:
    refuter = Refuter(law)
    (obligation, *_) = refuter.obligations.of("grow")
    nonsense = replace(obligation, goal=z3.BoolVal(False))
    with pytest.raises(ReadingsDisagree):
        refuter.refute(nonsense)


def test_the_search_finds_the_shortest_trace_and_nothing_in_the_law() -> None:
    assert isinstance(Search(law).violation(depth=3), Nothing)
    found = Search(without("acquire", "each page is free")).violation(depth=6)
    assert isinstance(found, Found)
    assert found.property in ("page_has_one_record", "free_page_has_no_record", "tree_page_has_no_record")
    assert len(found.trace) == 4, "admit, take a page, and measure with the same one"
    assert found.trace[-1].operation == "profile"


def test_the_search_reaches_a_witness() -> None:
    scene = law.witnesses["close_is_deferred"]
    found = Search(law).witness(scene.name, scene.term, depth=4)
    assert isinstance(found, Found)
    taken = {t.operation for t in found.trace}
    assert taken - {"admit", "receive"} == {"begin_session", "arrive_turn", "close_busy"}
