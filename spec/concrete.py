"""The concrete reading: states are Python sets, and the law's text is evaluated as it stands.

Slow and plain on purpose: it is what the other readings are compared with. Elements are any hashable values; a
quantifier ranges over the state's universe of its sort.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from freehold.spec.language import Action, Argument, Clause, Comprehension, Law, Operation
from freehold.spec.terms import (
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
    Int,
    IntVar,
    Literal_,
    Not,
    Or,
    Param,
    Quantified,
    Relation,
    Same,
    SetOf,
    Sort,
)

Env = Mapping[Param, Any]
_INT_OPS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b,
    "min": min, "max": max,
}  # fmt: skip


@dataclass(slots=True)
class State:
    """Tuples of each relation, values of each function (0 where absent), the universe, and the constants."""

    universe: dict[Sort, list[Any]]
    constants: dict[str, int]
    relations: dict[str, set[tuple[Any, ...]]]
    functions: dict[str, dict[Any, int]] = field(default_factory=dict)

    def copy(self) -> State:
        return State(
            self.universe,
            self.constants,
            {name: set(tuples) for name, tuples in self.relations.items()},
            {name: dict(values) for name, values in self.functions.items()},
        )

    def key(self) -> tuple[Any, ...]:
        """A value equal for equal states."""
        return (
            tuple(frozenset(self.relations[n]) for n in sorted(self.relations)),
            tuple(frozenset((k, v) for k, v in self.functions[n].items() if v) for n in sorted(self.functions)),
        )


def full(law: Law, universe: Mapping[str, Iterable[Any]], constants: Mapping[str, int]) -> State:
    """The state in which every unit is free, as the initial conditions say, and nothing else is true."""
    elements: dict[Sort, list[Any]] = {s: list(universe[s.__name__]) for s in law.sorts}
    relations: dict[str, set[tuple[Any, ...]]] = {name: set() for name in law.relations}
    for condition in law.initial:
        match condition:
            case Quantified("forall", (x,), Atom(Relation() as of, (y,))) if x is y:
                relations[of.name] = {(e,) for e in elements[type(x)]}
    return State(elements, dict(constants), relations, {name: {} for name in law.functions})


def initial(law: Law, scope: Mapping[str, int], constants: Mapping[str, int]) -> State:
    """The initial state over elements 0, 1, … of each sort."""
    state = full(law, {s.__name__: range(scope[s.__name__]) for s in law.sorts}, constants)
    if not all(holds(f, {}, state) for f in law.initial):
        raise AssertionError("the initial state does not satisfy the law's initial conditions")
    return state


def holds(term: Formula, env: Env, now: State, after: State | None = None) -> bool:
    """Whether a formula is true; `after` is the state that `next_` speaks of."""
    match term:
        case And(parts):
            return all(holds(p, env, now, after) for p in parts)
        case Or(parts):
            return any(holds(p, env, now, after) for p in parts)
        case Not(body):
            return not holds(body, env, now, after)
        case Same(left, right):
            return bool(env[left] == env[right])
        case Compare(op, left, right):
            a, b = number(left, env, now, after), number(right, env, now, after)
            return a < b if op == "<" else a <= b if op == "<=" else a == b
        case Atom(SetOf() as of, (arg,)):
            return env[arg] in env[of]
        case Atom(of, args, primed):
            state = after if primed and after is not None else now
            return tuple(env[a] for a in args) in state.relations[of.name]
        case Quantified(kind, bound, body):
            hits = (holds(body, {**env, **e}, now, after) for e in bindings(bound, now))
            if kind == "forall":
                return all(hits)
            if kind in ("exists", "no"):
                return any(hits) == (kind == "exists")
            count = sum(hits)
            return count == 1 or (kind == "lone" and count == 0)
    raise TypeError(term)


def number(term: Int, env: Env, now: State, after: State | None = None) -> int:
    """The value of an integer term."""
    match term:
        case Literal_(value):
            return value
        case Constant(name):
            return now.constants[name]
        case IntVar():
            return int(env[term])
        case Apply(of, arg, primed):
            return (after if primed and after is not None else now).functions[of.name].get(env[arg], 0)
        case Arith(op, left, right):
            return int(_INT_OPS[op](number(left, env, now, after), number(right, env, now, after)))
    raise TypeError(term)


def bindings(bound: Sequence[Element], now: State) -> Iterator[dict[Param, Any]]:
    """All values of some variables in the universe."""
    for values in itertools.product(*(now.universe[type(v)] for v in bound)):
        yield dict(zip(bound, values, strict=True))


def broken_clause(guard: Sequence[Clause], env: Env, now: State) -> Clause | None:
    """The first guard clause that is false, or None when the action is enabled."""
    return next((c for c in guard if not holds(c.term, env, now)), None)


def act(action: Action, env: Env, now: State) -> State:
    """The state after an action; its guard is not looked at."""
    after = now.copy()
    for update in action.updates:
        match update:
            case Change(of, args, bound, where, gains):
                hits = [{**env, **e} for e in bindings(bound, now) if holds(where, {**env, **e}, now)]
                tuples = {tuple(e[a] for a in args) for e in hits}
                after.relations[of.name] = (
                    after.relations[of.name] | tuples if gains else after.relations[of.name] - tuples
                )
            case Assign(of, arg, value):
                after.functions[of.name][env[arg]] = number(value, env, now)
    return after


def argument(arg: Argument, env: Env, now: State) -> Any:
    """The value of a step's argument in the state just before the step."""
    match arg:
        case Comprehension(bound, where):
            return frozenset(x for x in now.universe[type(bound)] if holds(where, {**env, bound: x}, now))
        case Int():
            return number(arg, env, now)
    return env[arg]


def operate(operation: Operation, env: Env, now: State) -> tuple[list[tuple[Action, Env]], State] | Clause:
    """The events that an operation takes and the state at its end, or the clause that forbids it."""
    broken = broken_clause(operation.guard, env, now)
    taken: list[tuple[Action, Env]] = []
    for step in operation.steps:
        if broken is not None:
            return broken
        inner = {p: argument(a, env, now) for p, a in zip(step.action.params, step.args, strict=True)}
        broken = broken_clause(step.action.guard, inner, now)
        if broken is None:
            now = act(step.action, inner, now)
            taken.append((step.action, inner))
    return broken if broken is not None else (taken, now)
