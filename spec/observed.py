"""Compares an engine's true tensors with the law's state: what events cannot show, because they were never emitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freehold.spec.language import Relation
from freehold.spec.law import law
from freehold.spec.source import Compiled
from freehold.spec.state import Page, Row
from freehold.spec.trace import BadTrace, Event
from freehold.spec.verdict import Kind, Verdict, holder_of, name_of, owners_of

# A page's position means something only where the page is mapped or in the tree; a record's lengths while it has a row.
GIVES_OWNER = {"free", "owns", "in_tree", "row_free", "row_of"}


def compare(event: Event, observed: Mapping[str, Any], compiled: Compiled) -> Verdict | None:
    """The first difference between an observed state and the law's, as a verdict.

    `observed` has a list of tuples per relation, a mapping per function, and `conflicts`, sentences about what a
    relation cannot even express (one page at two positions). A unit that has owners in the law and none in the engine,
    or the reverse, is told apart from one with a different owner.
    """
    conflicts = observed.get("conflicts") or ()
    if conflicts:
        return Verdict("observe", str(conflicts[0]), event.number, "observe", "excess", "the engine's tensors", ())
    state = compiled.state()
    for name, relation in law.relations.items():
        if name not in observed:
            raise BadTrace(f"event {event.number}: the observed state has no relation {name}")
        seen = {tuple(t) if isinstance(t, list | tuple) else (t,) for t in observed[name]}
        missing, extra = state.relations[name] - seen, seen - state.relations[name]
        if missing or extra:
            tuple_ = min(extra or missing, key=str)
            return _difference(event, relation, tuple_, bool(extra), state)
    for name, function in law.functions.items():
        for key, value in observed.get(name, {}).items():
            expected = compiled.values[name].get(key, 0)
            if value != expected:
                unit = name_of(function.sort("x"), key)
                clause = f"{name} is {expected} by the events and {value} in the engine"
                return Verdict("observe", clause, event.number, "observe", "order", unit, ())
    return None


def _difference(event: Event, relation: Relation, values: tuple[Any, ...], extra: bool, state: Any) -> Verdict:
    where = "the engine has it, the events don't" if extra else "the events have it, the engine doesn't"
    clause = f"{relation.name}({', '.join(map(str, values))}): {where}"
    parties = [(s("x"), v) for s, v in zip(relation.sorts, values, strict=True)]
    units = [(p, v) for p, v in parties if isinstance(p, Page | Row)]
    unit = name_of(*(units or parties)[-1])
    owners = [o for p, v in units for o in owners_of(p, v, state)]
    claimants = [(p, v) for p, v in parties if not isinstance(p, Page | Row)]
    owners += [f"{holder_of(p, v, state)}, by its tensors" for p, v in claimants if extra]
    if relation.name in ("free", "in_tree", "row_free") and extra:
        owners.append({"in_tree": "the prefix tree"}.get(relation.name, "the free list") + ", by its tensors")
    kind: Kind = "order" if relation.name not in GIVES_OWNER else "excess" if extra else "deficit"
    return Verdict("observe", clause, event.number, "observe", kind, unit, tuple(owners))
