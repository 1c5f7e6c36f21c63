"""Progress: good policies are proved and have no lasso, bad ones are shown by a lasso that comes back to its start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import z3

from freehold.model_check.lasso import Kind, Lasso, plainest, search_lasso
from freehold.model_check.liveness import CASES, Case, small
from freehold.model_check.progress import Descent
from freehold.model_check.progress_refute import no_rank
from freehold.model_check.prove import ask
from freehold.model_check.reach import Graph, build
from freehold.spec import concrete, policies
from freehold.spec.absent import without
from freehold.spec.errors import InvalidInput
from freehold.spec.language import Clause
from freehold.spec.law import law
from freehold.spec.progress import ASSUMPTIONS, HELPS, INVARIANTS, LEAD
from freehold.spec.scheduling import ABSENT, CONSTANTS, GROUPS, OUTSIDE, Group, Policy, live, schedule
from freehold.spec.state import Request
from freehold.spec.terms import LawError, Param

# The view ------------------------------------------------------------------------------------------------------------


def test_every_operation_has_a_group_and_what_the_view_has_a_role() -> None:
    assert set(GROUPS) == set(law.operations)
    view = schedule(policies.FIRST_COME)
    assert {*view.origins.values()} | {*OUTSIDE} == set(without(law, ABSENT, CONSTANTS).operations) | {*OUTSIDE}
    assert not {*view.origins.values()} & {*OUTSIDE}


def test_an_operation_without_a_group_is_refused() -> None:
    more = replace(law, operations={**law.operations, "teleport": law.operations["park"]})
    with pytest.raises(LawError, match="who owes teleport"):
        schedule(policies.FIRST_COME, of=more)


def test_a_policy_can_only_speak_of_roles() -> None:
    with pytest.raises(LawError, match="speaks of admitt"):
        schedule(Policy("typo", "", {"admitt": ()}))


def test_the_view_only_adds_clauses_and_ghosts() -> None:
    view, reduced = schedule(policies.LONGEST_PREFIX), without(law, ABSENT, CONSTANTS)
    for name, operation in view.law.operations.items():
        base = reduced.operations[view.origins[name]]
        assert {c.text for c in base.guard} <= {c.text for c in operation.guard}
        added = operation.steps[len(base.steps) :]
        assert [s.action.name for s in operation.steps[: len(base.steps)]] == [s.action.name for s in base.steps]
        assert {u.of.name for s in added for u in s.action.updates}.isdisjoint({*law.relations, *law.functions})


# The proof -----------------------------------------------------------------------------------------------------------

SOME = ("helper", "bounded", "left", "retract", "admit", "extend_page", "decode_page", "evict_page", "save")


@pytest.mark.parametrize("subject", SOME)
def test_the_engines_policy_is_proved_for_any_size(subject: str) -> None:
    obligations = list(Descent(policies.FIRST_COME, 4).of(subject))
    assert obligations
    for obligation in obligations:
        assert ask(obligation, seed=0) == "unsat", obligation.name


@pytest.mark.parametrize(
    ("policy", "subject", "claim"),
    [
        (policies.RETRACT_ANY, "retract", "the oldest waits"),
        (policies.THRASHING, "decode_page", "pages that are neither free nor its own"),
        (policies.LAST_COME, "admit", "who holds KV while it waits"),
        (policies.LONGEST_PREFIX_UNBOUNDED, "admit", "who holds KV while it waits"),
        (policies.PINNED_SESSIONS, "helper", "reclaim_session possible"),
        (policies.WAITING_HOLDERS, "helper", "retract possible"),
        (policies.NO_FIT_CHECK, "arrive", "every_live_request_fits_alone"),
        (policies.NO_TIMEOUT, "helper", "somebody to help when it is acknowledgement's turn"),
    ],
)
def test_a_policy_that_gets_stuck_has_no_proof(policy: Policy, subject: str, claim: str) -> None:
    (obligation,) = (o for o in Descent(policy, 1).of(subject) if o.claim == claim)
    assert ask(obligation, seed=0, rlimit=400_000) != "unsat"


def test_the_premises_can_be_true_together() -> None:
    """A cast in each phase exists, with all invariants and assumptions: nothing is proved from a contradiction."""
    descent = Descent(policies.TIMEOUT, 2, {"Page": 2, "Row": 2, "Record": 2, "Request": 2, "Session": 1})
    for obligation in descent.helpers():
        if obligation.kind == "enabled":
            solver = z3.Solver()
            solver.add(*descent.smt.distinct(), *descent.smt.inside(obligation.env), *obligation.hypotheses)
            assert solver.check() == z3.sat, obligation.name


def test_every_fair_operation_that_moves_a_request_on_is_a_help_or_falls_anyway() -> None:
    groups = schedule(policies.FIRST_COME).groups
    helps = {h.operation for h in HELPS}
    assert {n for n, g in groups.items() if g.fair} - helps == {"park", "finish_publish"}
    assert all(h.values["r"] is LEAD for h in HELPS if h.phase.of_request), "fairness is owed to the lead"


# The search ----------------------------------------------------------------------------------------------------------


def walked_again(case: Case, lasso: Lasso) -> Iterator[concrete.State]:
    """The states along a lasso, from the beginning, by nothing but the concrete reading of the whole view."""
    view = schedule(case.policy).law
    scope = {s.__name__: case.scope.sizes.get(s.__name__, 0) for s in view.sorts}
    pool = case.scope.sizes["Page"] * case.scope.constants["page_size"]
    state = concrete.initial(view, scope, {**case.scope.constants, "pool": pool})
    yield state
    for step in (*lasso.stem, *lasso.loop):
        operation = view.operations[step.operation]
        env: dict[Param, int] = {p: step.arguments[p.name] for p in operation.params}
        outcome = concrete.operate(operation, env, state)
        assert not isinstance(outcome, Clause), f"{step}: {outcome}"
        state = outcome[1]
        yield state


@pytest.mark.parametrize("case", [c for c in CASES if c.expected], ids=lambda c: c.policy.name)
def test_a_bad_policy_is_shown_by_a_lasso(case: Case) -> None:
    lasso = search_lasso(case.policy, case.scope, case.jobs, leave_out=case.leave_out).lasso
    assert lasso is not None
    assert lasso.kind is case.expected
    states = list(walked_again(case, lasso))
    assert states[-1].key() == states[len(lasso.stem)].key()
    r = Request("r")
    assert all(concrete.holds(live(r), {r: lasso.request}, s) for s in states[len(lasso.stem) :])
    assert bool(lasso.loop) == (lasso.kind in (Kind.LIVELOCK, Kind.STARVATION))
    told = str(lasso)
    assert all(str(step) in told for step in (*lasso.stem, *lasso.loop))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return build(policies.FIRST_COME, small(2, 2, 2), ((1, 1),), 50_000, (Group.CACHE,))


def test_the_engines_policy_has_no_lasso(graph: Graph) -> None:
    r = Request("r")
    assert all(inside.any() for inside in graph.where(live(r), r))
    assert plainest(graph) is None


def test_what_is_assumed_and_kept_is_true_in_every_state() -> None:
    graph = build(policies.FIRST_COME, small(2, 2, 1, sessions=1), ((1, 1),), 50_000)
    for assumption in ASSUMPTIONS:
        if assumption.term is not None:
            assert graph.all_hold(assumption.term), assumption.name
    for prop in INVARIANTS.values():
        assert graph.all_hold(prop.term), prop.name


def test_why_there_is_no_rank_can_be_read() -> None:
    found = no_rank(policies.RETRACT_ANY, "retract", "the oldest waits")
    assert found is not None
    assert found.cast["o"] == found.cast["lead"]
    assert f"retract(r={found.cast['o']}" in str(found)
    assert found.before.functions["place"][found.cast["o"]] > found.after.functions["place"][found.cast["o"]]
    assert no_rank(policies.FIRST_COME, "retract", "the oldest waits") is None


def test_what_is_owed_cannot_be_left_out_and_a_part_of_a_scope_shows_nothing() -> None:
    with pytest.raises(InvalidInput, match="owed: forward"):
        build(policies.FIRST_COME, small(2, 1, 1), ((1, 1),), 100, (Group.FORWARD,))
    with pytest.raises(InvalidInput, match="more than 10 states"):
        build(policies.FIRST_COME, small(2, 1, 1), ((1, 1),), 10)
