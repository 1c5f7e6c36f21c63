"""Bounded search: the shortest sequence of operations that breaks an invariant, or reaches a state asked for.

The law is unrolled over a small scope, one operation a step, and Z3 picks operations and parameters at once.
Invariants that hold up to a depth are asserted when the search goes deeper: they cut the states that can't be. What is
found is replayed by the concrete reading and comes back as named operations and the events that they take.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import z3

from freehold.model_check.refute import read_parameters
from freehold.model_check.smt import Expr, Smt, View
from freehold.model_check.steps import ReadingsDisagree, Taken, listing, taken
from freehold.spec import concrete
from freehold.spec.absent import without
from freehold.spec.language import Clause, Law, Operation
from freehold.spec.owners import Owners
from freehold.spec.terms import Formula, IntVar, Param

SCOPE: Mapping[str, int] = {"Page": 3, "Row": 2, "Record": 2, "Request": 2, "Session": 1}
CONSTANTS: Mapping[str, int] = {"page_size": 2, "row_width": 5, "window": 0, "namespaces": 1}


@dataclass(frozen=True, slots=True)
class Found:
    """The shortest trace to a state in which `property` is as was asked for."""

    property: str
    trace: tuple[Taken, ...]
    state: concrete.State
    seconds: float

    def __str__(self) -> str:
        return f"{self.property} after {len(self.trace)} operations:\n{listing(self.trace)}"


@dataclass(frozen=True, slots=True)
class Nothing:
    """No trace of up to `depth` operations reaches what was asked for."""

    depth: int
    seconds: float


@dataclass(slots=True)
class Search:
    """Unrolled operations of a law over a scope."""

    law: Law
    scope: Mapping[str, int] = field(default_factory=lambda: SCOPE)
    constants: Mapping[str, int] = field(default_factory=lambda: CONSTANTS)
    smt: Smt = field(init=False)
    solver: Any = field(init=False)
    states: list[View] = field(init=False)
    chosen: list[tuple[Expr, dict[str, dict[Param, Any]]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        empty = [s for s in self.law.sorts if s.__name__ not in self.scope]
        self.law = without(self.law, empty, {n: self.constants[n] for n in ("window", "namespaces")})
        self.smt = Smt(self.law, self.constants, self.scope)
        self.states = [self.smt.state("@0")]
        self.solver = z3.SolverFor("QF_UFLIA")
        self.solver.add(*self.smt.distinct(), *(self._say(f, 0) for f in self.law.initial))

    def violation(self, depth: int, progress: Callable[[int], None] | None = None) -> Found | Nothing:
        """The shortest trace to a state where an always or step invariant fails."""
        checked = {p.name: p.term for p in self.law.invariants.values() if p.group in ("always", "step")}
        return self._search(checked, depth, negated=True, progress=progress)

    def witness(self, name: str, term: Formula, depth: int) -> Found | Nothing:
        """The shortest trace to a state where a formula holds."""
        return self._search({name: term}, depth, negated=False, progress=None)

    def _search(
        self, terms: Mapping[str, Formula], depth: int, negated: bool, progress: Callable[[int], None] | None
    ) -> Found | Nothing:
        started = time.perf_counter()
        for length in range(depth + 1):
            if length >= len(self.states):
                self._unroll()
            meanings = {n: self._say(t, length) for n, t in terms.items()}
            self.solver.push()
            self.solver.add(z3.Or(*(z3.Not(m) if negated else m for m in meanings.values())))
            verdict = self.solver.check()
            model = self.solver.model() if verdict == z3.sat else None
            self.solver.pop()
            if model is not None:
                trace, state = self._replay(model, length)
                name = next((n for n, t in terms.items() if concrete.holds(t, {}, state) != negated), None)
                if name is None:
                    raise ReadingsDisagree("the trace of Z3 replays, but not to the state that it promised")
                return Found(name, trace, state, time.perf_counter() - started)
            if verdict != z3.unsat:
                raise ReadingsDisagree(f"a bounded question was not decided: {verdict}")
            if negated:
                self.solver.add(*meanings.values())
            if progress is not None:
                progress(length)
        return Nothing(depth, time.perf_counter() - started)

    def _say(self, term: Formula, step: int) -> Expr:
        return self.smt.formula(term, {}, self.states[step])

    def _unroll(self) -> None:
        """One more state, reached by exactly one operation."""
        step = len(self.states) - 1
        now, after = self.states[-1], self.smt.state(f"@{step + 1}")
        operations = list(self.law.operations.values())
        picked = z3.Int(f"operation@{step}")
        envs: dict[str, dict[Param, Any]] = {}
        self.solver.add(picked >= 0, picked < len(operations))
        for number, operation in enumerate(operations):
            env = self._parameters(operation, step)
            enabled, then = self.smt.operate(operation, env, now)
            means = [e.expr for e in enabled] + self._same(now, after, then)
            self.solver.add(z3.Implies(picked == number, z3.And(*means)))
            envs[operation.name] = env
        self.states.append(after)
        self.chosen.append((picked, envs))

    def _parameters(self, operation: Operation, step: int) -> dict[Param, Any]:
        """Operations share their parameter symbols, the first page of each being the same one."""
        env: dict[Param, Any] = {}
        counts: dict[type, int] = {}
        for p in operation.params:
            kind = type(p)
            counts[kind] = counts.get(kind, 0) + 1
            name = f"{kind.__name__}{counts[kind]}@{step}"
            env[p] = z3.Int(name) if isinstance(p, IntVar) else z3.Const(name, self.smt.sorts[kind])  # type: ignore[index]
        self.solver.add(*self.smt.inside(env))
        self.solver.add(*(v >= 0 for p, v in env.items() if isinstance(p, IntVar)))
        return env

    def _same(self, now: View, after: View, then: View) -> list[Expr]:
        """`after` is the state `then`; what an operation does not touch is simply equal."""
        equal: list[Expr] = []
        for name, relation in self.law.relations.items():
            value = then.relations[name]
            for args in itertools.product(*(self.smt.elements[s] for s in relation.sorts)):
                equal.append(after.relations[name](*args) == value(*args))
        for name, function in self.law.functions.items():
            number = then.functions[name]
            equal += [after.functions[name](x) == number(x) for x in self.smt.elements[function.sort]]
        return equal

    def _replay(self, model: z3.ModelRef, length: int) -> tuple[tuple[Taken, ...], concrete.State]:
        state = concrete.initial(self.law, self.scope, self.constants)
        operations, owners = list(self.law.operations.values()), Owners(self.law)
        trace: list[Taken] = []
        for picked, envs in self.chosen[:length]:
            operation = operations[model.eval(picked, model_completion=True).as_long()]
            env = read_parameters(self.smt, envs[operation.name], model)
            outcome = concrete.operate(operation, env, state)
            if isinstance(outcome, Clause):
                raise ReadingsDisagree(f"Z3 takes {operation.name}, which is not enabled: {outcome.text}")
            events, after = outcome
            trace.append(taken(operation, env, events, owners.changed(state, after)))
            state = after
        return tuple(trace), state
