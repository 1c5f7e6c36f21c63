"""Small changes to the law: what a waiver accepts, what a bug does.

A change names what it touches and nothing else, so a variant can be read beside the law instead of in its place. Terms
are written over the parameters of the action or operation that they go into, in their order.

    variant(law, edit("evict", drop="no record locks the page"))
    variant(law, edit("truncate", swap={"the published prefix stays": lambda k, a: a >= 0}))
    variant(law, steps("finish", lambda r, k, w: [close(k), place_(r, Place.OUT)]))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from freehold.spec.language import Action, Clause, Law, Operation, Step
from freehold.spec.terms import Change, Formula, LawError, Param, Update

Write = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of an action or an operation.

    drop: texts of guard clauses that go. swap: clauses with another meaning. add: clauses that come. undo: updates that
    go, by the name of what they change. do: updates that come. steps: the operation's steps instead of its own.
    """

    name: str
    drop: tuple[str, ...] = ()
    swap: Mapping[str, Write] = field(default_factory=dict)
    add: Mapping[str, Write] = field(default_factory=dict)
    undo: tuple[str, ...] = ()
    do: Write | None = None
    steps: Write | None = None


def edit(
    name: str,
    *,
    drop: str | tuple[str, ...] = (),
    swap: Mapping[str, Write] | None = None,
    add: Mapping[str, Write] | None = None,
    undo: str | tuple[str, ...] = (),
    do: Write | None = None,
) -> Edit:
    """A change of an action; for an operation only its own clauses can be dropped, swapped and added."""
    return Edit(name, _tuple(drop), swap or {}, add or {}, _tuple(undo), do)


def steps(name: str, write: Write, *, drop: str | tuple[str, ...] = ()) -> Edit:
    """An operation that takes other steps, and may lack clauses of its own."""
    return Edit(name, drop=_tuple(drop), steps=write)


def variant(law: Law, *edits: Edit, extra: Callable[[Law], None] | None = None) -> Law:
    """The law with some changes; operations take the changed actions.

    `extra` may write more actions, operations and invariants into the variant, which is a copy. Raises LawError when
    an edit names something that is not there.
    """
    for one in edits:
        law = _apply(law, one)
    if extra is not None:
        law = replace(
            law,
            relations=dict(law.relations), functions=dict(law.functions), actions=dict(law.actions),
            operations=dict(law.operations), invariants=dict(law.invariants), contracts=dict(law.contracts),
        )  # fmt: skip
        extra(law)
    return law


def _apply(law: Law, one: Edit) -> Law:
    if one.name in law.operations:
        changed = _changed_operation(law.operations[one.name], one)
        return replace(law, operations={**law.operations, one.name: changed})
    if one.name not in law.actions:
        raise LawError(f"no event or operation is named {one.name!r}")
    return with_action(law, _changed_action(law.actions[one.name], one))


def with_action(law: Law, action: Action) -> Law:
    """The law with an action in place of the one of its name, in the operations that take it, too."""

    def relink(step: Step) -> Step:
        return replace(step, action=action) if step.action.name == action.name else step

    operations = {n: replace(o, steps=tuple(map(relink, o.steps))) for n, o in law.operations.items()}
    return replace(law, actions={**law.actions, action.name: action}, operations=operations)


def _changed_operation(operation: Operation, one: Edit) -> Operation:
    if one.undo or one.do:
        raise LawError(f"{operation.name} is an operation: it has steps and no updates")
    taken = operation.steps
    if one.steps is not None:
        taken = tuple(s for s in one.steps(*operation.params))
    return replace(operation, guard=_changed_guard(operation.guard, operation.params, one), steps=taken)


def _changed_action(action: Action, one: Edit) -> Action:
    if one.steps is not None:
        raise LawError(f"{action.name} is an event: it has no steps")
    updates: list[Update] = [u for u in action.updates if _named(u) not in one.undo and u.of.name not in one.undo]
    missing = [n for n in one.undo if all(n not in (_named(u), u.of.name) for u in action.updates)]
    if missing:
        raise LawError(f"{action.name} does not change {missing[0]}")
    if one.do is not None:
        updates += one.do(*action.params)
    return replace(action, guard=_changed_guard(action.guard, action.params, one), updates=tuple(updates))


def _named(update: Update) -> str:
    """`free gains`, `free loses`, or the name of a function."""
    if isinstance(update, Change):
        return f"{update.of.name} {'gains' if update.gains else 'loses'}"
    return update.of.name


def _changed_guard(guard: tuple[Clause, ...], params: tuple[Param, ...], one: Edit) -> tuple[Clause, ...]:
    known = {c.text for c in guard}
    for text in (*one.drop, *one.swap):
        if text not in known:
            raise LawError(f"{one.name} has no clause {text!r}; it has: {'; '.join(sorted(known))}")
    kept = [
        replace(c, term=_term(one.swap[c.text], params)) if c.text in one.swap else c
        for c in guard
        if c.text not in one.drop
    ]
    return (*kept, *(Clause(text, _term(write, params)) for text, write in one.add.items()))


def _term(write: Write, params: tuple[Param, ...]) -> Formula:
    term = write(*params)
    if not isinstance(term, Formula):
        raise LawError("a clause has to be a formula")
    return term


def _tuple(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
