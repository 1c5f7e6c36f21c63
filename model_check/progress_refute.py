"""Why a policy has no rank: a state that one can read, for an obligation that does not hold.

The same obligations over a small scope are quantifier-free, so Z3 always answers. What it finds is replayed by the
concrete reading before anyone sees it. The state need not be reachable: a lasso shows what is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import z3

from freehold.model_check.progress import CAST, Descent
from freehold.model_check.refute import facts, read_parameters, read_state
from freehold.model_check.steps import ReadingsDisagree, call
from freehold.spec import concrete
from freehold.spec.language import Clause
from freehold.spec.scheduling import Policy

SCOPE: Mapping[str, int] = {"Page": 2, "Row": 2, "Record": 2, "Request": 2, "Session": 1}


@dataclass(frozen=True, slots=True)
class NoRank:
    """A state in which an obligation fails: who is the cast, and the step that makes the rank grow, if it is one."""

    policy: Policy
    claim: str
    step: str
    cast: Mapping[str, int]
    before: concrete.State
    after: concrete.State

    def __str__(self) -> str:
        who = ", ".join(f"{name} {value}" for name, value in self.cast.items())
        lines = [f"{self.policy.name}: {self.step} does not keep: {self.claim} ({who}); not necessarily reachable:"]
        before, after = facts(self.before), facts(self.after)
        for name, shown in before.items():
            changed = "" if shown == after[name] else f"  ->  {after[name] or '-'}"
            if shown or changed:
                lines.append(f"  {name:10} {shown or '-'}{changed}")
        return "\n".join(lines)


def no_rank(policy: Policy, subject: str, claim: str, page_size: int = 1) -> NoRank | None:
    """A counterexample within the scope to one obligation, replayed; None when there is none.

    Raises ReadingsDisagree when the concrete reading does not take the step that Z3 takes.
    """
    descent = Descent(policy, page_size, SCOPE)
    (obligation,) = (o for o in descent.of(subject) if o.claim == claim)
    solver = z3.SolverFor("QF_UFLIA")
    solver.add(*descent.smt.distinct(), *descent.smt.inside({**descent.cast, **obligation.env}))
    solver.add(*obligation.hypotheses, z3.Not(obligation.goal))
    verdict = solver.check()
    if verdict == z3.unsat:
        return None
    if verdict != z3.sat:
        raise ReadingsDisagree(f"a grounded question was not decided: {obligation.name}: {verdict}")
    before = after = read_state(descent.smt, descent.before, solver.model())
    env = read_parameters(descent.smt, {**descent.cast, **obligation.env}, solver.model())
    step = subject
    if subject in descent.law.operations:
        operation = descent.law.operations[subject]
        outcome = concrete.operate(operation, {p: env[p] for p in operation.params}, before)
        if isinstance(outcome, Clause):
            raise ReadingsDisagree(f"{obligation.name}: Z3 takes a step that is not enabled: {outcome.text}")
        step, after = call(subject, {p.name: env[p] for p in operation.params}), outcome[1]
    return NoRank(policy, claim, step, {p.name: env[p] for p in CAST}, before, after)
