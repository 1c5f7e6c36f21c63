"""The text reading: the law as a person reads it, in Markdown."""

from __future__ import annotations

from freehold.spec.language import Action, Law, Operation, Property, Step
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
)

_QUANTIFIERS = {"forall": "∀", "exists": "∃", "lone": "at most one", "one": "exactly one", "no": "no"}
_COMPARE = {"<": "<", "<=": "≤", "==": "="}


def formula(term: Formula) -> str:
    """`∀ k: Record, p: Page · owns(k, p) → maps(k, p)`."""
    match term:
        case And(parts):
            return " ∧ ".join(_inner(p) for p in parts) or "true"
        case Or((Not(premise), conclusion)):
            return f"{_inner(premise)} → {_inner(conclusion)}"
        case Or(parts):
            return " ∨ ".join(_inner(p) for p in parts) or "false"
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


def _inner(term: Formula) -> str:
    bare = isinstance(term, Atom | Compare | Same) or (isinstance(term, Not) and isinstance(term.body, Atom | Same))
    single = isinstance(term, And) and len(term.parts) == 1
    return formula(term) if bare or single else f"({formula(term)})"


def number(term: Int) -> str:
    match term:
        case Literal_(value):
            return str(value)
        case Constant(name) | IntVar(name):
            return name
        case Apply(of, arg, primed):
            return f"{_prime(of.name, primed)}({arg.name})"
        case Arith(("min" | "max") as op, left, right):
            return f"{op}({number(left)}, {number(right)})"
        case Arith(op, left, right):
            return f"({number(left)} {op} {number(right)})"
    raise TypeError(term)


def _prime(name: str, primed: bool) -> str:
    return f"{name}'" if primed else name


def _typed(param: Param) -> str:
    if isinstance(param, SetOf):
        return f"{param.name}: set of {param.sort.__name__}"
    return f"{param.name}: {type(param).__name__ if isinstance(param, Element) else 'Int'}"


def update(change: Change | Assign) -> str:
    """`owns gains (k, x) for all x: Page with pages(x)`."""
    if isinstance(change, Assign):
        return f"{change.of.name}({change.arg.name}) := {number(change.value)}"
    verb = "gains" if change.gains else "loses"
    text = f"{change.of.name} {verb} ({', '.join(a.name for a in change.args)})"
    if change.bound:
        text += f" for all {', '.join(_typed(v) for v in change.bound)}"
        where = formula(change.where)
        text += "" if where == "true" else f" with {where}"
    return text


def signature(item: Action | Operation) -> str:
    """`acquire(k: Record, pages: set of Page)`."""
    return f"{item.name}({', '.join(_typed(p) for p in item.params)})"


def action(item: Action) -> str:
    """An event as a Markdown section: its guard clauses with their meaning, and its updates."""
    lines = [f"### `{signature(item)}`", "", item.doc, "", "| requires | meaning |", "|---|---|"]
    lines += [f"| {c.text} | `{formula(c.term)}` |" for c in item.guard]
    lines += ["", "| effect |", "|---|", *(f"| `{update(u)}` |" for u in item.updates), ""]
    return "\n".join(lines)


def operation(item: Operation) -> str:
    """An operation as a Markdown table row: its preconditions and its events in order."""
    requires = "; ".join(c.text for c in item.guard) or "-"
    return f"| `{signature(item)}` | {item.doc} | {requires} | {' · '.join(_step(s) for s in item.steps)} |"


def _step(step: Step) -> str:
    return f"`{step.action.name}`"


def rule(item: Property) -> str:
    """A property as a Markdown table row."""
    return f"| `{item.name}` | {item.group} | {item.doc} | `{formula(item.term)}` |"


def _meaning(relation: Relation) -> str:
    return f"{relation.doc} (ghost: the law alone keeps it)" if relation.ghost else relation.doc


def markdown(law: Law) -> str:
    """The whole law."""
    head = ["| property | holds | in words | meaning |", "|---|---|---|---|"]
    parts = [f"# The law: {law.name}", "", "## State", "", "| relation or function | of | meaning |", "|---|---|---|"]
    parts += [
        f"| `{r.name}` | {', '.join(s.__name__ for s in r.sorts)} | {_meaning(r)} |" for r in law.relations.values()
    ]
    parts += [f"| `{f.name}` | {f.sort.__name__} → Int | {f.doc} |" for f in law.functions.values()]
    parts += ["", "## Invariants", "", *head, *(rule(p) for p in law.invariants.values())]
    parts += ["", "## Events", "", *(action(a) for a in law.actions.values())]
    parts += ["## Operations", "", "| operation | in words | requires | events |", "|---|---|---|---|"]
    parts += [operation(o) for o in law.operations.values()]
    parts += ["", "## Contracts", "", *head, *(rule(p) for p in law.contracts.values())]
    parts += ["", "## Witnesses", "", *head, *(rule(p) for p in law.witnesses.values()), ""]
    return "\n".join(parts)
