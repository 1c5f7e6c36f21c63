"""What Z3 says of a mutant: the rule that it breaks, the operation that is lost, or that nothing is different.

The invariants are asserted once, grounded over a small scope, and each mutant is one question on top of them: is there
a step of the mutant behind which *any* rule fails? What Z3 finds is taken out of the model and replayed by the concrete
reading, which says which rules fail there. Where no step breaks a rule, further questions say how the mutant differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import z3

from freehold.model_check.mutators import Mutant
from freehold.model_check.obligations import Obligation, Obligations
from freehold.model_check.prove import RLIMIT, ask, reading
from freehold.model_check.refute import CONSTANTS, SCOPE, Counterexample, read_parameters, read_state
from freehold.model_check.smt import Env, Expr, Smt, View
from freehold.model_check.steps import ReadingsDisagree
from freehold.spec import concrete
from freehold.spec.compiler import symbols
from freehold.spec.language import Action, Clause, Law, Operation, Property
from freehold.spec.terms import Param

PAGE_SIZES = (1, 16)
WEAKER, STRONGER, DIFFERENT = "weaker", "stronger", "different"


@dataclass(frozen=True, slots=True)
class Rule:
    """A property that has to hold behind a step; a contract also speaks of the state before and the parameters."""

    kind: str
    prop: Property

    @property
    def two_state(self) -> bool:
        return self.kind == "contract"

    @property
    def label(self) -> str:
        return f"{self.kind} {self.prop.name}"


@dataclass(slots=True)
class Judge:
    """Grounded questions about the mutants of one law; built once, asked many times."""

    law: Law
    sizes: Mapping[str, int] = field(default_factory=lambda: SCOPE)
    constants: Mapping[str, Any] = field(default_factory=lambda: CONSTANTS)
    smt: Smt = field(init=False)
    before: View = field(init=False)
    always: Any = field(init=False)
    settled: Any = field(init=False)
    possible: dict[str, bool] = field(init=False, default_factory=dict)
    mentions: dict[str, frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.smt = Smt(self.law, self.constants, scope_of(self.law, self.sizes))
        obligations = Obligations(self.smt, self.law)
        self.before = obligations.before
        self.always, self.settled = z3.SolverFor("QF_UFLIA"), z3.SolverFor("QF_UFLIA")
        for solver in (self.always, self.settled):
            solver.add(*self.smt.distinct(), *obligations.hypotheses)
        self.settled.add(*(self.smt.formula(p.term, {}, self.before) for p in obligations.step))
        self.mentions = {p.name: frozenset(symbols(p.term)) for p in self.law.invariants.values()}

    # Rules -----------------------------------------------------------------------------------------------------------

    def rules(self, item: Action | Operation) -> list[Rule]:
        """What the item can break: invariants over symbols that it writes, and its own contracts."""
        actions = (item,) if isinstance(item, Action) else tuple(s.action for s in item.steps)
        written = {u.of.name for a in actions for u in a.updates}
        group = "always" if isinstance(item, Action) else "step"
        kind = "invariant" if isinstance(item, Action) else "step invariant"
        found = [Rule(kind, p) for p in self.law.invariants.values() if p.group == group]
        found = [r for r in found if self.mentions[r.prop.name] & written]
        known = self.law.actions if isinstance(item, Action) else self.law.operations
        if item.name in known:
            found += [Rule("contract", c) for c in self.law.contracts.values() if _speaks_of(c, known[item.name])]
        return found

    def breaks(
        self, item: Action | Operation, rules: Sequence[Rule] | None = None
    ) -> list[tuple[Rule, Counterexample]]:
        """The rules that fail behind one step of the item from a good state, with that step; empty where none can."""
        rules = self.rules(item) if rules is None else rules
        if not rules:
            return []
        env, enabled, after = self._step(item)
        solver = self._solver(item)
        solver.push()
        solver.add(*self.smt.inside(env), *enabled)
        solver.add(z3.Or(*(z3.Not(self._goal(r, env, after)) for r in rules)))
        found = None
        if _decided(solver):  # the model is read at once: what `pop` takes away is gone from it
            found = self._replay(item, rules, env, solver.model())
        solver.pop()
        if found is not None and not found:
            raise ReadingsDisagree(f"{item.name}: a broken rule that Z3 finds does not replay")
        return found or []

    def all_broken(self, item: Action | Operation) -> list[tuple[Rule, Counterexample]]:
        """Every rule that some step of the item breaks."""
        found: list[tuple[Rule, Counterexample]] = []
        left = self.rules(item)
        while more := self.breaks(item, left):
            found += more
            left = [r for r in left if all(r is not b for b, _ in more)]
        return found

    def loses(self, mutant: Mutant) -> str | None:
        """An operation of the law that the mutant makes impossible in every good state of the scope."""
        for operation in mutant.operations():
            if self._possible(self.law.operations[operation.name]) and not self._can(operation):
                return operation.name
        return None

    def _possible(self, operation: Operation) -> bool:
        if operation.name not in self.possible:
            self.possible[operation.name] = self._can(operation)
        return self.possible[operation.name]

    def _can(self, operation: Operation) -> bool:
        env, enabled, _ = self._step(operation)
        return self._ask(operation, *self.smt.inside(env), *enabled)

    # Differences -----------------------------------------------------------------------------------------------------

    def differs(self, mutant: Mutant) -> tuple[str, ...]:
        """How the mutant differs from the law in some good state: weaker, stronger, different; empty when it cannot."""
        base = self._base(mutant)
        env = self.smt.parameters(base.params)
        inside = self.smt.inside(env)
        old, then = _taken(self.smt, base, env, self.before)
        new, there = _taken(self.smt, mutant.item, env, self.before)
        a, b = z3.And(*old), z3.And(*new)
        found = []
        if self._ask(base, *inside, b, z3.Not(a)):
            found.append(WEAKER)
        if self._ask(base, *inside, a, z3.Not(b)):
            found.append(STRONGER)
        if self._ask(base, *inside, a, b, z3.Or(*self._unequal(then, there))):
            found.append(DIFFERENT)
        return tuple(found)

    def _unequal(self, one: View, other: View) -> Iterator[Expr]:
        for name, relation in self.law.relations.items():
            if one.relations[name] is not other.relations[name]:
                for xs in _tuples(self.smt, relation.sorts):
                    yield one.relations[name](*xs) != other.relations[name](*xs)
        for name, function in self.law.functions.items():
            if one.functions[name] is not other.functions[name]:
                for x in self.smt.elements[function.sort]:
                    yield one.functions[name](x) != other.functions[name](x)
        yield z3.BoolVal(False)

    # Plumbing --------------------------------------------------------------------------------------------------------

    def _base(self, mutant: Mutant) -> Action | Operation:
        return self.law.actions[mutant.subject] if mutant.of_action else self.law.operations[mutant.subject]

    def _step(self, item: Action | Operation) -> tuple[Env, list[Expr], View]:
        env = self.smt.parameters(item.params)
        return env, *_taken(self.smt, item, env, self.before)

    def _solver(self, item: Action | Operation) -> Any:
        return self.always if isinstance(item, Action) else self.settled

    def _ask(self, item: Action | Operation, *terms: Expr) -> bool:
        solver = self._solver(item)
        solver.push()
        solver.add(*terms)
        answer = _decided(solver)
        solver.pop()
        return answer

    def _goal(self, rule: Rule, env: Env, after: View) -> Expr:
        if not rule.two_state:
            return self.smt.formula(rule.prop.term, {}, after)
        meaning = dict(zip(rule.prop.params, env.values(), strict=True))
        return self.smt.formula(rule.prop.term, meaning, self.before, after)

    def _replay(
        self, item: Action | Operation, rules: Sequence[Rule], symbolic: Env, model: z3.ModelRef
    ) -> list[tuple[Rule, Counterexample]]:
        before = read_state(self.smt, self.before, model)
        env = read_parameters(self.smt, symbolic, model)
        if isinstance(item, Action):
            broken = concrete.broken_clause(item.guard, env, before)
            after = concrete.act(item, env, before)
        else:
            outcome = concrete.operate(item, env, before)
            broken, after = (outcome, before) if isinstance(outcome, Clause) else (None, outcome[1])
        if broken is not None:
            raise ReadingsDisagree(f"{item.name}: Z3 takes a step that is not enabled: {broken.text}")
        named = {p.name: v for p, v in env.items()}
        found = []
        for rule in rules:
            meaning: dict[Param, Any] = dict(zip(rule.prop.params, env.values(), strict=True)) if rule.two_state else {}
            if not concrete.holds(rule.prop.term, meaning, before if rule.two_state else after, after):
                kind = "event" if isinstance(item, Action) else "operation"
                found.append((rule, Counterexample(kind, item.name, rule.prop.name, before, named, after)))
        return found


def scope_of(law: Law, sizes: Mapping[str, int], others: int = 2) -> dict[str, int]:
    """A size for each sort of the law: the given one, or `others`."""
    return {s.__name__: sizes.get(s.__name__, others) for s in law.sorts}


# Equivalence for any size --------------------------------------------------------------------------------------------


def equivalent(mutant: Mutant, page_sizes: Sequence[int] = PAGE_SIZES) -> str:
    """`unsat` when the mutant is enabled exactly where the law is and leads to the same state, in all good states.

    Good are the states of the always invariants and, for an operation, the step invariants; any number of elements.
    """
    for page_size in page_sizes:
        for question in _same(mutant, page_size):
            verdict = _proved(question)
            if verdict != "unsat":
                return verdict
    return "unsat"


def _proved(question: Obligation) -> str:
    """Under some seeds, and at last from fewer hypotheses: what follows from some of them follows from all."""
    for seed in range(3):
        verdict = ask(question, seed)
        if verdict != "unknown":
            return verdict
    plain = tuple(h for h in question.hypotheses if not _nested(h))
    fewer = ask(replace(question, hypotheses=plain), seed=0, rlimit=4 * RLIMIT)
    return "unsat" if fewer == "unsat" else "unknown"


def _nested(term: Any) -> bool:
    """Whether an existential stands inside a universal: what makes instances without end."""
    return z3.is_quantifier(term) and any(z3.is_quantifier(t) for t in _below(term.body()))


def _below(term: Any) -> Iterator[Any]:
    yield term
    for child in term.children():
        yield from _below(child)


def _same(mutant: Mutant, page_size: int) -> Iterator[Obligation]:
    law = mutant.base
    smt = replace(reading(page_size), law=law)
    obligations = Obligations(smt, law)
    base: Action | Operation
    base = law.actions[mutant.subject] if mutant.of_action else law.operations[mutant.subject]
    given = list(obligations.hypotheses)
    if not mutant.of_action:
        given += [smt.formula(p.term, {}, obligations.before) for p in obligations.step]
    env = smt.parameters(base.params)
    old, then = _taken(smt, base, env, obligations.before)
    new, there = _taken(smt, mutant.item, env, obligations.before)
    for goals, premises in ((old, new), (new, old)):
        for goal in goals:
            if all(goal is not p and not goal.eq(p) for p in premises):
                yield Obligation("equivalent", mutant.subject, "guard", (*given, *premises), goal, env)
    for name, relation in law.relations.items():
        if then.relations[name] is not there.relations[name]:
            xs = [z3.FreshConst(smt.sorts[s]) for s in relation.sorts]
            goal = then.relations[name](*xs) == there.relations[name](*xs)
            yield Obligation("equivalent", mutant.subject, name, (*given, *old), goal, env)
    for name, function in law.functions.items():
        if then.functions[name] is not there.functions[name]:
            x = z3.FreshConst(smt.sorts[function.sort])
            goal = then.functions[name](x) == there.functions[name](x)
            yield Obligation("equivalent", mutant.subject, name, (*given, *old), goal, env)


def _taken(smt: Smt, item: Action | Operation, env: Env, now: View) -> tuple[list[Expr], View]:
    """When the item is enabled, and the state behind it."""
    if isinstance(item, Action):
        return [e.expr for e in smt.guard(item, env, now)], smt.act(item, env, now)
    enabled, after = smt.operate(item, env, now)
    return [e.expr for e in enabled], after


def _tuples(smt: Smt, sorts: Sequence[Any]) -> Iterator[tuple[Expr, ...]]:
    if not sorts:
        yield ()
        return
    for x in smt.elements[sorts[0]]:
        for rest in _tuples(smt, sorts[1:]):
            yield (x, *rest)


def _speaks_of(contract: Property, item: Action | Operation) -> bool:
    """Events and operations may share a name: a contract's parameters are those of what it was written for."""
    same = len(contract.params) == len(item.params)
    return (
        contract.group == item.name and same and all(p is q for p, q in zip(contract.params, item.params, strict=True))
    )


def _decided(solver: Any) -> bool:
    verdict = solver.check()
    if verdict == z3.unknown:
        raise ReadingsDisagree(f"a grounded question was not decided: {solver.reason_unknown()}")
    return bool(verdict == z3.sat)
