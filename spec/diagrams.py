"""Diagrams of the law for Mermaid, all derived: how elements change hands, and how a numbered state moves on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from typing import Any

from freehold.spec.language import Action, Law, Operation
from freehold.spec.owners import Kept, moves
from freehold.spec.terms import And, Apply, Assign, Compare, Function, IntVar, Literal_, Or


@dataclass(frozen=True, slots=True)
class Places:
    """A function that an event moves along listed edges: a place graph, with the names of its places."""

    function: Function
    action: Action
    edges: tuple[tuple[int, int], ...]
    names: dict[int, str]

    def name(self, value: int) -> str:
        """`WAITING`, or the number where the law has no name for it."""
        return self.names.get(value, str(value))


def life(law: Law, what: Kept) -> str:
    """Who has an element, as a state diagram: an arrow an event."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for move in moves(law, what):
        ends = tuple(r.name if r is not None else "[*]" for r in (move.source, move.target))
        arrows.setdefault((ends[0], ends[1]), []).append(move.event)
    lines = ["stateDiagram-v2"]
    for relation in what.owners:
        lines.append(f'    state "{relation.name}: {_plain(relation.doc)}" as {relation.name}')
    lines += [f"    {source} --> {target} : {', '.join(by)}" for (source, target), by in arrows.items()]
    return _fenced(lines)


def graph(places: Places) -> str:
    """The edges between places; what a request is at first is where the diagram begins."""
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {places.name(0)}"]
    lines += [f"    {places.name(here)} --> {places.name(there)}" for here, there in places.edges]
    return _fenced(lines)


def place_graphs(law: Law) -> tuple[Places, ...]:
    """Every function that some event assigns along a list of edges, as its guard says."""
    found = []
    for action in law.actions.values():
        for update in action.updates:
            match update:
                case Assign(of, _, IntVar() as number):
                    edges = tuple(e for clause in action.guard for e in _edges(clause.term, of, number))
                    if edges:
                        found.append(Places(of, action, edges, _names(law, of, action, number)))
    return tuple(found)


def moved_by(law: Law, places: Places) -> Iterator[tuple[Operation, tuple[int, ...]]]:
    """The operations that move a request, with the places that they move it to."""
    (at,) = (i for i, p in enumerate(places.action.params) if isinstance(p, IntVar))
    for operation in law.operations.values():
        args = [s.args[at] for s in operation.steps if s.action.name == places.action.name]
        targets = tuple(a.value for a in args if isinstance(a, Literal_))
        if targets:
            yield operation, targets


def _edges(term: Any, of: Function, number: IntVar) -> Iterator[tuple[int, int]]:
    match term:
        case Or(parts):
            for part in parts:
                yield from _edges(part, of, number)
        case And((Compare("==", Apply(f), Literal_(here)), Compare("==", n, Literal_(there)))):
            if f is of and n is number:
                yield int(here), int(there)


def _names(law: Law, of: Function, action: Action, number: IntVar) -> dict[int, str]:
    """The names of the values that the law compares the function with or assigns to it."""
    at = next(i for i, p in enumerate(action.params) if p is number)
    values = [s.args[at] for o in law.operations.values() for s in o.steps if s.action.name == action.name]
    for term in _inside((law.operations, law.actions, law.invariants, law.initial)):
        match term:
            case Compare(_, Apply(f), other) | Compare(_, other, Apply(f)) if f is of:
                values.append(other)
    kinds = {type(v.value) for v in values if isinstance(v, Literal_) and isinstance(v.value, IntEnum)}
    return {int(member): member.name for kind in kinds for member in kind}


def _inside(item: Any) -> Iterator[Any]:
    """Every node of some terms, of what holds them, and of the steps between."""
    yield item
    if isinstance(item, dict):
        item = tuple(item.values())
    if isinstance(item, tuple | list):
        for part in item:
            yield from _inside(part)
    elif is_dataclass(item) and not isinstance(item, type | Function):
        for each in fields(item):
            yield from _inside(getattr(item, each.name))


def _plain(words: str) -> str:
    return words.replace("`", "").replace(":", ",").replace('"', "'")


def _fenced(lines: list[str]) -> str:
    return "\n".join(["```mermaid", *lines, "```"])
