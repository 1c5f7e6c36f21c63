"""Progress: every request ends. A rank that falls, who makes it fall, and what is assumed.

Fix the oldest live request `o`; it has right of way. The *lead* is whoever can get on for it: `o` itself, or, while `o`
waits, the oldest of those that hold KV; `k` is the lead's record. The rank is lexicographic; no operation makes it
grow, and in each state some fair group can act, and every act of that group makes it fall. So `o` ends, and then the
next one is the oldest: only finitely many came before any request, and arrivals are always younger.

A component is a set that shrinks, a number that falls, or a flag that goes out; ordinals are never spoken of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from freehold.spec import invariants
from freehold.spec.language import Law, Property
from freehold.spec.scheduling import (
    POOL,
    Group,
    a_page_is_free,
    continues,
    fresh,
    holds,
    known,
    lacks,
    live,
    lost,
    need,
    older,
    owes,
    waits,
    window,
)
from freehold.spec.state import (
    PAGE_SIZE,
    ROW_WIDTH,
    A,
    C,
    Page,
    Place,
    Record,
    Request,
    Row,
    Session,
    aligned,
    closing,
    empty,
    free,
    in_tree,
    kv,
    locks,
    maps,
    parent,
    place,
    row_free,
    row_of,
    slot_kv,
    turn,
)
from freehold.spec.terms import Element, Formula, Int, Sort, exists, forall, no

# What the view keeps true --------------------------------------------------------------------------------------------

_kept = Law("what a schedule keeps true")
view_invariant = _kept.invariant("step")
INVARIANTS: Mapping[str, Property] = _kept.invariants


@view_invariant
def older_is_an_order() -> Formula:
    """Of two live requests exactly one is older, and age is transitive; requests that are out have no age."""
    return (
        forall(Request, Request, lambda x, y: older(x, y) >> (live(x) & live(y) & ~older(y, x)))
        & forall(Request, Request, lambda x, y: (live(x) & live(y) & ~(x == y)) >> (older(x, y) | older(y, x)))
        & forall(Request, Request, Request, lambda x, y, z: (older(x, y) & older(y, z)) >> older(x, z))
    )


@view_invariant
def budget_is_sound() -> Formula:
    """A live request has a prompt, a natural number of tokens to come, and fits a row."""
    return forall(Request, lambda r: live(r) >> ((known(r) >= 1) & (need(r) >= 0) & (known(r) + need(r) <= ROW_WIDTH)))


@view_invariant
def room_is_for_known_tokens() -> Formula:
    """No request has more room than it has tokens for."""
    return forall(Request, Record, lambda r, k: kv(r, k) >> (A(k) <= known(r)))


@view_invariant
def running_is_written() -> Formula:
    """Of a running request all known tokens are written."""
    return forall(Request, Record, lambda r, k: (kv(r, k) & (place(r) == Place.RUNNING)) >> (C(k) == known(r)))


@view_invariant
def parked_is_written() -> Formula:
    """A parked request has no room that waits to be written, and something left to write."""
    return forall(
        Request, Record,
        lambda r, k: (kv(r, k) & (place(r) == Place.PARKED)) >> ((C(k) == A(k)) & (A(k) < known(r))),
    )  # fmt: skip


@view_invariant
def a_lent_slot_is_empty() -> Formula:
    """While a turn holds KV, its session keeps none."""
    return forall(Session, Request, lambda s, r: (turn(s, r) & holds(r)) >> empty(s))


@view_invariant
def a_turn_goes_beyond_its_history() -> Formula:
    """What a session keeps for a waiting turn is less than that turn has to write."""
    return forall(Session, Request, Record, lambda s, r, k: (turn(s, r) & slot_kv(s, k)) >> (A(k) < known(r)))


@view_invariant
def who_owes_computes() -> Formula:
    """A chunk is owed only in prefill, and only while tokens are not written; who may pass waits."""
    return (
        forall(Request, lambda r: owes(r) >> (place(r) == Place.PREFILL))
        & forall(Request, Record, lambda r, k: (owes(r) & kv(r, k)) >> (C(k) < known(r)))
        & forall(Request, lambda r: window(r) >> waits(r))
        & forall(Request, lambda r: fresh(r) >> holds(r))
        & forall(Request, lambda r: lost(r) >> holds(r))
    )


@view_invariant
def no_one_transfers() -> Formula:
    """Nobody sends or receives: the view has no loans."""
    return forall(Request, lambda r: place(r) <= Place.RUNNING)


def fits() -> Formula:
    """What the check at arrival keeps true; the enabling premise of the whole proof."""
    return forall(Request, lambda r: live(r) >> (known(r) + need(r) <= POOL))


FITS = Property("every_live_request_fits_alone", fits(), "Every live request fits the pool alone.", "step")

# What is assumed -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assumption:
    """A premise of the proof. `term` is how it is used, or None where it stands outside first-order logic.

    What has a term is true in every finite state, and is looked at in each state that a search reaches.
    """

    name: str
    doc: str
    term: Formula | None = None


def _unlocked(p: Page) -> Formula:
    return in_tree(p) & no(Record, lambda k: locks(k, p))


ASSUMPTIONS = (
    Assumption("weak fairness", "A group that can act from some point on for ever, acts: see scheduling.GROUPS."),
    Assumption("finite past", "Of any live requests one is the oldest, and only finitely many are older than another."),
    Assumption("token budget", "Tokens to write and to generate are natural numbers: they can't fall for ever."),
    Assumption("finite pool", "There are finitely many pages and rows: a set of them can't shrink for ever."),
    Assumption(
        "a youngest holder",
        "Finitely many hold KV: of the others than a given one, one is the youngest.",
        forall(
            Request,
            lambda y: exists(Request, lambda x: holds(x) & ~(x == y))
            >> exists(
                Request,
                lambda v: holds(v) & ~(v == y)
                & forall(Request, lambda x: holds(x) >> ((x == v) | (x == y) | older(x, v))),
            ),
        ),
    ),
    Assumption(
        "a last page",
        "The tree is finite: if a page of it is unlocked, then one behind which no page comes is.",
        exists(Page, _unlocked)
        >> exists(Page, lambda p: _unlocked(p) & no(Page, lambda q: _unlocked(q) & parent(q, p))),
    ),
    Assumption(
        "pages count",
        "The pool is whole pages; a row that maps all of them has one at each position, so only the last isn't full.",
        aligned(POOL) & forall(Record, lambda k: forall(Page, lambda p: maps(k, p)) >> (A(k) > POOL - PAGE_SIZE)),
    ),
    Assumption(
        "records are names",
        "When a row is free, there is a record that nobody holds.",
        exists(Row, lambda w: row_free(w))
        >> exists(Record, lambda k: no(Request, lambda r: kv(r, k)) & no(Session, lambda s: slot_kv(s, k))),
    ),
)  # fmt: skip

# The rank ------------------------------------------------------------------------------------------------------------

Cast = tuple[Request, Request, Record]
"""The oldest live request, the lead and its record."""


@dataclass(frozen=True, slots=True)
class Component:
    """One place of the rank. `term` takes the cast, and of a set also its element.

    when: it counts only while this is true; the components before it decide whether it is.
    """

    name: str
    of: Sort | Literal["flag", "number"]
    term: Callable[..., Any]
    when: Callable[[Request, Request, Record], Formula] | None = None


def _holding(o: Request, lead: Request, k: Record) -> Formula:
    return holds(lead)


def lacking(o: Request, lead: Request, k: Record) -> Formula:
    """The lead can't go on without a page (or, while nobody holds KV, a row)."""
    return waits(lead) | lacks(lead, k)


def prefills(r: Request) -> Formula:
    return place(r) == Place.PREFILL


def _mine(lead: Request, k: Record, p: Page) -> Formula:
    return holds(lead) & maps(k, p)


RANK: tuple[Component, ...] = (
    Component("the oldest waits", "flag", lambda o, lead, k: waits(o)),
    Component("who may pass it", Request, lambda o, lead, k, x: waits(o) & window(x)),
    Component("who holds KV while it waits", Request, lambda o, lead, k, x: waits(o) & holds(x)),
    Component("tokens that the lead has to generate", "number", lambda o, lead, k: need(lead)),
    Component("its completion may still come", "flag", lambda o, lead, k: ~lost(lead)),
    Component("it may still go back", "flag", lambda o, lead, k: fresh(lead)),
    Component("tokens that it has to write", "number", lambda o, lead, k: known(lead) - C(k), _holding),
    Component("tokens that it has no room for", "number", lambda o, lead, k: known(lead) - A(k), _holding),
    Component("it is in prefill with a chunk written", "flag", lambda o, lead, k: prefills(lead) & ~owes(lead)),
    Component("it is parked", "flag", lambda o, lead, k: place(lead) == Place.PARKED),
    Component("it is in prefill with a chunk to write", "flag", lambda o, lead, k: prefills(lead) & owes(lead)),
    Component(
        "pages that are neither free nor its own", Page,
        lambda o, lead, k, p: lacking(o, lead, k) & ~free(p) & ~_mine(lead, k, p),
    ),
    Component("rows that are not free", Row, lambda o, lead, k, w: lacking(o, lead, k) & ~row_free(w)),
)  # fmt: skip


def cast(o: Request, lead: Request, k: Record) -> Formula:
    """`o` is the oldest live request, `lead` its lead, and `k` the lead's record if it holds one."""
    first = forall(Request, lambda x: (holds(x) & ~(x == lead)) >> older(lead, x))
    return (
        live(o)
        & forall(Request, lambda x: (live(x) & ~(x == o)) >> older(o, x))
        & (holds(lead) >> kv(lead, k))
        & (
            ((lead == o) & (holds(o) | no(Request, lambda x: holds(x))))
            | (waits(o) & holds(lead) & first)
        )
    )  # fmt: skip


# Who helps -----------------------------------------------------------------------------------------------------------


def short_of_room(o: Request, lead: Request, k: Record) -> Formula:
    no_row = waits(lead) & ~continues(lead) & no(Row, lambda w: row_free(w))
    return ~lost(lead) & lacking(o, lead, k) & (~a_page_is_free() | no_row)


def computing(o: Request, lead: Request, k: Record) -> Formula:
    chunk = (place(lead) == Place.PREFILL) & (C(k) < A(k))
    token = (place(lead) == Place.RUNNING) & (need(lead) > 0)
    return ~lost(lead) & ~short_of_room(o, lead, k) & (chunk | token)


def to_be_moved(o: Request, lead: Request, k: Record) -> Formula:
    return ~lost(lead) & ~short_of_room(o, lead, k) & ~computing(o, lead, k)


def overdue(o: Request, lead: Request, k: Record) -> Formula:
    return lost(lead)


PHASES: Mapping[Group, Callable[[Request, Request, Record], Formula]] = {
    Group.ROOM: short_of_room,
    Group.FORWARD: computing,
    Group.SCHEDULER: to_be_moved,
    Group.ACKNOWLEDGEMENT: overdue,
}
"""Which group helps in which state: one of these is true of every cast."""


@dataclass(frozen=True, slots=True)
class Help:
    """An operation that the helping group can take: `when` and the values of its parameters, over a cast and more.

    offered: a simpler reason for which some `more` has `when`; it splits a proof that Z3 doesn't find in one piece.
    because: the invariants that this follows from, besides the assumptions.
    """

    phase: Group
    operation: str
    more: tuple[Element, ...]
    when: Formula
    values: Mapping[str, Element | Int]
    offered: Formula | None = None
    because: tuple[Property, ...] = ()


OLDEST, LEAD, RECORD = Request("o"), Request("lead"), Record("k")
_p, _w, _s, _j, _v = Page("p"), Row("w"), Session("s"), Record("j"), Request("v")


def _new(k: Record) -> Formula:
    return no(Request, lambda x: kv(x, k)) & no(Session, lambda x: slot_kv(x, k))


def _no_turn(r: Request) -> Formula:
    return no(Session, lambda s: turn(s, r))


def _helps() -> tuple[Help, ...]:
    L, K = LEAD, RECORD
    prefill, running = place(L) == Place.PREFILL, place(L) == Place.RUNNING
    chunk = prefill & (C(K) == A(K)) & (A(K) < known(L))
    token, done = running & (need(L) > 0), running & (need(L) == 0)
    one: Mapping[str, Element | Int] = {"r": L, "k": K, "a": A(K) + 1}
    end: Mapping[str, Element | Int] = {"r": L, "k": K, "w": _w, "s": _s, "a": C(K)}
    generate: Mapping[str, Element | Int] = {"r": L, "k": K, "p": _p, "n": need(L) - 1}
    move, forward, room, late = Group.SCHEDULER, Group.FORWARD, Group.ROOM, Group.ACKNOWLEDGEMENT
    leaf = in_tree(_p) & no(Record, lambda x: locks(x, _p)) & no(Page, lambda q: parent(q, _p))
    youngest = forall(Request, lambda x: holds(x) >> ((x == _v) | (x == L) | older(x, _v)))
    victim = holds(_v) & ~(_v == L) & youngest & kv(_v, _j) & row_of(_j, _w)
    others = exists(Request, lambda x: holds(x) & ~(x == L) & holds(L))
    kept = exists(Session, Record, lambda s, j: slot_kv(s, j))
    return (
        Help(move, "admit", (_j, _w), waits(L) & ~continues(L) & _new(_j) & row_free(_w), {"r": L, "k": _j, "w": _w}),
        Help(move, "admit_turn", (_s, _j), waits(L) & turn(_s, L) & slot_kv(_s, _j), {"s": _s, "k": _j, "r": L}),
        Help(move, "resume", (), place(L) == Place.PARKED, {"r": L}),
        Help(move, "start_decode", (), prefill & (C(K) == known(L)), {"r": L}),
        Help(move, "extend_tail", (), chunk & ~aligned(A(K)), one),
        Help(move, "extend_page", (_p,), chunk & aligned(A(K)) & free(_p), {**one, "p": _p}),
        Help(move, "finish", (_w,), done & _no_turn(L) & row_of(K, _w), end),
        Help(move, "save", (_s,), done & turn(_s, L) & ~closing(_s), end),
        Help(move, "save_and_end", (_s, _w), done & turn(_s, L) & closing(_s) & row_of(K, _w), end),
        Help(forward, "write", (), prefill & (C(K) < A(K)), {"r": L, "k": K, "c": A(K)}),
        Help(forward, "decode", (), token & ~aligned(A(K)), generate),
        Help(forward, "decode_page", (_p,), token & aligned(A(K)) & free(_p), generate),
        Help(
            room,
            "retract",
            (_v, _j, _w),
            victim & holds(L),
            {"r": _v, "k": _j, "w": _w},
            others,
            (invariants.admitted_request_holds, invariants.held_record_has_a_row),
        ),
        Help(
            room,
            "reclaim_session",
            (_s, _j, _w),
            slot_kv(_s, _j) & row_of(_j, _w),
            {"s": _s, "k": _j, "w": _w},
            kept,
            (invariants.held_record_has_a_row,),
        ),
        Help(
            room,
            "evict_page",
            (_p,),
            leaf,
            {"p": _p},
            exists(Page, _unlocked),
            (invariants.locks_reach_the_root, invariants.parent_is_in_tree),
        ),
        Help(late, "finish (timeout)", (_w,), _no_turn(L) & row_of(K, _w), end),
        Help(late, "drop_turn (timeout)", (_s, _w), turn(_s, L) & ~closing(_s) & row_of(K, _w), end),
        Help(late, "drop_turn_and_end (timeout)", (_s, _w), turn(_s, L) & closing(_s) & row_of(K, _w), end),
    )


HELPS = _helps()

NOBODY_ELSE: Mapping[Group, tuple[Property, ...]] = {
    Group.ROOM: (
        invariants.no_page_leaks, invariants.no_row_leaks, invariants.kv_needs_a_row, invariants.row_has_a_holder,
        invariants.owned_page_is_mapped, invariants.locked_page_is_mapped, invariants.holder_is_admitted,
        invariants.request_holds_one_record, invariants.ladder, room_is_for_known_tokens, budget_is_sound, FITS,
    ),
    Group.SCHEDULER: (
        invariants.held_record_has_a_row, invariants.place_exists, invariants.ladder, room_is_for_known_tokens,
        budget_is_sound, running_is_written, no_one_transfers,
    ),
}  # fmt: skip
"""From which invariants it follows that some help is offered; from all of them where a group is not named."""

# What is left when requests end --------------------------------------------------------------------------------------

LEFT: Mapping[str, Formula] = {
    "a record that a request holds": forall(Request, Record, lambda r, k: kv(r, k) >> live(r)),
    "a closing session": forall(Session, lambda s: closing(s) >> exists(Request, lambda r: turn(s, r) & live(r))),
    "a private page": forall(
        Record, Page,
        lambda k, p: maps(k, p) >> (
            exists(Request, lambda r: kv(r, k) & live(r)) | exists(Session, lambda s: slot_kv(s, k))
        ),
    ),
}  # fmt: skip
"""States that must be left, each tied to a live request (or kept by a session on purpose): they end when it ends.

Parked and retracted (waiting) are places of a live request, and need no word of their own.
"""
