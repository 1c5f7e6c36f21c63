"""Compares an engine's true tensors with the law's state: what events cannot show, because they were never emitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from freehold.spec.concrete import State
from freehold.spec.source import Compiled
from freehold.spec.state import POOLS
from freehold.spec.terms import Relation
from freehold.spec.trace import BadTrace, Event
from freehold.spec.verdict import OWNERS, UNITS, Kind, Verdict, holder_of, name_of, owners_of, sort_name

_SORTS = {sort_name(sort): sort for sort in UNITS}
_UNIT = re.compile(rf"\b({'|'.join(sorted(_SORTS, key=len, reverse=True))}) (\d+)")
FREE = frozenset({"row_free", *(pool.free.name for pool in POOLS)})
# Where the engine has a fact too many, a unit has an owner or a user too many; one too few where it lacks the fact. Of
# locks and loans it is the reverse: one too many keeps a unit for ever, one too few lets it go under its user.
OWNING = FREE | {"row_of", "maps", "kv", "slot_kv"} | {r.name for pool in POOLS for r in pool.owners}
KEEPING = frozenset({
    "locks", "out", "reads", "writes", "uses_swa", "uses_slot", "uses_host", *(pool.held.name for pool in POOLS),
})  # fmt: skip


def compare(event: Event, observed: Mapping[str, Any], compiled: Compiled) -> Verdict | None:
    """The first difference between an observed state and the law's, as a verdict.

    `observed` has a list of tuples per relation of the law that is no ghost, a mapping per function (as a list of pairs
    in a file, since JSON has no numbers for keys), and `conflicts`, sentences about what a relation cannot even express
    (one page at two positions). A unit that has owners in the law and none in the engine, or the reverse, is told apart
    from one with a different owner.
    """
    conflicts = observed.get("conflicts", ())
    if not isinstance(conflicts, list | tuple) or not all(isinstance(c, str) for c in conflicts):
        raise BadTrace(f"event {event.number}: conflicts must be a list of sentences")
    state = compiled.state()
    if conflicts:
        return _conflict(event, conflicts[0], state)
    for name, relation in compiled.law.relations.items():
        if relation.ghost:
            continue
        seen = _tuples(event, relation, observed)
        missing, extra = state.relations[name] - seen, seen - state.relations[name]
        if missing or extra:
            tuple_ = min(extra or missing, key=str)
            return _difference(event, relation, tuple_, bool(extra), state)
    for name, function in compiled.law.functions.items():
        for key, value in _values(event, name, observed).items():
            expected = compiled.values[name].get(key, 0)
            if value != expected:
                unit = name_of(function.sort("x"), key)
                clause = f"{name} is {expected} by the events and {value} in the engine"
                return Verdict("observe", clause, event.number, "observe", "order", unit, ())
    return None


def _tuples(event: Event, relation: Relation, observed: Mapping[str, Any]) -> set[tuple[Any, ...]]:
    """A relation of the observed state. Raises BadTrace when it is missing or not a list of its tuples."""
    if relation.name not in observed:
        raise BadTrace(f"event {event.number}: the observed state has no relation {relation.name}")
    try:
        seen = {tuple(t) if isinstance(t, list | tuple) else (t,) for t in observed[relation.name]}
    except TypeError as error:
        raise BadTrace(f"event {event.number}: {relation.name} must be a list of tuples of ids") from error
    if any(len(t) != len(relation.sorts) for t in seen):
        raise BadTrace(f"event {event.number}: a tuple of {relation.name} has {len(relation.sorts)} places")
    return seen


def _values(event: Event, name: str, observed: Mapping[str, Any]) -> dict[Any, int]:
    """A function of the observed state. Raises BadTrace when it is neither a mapping nor a list of pairs."""
    try:
        return dict(observed.get(name) or ())
    except (TypeError, ValueError) as error:
        raise BadTrace(f"event {event.number}: {name} must be a list of pairs of an id and a number") from error


def _conflict(event: Event, text: str, state: State) -> Verdict:
    """A contradiction inside the engine's structures, with the unit that its sentence is about."""
    found = _UNIT.search(text)
    unit, owners = "the engine's tensors", list[str]()
    if found is not None:
        unit, owners = found[0], owners_of(_SORTS[found[1]]("x"), int(found[2]), state)
    return Verdict("observe", text, event.number, "observe", "excess", unit, (*owners, "the engine's tensors: " + text))


def _difference(event: Event, relation: Relation, values: tuple[Any, ...], extra: bool, state: State) -> Verdict:
    where = "the engine has it, the events don't" if extra else "the events have it, the engine doesn't"
    clause = f"{relation.name}({', '.join(map(str, values))}): {where}"
    parties = [(s("x"), v) for s, v in zip(relation.sorts, values, strict=True)]
    units = [(p, v) for p, v in parties if isinstance(p, UNITS)]
    unit = name_of(*(units or parties)[-1])
    owners = [o for p, v in units for o in owners_of(p, v, state)]
    claimants = [(p, v) for p, v in parties if not isinstance(p, UNITS)]
    owners += [f"{holder_of(p, v, state)}, by its tensors" for p, v in claimants if extra]
    if relation.name in FREE | OWNERS.keys() and extra:
        owners.append(OWNERS.get(relation.name, "the free list") + ", by its tensors")
    kind: Kind = "order"
    if relation.name in OWNING | KEEPING:
        kind = "excess" if extra == (relation.name in OWNING) else "deficit"
    return Verdict("observe", clause, event.number, "observe", kind, unit, tuple(owners))
