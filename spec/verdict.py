"""Verdicts: what a broken rule means, in terms of units and their owners.

*Excess* means that a unit got, or would get, an owner too many: a double allocation, a double free, a use of what is
not owned. *Deficit* means that a unit is left with an owner too few: a leak. *Order* means that nothing is owned
wrongly yet, but the event does not belong here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from freehold.spec.concrete import State
from freehold.spec.state import POOLS, Loan, Page, Pool, Record, Row, law, lent
from freehold.spec.terms import (
    Apply,
    Arith,
    Atom,
    Compare,
    Element,
    Formula,
    Int,
    Not,
    Quantified,
    Relation,
    Same,
    Sort,
)
from freehold.spec.trace import Event

Kind = Literal["excess", "deficit", "order"]

# Clauses and invariants whose breach leaves something behind with no one to give it back.
DEFICITS = frozenset({
    "the record owns no page", "the record has no lock", "the record has no row any more",
    "the request holds no record any more", "the slot is empty",
    "no_page_leaks", "no_row_leaks", "owned_page_is_mapped", "locked_page_is_mapped", "kept_room_is_written",
    "row_has_a_holder", "kv_needs_a_row", "holder_is_admitted", "closing_session_is_busy", "turn_is_not_out",
    "only_sessions_hold", "no_request_holds", "no_turn_is_live",
    "the record has no state", "no state hangs on it", "no host copy hangs on it",
    "state_needs_a_row", "snapshot_is_in_tree", "mirror_is_of_a_tree_page", "claimant_waits", "backup_has_a_user",
    "filling_loan_is_open",
    *(f"no_{pool.name}_unit_leaks" for pool in POOLS if pool.unit is not Page),
    *(f"held_{pool.name}_unit_is_touched" for pool in POOLS),
    *(f"only_open_loans_touch_{pool.name}" for pool in POOLS),
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
    "there is more than one namespace", "the namespace exists", "the record is empty", "the position is natural",
    "the model has a sliding window", "the cursor stands at a page border", "the cursor moves on",
    "a cut before the window is at a page border", "cursor_is_behind_written",
    "the request waits", "the loan is new", "the loan is open", "the end has a name",
    "what it is ordered behind is open", "what it is ordered behind has closed",
    "order_is_of_open_loans", "loan_has_one_account", "namespace_needs_a_row",
    "failed_write_needs_a_row", "loan_needs_a_row",
    "the state has seen exactly the committed tokens", "the running state has seen the new tokens",
    "the state has seen exactly the tokens up to the page's end", "the page ends where the record does",
    "claimed_state_is_fresh", "snapshot_is_of_its_page", "state_is_not_ahead",
})  # fmt: skip
# What an owner or a user does with a unit, in a verdict's words; of several only the first is told.
VERBS: Mapping[str, str] = {
    "owns": "owns it", "locks": "locks it", "maps": "maps it", "target": "loads it", "writes": "writes it",
    "reads": "reads it", "peer": "has it as its other half", "uses_swa": "uses it", "claims": "claimed it",
    "state": "runs in it", "snapshot": "has it as its checkpoint", "uses_slot": "uses it",
    "backup": "keeps KV in it", "mirror": "is copied in it", "filling": "fills it", "uses_host": "reads it",
}  # fmt: skip
OWNERS: Mapping[str, str] = {"in_tree": "the prefix tree", "archive": "the prefix tree's part on the host"}
UNITS: tuple[Sort, ...] = (Page, Row, *(pool.unit for pool in POOLS if pool.unit is not Page))
POOL_OF: Mapping[Sort, Pool] = {pool.unit: pool for pool in POOLS}


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
    said = {p: env[p] for p in variables(term) if p in env}
    first = next(iter(named.items()), None)
    unit = _unit(culprit) or _unit(said) or _unit(named)
    unit = unit or (name_of(*first) if first is not None else "the scheduler")
    owners: list[str] = []
    for param, value in named.items():
        if isinstance(param, UNITS):
            owners += [o for o in owners_of(param, value, state) if o not in owners]
        elif not any(re.match(rf"{re.escape(name_of(param, value))}\b", o) for o in owners):
            label = holder_of(param, value, state)
            owners.append(f"{label}, claiming" if isinstance(param, Record) else label)
    keys = {rule, clause}
    kind: Kind = "deficit" if keys & DEFICITS else "order" if keys & ORDERS else "excess"
    return Verdict(rule, clause, event.number, str(event), kind, unit, tuple(owners))


def _unit(values: Mapping[Element, Any]) -> str | None:
    return next((name_of(p, v) for s in UNITS for p, v in values.items() if isinstance(p, s)), None)


def variables(term: Formula | Int) -> Iterator[Element]:
    """The elements that a formula speaks of, in the order in which it names them; bound ones as well."""
    match term:
        case Atom(_, args):
            yield from args
        case Apply(_, arg):
            yield arg
        case Compare(_, left, right) | Arith(_, left, right):
            yield from (*variables(left), *variables(right))
        case Same(left, right):
            yield from (left, right)
        case Not(body) | Quantified(_, _, body):
            yield from variables(body)
    for part in getattr(term, "parts", ()):
        yield from variables(part)


def sort_name(sort: Sort) -> str:
    """`swa page` for the sort SwaPage."""
    return re.sub(r"(?<=.)(?=[A-Z])", " ", sort.__name__).lower()


def name_of(param: Element, value: Any) -> str:
    return f"{sort_name(type(param))} {value}"


def holder_of(param: Element, value: Any, state: State) -> str:
    """A record, loan or page with those on whose account it is; anything else by its name."""
    match param:
        case Record():
            requests = [f"request {r}" for r, k in _tuples(state, "kv") if k == value]
            sessions = [f"session {s}" for s, k in _tuples(state, "slot_kv") if k == value]
            return f"record {value} (held by {', '.join([*requests, *sessions]) or 'nobody'})"
        case Loan():
            records = [holder_of(Record("k"), k, state) for o, k in _tuples(state, lent.name) if o == value]
            return f"loan {value} (for {', '.join(records)})" if records else f"loan {value}"
        case Page():
            tree = [OWNERS["in_tree"]] if (value,) in _tuples(state, "in_tree") else []
            records = [holder_of(Record("k"), k, state) for k, p in _tuples(state, "owns") if p == value]
            return f"page {value} (of {', '.join([*tree, *records]) or 'nobody'})"
    return name_of(param, value)


def owners_of(param: Element, value: Any, state: State) -> list[str]:
    """Everyone who owns a unit, who waits for it, and who locks, maps or touches it in flight."""
    if isinstance(param, Row):
        free = ["the free rows"] if (value,) in state.relations["row_free"] else []
        return free + [holder_of(Record("k"), k, state) for k, w in _tuples(state, "row_of") if w == value]
    pool = POOL_OF[type(param)]
    owners = ["the free list"] if (value,) in _tuples(state, pool.free.name) else []
    if (value,) in _tuples(state, pool.held.name):
        owners.append("the held list, until the last loan that touches it closes")
    owners += [OWNERS[r.name] for r in pool.owners if len(r.sorts) == 1 and (value,) in _tuples(state, r.name)]
    for relation in _relations_to(pool):
        for x, unit in _tuples(state, relation.name):
            label = holder_of(relation.sorts[0]("x"), x, state)
            if unit == value and all(not o.startswith(f"{label}, ") for o in owners):
                owners.append(f"{label}, {VERBS[relation.name]}")
    return owners


def _relations_to(pool: Pool) -> list[Relation]:
    """Who can own a unit, or use or touch it: relations between something else and the unit."""
    users = [r for r in law.relations.values() if len(r.sorts) == 2 and r.sorts[1] is pool.unit is not r.sorts[0]]
    return sorted(users, key=lambda r: list(VERBS).index(r.name))


def _tuples(state: State, relation: str) -> list[tuple[Any, ...]]:
    """The tuples of a relation, which the law of an engine without the pool does not have."""
    return sorted(state.relations.get(relation, ()), key=str)
