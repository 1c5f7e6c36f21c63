"""The text reading: terms, events and steps as a person reads them; `document` makes a page of them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from freehold.spec.language import Action, Argument, Comprehension, Operation, Step
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
)

_QUANTIFIERS = {"forall": "∀", "exists": "∃", "lone": "at most one", "one": "exactly one", "no": "no"}
_COMPARE = {"<": "<", "<=": "≤", "==": "="}


def formula(term: Formula) -> str:
    """`∀ k: Record, p: Page · owns(k, p) → maps(k, p)`."""
    match term:
        case And():
            return " ∧ ".join(map(_inner, _flat(term, And))) or "true"
        case Or((Not(premise), conclusion)):
            return f"{_inner(premise)} → {_inner(conclusion)}"
        case Or():
            return " ∨ ".join(map(_inner, _flat(term, Or))) or "false"
        case Not(Same(left, right)):
            return f"{left.name} ≠ {right.name}"
        case Not(body):
            return f"¬{_inner(body)}"
        case Same(left, right):
            return f"{left.name} = {right.name}"
        case Compare(op, left, right):
            return f"{number(left)} {_COMPARE[op]} {number(right)}"
        case Atom(of, args, primed):
            return f"{_prime(of.name, primed)}({', '.join(a.name for a in args)})"
        case Quantified(kind, bound, body):
            return f"{_QUANTIFIERS[kind]} {', '.join(_typed(v) for v in bound)} · {formula(body)}"
    raise TypeError(term)


def _flat(term: Formula, kind: type[And | Or]) -> Iterator[Formula]:
    """The parts of a conjunction of conjunctions, or of a disjunction of those; an implication stays one part."""
    if not isinstance(term, kind) or (isinstance(term, Or) and _implies(term)):
        yield term
        return
    for part in term.parts:
        yield from _flat(part, kind)


def _implies(term: Or) -> bool:
    return len(term.parts) == 2 and isinstance(term.parts[0], Not)


def _inner(term: Formula) -> str:
    bare = isinstance(term, Atom | Compare | Same) or (isinstance(term, Not) and isinstance(term.body, Atom | Same))
    single = isinstance(term, And) and len(term.parts) == 1
    return formula(term) if bare or single else f"({formula(term)})"


def number(term: Int) -> str:
    match term:
        case Literal_(IntEnum() as value):
            return value.name
        case Literal_(value):
            return str(value)
        case Constant(name) | IntVar(name):
            return name
        case Apply(of, arg, primed):
            return f"{_prime(of.name, primed)}({arg.name})"
        case Arith(("min" | "max") as op, left, right):
            return f"{op}({number(left)}, {number(right)})"
        case Arith("//", left, right):
            return f"⌊{_factor(left)} / {_factor(right)}⌋"
        case Arith("*", left, right):
            return f"{_factor(left)} * {_factor(right)}"
        case Arith(op, left, right):
            return f"{number(left)} {op} {_factor(right) if op == '-' else number(right)}"
    raise TypeError(term)


def _factor(term: Int) -> str:
    return f"({number(term)})" if isinstance(term, Arith) and term.op in ("+", "-") else number(term)


def _prime(name: str, primed: bool) -> str:
    return f"{name}'" if primed else name


def _typed(param: Param) -> str:
    if isinstance(param, SetOf):
        return f"{param.name}: set of {param.sort.__name__}"
    return f"{param.name}: {type(param).__name__ if isinstance(param, Element) else 'Int'}"


def update(change: Change | Assign) -> str:
    """`owns gains (k, x) for all x: Page with pages(x)`; a change of one tuple may stand under an `if`."""
    if isinstance(change, Assign):
        return f"{change.of.name}({change.arg.name}) := {number(change.value)}"
    verb = "gains" if change.gains else "loses"
    text = f"{change.of.name} {verb} ({', '.join(a.name for a in change.args)})"
    where = formula(change.where)
    if change.bound:
        text += f" for all {', '.join(_typed(v) for v in change.bound)}"
    return text if where == "true" else f"{text} {'with' if change.bound else 'if'} {where}"


def signature(item: Action | Operation) -> str:
    """`acquire(k: Record, pages: set of Page)`."""
    return f"{item.name}({', '.join(_typed(p) for p in item.params)})"


def argument(value: Argument) -> str:
    """`k`, `A(k) + 1`, `{p}`, `{x : owns(k, x)}`."""
    match value:
        case Comprehension(bound, Same(left, right)) if left is bound or right is bound:
            return f"{{{(right if left is bound else left).name}}}"
        case Comprehension(bound, where):
            return f"{{{bound.name} : {formula(where)}}}"
        case Int():
            return number(value)
    return value.name


def step(item: Step) -> str:
    """`release(k, {p : owns(k, p)})`."""
    return f"{item.action.name}({', '.join(argument(a) for a in item.args)})"
