"""The law as one page of Markdown: what there is, who can have it, how it moves, and what is always true.

The page depends on the law alone, so that a copy of it can be compared with the law; see `current`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from freehold.spec import text
from freehold.spec.diagrams import Places, graph, life, moved_by, place_graphs
from freehold.spec.language import Action, Law, Operation, Property
from freehold.spec.law import law as full
from freehold.spec.owners import Kept, Move, lives, moves, pools
from freehold.spec.terms import Relation
from freehold.spec.waivers import WAIVERS, Waiver, waive

GROUPS = {
    "always": ("Always", "True after each event. Proved by induction, for any number of elements."),
    "theorem": ("Theorems", "These follow from the invariants that they name."),
    "step": ("At the end of an operation", "These may be open between the events of one operation."),
    "quiescent": ("When nothing runs", "True in every state in which all requests are out."),
}
SIGNS = (
    "∀ for all · ∃ there is · ¬ not · ∧ and · ∨ or · → if, then · `x'` the value after the event. "
    "A set in braces is read in the state just before its event."
)


def markdown(law: Law) -> str:
    """The whole law; equal laws give equal pages."""
    parts = [
        f"# The law: {law.name}",
        "",
        "Written by `freehold law --write` from the law itself; do not edit. `make lint` compares the two.",
        "",
        _contents(law),
        "",
        f"Signs: {SIGNS}",
        "",
        *_state(law),
        *_owners(law),
        *_places(law),
        *_operations(law),
        *_events(law),
        *_invariants(law),
        *_contracts(law),
        *_witnesses(law),
        *_waivers(law),
    ]
    return "\n".join(parts).rstrip() + "\n"


def current(law: Law, path: Path) -> bool:
    """Whether a file is the page of this law."""
    return path.is_file() and path.read_text(encoding="utf-8") == markdown(law)


# Tables --------------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table without its empty columns; nothing when there is no row."""
    cells = [[" ".join(c.split()).replace("|", "\\|") for c in row] for row in rows]
    kept = [i for i in range(len(head)) if any(row[i] for row in cells)]
    lines = [[head[i] for i in kept], ["---"] * len(kept), *([row[i] or "-" for i in kept] for row in cells)]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""] if cells else []


def _code(words: str) -> str:
    return f"`{words}`" if words else ""


def _codes(words: Iterable[str]) -> str:
    return ", ".join(map(_code, words))


def _contents(law: Law) -> str:
    counts = (
        (len(law.sorts), "sorts"),
        (len(law.relations) + len(law.functions), "relations and functions"),
        (len(law.operations), "operations"),
        (len(law.actions), "events"),
        (len(law.invariants), "invariants"),
        (len(law.contracts), "contracts"),
        (len(law.witnesses), "witnesses"),
    )
    return f"{', '.join(f'{n} {what}' for n, what in counts)}."


def _meaning(relation: Relation) -> str:
    return f"{relation.doc} (ghost: the law alone keeps it)" if relation.ghost else relation.doc


def _state(law: Law) -> Iterator[str]:
    yield from ("## State", "")
    yield from _table(("sort", "what it is"), ((_code(s.__name__), inspect.getdoc(s) or "") for s in law.sorts))
    relations = (
        (_code(f"{r.name}({', '.join(s.__name__ for s in r.sorts)})"), _meaning(r)) for r in law.relations.values()
    )
    functions = ((_code(f"{f.name}({f.sort.__name__}): Int"), f.doc) for f in law.functions.values())
    yield from _table(("relation or function", "meaning"), (*relations, *functions))
    yield from ("At the beginning:", "")
    yield from (f"- `{text.formula(f)}`" for f in law.initial)
    yield ""


# Owners and places ---------------------------------------------------------------------------------------------------


def _owners(law: Law) -> Iterator[str]:
    yield from ("## Who can have what", "")
    yield "Derived: the owners from the invariants that nothing leaks and that one holds at most one, the moves from"
    yield from ("the effects of the events.", "")
    for what in (*lives(law), *pools(law)):
        name = what.sort.__name__
        yield from (f"### {'Pool' if what.pool else 'Life'}: {name}", "", life(law, what), "")
        yield from _table(
            ("from", "to", "by event", "in operations"),
            (
                (_end(m, m.source, what), _end(m, m.target, what), _code(m.event), _takers(law, m))
                for m in moves(law, what)
            ),
        )


def _end(move: Move, relation: object, what: Kept) -> str:
    return next((_code(r.name) for r in what.owners if r is relation), "nobody")


def _takers(law: Law, move: Move) -> str:
    return _codes(o.name for o in law.operations.values() if any(s.action.name == move.event for s in o.steps))


def _places(law: Law) -> Iterator[str]:
    for places in place_graphs(law):
        yield from (f"## Places: `{places.function.name}`", "", graph(places), "")
        yield from _table(("to", "by operations"), _arrivals(law, places))


def _arrivals(law: Law, places: Places) -> Iterator[tuple[str, str]]:
    taken = list(moved_by(law, places))
    for place in sorted({there for _, there in places.edges}):
        yield _code(places.name(place)), _codes(o.name for o, targets in taken if place in targets)


# Operations, events, properties --------------------------------------------------------------------------------------


def _operations(law: Law) -> Iterator[str]:
    yield from ("## Operations", "", "What a scheduler does as one piece: requirements, then events in order.", "")
    yield from _table(
        ("operation", "in words", "requires", "events", "source"),
        ((_code(text.signature(o)), o.doc, _requires(o), _steps(o), o.source) for o in law.operations.values()),
    )


def _requires(operation: Operation) -> str:
    return "; ".join(f"{c.text} {_code(text.formula(c.term))}" for c in operation.guard)


def _steps(operation: Operation) -> str:
    return " · ".join(_code(text.step(s)) for s in operation.steps)


def _events(law: Law) -> Iterator[str]:
    yield from (
        "## Events",
        "",
        "Atomic: when each clause holds, all effects happen at once and read the old state.",
        "",
    )
    for action in law.actions.values():
        yield from _event(action)


def _event(item: Action) -> Iterator[str]:
    yield from (f"### `{text.signature(item)}`", "", item.doc, "")
    if item.source:
        yield from (f"Source: {item.source}", "")
    yield from _table(("requires", "meaning"), ((c.text, _code(text.formula(c.term))) for c in item.guard))
    yield from _table(("effect",), ((_code(text.update(u)),) for u in item.updates))


def _invariants(law: Law) -> Iterator[str]:
    yield from ("## Invariants", "")
    for group in law.GROUPS:
        members = [p for p in law.invariants.values() if p.group == group]
        if members:
            title, words = GROUPS[group]
            yield from (f"### {title}", "", words, "")
            yield from _properties(members)
    if law.lemmas:
        yield from ("### Lemmas", "", "Consequences for every number, proved by descent.", "")
        yield from _properties(law.lemmas.values())


def _properties(properties: Iterable[Property]) -> list[str]:
    return _table(
        ("name", "in words", "meaning", "from", "source"),
        (
            (_code(p.name), p.doc, _code(text.formula(p.term)), _codes(u.name for u in p.uses), p.source)
            for p in properties
        ),
    )


def _contracts(law: Law) -> Iterator[str]:
    yield from ("## Contracts", "", "What an event promises, said without its effects.", "")
    yield from _table(
        ("event", "promise", "in words", "meaning", "source"),
        (
            (_code(c.group), c.name.removeprefix(f"{c.group}: "), c.doc, _code(text.formula(c.term)), c.source)
            for c in law.contracts.values()
        ),
    )


def _witnesses(law: Law) -> Iterator[str]:
    yield from ("## Witnesses", "", "States that must be reachable, or a property would be empty.", "")
    yield from _table(
        ("state", "for", "in words", "meaning"),
        (
            (w.name, _code(w.group), "" if w.name.startswith("occasion of ") else w.doc, _code(text.formula(w.term)))
            for w in law.witnesses.values()
        ),
    )


def _waivers(law: Law) -> Iterator[str]:
    """Only of a law that has every event: a waiver changes events by their names."""
    if not full.actions.keys() <= law.actions.keys():
        return
    yield from ("## Waivers", "", "Deviations that a monitor can be told to accept: `freehold check --waive W1`.", "")
    rows = ((w.name, w.what, _changes(law, w), _relaxed(w)) for w in WAIVERS.values())
    yield from _table(("waiver", "what is accepted", "what changes in the law", "invariants that are relaxed"), rows)


def _changes(law: Law, waiver: Waiver) -> str:
    waived = waive(law, [waiver.name])
    found = []
    for one in waiver.edits:
        meant = {c.text: c.term for c in waived.actions[one.name].guard}
        found += [f"`{one.name}` does not ask: {clause}" for clause in one.drop]
        found += [f"`{one.name}`, {clause}: {_code(text.formula(meant[clause]))}" for clause in one.swap]
    found += [f"event {_code(text.signature(a))}" for n, a in waived.actions.items() if n not in law.actions]
    return "; ".join(found) or "one more operation"


def _relaxed(waiver: Waiver) -> str:
    return "; ".join(f"`{n}`{' inside a step' if g == 'step' else ''}" for n, g in waiver.relaxes.items())
