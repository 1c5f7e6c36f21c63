"""Counterexamples to an obligation, as states one can read.

The grounded reading over a small scope always answers. What Z3 finds is taken out of the model as a concrete state and
parameters, and *replayed by the concrete reading* before anyone sees it: the event must be enabled, and the property
must fail afterwards. A counterexample that does not replay is an error in a reading.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import z3

from freehold.model_check.obligations import Obligation, Obligations
from freehold.model_check.smt import Smt, View
from freehold.model_check.steps import ReadingsDisagree, call, changes
from freehold.spec import concrete
from freehold.spec.language import Clause, Law
from freehold.spec.owners import Handed, Owners
from freehold.spec.terms import Element, IntVar, Param, SetOf

SCOPE: Mapping[str, int] = {
    "Page": 3, "Row": 2, "Record": 2, "Request": 2, "Session": 2,
    "SwaPage": 2, "StateSlot": 2, "HostPage": 2, "Loan": 2,
}  # fmt: skip
# Numbers are fixed; a window and namespaces are for Z3 to choose.
CONSTANTS: Mapping[str, Any] = {
    "page_size": 2, "row_width": 5, "window": z3.Int("window"), "namespaces": z3.Int("namespaces"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A state before, the parameters, and the state after in which the property fails.

    `handed` are the units that got another owner, `odd` those that have two afterwards, or none.
    """

    kind: str
    subject: str
    property: str
    before: concrete.State
    parameters: dict[str, Any]
    after: concrete.State
    handed: tuple[Handed, ...] = ()
    odd: tuple[str, ...] = ()

    def __str__(self) -> str:
        before, after = facts(self.before), facts(self.after)
        lines = [f"{call(self.subject, self.parameters)} breaks {self.property}; not necessarily reachable:"]
        lines += [f"  {line}" for line in (*changes(self.handed), *self.odd)]
        for name in before:
            changed = "" if before[name] == after[name] else f"  ->  {after[name] or '-'}"
            if before[name] or changed:
                lines.append(f"  {name:10} {before[name] or '-'}{changed}")
        return "\n".join(lines)


def facts(state: concrete.State) -> dict[str, str]:
    """What is true in a state, a line a symbol: tuples of a relation, values of a function."""
    shown = {
        name: " ".join(",".join(map(str, t)) if len(t) > 1 else str(t[0]) for t in sorted(tuples))
        for name, tuples in state.relations.items()
    }
    for name, values in state.functions.items():
        shown[name] = " ".join(f"{x}:{value}" for x, value in sorted(values.items()) if value)
    return shown


def explain(law: Law, subject: str, name: str) -> str:
    """The counterexample of an obligation by its name, or a word that the scope has none."""
    refuter = Refuter(law)
    for obligation in refuter.obligations.of(subject):
        if obligation.name == name:
            found = refuter.refute(obligation)
            return str(found) if found is not None else f"{name}: no counterexample among {dict(refuter.scope)}"
    return f"{name}: no counterexample, as nothing that it mentions is written"


@dataclass(slots=True)
class Refuter:
    """Grounded questions about one law."""

    law: Law
    scope: Mapping[str, int] = field(default_factory=lambda: SCOPE)
    constants: Mapping[str, Any] = field(default_factory=lambda: CONSTANTS)
    smt: Smt = field(init=False)
    obligations: Obligations = field(init=False)

    def __post_init__(self) -> None:
        self.smt = Smt(self.law, self.constants, self.scope)
        self.obligations = Obligations(self.smt, self.law)

    def refute(self, obligation: Obligation) -> Counterexample | None:
        """A counterexample within the scope, replayed; None when there is none."""
        solver = z3.SolverFor("QF_UFLIA")
        solver.add(*self.smt.distinct(), *self.smt.inside(obligation.env), *obligation.hypotheses)
        solver.add(z3.Not(obligation.goal))
        verdict = solver.check()
        if verdict == z3.unsat:
            return None
        if verdict != z3.sat:
            raise ReadingsDisagree(f"a grounded question was not decided: {obligation.name}: {verdict}")
        return self._replay(obligation, solver.model())

    def _replay(self, obligation: Obligation, model: z3.ModelRef) -> Counterexample:
        before = read_state(self.smt, self.obligations.before, model)
        env = read_parameters(self.smt, obligation.env, model)
        after = before
        meaning: dict[Param, Any] = {}
        if obligation.kind in ("event", "contract"):
            action = self.law.actions[obligation.subject]
            broken = concrete.broken_clause(action.guard, env, before)
            after = concrete.act(action, env, before)
        elif obligation.kind == "operation":
            outcome = concrete.operate(self.law.operations[obligation.subject], env, before)
            broken = outcome if isinstance(outcome, Clause) else None
            after = before if isinstance(outcome, Clause) else outcome[1]
        else:
            broken = None
        if broken is not None:
            raise ReadingsDisagree(f"{obligation.name}: Z3 takes a step that is not enabled: {broken.text}")
        prop = {**self.law.contracts, **self.law.invariants, **self.law.lemmas}[obligation.claim]
        if obligation.kind == "contract":
            meaning = dict(zip(prop.params, env.values(), strict=True))
            fails = not concrete.holds(prop.term, meaning, before, after)
        else:
            fails = not concrete.holds(prop.term, env if obligation.kind == "lemma" else {}, after)
        if not fails:
            raise ReadingsDisagree(f"{obligation.name}: the counterexample of Z3 does not replay")
        named = {p.name: v for p, v in env.items()}
        owners = Owners(self.law)
        return Counterexample(
            obligation.kind, obligation.subject, obligation.claim, before, named, after,
            owners.changed(before, after), owners.odd(after),
        )  # fmt: skip


def read_state(smt: Smt, view: View, model: z3.ModelRef) -> concrete.State:
    """A grounded state of the model, over element numbers."""
    universe: dict[Any, list[Any]] = {s: list(range(len(xs))) for s, xs in smt.elements.items()}
    relations: dict[str, set[tuple[Any, ...]]] = {}
    for name, relation in smt.law.relations.items():
        found: set[tuple[Any, ...]] = set()
        for index in itertools.product(*(range(len(smt.elements[s])) for s in relation.sorts)):
            args = [smt.elements[s][i] for s, i in zip(relation.sorts, index, strict=True)]
            if z3.is_true(model.eval(view.relations[name](*args), model_completion=True)):
                found.add(index)
        relations[name] = found
    functions = {
        name: {
            i: model.eval(view.functions[name](x), model_completion=True).as_long()
            for i, x in enumerate(smt.elements[function.sort])
        }
        for name, function in smt.law.functions.items()
    }
    constants = {
        n: v if isinstance(v, int) else model.eval(v, model_completion=True).as_long() for n, v in smt.constants.items()
    }
    return concrete.State(universe, constants, relations, functions)


def read_parameters(smt: Smt, env: Mapping[Param, Any], model: z3.ModelRef) -> dict[Param, Any]:
    """Parameters of the model, over element numbers."""
    found: dict[Param, Any] = {}
    for param, value in env.items():
        match param:
            case IntVar():
                found[param] = model.eval(value, model_completion=True).as_long()
            case SetOf(_, sort):
                xs = smt.elements[sort]
                found[param] = frozenset(
                    i for i, x in enumerate(xs) if z3.is_true(model.eval(value(x), model_completion=True))
                )
            case Element():
                found[param] = next(
                    i for i, x in enumerate(smt.elements[type(param)])
                    if z3.is_true(model.eval(value == x, model_completion=True))
                )  # fmt: skip
    return found
