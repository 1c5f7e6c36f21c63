"""The law for an engine that lacks something: without a swa pool, without sessions, without anything in flight.

A sort that an engine does not have is empty. The reading below puts that into the text once: a relation over an empty
sort is false, a quantifier over it is decided, an event that needs an element of it cannot happen. What is left is a
smaller law that means the same, and the searches and the monitor work on that instead of carrying empty columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from freehold.spec.language import Action, Argument, Clause, Comprehension, Law, Operation, Property, Step
from freehold.spec.terms import (
    FALSE,
    TRUE,
    And,
    Apply,
    Arith,
    Assign,
    Atom,
    Change,
    Compare,
    Constant,
    Element,
    Formula,
    Function,
    Int,
    Literal_,
    Not,
    Or,
    Param,
    Quantified,
    Relation,
    SetOf,
    Sort,
    Update,
)


def without(law: Law, sorts: Iterable[Sort], constants: Mapping[str, int] | None = None) -> Law:
    """The law where the given sorts are empty and the given constants have their values.

    What no event can make true any more goes as well, until nothing changes: a relation that starts empty and never
    gains, a function that stays at 0.
    """
    gone, fixed = frozenset(sorts), constants or {}
    dead: frozenset[Relation | Function] = frozenset()
    while True:
        left = _Without(gone, fixed, dead).law(law)
        found = dead | _dead(left)
        if found == dead:
            return left
        dead = found


def likewise(changed: Law, law: Law, smaller: Law, constants: Mapping[str, int]) -> Law:
    """A changed law, or a part of one, read as `law` was when it became `smaller`: the same symbols go, no others."""
    lost = [r for n, r in law.relations.items() if n not in smaller.relations]
    still = [f for n, f in law.functions.items() if n not in smaller.functions]
    gone = frozenset(law.sorts) - frozenset(smaller.sorts)
    return _Without(gone, constants, frozenset([*lost, *still])).law(changed)


def _dead(law: Law) -> frozenset[Relation | Function]:
    updates = [u for a in law.actions.values() for u in a.updates]
    gains = {u.of for u in updates if isinstance(u, Change) and u.gains}
    full = {
        c.body.of for c in law.initial
        if isinstance(c, Quantified) and c.kind == "forall" and isinstance(c.body, Atom)
    }  # fmt: skip
    moves = {u.of for u in updates if isinstance(u, Assign) and not _stays_zero(u.value, u.of)}
    return frozenset(
        [r for r in law.relations.values() if r not in gains | full]
        + [f for f in law.functions.values() if f not in moves]
    )


def _stays_zero(value: Int, of: Function) -> bool:
    """Whether an assigned value is 0 as long as the function is: a minimum is, as no length is negative."""
    match value:
        case Literal_(0):
            return True
        case Apply(other, _):
            return other is of
        case Arith("min", left, right):
            return _stays_zero(left, of) or _stays_zero(right, of)
    return False


class _Without:
    def __init__(
        self, gone: frozenset[Sort], constants: Mapping[str, int], dead: frozenset[Relation | Function]
    ) -> None:
        self.gone, self.constants, self.dead = gone, constants, dead

    def law(self, law: Law) -> Law:
        actions = {n: self.action(a) for n, a in law.actions.items() if self._possible(a.params)}
        actions = {n: a for n, a in actions.items() if all(c.term is not FALSE for c in a.guard)}
        made = {n: self.operation(o, actions) for n, o in law.operations.items() if self._possible(o.params)}
        actions = {n: a for n, a in actions.items() if _matters(a) or not _matters(law.actions[n])}
        invariants = {n: self.property(p) for n, p in law.invariants.items()}
        invariants = {n: p for n, p in invariants.items() if p.term is not TRUE}
        for name, p in invariants.items():
            invariants[name] = replace(p, uses=tuple(invariants[u.name] for u in p.uses if u.name in invariants))
        contracts = {n: self.property(p, actions[p.group]) for n, p in law.contracts.items() if p.group in actions}
        witnesses = {n: self.property(p) for n, p in law.witnesses.items()}
        return replace(
            law,
            sorts=[s for s in law.sorts if s not in self.gone],
            relations={n: r for n, r in law.relations.items() if r not in self.dead and not self.gone & set(r.sorts)},
            functions={n: f for n, f in law.functions.items() if f not in self.dead and f.sort not in self.gone},
            actions=actions,
            operations={n: o for n, o in made.items() if o is not None},
            invariants=invariants,
            contracts={n: p for n, p in contracts.items() if p.term is not TRUE},
            witnesses={n: p for n, p in witnesses.items() if p.term is not FALSE},
            lemmas={n: self.property(p) for n, p in law.lemmas.items() if self._possible(p.params)},
            idle=self.formula(law.idle),
            initial=[f for f in map(self.formula, law.initial) if f is not TRUE],
        )

    def _possible(self, params: tuple[Param, ...]) -> bool:
        return not any(isinstance(p, Element) and type(p) in self.gone for p in params)

    def _kept(self, param: Param) -> bool:
        return not (isinstance(param, SetOf) and param.sort in self.gone)

    def action(self, action: Action) -> Action:
        guard = tuple(c for c in map(self.clause, action.guard) if c.term is not TRUE)
        updates = tuple(u for u in map(self.update, action.updates) if u is not None)
        return replace(action, params=tuple(filter(self._kept, action.params)), guard=guard, updates=updates)

    def operation(self, operation: Operation, actions: dict[str, Action]) -> Operation | None:
        """The operation, its steps without those that do nothing; None when a step cannot happen."""
        if any(s.action.name not in actions for s in operation.steps):
            return None
        guard = tuple(c for c in map(self.clause, operation.guard) if c.term is not TRUE)
        if any(c.term is FALSE for c in guard):
            return None
        steps = []
        for step in operation.steps:
            args = zip(step.action.params, step.args, strict=True)
            kept = tuple(self.argument(a) for p, a in args if self._kept(p))
            left = actions[step.action.name]
            if _matters(left):
                steps.append(Step(left, kept))
        return replace(operation, guard=guard, steps=tuple(steps))

    def argument(self, arg: Argument) -> Argument:
        if isinstance(arg, Comprehension):
            return Comprehension(arg.bound, self.formula(arg.where))
        return self.integer(arg) if isinstance(arg, Int) else arg

    def clause(self, clause: Clause) -> Clause:
        return replace(clause, term=self.formula(clause.term))

    def property(self, prop: Property, action: Action | None = None) -> Property:
        params = prop.params if action is None else action.params
        return replace(prop, term=self.formula(prop.term), params=params)

    def update(self, update: Update) -> Update | None:
        if not isinstance(update, Change):
            if update.of.sort in self.gone or update.of in self.dead:
                return None
            return replace(update, value=self.integer(update.value))
        if update.of in self.dead or self.gone & set(update.of.sorts):
            return None
        where = self.formula(update.where)
        return None if where is FALSE else replace(update, where=where)

    def formula(self, term: Formula) -> Formula:
        match term:
            case And(parts):
                return _join(parts, self, And, TRUE, FALSE)
            case Or(parts):
                return _join(parts, self, Or, FALSE, TRUE)
            case Not(body):
                inner = self.formula(body)
                return FALSE if inner is TRUE else TRUE if inner is FALSE else Not(inner)
            case Compare(op, left, right):
                return _compared(op, self.integer(left), self.integer(right))
            case Atom(of, _):
                sorts = (of.sort,) if isinstance(of, SetOf) else of.sorts
                return FALSE if of in self.dead or self.gone & set(sorts) else term
            case Quantified(kind, bound, body):
                if any(type(v) in self.gone for v in bound):
                    return TRUE if kind in ("forall", "no", "lone") else FALSE
                inner = self.formula(body)
                if inner is FALSE and kind != "forall":
                    return TRUE if kind in ("no", "lone") else FALSE
                return TRUE if inner is TRUE and kind == "forall" else Quantified(kind, bound, inner)
        return term

    def integer(self, term: Int) -> Int:
        """The value with fixed constants and dead functions put in."""
        match term:
            case Constant(name) if name in self.constants:
                return Literal_(self.constants[name])
            case Apply(of, _) if of in self.dead:
                return Literal_(0)
            case Arith(op, left, right):
                a, b = self.integer(left), self.integer(right)
                return a if op in "+-" and isinstance(b, Literal_) and b.value == 0 else Arith(op, a, b)
        return term


def _matters(action: Action) -> bool:
    """Whether an event asks or changes anything; the release of states does not where there are none."""
    return bool(action.updates or action.guard)


def _compared(op: Literal["<", "<=", "=="], left: Int, right: Int) -> Formula:
    if isinstance(left, Literal_) and isinstance(right, Literal_):
        a, b = left.value, right.value
        return TRUE if (a < b if op == "<" else a <= b if op == "<=" else a == b) else FALSE
    return Compare(op, left, right)


def _join(parts: tuple[Formula, ...], reading: _Without, kind: Any, neutral: Formula, absorbing: Formula) -> Formula:
    kept = [p for p in map(reading.formula, parts) if p is not neutral]
    if any(p is absorbing for p in kept):
        return absorbing
    return neutral if not kept else kept[0] if len(kept) == 1 else kind(tuple(kept))
