"""The smt reading: terms become Z3 expressions, for any number of elements or grounded over a scope.

Unbounded, each sort is uninterpreted and quantifiers stay quantifiers: an `unsat` holds for every number of pages,
records and requests. Grounded, the elements of a sort are a fixed list of distinct constants and quantifiers are
expanded over them: everything is quantifier-free, so Z3 always answers and a model is a readable state.

A state is a `View`: what each relation and function is, as a callable to Z3 expressions. An action maps a view to the
next one by composition, so an operation of seven events needs no intermediate symbols and no frame axioms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import z3

from freehold.spec.language import Action, Argument, Comprehension, Law, Operation
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
    Same,
    SetOf,
    Sort,
)

Expr = Any
Env = Mapping[Param, Any]


@dataclass(frozen=True, slots=True)
class View:
    """One state: a callable per relation (elements to Bool) and per function (element to Int)."""

    relations: Mapping[str, Callable[..., Expr]]
    functions: Mapping[str, Callable[[Expr], Expr]]


@dataclass(frozen=True, slots=True)
class Enabled:
    """A guard clause with its meaning, and where it comes from."""

    action: str
    text: str
    expr: Expr


@dataclass(slots=True)
class Smt:
    """Z3 symbols of one law, unbounded (`scope` empty) or grounded over `scope` elements a sort."""

    law: Law
    constants: Mapping[str, Expr]
    scope: Mapping[str, int] = field(default_factory=dict)
    context: z3.Context | None = None
    sorts: dict[Sort, Any] = field(init=False)
    elements: dict[Sort, list[Expr]] = field(init=False)

    def __post_init__(self) -> None:
        self.sorts = {s: z3.DeclareSort(s.__name__, self.context) for s in self.law.sorts}
        self.elements = {
            s: [z3.Const(f"{s.__name__.lower()}{i}", self.sorts[s]) for i in range(self.scope.get(s.__name__, 0))]
            for s in self.law.sorts
        }

    def distinct(self) -> list[Expr]:
        """The grounded elements of a sort differ."""
        return [z3.Distinct(*xs) for xs in self.elements.values() if len(xs) > 1]

    def state(self, tag: str) -> View:
        """A state of fresh symbols."""
        boolean, integer = z3.BoolSort(self.context), z3.IntSort(self.context)
        relations = {
            n: z3.Function(f"{n}{tag}", *(self.sorts[s] for s in r.sorts), boolean)
            for n, r in self.law.relations.items()
        }
        functions = {n: z3.Function(f"{n}{tag}", self.sorts[f.sort], integer) for n, f in self.law.functions.items()}
        return View(relations, functions)

    def parameters(self, params: Sequence[Param], tag: str = "") -> dict[Param, Any]:
        """Fresh symbols for an action's or operation's parameters."""
        env: dict[Param, Any] = {}
        for p in params:
            if isinstance(p, IntVar):
                env[p] = z3.Int(f"{p.name}{tag}", self.context)
            elif isinstance(p, SetOf):
                env[p] = z3.Function(f"{p.name}{tag}", self.sorts[p.sort], z3.BoolSort(self.context))
            else:
                env[p] = z3.Const(f"{p.name}{tag}", self.sorts[type(p)])
        return env

    def inside(self, env: Env) -> list[Expr]:
        """Grounded parameters are elements of the scope."""
        return [z3.Or(*(v == e for e in self.elements[type(p)])) for p, v in env.items() if isinstance(p, Element)]

    # Terms -----------------------------------------------------------------------------------------------------------

    def formula(self, term: Formula, env: Env, now: View, after: View | None = None) -> Expr:
        """The Bool expression of a formula; `after` is the state that `next_` speaks of."""
        match term:
            case And(parts):
                return z3.And(*(self.formula(p, env, now, after) for p in parts), self._true())
            case Or(parts):
                return z3.Or(*(self.formula(p, env, now, after) for p in parts), z3.Not(self._true()))
            case Not(body):
                return z3.Not(self.formula(body, env, now, after))
            case Same(left, right):
                return env[left] == env[right]
            case Compare(op, left, right):
                a, b = self.integer(left, env, now, after), self.integer(right, env, now, after)
                return {"<": a < b, "<=": a <= b, "==": a == b}[op]
            case Atom(SetOf() as of, (arg,)):
                return env[of](env[arg])
            case Atom(of, args, primed):
                view = after if primed and after is not None else now
                return view.relations[of.name](*(env[a] for a in args))
            case Quantified(kind, bound, body):
                return self.quantified(kind, bound, lambda e: self.formula(body, {**env, **e}, now, after))
        raise TypeError(term)

    def integer(self, term: Int, env: Env, now: View, after: View | None = None) -> Expr:
        """The Int expression of an integer term."""
        match term:
            case Literal_(value):
                return z3.IntVal(value, self.context)
            case Constant(name):
                value = self.constants[name]
                return z3.IntVal(value, self.context) if isinstance(value, int) else value
            case IntVar():
                return env[term]
            case Apply(of, arg, primed):
                return (after if primed and after is not None else now).functions[of.name](env[arg])
            case Arith(op, left, right):
                a, b = self.integer(left, env, now, after), self.integer(right, env, now, after)
                if op in ("min", "max"):
                    return z3.If(a <= b if op == "min" else a >= b, a, b)
                return {"+": a.__add__, "-": a.__sub__, "*": a.__mul__, "//": a.__truediv__}[op](b)
        raise TypeError(term)

    def _true(self) -> Expr:
        return z3.BoolVal(True, self.context)

    def quantified(self, kind: str, bound: tuple[Element, ...], body: Callable[[Env], Expr]) -> Expr:
        """A quantifier over what `body` makes of values for the bound variables."""
        if kind in ("lone", "one"):
            twins = tuple(type(v)(f"{v.name}'") for v in bound)
            lone = self.quantified(
                "forall", (*bound, *twins),
                lambda e: z3.Implies(
                    z3.And(body(e), body({v: e[t] for v, t in zip(bound, twins, strict=True)})),
                    z3.And(*(e[v] == e[t] for v, t in zip(bound, twins, strict=True))),
                ),
            )  # fmt: skip
            return lone if kind == "lone" else z3.And(lone, self.quantified("exists", bound, body))
        if kind == "no":
            return z3.Not(self.quantified("exists", bound, body))
        if self.scope:
            ground = [
                body(dict(zip(bound, values, strict=True)))
                for values in itertools.product(*(self.elements[type(v)] for v in bound))
            ]
            return (z3.And if kind == "forall" else z3.Or)(*ground)
        consts = [z3.FreshConst(self.sorts[type(v)], v.name) for v in bound]
        quantify = z3.ForAll if kind == "forall" else z3.Exists
        return quantify(consts, body(dict(zip(bound, consts, strict=True))))

    # Actions and operations ------------------------------------------------------------------------------------------

    def guard(self, action: Action, env: Env, now: View) -> list[Enabled]:
        return [Enabled(action.name, c.text, self.formula(c.term, env, now)) for c in action.guard]

    def act(self, action: Action, env: Env, now: View) -> View:
        """The state after an action: everything it does not assign is as before."""
        relations, functions = dict(now.relations), dict(now.functions)
        for update in action.updates:
            match update:
                case Change(of, args, bound, where, gains):
                    relations[of.name] = self._changed(relations[of.name], args, bound, where, gains, env, now)
                case Assign(of, arg, value):
                    functions[of.name] = _assigned(now.functions[of.name], env[arg], self.integer(value, env, now))
        return View(relations, functions)

    def _changed(
        self, old: Callable[..., Expr], args: tuple[Element, ...], bound: tuple[Element, ...], where: Formula,
        gains: bool, env: Env, now: View,
    ) -> Callable[..., Expr]:  # fmt: skip
        free = frozenset(bound)

        def value(*xs: Expr) -> Expr:
            here: dict[Param, Any] = {**env, **{a: x for a, x in zip(args, xs, strict=True) if a in free}}
            fixed = [env[a] == x for a, x in zip(args, xs, strict=True) if a not in free]
            hit = z3.And(*fixed, self.formula(where, here, now), self._true())
            return z3.Or(old(*xs), hit) if gains else z3.And(old(*xs), z3.Not(hit))

        return _memo(value)

    def arguments(self, params: Sequence[Param], args: Sequence[Argument], env: Env, now: View) -> dict[Param, Any]:
        """A step's arguments as values for its action's parameters, read in the state before the step."""
        values: dict[Param, Any] = {}
        for param, arg in zip(params, args, strict=True):
            values[param] = self._argument(arg, env, now)
        return values

    def _argument(self, arg: Argument, env: Env, now: View) -> Any:
        match arg:
            case Comprehension(bound, where):
                return _memo(lambda x: self.formula(where, {**env, bound: x}, now))
            case Int():
                return self.integer(arg, env, now)
        return env[arg]

    def operate(self, operation: Operation, env: Env, now: View) -> tuple[list[Enabled], View]:
        """All guards of an operation along its steps, and the state at its end."""
        enabled = [Enabled(operation.name, c.text, self.formula(c.term, env, now)) for c in operation.guard]
        for step in operation.steps:
            inner = self.arguments(step.action.params, step.args, env, now)
            enabled += self.guard(step.action, inner, now)
            now = self.act(step.action, inner, now)
        return enabled, now


def _memo(value: Callable[..., Expr]) -> Callable[..., Expr]:
    """Share one expression for equal arguments: compositions stay graphs instead of growing into trees."""
    known: dict[tuple[int, ...], tuple[Any, Expr]] = {}

    def shared(*xs: Expr) -> Expr:
        key = tuple(x.get_id() for x in xs)
        if key not in known:
            known[key] = (xs, value(*xs))  # the arguments are kept alive: Z3 reuses the ids of dead terms
        return known[key][1]

    return shared


def _assigned(old: Callable[[Expr], Expr], arg: Expr, new: Expr) -> Callable[[Expr], Expr]:
    return _memo(lambda x: z3.If(x == arg, new, old(x)))
