"""What each event of the other pools, and of what is in flight, must do; see `contracts`."""

from __future__ import annotations

from typing import Any

from freehold.spec import events, flight, pools
from freehold.spec.contracts import looked_back_on
from freehold.spec.state import (
    FULL,
    HOST,
    NAMESPACES,
    STATE,
    SWA,
    WINDOW,
    A,
    C,
    E,
    End,
    HostPage,
    Loan,
    Page,
    Place,
    Pool,
    Record,
    Request,
    Row,
    S,
    StateSlot,
    SwaPage,
    T,
    archive,
    backup,
    begin,
    behind,
    claims,
    end,
    filling,
    free,
    host_free,
    host_held,
    host_label,
    host_pos,
    in_tree,
    kv,
    label,
    law,
    lent,
    locks,
    maps,
    mirror,
    out,
    owns,
    parent,
    peer,
    place,
    pos,
    reads,
    row_of,
    salt,
    slot_free,
    snapshot,
    spoilt,
    state,
    swa_free,
    target,
    uses_host,
    uses_slot,
    uses_swa,
    writes,
    written,
)
from freehold.spec.terms import Element, Formula, Int, SetOf, exists, forall, next_, no

contract = law.contract


def gone(pool: Pool, x: Element) -> Formula:
    """The unit is free afterwards, or waits, if and only if something in flight touches it."""
    busy = exists(Loan, lambda o: pool.touched(o, x))
    return (busy >> next_(pool.held(x))) & (~busy >> next_(pool.free(x)))


def all_gone(pool: Pool, units: SetOf[Any]) -> Formula:
    return forall(pool.unit, lambda x: units(x) >> gone(pool, x))


def untouched(pool: Pool, x: Element) -> Formula:
    return no(Loan, lambda o: pool.touched(o, x))


# Core events that only these pools need ------------------------------------------------------------------------------


@contract(events.tag)
def namespace_is_as_asked(k: Record, x: Int) -> Formula:
    """An empty record in use has one of the namespaces."""
    return (next_(salt(k)) == x) & (x >= 0) & (x < NAMESPACES) & (A(k) == 0) & exists(Request, lambda r: kv(r, k))


@contract(events.reset)
def tree_is_empty() -> Formula:
    """No page is in the tree or has anything hanging on it, and nobody was using it."""
    return (
        forall(Page, lambda p: ~next_(in_tree(p)) & ~next_(written(p)))
        & forall(Page, Page, lambda p, q: ~next_(parent(p, q)))
        & forall(Page, SwaPage, lambda p, v: ~next_(peer(p, v)))
        & forall(Page, StateSlot, lambda p, z: ~next_(snapshot(p, z)))
        & forall(Page, HostPage, lambda p, h: ~next_(mirror(p, h)))
        & forall(HostPage, lambda h: ~next_(archive(h)))
        & no(Loan, lambda o: out(o))
        & forall(Record, Row, lambda k, w: ~row_of(k, w))
    )


# The swa pool --------------------------------------------------------------------------------------------------------


@contract(pools.pair)
def page_has_its_half(k: Record, p: Page, v: SwaPage) -> Formula:
    """The swa page is the new page's other half, and was free."""
    return next_(peer(p, v)) & swa_free(v) & owns(k, p) & ~maps(k, p)


@contract(pools.window_drop)
def only_what_lies_before_goes(k: Record, floor: Int, e: Int) -> Formula:
    """The cursor stands at `e`; halves inside the window, below the floor, and of tree pages stay."""

    def goes(p: Page) -> Formula:
        return owns(k, p) & maps(k, p) & (begin(p) >= floor) & (end(p) <= e)

    kept = forall(Page, SwaPage, lambda p, v: (peer(p, v) & ~goes(p)) >> next_(peer(p, v)))
    dropped = forall(Page, SwaPage, lambda p, v: (peer(p, v) & goes(p)) >> (~next_(peer(p, v)) & gone(SWA, v)))
    moved = (next_(E(k)) == e) & (E(k) < e) & (e + WINDOW <= C(k)) & (WINDOW > 0)
    return moved & kept & dropped & exists(Request, lambda r: kv(r, k))


@contract(pools.evict_peer)
def tombstone_is_left(p: Page, v: SwaPage) -> Formula:
    """The tree page stays without its half, which no record's next token looks back on."""
    unseen = forall(Record, lambda k: locks(k, p) >> (end(p) + WINDOW <= C(k)))
    return ~next_(peer(p, v)) & peer(p, v) & next_(in_tree(p)) & gone(SWA, v) & unseen


@contract(pools.repeer)
def tombstone_lives_again(k: Record, d: Page, p: Page, v: SwaPage) -> Formula:
    """The tree page has the half of the record's written copy of the same tokens."""
    same = (pos(d) == pos(p)) & (label(d) == label(p)) & (end(d) <= C(k)) & maps(k, d) & owns(k, d)
    return next_(peer(p, v)) & ~next_(peer(d, v)) & peer(d, v) & locks(k, p) & same


# The state pool ------------------------------------------------------------------------------------------------------


@contract(pools.claim_state)
def request_has_a_fresh_slot(r: Request, z: StateSlot) -> Formula:
    """The waiting request has an empty slot that was free."""
    return next_(claims(r, z)) & slot_free(z) & (next_(T(z)) == 0) & (place(r) == Place.WAITING)


@contract(pools.drop_claim)
def claimed_slots_are_gone(r: Request, slots: SetOf[StateSlot]) -> Formula:
    """Each slot is free, or waits, and the request has none of them."""
    return all_gone(STATE, slots) & forall(StateSlot, lambda z: slots(z) >> ~next_(claims(r, z)))


@contract(pools.adopt_state)
def claim_becomes_the_state(r: Request, k: Record, z: StateSlot) -> Formula:
    """The request's record has the slot, and the request's claim is over."""
    return next_(state(k, z)) & ~next_(claims(r, z)) & claims(r, z) & kv(r, k)


@contract(pools.take_state)
def record_has_a_fresh_state(k: Record, z: StateSlot) -> Formula:
    """The record in use has an empty state that was free."""
    fresh = next_(state(k, z)) & slot_free(z) & (next_(T(z)) == 0)
    return fresh & exists(Request, lambda r: kv(r, k))


@contract(pools.load_state)
def state_is_the_checkpoints(k: Record, z: StateSlot, p: Page, y: StateSlot) -> Formula:
    """The state has seen exactly what the record has, nothing in flight used it, and the checkpoint stays."""
    return (next_(T(z)) == C(k)) & state(k, z) & untouched(STATE, z) & next_(snapshot(p, y)) & locks(k, p)


@contract(pools.advance_state)
def state_has_seen_more(k: Record, z: StateSlot, c: Int) -> Formula:
    """The state went from what is committed to the new length."""
    went = (next_(T(z)) == c) & (T(z) == C(k)) & (C(k) < c) & (c <= A(k)) & state(k, z)
    return went & ~spoilt(k) & exists(Request, lambda r: kv(r, k))


@contract(pools.checkpoint_state)
def copy_hangs_on_the_page(k: Record, z: StateSlot, p: Page, y: StateSlot) -> Formula:
    """The page has a checkpoint of its end, and the record its state."""
    return next_(snapshot(p, y)) & (next_(T(y)) == end(p)) & next_(state(k, z)) & untouched(STATE, z) & locks(k, p)


@contract(pools.donate_state)
def state_hangs_on_the_page(k: Record, z: StateSlot, p: Page) -> Formula:
    """The page has a checkpoint of its end, and the record no state."""
    return next_(snapshot(p, z)) & ~next_(state(k, z)) & state(k, z) & untouched(STATE, z) & locks(k, p)


@contract(pools.release_state)
def record_has_no_such_state(k: Record, slots: SetOf[StateSlot]) -> Formula:
    """Each slot is free, or waits, and the record has none of them."""
    return all_gone(STATE, slots) & forall(StateSlot, lambda z: slots(z) >> ~next_(state(k, z)))


@contract(pools.evict_state)
def checkpoints_are_gone(p: Page, slots: SetOf[StateSlot]) -> Formula:
    """Each slot is free, or waits, and none hangs on the page."""
    return all_gone(STATE, slots) & forall(StateSlot, lambda z: slots(z) >> ~next_(snapshot(p, z)))


# The host pool -------------------------------------------------------------------------------------------------------


@contract(pools.stash)
def request_keeps_a_copy(r: Request, k: Record, p: Page, h: HostPage) -> Formula:
    """The request has a host copy of a written page of its own, its first of that position."""
    first = forall(HostPage, lambda x: backup(r, x) >> ~(host_pos(x) == pos(p)))
    copy = (next_(host_pos(h)) == pos(p)) & (next_(host_label(h)) == label(p)) & host_free(h)
    return next_(backup(r, h)) & kv(r, k) & maps(k, p) & (end(p) <= C(k)) & copy & first


@contract(pools.unstash)
def copies_are_gone(r: Request, hosts: SetOf[HostPage]) -> Formula:
    """Each host page is free, or waits, and the request has none of them."""
    return all_gone(HOST, hosts) & forall(HostPage, lambda h: hosts(h) >> ~next_(backup(r, h)))


@contract(pools.copy_out)
def copy_is_on_its_way(o: Loan, p: Page, h: HostPage) -> Formula:
    """A new loan reads the tree page and owns the host page, which will say what it is of."""
    copy = (next_(host_pos(h)) == pos(p)) & (next_(host_label(h)) == label(p))
    return next_(reads(o, p)) & next_(filling(o, h)) & next_(out(o)) & ~out(o) & host_free(h) & in_tree(p) & copy


@contract(pools.keep_copy)
def page_has_a_copy(o: Loan, p: Page, h: HostPage) -> Formula:
    """The host page mirrors the page that the loan copied, and no longer belongs to the loan."""
    return next_(mirror(p, h)) & ~next_(filling(o, h)) & filling(o, h) & reads(o, p)


@contract(pools.demote)
def host_page_stands_alone(p: Page, h: HostPage) -> Formula:
    """The host page is no longer the page's copy."""
    return next_(archive(h)) & ~next_(mirror(p, h)) & mirror(p, h)


@contract(pools.drop_mirror)
def mirrors_are_gone(p: Page, hosts: SetOf[HostPage]) -> Formula:
    """Each host page is free, or waits, and none mirrors the page."""
    return all_gone(HOST, hosts) & forall(HostPage, lambda h: hosts(h) >> ~next_(mirror(p, h)))


@contract(pools.evict_host)
def archived_page_is_gone(h: HostPage) -> Formula:
    """The host page is free, or waits."""
    return archive(h) & ~next_(archive(h)) & gone(HOST, h)


@contract(pools.fetch)
def fetch_is_on_its_way(o: Loan, h: HostPage, index: Int, x: Int) -> Formula:
    """A new loan owns the host page, which will be of a natural position and an existing namespace."""
    named = (next_(host_pos(h)) == index) & (index >= 0) & (next_(host_label(h)) == x) & (x >= 0) & (x < NAMESPACES)
    return next_(filling(o, h)) & next_(out(o)) & ~out(o) & host_free(h) & named


@contract(pools.file_away)
def fetched_page_stands_alone(o: Loan, h: HostPage) -> Formula:
    """The host page no longer belongs to the loan."""
    return next_(archive(h)) & ~next_(filling(o, h)) & filling(o, h)


@contract(pools.copy_in)
def load_is_on_its_way(o: Loan, h: HostPage, p: Page) -> Formula:
    """A new loan reads the host page and owns the page, which will be what the host page is of."""
    same = (next_(pos(p)) == host_pos(h)) & (next_(label(p)) == host_label(h))
    ends = next_(target(o, p)) & next_(writes(o, p)) & next_(uses_host(o, h)) & next_(out(o))
    return ends & ~out(o) & free(p) & archive(h) & same


@contract(pools.land)
def page_joins_the_tree(o: Loan, h: HostPage, p: Page, under: SetOf[Page]) -> Formula:
    """The page is in the tree, below its one parent, and the host page is its copy."""
    hung = forall(Page, lambda q: under(q) >> (next_(parent(p, q)) & in_tree(q)))
    moved = next_(in_tree(p)) & ~next_(target(o, p)) & target(o, p) & ~next_(writes(o, p)) & uses_host(o, h)
    return moved & hung & next_(mirror(p, h)) & ~next_(archive(h)) & archive(h)


# In flight -----------------------------------------------------------------------------------------------------------


@contract(flight.lend)
def everything_touched_is_named(o: Loan, k: Record, start: Int, after: SetOf[Loan]) -> Formula:
    """The new loan reads the whole row, may write from `start` on, and waits for whoever stands in its way."""
    seen = forall(Page, lambda p: maps(k, p) >> next_(reads(o, p))) & forall(
        Page, lambda p: (maps(k, p) & owns(k, p) & (start < end(p))) >> next_(writes(o, p))
    )
    halves = forall(Page, SwaPage, lambda p, v: (maps(k, p) & peer(p, v)) >> next_(uses_swa(o, v)))
    slots = forall(StateSlot, lambda z: state(k, z) >> next_(uses_slot(o, z)))
    ordered = forall(
        Loan, Page,
        lambda m, p: (maps(k, p) & (writes(m, p) | (reads(m, p) & owns(k, p) & (start < end(p)))))
        >> next_(behind(o, m)),
    )  # fmt: skip
    sane = (next_(S(o)) == start) & (C(k) <= start) & (start <= A(k)) & ~spoilt(k) & looked_back_on(k) & ~out(o)
    waits = forall(Loan, lambda m: next_(behind(o, m)) >> out(m))
    account = next_(lent(o, k)) & next_(out(o)) & exists(Request, lambda r: kv(r, k))
    return seen & halves & slots & ordered & sane & waits & account


def _settled(pool: Pool, o: Loan) -> Formula:
    """What waited for the loan alone is free, and what waits for another one still does."""

    def others(x: Element) -> Formula:
        return exists(Loan, lambda m: pool.touched(m, x) & (m != o))

    return forall(
        pool.unit,
        lambda x: (
            ((pool.held(x) & pool.touched(o, x) & ~others(x)) >> next_(pool.free(x)))
            & ((pool.held(x) & others(x)) >> next_(pool.held(x)))
        ),
    )


@contract(flight.loan_close)
def nothing_is_touched_any_more(o: Loan, how: Int) -> Formula:
    """The loan is gone with all that it had, by its borrower's word; a failed write is remembered."""
    touched = (
        forall(Page, lambda p: ~(next_(reads(o, p)) | next_(writes(o, p)) | next_(target(o, p))))
        & forall(SwaPage, lambda v: ~next_(uses_swa(o, v)))
        & forall(StateSlot, lambda z: ~next_(uses_slot(o, z)))
        & forall(HostPage, lambda h: ~(next_(uses_host(o, h)) | next_(filling(o, h))))
        & forall(Record, lambda k: ~next_(lent(o, k)))
        & forall(Loan, lambda m: ~next_(behind(m, o)) & ~behind(o, m))
    )
    owned = forall(Page, lambda p: target(o, p) >> next_(free(p))) & forall(
        HostPage, lambda h: filling(o, h) >> (next_(host_free(h)) | next_(host_held(h)))
    )
    failed = forall(Record, lambda k: (lent(o, k) & (S(o) < A(k)) & ~(how == End.DONE)) >> next_(spoilt(k)))
    sound = forall(Record, lambda k: (next_(spoilt(k)) & ~spoilt(k)) >> (lent(o, k) & ~(how == End.DONE)))
    settled = _settled(FULL, o) & _settled(SWA, o) & _settled(STATE, o) & _settled(HOST, o)
    word = ((how == End.DONE) | (how == End.FAILED)) & ~next_(out(o)) & out(o)
    return touched & owned & failed & sound & settled & word
