"""The ground reading: the law over a scope as circuits over the bits of a state.

Elements and numbers are Python integers here, so quantifiers unroll and only what differs from state to state is left.
A `World` says what is true of each tuple as a node, and what each function's value is as a tree; an action makes a new
world out of one. Running the circuits is the business of `gates` and `successors`.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from freehold.model_check.gates import FALSE, TRUE, Gates, Node, Tree, combine
from freehold.spec.language import Action, Argument, Clause, Comprehension
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
    LawError,
    Literal_,
    Not,
    Or,
    Param,
    Quantified,
    Same,
    SetOf,
    Sort,
)

Env: TypeAlias = Mapping[Param, Any]
"""Elements as integers, sets as a node for each element, numbers as trees."""
_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "min": min, "max": max,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {"<": operator.lt, "<=": operator.le, "==": operator.eq}


@dataclass(frozen=True, slots=True)
class World:
    """One symbolic state: a node for each tuple of each relation, a tree for each value of each function."""

    relations: Mapping[str, Mapping[tuple[int, ...], Node]]
    functions: Mapping[str, tuple[Tree, ...]]


@dataclass(frozen=True, slots=True)
class Ground:
    """Folds terms into a circuit; `sizes` are those of the sorts."""

    gates: Gates
    sizes: Mapping[Sort, int]
    constants: Mapping[str, int]

    def holds(self, term: Formula, env: Env, now: World) -> Node:
        """Where a formula is true."""
        match term:
            case And(parts):
                return self.gates.every(self.holds(p, env, now) for p in parts)
            case Or(parts):
                return self.gates.some(self.holds(p, env, now) for p in parts)
            case Not(body):
                return self.gates.negate(self.holds(body, env, now))
            case Same(left, right):
                return TRUE if env[left] == env[right] else FALSE
            case Compare(op, left, right):
                compare = _COMPARISONS[op]
                a, b = self.number(left, env, now), self.number(right, env, now)
                return self.gates.where(combine(compare, a, b), bool)
            case Atom(SetOf() as of, (arg,)):
                return int(env[of][env[arg]])
            case Atom(of, args, primed):
                if primed:
                    raise LawError("the ground reading sees one state: contracts are not for it")
                return now.relations[of.name][tuple(env[a] for a in args)]
            case Quantified(kind, bound, body):
                return self._count(kind, (self.holds(body, e, now) for e in self.bindings(bound, env)))
        raise TypeError(term)

    def number(self, term: Int, env: Env, now: World) -> Tree:
        """The value of an integer term."""
        match term:
            case Literal_(value):
                return value
            case Constant(name):
                return self.constants[name]
            case IntVar():
                return cast(Tree, env[term])
            case Apply(of, arg, primed):
                if primed:
                    raise LawError("the ground reading sees one state: contracts are not for it")
                return now.functions[of.name][env[arg]]
            case Arith(op, left, right):
                return combine(_INTEGERS[op], self.number(left, env, now), self.number(right, env, now))
        raise TypeError(term)

    def bindings(self, bound: Sequence[Element], env: Env) -> Iterator[Env]:
        """The environment with all values of some variables."""
        for values in itertools.product(*(range(self.sizes[type(v)]) for v in bound)):
            yield {**env, **dict(zip(bound, values, strict=True))}

    def _count(self, kind: str, hits: Iterator[Node]) -> Node:
        if kind == "forall":
            return self.gates.every(hits)
        if kind == "exists":
            return self.gates.some(hits)
        if kind == "no":
            return self.gates.negate(self.gates.some(hits))
        once, twice = FALSE, FALSE
        for hit in hits:
            twice = self.gates.either(twice, self.gates.both(once, hit))
            once = self.gates.either(once, hit)
        lone = self.gates.negate(twice)
        return lone if kind == "lone" else self.gates.both(once, lone)

    # Actions ---------------------------------------------------------------------------------------------------------

    def argument(self, arg: Argument, env: Env, now: World) -> Any:
        """A step's argument in the world just before the step."""
        match arg:
            case Comprehension(bound, where):
                return tuple(self.holds(where, e, now) for e in self.bindings((bound,), env))
            case Int():
                return self.number(arg, env, now)
        return env[arg]

    def enabled(self, guard: Sequence[Clause], env: Env, now: World) -> Node:
        """Where every clause holds."""
        return self.gates.every(self.holds(c.term, env, now) for c in guard)

    def act(self, action: Action, env: Env, now: World) -> World:
        """The world after an action; its guard is not looked at. Conditions and values read the old world."""
        relations, functions = dict(now.relations), dict(now.functions)
        for update in action.updates:
            name = update.of.name
            match update:
                case Change(_, args, bound, where, gains):
                    relation = dict(relations[name])
                    hits = dict[tuple[int, ...], Node]()
                    for e in self.bindings(bound, env):
                        place = tuple(e[a] for a in args)
                        hits[place] = self.gates.either(hits.get(place, FALSE), self.holds(where, e, now))
                    for place, hit in hits.items():
                        old = relation[place]
                        relation[place] = (
                            self.gates.either(old, hit) if gains else self.gates.both(old, self.gates.negate(hit))
                        )
                    relations[name] = relation
                case Assign(_, arg, value):
                    values = list(functions[name])
                    values[env[arg]] = self.number(value, env, now)
                    functions[name] = tuple(values)
        return World(relations, functions)
