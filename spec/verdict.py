"""Verdicts: what a broken rule means, in terms of units and their owners.

*Excess* means that a unit got, or would get, an owner too many: a double allocation, a double free, a use of what is
not owned. *Deficit* means that a unit is left with an owner too few: a leak. *Order* means that nothing is owned
wrongly yet, but the event does not belong here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from freehold.spec.concrete import State
from freehold.spec.state import Page, Record, Request, Row, Session
from freehold.spec.terms import Element, Formula
from freehold.spec.trace import Event

Kind = Literal["excess", "deficit", "order"]

# Clauses and invariants whose breach leaves something behind with no one to give it back.
DEFICITS = frozenset({
    "the record owns no page", "the record has no lock", "the record has no row any more",
    "the request holds no record any more", "the slot is empty",
    "no_page_leaks", "no_row_leaks", "owned_page_is_mapped", "locked_page_is_mapped", "kept_room_is_written",
    "row_has_a_holder", "kv_needs_a_row", "holder_is_admitted", "closing_session_is_busy", "turn_is_not_out",
    "only_sessions_hold", "no_request_holds", "no_turn_is_live",
})  # fmt: skip
# Clauses that are about the time of an event and not about a unit's owner.
ORDERS = frozenset({
    "the edge exists in the place graph", "the length grows", "the length does not grow",
    "there is something to publish", "the prefix is cut at a page border", "only whole pages are published",
    "the session is open", "the session is not open", "the session is not closing",
    "closing was not asked for before", "closing was asked for", "no turn is live",
    "the session has no live turn", "the request is no other session's turn",
    "the request is the session's live turn", "place_exists", "session_has_one_turn", "turn_has_one_session",
    "only_open_sessions_live", "no lock waits to be attached",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """One broken rule.

    rule: the event whose guard failed, or the invariant. clause: what should have been true. unit: the page, row or
    other thing concerned. owners: everyone who holds it or claims it.
    """

    rule: str
    clause: str
    event_number: int
    event: str
    kind: Kind
    unit: str
    owners: tuple[str, ...]

    def __str__(self) -> str:
        owners = "; ".join(self.owners) or "nobody"
        return (
            f"event {self.event_number}: {self.event}\n"
            f"  breaks   {self.rule}: {self.clause}\n"
            f"  kind     {self.kind}\n"
            f"  unit     {self.unit}\n"
            f"  owners   {owners}"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(
    rule: str, clause: str, event: Event, term: Formula, culprit: Mapping[Element, Any], env: Mapping[Any, Any],
    state: State,
) -> Verdict:  # fmt: skip
    """The verdict for a false clause or invariant, from the values that make it false."""
    named = {**{p: v for p, v in env.items() if isinstance(p, Element)}, **culprit}
    unit = next((name_of(p, v) for s in (Page, Row) for p, v in culprit.items() if isinstance(p, s)), None)
    unit = unit or next((name_of(p, v) for s in (Page, Row) for p, v in named.items() if isinstance(p, s)), None)
    first = next(iter(named.items()), None)
    unit = unit or (name_of(*first) if first is not None else "the scheduler")
    owners: list[str] = []
    for param, value in named.items():
        if isinstance(param, Page | Row):
            owners += [o for o in owners_of(param, value, state) if o not in owners]
        elif isinstance(param, Record | Request | Session):
            label = holder_of(param, value, state)
            if all(not o.startswith(name_of(param, value)) for o in owners):
                owners.append(f"{label}, claiming" if isinstance(param, Record) else label)
    keys = {rule, clause}
    kind: Kind = "deficit" if keys & DEFICITS else "order" if keys & ORDERS else "excess"
    return Verdict(rule, clause, event.number, str(event), kind, unit, tuple(owners))


def name_of(param: Element, value: Any) -> str:
    return f"{type(param).__name__.lower()} {value}"


def holder_of(param: Element, value: Any, state: State) -> str:
    """A record with the request or session that holds it; anything else by its name."""
    if not isinstance(param, Record):
        return name_of(param, value)
    requests = [f"request {r}" for r, k in sorted(state.relations["kv"], key=str) if k == value]
    sessions = [f"session {s}" for s, k in sorted(state.relations["slot_kv"], key=str) if k == value]
    return f"record {value} (held by {', '.join([*requests, *sessions]) or 'nobody'})"


def owners_of(param: Element, value: Any, state: State) -> list[str]:
    """Everyone who owns a page or a row, and who locks or maps a page."""
    record = Record("k")
    if isinstance(param, Row):
        free = ["the free rows"] if (value,) in state.relations["row_free"] else []
        return free + [holder_of(record, k, state) for k, w in sorted(state.relations["row_of"]) if w == value]
    owners = ["the free list"] if (value,) in state.relations["free"] else []
    owners += ["the prefix tree"] if (value,) in state.relations["in_tree"] else []
    for relation, verb in (("owns", "owns it"), ("locks", "locks it"), ("maps", "maps it")):
        for k, p in sorted(state.relations[relation]):
            label = holder_of(record, k, state)
            if p == value and all(not o.startswith(label) for o in owners):
                owners.append(f"{label}, {verb}")
    return owners
