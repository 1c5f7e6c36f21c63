"""What is always true, what is true at the end of a step, and what is true when nothing runs.

An `always` invariant holds after each event. A `step` invariant may be open inside an operation (a page that is
acquired and not mapped yet) and holds again at its end. A `theorem` follows from the `always` invariants, a `quiescent`
one from both when every request is out.
"""

from __future__ import annotations

from freehold.spec.state import (
    NAMESPACES,
    ROW_WIDTH,
    WINDOW,
    A,
    C,
    E,
    HostPage,
    Loan,
    P,
    Page,
    Place,
    Record,
    Request,
    Row,
    S,
    Session,
    StateSlot,
    SwaPage,
    T,
    aligned,
    archive,
    backup,
    begin,
    behind,
    claims,
    closing,
    end,
    filling,
    free,
    held,
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
    opened,
    out,
    owns,
    parent,
    peer,
    place,
    pos,
    reads,
    rogue,
    row_free,
    row_of,
    salt,
    slot_free,
    slot_held,
    slot_kv,
    snapshot,
    spoilt,
    state,
    swa_free,
    swa_held,
    target,
    turn,
    uses_host,
    uses_slot,
    uses_swa,
    writes,
    written,
)
from freehold.spec.terms import Formula, Int, exists, forall, lift, lone

always, step = law.invariant("always"), law.invariant("step")
quiescent = law.invariant("quiescent")


# Single owner --------------------------------------------------------------------------------------------------------


@always
def free_page_has_no_record() -> Formula:
    """A free page is owned by no record."""
    return forall(Record, Page, lambda k, p: ~(free(p) & owns(k, p)))


@always
def free_page_is_not_in_tree() -> Formula:
    """A free page is not in the tree."""
    return forall(Page, lambda p: ~(free(p) & in_tree(p)))


@always
def tree_page_has_no_record() -> Formula:
    """A tree page is owned by no record."""
    return forall(Record, Page, lambda k, p: ~(in_tree(p) & owns(k, p)))


@always
def page_has_one_record() -> Formula:
    """A page is owned by at most one record."""
    return forall(Page, lambda p: lone(Record, lambda k: owns(k, p)))


@always
def no_page_leaks() -> Formula:
    """Each page is free, owned by a record, in the tree, or waits for or belongs to something in flight."""
    return forall(
        Page,
        lambda p: free(p) | held(p) | in_tree(p) | exists(Record, lambda k: owns(k, p))
        | exists(Loan, lambda o: target(o, p)),
    )  # fmt: skip


@always
def free_row_is_unbound() -> Formula:
    """A free row belongs to no record."""
    return forall(Record, Row, lambda k, w: ~(row_free(w) & row_of(k, w)))


@always
def row_has_one_record() -> Formula:
    """A row belongs to at most one record."""
    return forall(Row, lambda w: lone(Record, lambda k: row_of(k, w)))


@always
def record_has_one_row() -> Formula:
    """A record has at most one row."""
    return forall(Record, lambda k: lone(Row, lambda w: row_of(k, w)))


@always
def no_row_leaks() -> Formula:
    """Each row is free or belongs to a record."""
    return forall(Row, lambda w: row_free(w) | exists(Record, lambda k: row_of(k, w)))


# Lengths and the row map ---------------------------------------------------------------------------------------------


@always
def ladder() -> Formula:
    """0 <= P <= C <= A <= row width."""
    return forall(Record, lambda k: (P(k) >= 0) & (P(k) <= C(k)) & (C(k) <= A(k)) & (A(k) <= ROW_WIDTH))


@always
def prefix_is_aligned() -> Formula:
    """Only whole pages are published."""
    return forall(Record, lambda k: aligned(P(k)))


@always
def private_entry_is_owned() -> Formula:
    """A row entry behind the published prefix is a page that the record owns."""
    return forall(Record, Page, lambda k, p: (maps(k, p) & (begin(p) >= P(k))) >> owns(k, p))


@always
def prefix_entry_is_locked() -> Formula:
    """A row entry inside the published prefix is a page that the record locks."""
    return forall(Record, Page, lambda k, p: (maps(k, p) & (begin(p) < P(k))) >> locks(k, p))


@always
def entry_is_allocated() -> Formula:
    """No row entry lies outside the allocated room."""
    return forall(Record, Page, lambda k, p: maps(k, p) >> ((pos(p) >= 0) & (begin(p) < A(k))))


@always
def position_has_one_entry() -> Formula:
    """A record maps at most one page at each position."""
    return forall(Record, Page, Page, lambda k, p, q: (maps(k, p) & maps(k, q) & (pos(p) == pos(q))) >> (p == q))


@always
def row_has_no_hole() -> Formula:
    """Before each row entry but the first there is another one."""
    return forall(
        Record, Page,
        lambda k, p: (maps(k, p) & (pos(p) > 0)) >> exists(Page, lambda q: maps(k, q) & (pos(p) == pos(q) + 1)),
    )  # fmt: skip


@always
def room_has_pages() -> Formula:
    """The last allocated token has a page behind it."""
    return forall(Record, lambda k: (A(k) > 0) >> exists(Page, lambda p: maps(k, p) & (A(k) <= end(p))))


# The tree and its locks ----------------------------------------------------------------------------------------------


@always
def locked_page_is_in_tree() -> Formula:
    """A lock receipt names a page of the tree."""
    return forall(Record, Page, lambda k, p: locks(k, p) >> in_tree(p))


@always
def locks_reach_the_root() -> Formula:
    """Who locks a page locks the page before it."""
    return forall(Record, Page, Page, lambda k, p, q: (locks(k, p) & parent(p, q)) >> locks(k, q))


@always
def locks_are_one_path() -> Formula:
    """A record's receipts name at most one page at each position."""
    return forall(Record, Page, Page, lambda k, p, q: (locks(k, p) & locks(k, q) & (pos(p) == pos(q))) >> (p == q))


@always
def page_has_one_parent() -> Formula:
    """A tree page comes behind at most one other."""
    return forall(Page, lambda p: lone(Page, lambda q: parent(p, q)))


@always
def parent_is_in_tree() -> Formula:
    """Both ends of a tree edge are in the tree: nothing hangs on an evicted page."""
    return forall(Page, Page, lambda p, q: parent(p, q) >> (in_tree(p) & in_tree(q)))


@always
def parent_is_one_before() -> Formula:
    """A tree page lies one position behind its parent."""
    return forall(Page, Page, lambda p, q: parent(p, q) >> (pos(p) == pos(q) + 1))


@always
def tree_page_is_rooted() -> Formula:
    """A tree page that is not the first of its sequence has a parent."""
    return forall(Page, lambda p: (in_tree(p) & (pos(p) > 0)) >> exists(Page, lambda q: parent(p, q)))


@always
def tree_position_is_natural() -> Formula:
    """Positions in the tree are not negative."""
    return forall(Page, lambda p: in_tree(p) >> (pos(p) >= 0))


@always
def tree_page_fits_a_row() -> Formula:
    """A path of the tree fits in a row."""
    return forall(Page, lambda p: in_tree(p) >> (end(p) <= ROW_WIDTH))


# Records, holders, sessions ------------------------------------------------------------------------------------------


@always
def record_has_one_request() -> Formula:
    """A record is held by at most one request."""
    return forall(Record, lambda k: lone(Request, lambda r: kv(r, k)))


@always
def record_has_one_session() -> Formula:
    """A record is held by at most one session."""
    return forall(Record, lambda k: lone(Session, lambda s: slot_kv(s, k)))


@always
def record_has_one_holder() -> Formula:
    """A record is not held by a request and a session at once."""
    return forall(Request, Session, Record, lambda r, s, k: ~(kv(r, k) & slot_kv(s, k)))


@always
def request_holds_one_record() -> Formula:
    """A request holds at most one record."""
    return forall(Request, lambda r: lone(Record, lambda k: kv(r, k)))


@always
def slot_holds_one_record() -> Formula:
    """A session's slot holds at most one record."""
    return forall(Session, lambda s: lone(Record, lambda k: slot_kv(s, k)))


@always
def row_has_a_holder() -> Formula:
    """A record with a row is held by a request or a session."""
    return forall(
        Record, Row,
        lambda k, w: row_of(k, w)
        >> (exists(Request, lambda r: kv(r, k)) | exists(Session, lambda s: slot_kv(s, k))),
    )  # fmt: skip


@always
def kv_needs_a_row() -> Formula:
    """Who owns, maps or locks a page has a row."""
    return forall(
        Record, Page,
        lambda k, p: (owns(k, p) | maps(k, p) | locks(k, p)) >> exists(Row, lambda w: row_of(k, w)),
    )  # fmt: skip


@always
def session_has_one_turn() -> Formula:
    """A session has at most one live turn."""
    return forall(Session, lambda s: lone(Request, lambda r: turn(s, r)))


@always
def turn_has_one_session() -> Formula:
    """A request is the turn of at most one session."""
    return forall(Request, lambda r: lone(Session, lambda s: turn(s, r)))


@always
def only_open_sessions_live() -> Formula:
    """A turn, a kept record and a pending close belong to an open session."""
    return (
        forall(Session, Request, lambda s, r: turn(s, r) >> opened(s))
        & forall(Session, Record, lambda s, k: slot_kv(s, k) >> opened(s))
        & forall(Session, lambda s: closing(s) >> opened(s))
    )


@always
def place_exists() -> Formula:
    """A request is in one of the places that there are."""
    return forall(Request, lambda r: (place(r) >= 0) & (place(r) <= max(Place)))


@law.lemma
def each_token_has_a_page(k: Record, a: Int) -> Formula:
    """Each allocated token has a page behind it: by descent from the last one, as a row has no hole."""
    return ((a > 0) & (a <= A(k))) >> exists(Page, lambda p: maps(k, p) & (begin(p) < a) & (a <= end(p)))


@law.theorem(
    prefix_entry_is_locked, locked_page_is_in_tree, tree_page_is_rooted, parent_is_one_before, locks_reach_the_root,
    locks_are_one_path, entry_is_allocated,
)  # fmt: skip
def prefix_is_a_path() -> Formula:
    """Consecutive entries of a published prefix are parent and child in the tree."""
    return forall(
        Record, Page, Page,
        lambda k, p, q: (maps(k, p) & maps(k, q) & (pos(p) == pos(q) + 1) & (begin(p) < P(k))) >> parent(p, q),
    )  # fmt: skip


# At the end of a step ------------------------------------------------------------------------------------------------


@step
def owned_page_is_mapped() -> Formula:
    """A page that a record owns stands in its row."""
    return forall(Record, Page, lambda k, p: owns(k, p) >> maps(k, p))


@step
def locked_page_is_mapped() -> Formula:
    """A page that a record locks stands in its row: the locked path is the published prefix."""
    return forall(Record, Page, lambda k, p: locks(k, p) >> maps(k, p))


@step
def held_record_has_a_row() -> Formula:
    """A record that a request or a session holds has a row."""
    return forall(Request, Record, lambda r, k: kv(r, k) >> exists(Row, lambda w: row_of(k, w))) & forall(
        Session, Record, lambda s, k: slot_kv(s, k) >> exists(Row, lambda w: row_of(k, w))
    )


@step
def holder_is_admitted() -> Formula:
    """A request that holds KV is in prefill or in a place behind it."""
    return forall(Request, Record, lambda r, k: kv(r, k) >> (place(r) >= Place.PREFILL))


@step
def admitted_request_holds() -> Formula:
    """A request in prefill or in a place behind it holds KV."""
    return forall(Request, lambda r: (place(r) >= Place.PREFILL) >> exists(Record, lambda k: kv(r, k)))


@step
def turn_is_not_out() -> Formula:
    """A session's live turn is somewhere in the scheduler."""
    return forall(Session, Request, lambda s, r: turn(s, r) >> ~(place(r) == Place.OUT))


@step
def closing_session_is_busy() -> Formula:
    """A session waits for its end only while a turn lives."""
    return forall(Session, lambda s: closing(s) >> exists(Request, lambda r: turn(s, r)))


@step
def kept_room_is_written() -> Formula:
    """A record in a session's slot has no unwritten room: the tail of a turn was given back."""
    return forall(Session, Record, lambda s, k: slot_kv(s, k) >> (C(k) == A(k)))


# When every request is out -------------------------------------------------------------------------------------------


@quiescent
def only_sessions_hold() -> Formula:
    """Every record that owns or locks a page, or has a row, is held by an open session's slot."""

    def kept(k: Record) -> Formula:
        return exists(Session, lambda s: slot_kv(s, k) & opened(s))

    return forall(Record, Page, lambda k, p: (owns(k, p) | locks(k, p)) >> kept(k)) & forall(
        Record, Row, lambda k, w: row_of(k, w) >> kept(k)
    )


@quiescent
def no_request_holds() -> Formula:
    """`request.kv is None` for every request."""
    return forall(Request, Record, lambda r, k: ~kv(r, k))


@quiescent
def no_turn_is_live() -> Formula:
    """No session has a live turn, and none waits for its end."""
    return forall(Session, Request, lambda s, r: ~turn(s, r)) & forall(Session, lambda s: ~closing(s))


# The beginning -------------------------------------------------------------------------------------------------------

law.initial += [
    lift(0) <= ROW_WIDTH,
    forall(Page, lambda p: free(p)),
    forall(Row, lambda w: row_free(w)),
    forall(Record, Page, lambda k, p: ~(owns(k, p) | locks(k, p) | maps(k, p))),
    forall(Record, Row, lambda k, w: ~row_of(k, w)),
    forall(Page, lambda p: ~in_tree(p) & (pos(p) == 0)),
    forall(Page, Page, lambda p, q: ~parent(p, q)),
    forall(Request, Record, lambda r, k: ~kv(r, k)),
    forall(Session, Record, lambda s, k: ~slot_kv(s, k)),
    forall(Session, Request, lambda s, r: ~(turn(s, r) | opened(s) | closing(s))),
    forall(Record, lambda k: (P(k) == 0) & (C(k) == 0) & (A(k) == 0)),
    forall(Request, lambda r: place(r) == Place.OUT),
    forall(Record, lambda k: ~spoilt(k) & (E(k) == 0) & (salt(k) == 0)),
    forall(Page, lambda p: ~(held(p) | written(p) | rogue(p)) & (label(p) == 0)),
    (lift(0) <= WINDOW) & (lift(1) <= NAMESPACES),
    forall(SwaPage, lambda v: swa_free(v)),
    forall(SwaPage, lambda v: ~swa_held(v)),
    forall(Page, SwaPage, lambda p, v: ~peer(p, v)),
    forall(StateSlot, lambda z: slot_free(z)),
    forall(StateSlot, lambda z: ~slot_held(z) & (T(z) == 0)),
    forall(Request, StateSlot, lambda r, z: ~claims(r, z)),
    forall(Record, StateSlot, lambda k, z: ~state(k, z)),
    forall(Page, StateSlot, lambda p, z: ~snapshot(p, z)),
    forall(HostPage, lambda h: host_free(h)),
    forall(HostPage, lambda h: ~(host_held(h) | archive(h)) & (host_pos(h) == 0) & (host_label(h) == 0)),
    forall(Request, HostPage, lambda r, h: ~backup(r, h)),
    forall(Page, HostPage, lambda p, h: ~mirror(p, h)),
    forall(Loan, lambda o: ~out(o) & (S(o) == 0)),
    forall(Loan, Page, lambda o, p: ~(reads(o, p) | writes(o, p) | target(o, p))),
    forall(Loan, HostPage, lambda o, h: ~(filling(o, h) | uses_host(o, h))),
    forall(Loan, SwaPage, lambda o, v: ~uses_swa(o, v)),
    forall(Loan, StateSlot, lambda o, z: ~uses_slot(o, z)),
    forall(Loan, Record, lambda o, k: ~lent(o, k)),
    forall(Loan, Loan, lambda o, m: ~behind(o, m)),
]
