"""Mutants: the law with one small thing changed, for every guard clause, effect and operation step.

| place | changed how |
|---|---|
| a clause of an event or an operation | dropped, negated; inside it: a part dropped, and/or swapped, quantifiers and comparisons exchanged |
| a whole guard | made false |
| an update | dropped, gained instead of lost; its condition negated, made true, and changed inside as a clause is; its value moved by one |
| all updates | dropped |
| a step of an operation | dropped, swapped with the next; a set of everything, an empty one, a number moved by one, another element |

A mutant is made of the changed event or operation alone; the law around it is put together when somebody asks.
"""  # noqa: E501

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from freehold.spec import text
from freehold.spec.language import Action, Clause, Comprehension, Law, Operation, Step
from freehold.spec.terms import (
    FALSE,
    TRUE,
    And,
    Arith,
    Assign,
    Atom,
    Change,
    Compare,
    Element,
    Formula,
    Int,
    Kind,
    Not,
    Or,
    Quantified,
    Update,
    lift,
)
from freehold.spec.variant import with_action

T = TypeVar("T")
EXCHANGED: dict[Kind, tuple[Kind, ...]] = {
    "forall": ("exists",), "exists": ("forall",), "no": ("exists", "lone"), "lone": ("one", "no"), "one": ("lone",),
}  # fmt: skip
COMPARISONS = ("<", "<=", "==")
ARITHMETIC: dict[str, Any] = {"min": "max", "max": "min", "+": "-", "-": "+"}


@dataclass(frozen=True, slots=True, eq=False)
class Mutant:
    """One change of a law. `item` stands in the place of the event or operation of the same name.

    `dropped` marks the plain faults: a clause, an update, or all updates are missing.
    """

    change: str
    item: Action | Operation
    base: Law
    dropped: bool = False

    @property
    def subject(self) -> str:
        return self.item.name

    @property
    def of_action(self) -> bool:
        return isinstance(self.item, Action)

    @property
    def name(self) -> str:
        """Stable as long as the text of its event or operation is; unique in a law."""
        return f"{'event' if self.of_action else 'operation'} {self.subject}: {self.change}"

    def operations(self) -> Iterator[Operation]:
        """The operations that the change reaches, as they are with it."""
        if isinstance(self.item, Operation):
            yield self.item
            return
        taking = (o for o in self.base.operations.values() if any(s.action.name == self.subject for s in o.steps))
        yield from (self.law.operations[o.name] for o in taking)

    @property
    def law(self) -> Law:
        """The whole law with the change."""
        if isinstance(self.item, Action):
            return with_action(self.base, self.item)
        return replace(self.base, operations={**self.base.operations, self.subject: self.item})


def mutants(law: Law) -> tuple[Mutant, ...]:
    """Every mutant of a law, in the order of its text."""
    found: list[Mutant] = []
    for action in law.actions.values():
        found += _named(law, action, _of_action(action))
    for operation in law.operations.values():
        found += _named(law, operation, _of_operation(operation))
    return tuple(found)


def faults(law: Law) -> Iterator[Mutant]:
    """The plain ones: a clause, an update, or all updates of an event, or a precondition of an operation, dropped."""
    return (m for m in mutants(law) if m.dropped)


def sample(found: Sequence[Mutant], size: int, seed: int = 0) -> tuple[Mutant, ...]:
    """`size` mutants at random, in the order of the law; every event and operation has at least one among them."""
    draw = random.Random(seed)
    by_subject: dict[tuple[bool, str], list[int]] = {}
    for number, mutant in enumerate(found):
        by_subject.setdefault((mutant.of_action, mutant.subject), []).append(number)
    chosen = {draw.choice(numbers) for numbers in by_subject.values()}
    rest = [number for number in range(len(found)) if number not in chosen]
    chosen.update(draw.sample(rest, max(0, min(size - len(chosen), len(rest)))))
    return tuple(found[number] for number in sorted(chosen))


Draft = tuple[str, Any, bool]


def _named(law: Law, item: Action | Operation, drafts: Iterable[Draft]) -> Iterator[Mutant]:
    """Two changes that read the same are told apart by a number."""
    seen: dict[str, int] = {}
    for change, changed, dropped in drafts:
        seen[change] = seen.get(change, 0) + 1
        label = change if seen[change] == 1 else f"{change} (no. {seen[change]})"
        yield Mutant(label, changed, law, dropped)


def _of_action(action: Action) -> Iterator[Draft]:
    yield from _of_guard(action)
    for number, (update, put) in enumerate(_places(action.updates), start=1):
        label = f"update {number} `{text.update(update)}`"
        yield f"without {label}", replace(action, updates=put()), True
        for change, changed in _of_update(update):
            yield f"{label} {change}", replace(action, updates=put(changed)), False
    if len(action.updates) > 1:
        yield "without any effect", replace(action, updates=()), True


def _of_operation(operation: Operation) -> Iterator[Draft]:
    yield from _of_guard(operation)
    for number, (step, put) in enumerate(_places(operation.steps), start=1):
        label = f"step {number} `{step.action.name}`"
        yield f"without {label}", replace(operation, steps=put()), False
        if number < len(operation.steps):
            after = operation.steps[number]
            swapped = (*operation.steps[: number - 1], after, step, *operation.steps[number + 1 :])
            yield f"{label} after `{after.action.name}`", replace(operation, steps=swapped), False
        for change, changed in _of_step(step, operation):
            yield f"{label} {change}", replace(operation, steps=put(changed)), False


def _of_guard(item: Action | Operation) -> Iterator[Draft]:
    for clause, put in _places(item.guard):
        label = f"“{clause.text}”"
        yield f"without {label}", replace(item, guard=put()), True
        for change, term in _once(clause.term):
            yield f"{label} {change}", replace(item, guard=put(replace(clause, term=term))), False
    yield "guard made false", replace(item, guard=(Clause("never", FALSE),)), False


def _places(items: tuple[T, ...]) -> Iterator[tuple[T, Any]]:
    """Each item, with a function that gives all of them with others in its place."""
    for i, item in enumerate(items):
        yield item, lambda *new, i=i: (*items[:i], *new, *items[i + 1 :])


# Inside terms --------------------------------------------------------------------------------------------------------


def _once(term: Formula) -> Iterator[tuple[str, Formula]]:
    """The negation and all inner changes of a formula, none twice and none that reads as before."""
    seen = {text.formula(term)}
    for change, changed in (("negated", Not(term)), *_inside(term)):
        reads = text.formula(changed)
        if reads not in seen:
            seen.add(reads)
            yield change, changed


def _inside(term: Formula) -> Iterator[tuple[str, Formula]]:
    """All changes of one node of a formula, each as a whole formula."""
    match term:
        case And(parts) | Or(parts):
            kind, other = (And, Or) if isinstance(term, And) else (Or, And)
            if len(parts) > 1:
                yield f"with {'∨' if other is Or else '∧'} in `{text.formula(other(parts))}`", other(parts)
            for part, put in _places(parts):
                if len(parts) > 1:
                    yield f"without the part `{text.formula(part)}`", kind(put())
                for change, changed in _inside(part):
                    yield change, kind(put(changed))
        case Not(body):
            yield f"without ¬ before `{text.formula(body)}`", body
            for change, changed in _inside(body):
                yield change, Not(changed)
        case Quantified(kind, bound, body):
            for new in EXCHANGED[kind]:
                yield f"with {new} for {kind}", Quantified(new, bound, body)
            for change, changed in _inside(body):
                yield change, Quantified(kind, bound, changed)
        case Compare(op, left, right):
            yield from _compared(term, op, left, right)
        case Atom(of, (a, b), primed) if type(a) is type(b):
            yield f"with `{text.formula(Atom(of, (b, a), primed))}`", Atom(of, (b, a), primed)


def _compared(term: Compare, op: str, left: Int, right: Int) -> Iterator[tuple[str, Formula]]:
    shapes = [Compare(new, left, right) for new in COMPARISONS if new != op]  # type: ignore[arg-type]
    if op == "==":
        shapes += [Compare("<=", right, left)]
    shapes += [Compare(term.op, changed, right) for changed in _counted(left)]
    shapes += [Compare(term.op, left, changed) for changed in _counted(right)]
    for shape in shapes:
        yield f"with `{text.formula(shape)}` for `{text.formula(term)}`", shape


def _counted(term: Int) -> Iterator[Int]:
    """An integer term with one operator exchanged."""
    match term:
        case Arith(op, left, right):
            if op in ARITHMETIC:
                yield Arith(ARITHMETIC[op], left, right)
            yield from (Arith(op, changed, right) for changed in _counted(left))
            yield from (Arith(op, left, changed) for changed in _counted(right))


# Effects and steps ---------------------------------------------------------------------------------------------------


def _of_update(update: Update) -> Iterator[tuple[str, Update]]:
    match update:
        case Change(_, _, _, where, gains):
            yield f"{'loses' if gains else 'gains'} instead", replace(update, gains=not gains)
            if where is not TRUE and text.formula(where) != "true":
                yield "for all", replace(update, where=TRUE)
                for change, term in _once(where):
                    yield f"where {change}", replace(update, where=term)
        case Assign(_, _, value):
            for number in (value + 1, *_counted(value)):
                yield f"becomes `{text.number(number)}`", replace(update, value=number)


def _of_step(step: Step, operation: Operation) -> Iterator[tuple[str, Step]]:
    for number, (arg, put) in enumerate(_places(step.args)):
        name = step.action.params[number].name
        match arg:
            case Comprehension(bound, where):
                yield (
                    f"with every {type(bound).__name__} as {name}",
                    replace(step, args=put(Comprehension(bound, TRUE))),
                )
                yield f"with an empty {name}", replace(step, args=put(Comprehension(bound, FALSE)))
                for change, term in _once(where):
                    yield f"{name} where {change}", replace(step, args=put(Comprehension(bound, term)))
            case Int():
                shifted: list[Int] = [arg + lift(1), arg - lift(1), *_counted(arg)]
                for value in shifted:
                    yield f"with {name} = `{text.number(value)}`", replace(step, args=put(value))
            case Element():
                for other in operation.params:
                    if type(other) is type(arg) and other is not arg:
                        yield f"with {name} = `{other.name}`", replace(step, args=put(other))
