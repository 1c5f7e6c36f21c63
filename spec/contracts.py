"""What each event must do, as two-state formulas written from the reader's side and not from the updates.

Invariants alone cannot see an event that does nothing, or one that erases the evidence of its own fault. A contract
says what has to be different afterwards (`next_`), and on whose account.
"""

from __future__ import annotations

from freehold.spec import events
from freehold.spec.state import (
    PAGE_SIZE,
    WINDOW,
    A,
    C,
    E,
    Loan,
    P,
    Page,
    Place,
    Record,
    Request,
    Row,
    Session,
    StateSlot,
    SwaPage,
    T,
    begin,
    ceil_to_page,
    closing,
    end,
    free,
    held,
    in_tree,
    kv,
    label,
    law,
    lent,
    locks,
    maps,
    opened,
    owns,
    parent,
    peer,
    place,
    pos,
    reads,
    row_free,
    row_of,
    salt,
    slot_kv,
    spoilt,
    state,
    turn,
    writes,
)
from freehold.spec.terms import Formula, Int, SetOf, exists, forall, next_, no

contract = law.contract


def gone(p: Page) -> Formula:
    """The page is free afterwards, or waits, if and only if something in flight touches it; no swa half is left."""
    busy = exists(Loan, lambda o: reads(o, p) | writes(o, p))
    return (busy >> next_(held(p))) & (~busy >> next_(free(p))) & no(SwaPage, lambda v: next_(peer(p, v)))


def looked_back_on(k: Record) -> Formula:
    """With a sliding window: what the next token looks back on has its swa half."""
    seen = forall(Page, lambda p: (maps(k, p) & (C(k) < end(p) + WINDOW)) >> exists(SwaPage, lambda v: peer(p, v)))
    return (WINDOW > 0) >> seen


@contract(events.acquire)
def acquired_pages_are_the_records(k: Record, pages: SetOf[Page]) -> Formula:
    """The record owns what it asked for, and a request stands behind it."""
    return forall(Page, lambda p: pages(p) >> next_(owns(k, p))) & exists(Request, lambda r: kv(r, k))


@contract(events.release)
def released_pages_are_free(k: Record, pages: SetOf[Page]) -> Formula:
    """Each page can be acquired again as soon as nothing in flight touches it; no other page left the record."""
    return forall(Page, lambda p: pages(p) >> gone(p)) & forall(
        Record, Page, lambda x, p: (owns(x, p) & ~pages(p)) >> next_(owns(x, p))
    )


@contract(events.bind_row)
def new_record_is_empty_and_held(r: Request, k: Record, w: Row) -> Formula:
    """The request holds a record with the row and no tokens, which was nobody's before."""
    return (
        next_(kv(r, k))
        & next_(row_of(k, w))
        & (next_(A(k)) == 0)
        & (next_(salt(k)) == 0)
        & no(Loan, lambda o: next_(lent(o, k)))
        & no(Request, lambda x: kv(x, k))
        & no(Session, lambda x: slot_kv(x, k))
    )


@contract(events.unbind_row)
def unbound_row_is_free(k: Record, w: Row) -> Formula:
    """The row can be bound again."""
    return next_(row_free(w))


@contract(events.extend)
def page_backs_the_next_tokens(k: Record, p: Page, a: Int) -> Formula:
    """The page stands just behind the old room, which is as asked for, untouched; a request stands behind it."""
    return (
        next_(maps(k, p))
        & no(Loan, lambda o: reads(o, p) | writes(o, p))
        & (next_(A(k)) == a)
        & (next_(begin(p)) == ceil_to_page(A(k), PAGE_SIZE))
        & exists(Request, lambda r: kv(r, k))
    )


@contract(events.grow)
def room_is_as_asked(k: Record, a: Int) -> Formula:
    """The room grew to what was asked for, on a request's account."""
    return (next_(A(k)) == a) & (A(k) < next_(A(k))) & exists(Request, lambda r: kv(r, k))


@contract(events.commit)
def written_is_as_said(k: Record, c: Int) -> Formula:
    """More is written than before, by a request, with all that its tokens looked back on, and no failed write."""
    return (
        (next_(C(k)) == c)
        & (C(k) < next_(C(k)))
        & ~spoilt(k)
        & looked_back_on(k)
        & forall(StateSlot, lambda z: state(k, z) >> (T(z) == next_(C(k))))
        & exists(Request, lambda r: kv(r, k))
    )


@contract(events.truncate)
def what_stays_is_untouched(k: Record, a: Int) -> Formula:
    """Room is cut to `a`; entries and written tokens before the cut stay."""
    return (
        (next_(A(k)) == a)
        & ((C(k) <= a) >> (next_(C(k)) == C(k)))
        & ((a <= C(k)) >> (next_(C(k)) == a))
        & ((E(k) <= a) >> (next_(E(k)) == E(k)))
        & ((a <= C(k)) >> ~next_(spoilt(k)))
        & ((C(k) < a) >> forall(Record, lambda x: spoilt(x) >> next_(spoilt(x))))
        & (exists(Request, lambda r: kv(r, k)) | (a == P(k)))
        & forall(Page, lambda p: (maps(k, p) & (begin(p) < a)) >> next_(maps(k, p)))
    )


@contract(events.lock)
def locked_by_its_user(k: Record, p: Page) -> Formula:
    """The record has the receipt; a request stands behind it."""
    return next_(locks(k, p)) & exists(Request, lambda r: kv(r, k))


@contract(events.attach)
def prefix_is_one_page_longer(k: Record, p: Page) -> Formula:
    """The prefix grew by the page, what it holds counts as written, and other entries stay."""
    return (
        next_(maps(k, p))
        & (next_(P(k)) == P(k) + PAGE_SIZE)
        & ((C(k) <= end(p)) >> (next_(C(k)) == end(p)))
        & ((end(p) <= C(k)) >> (next_(C(k)) == C(k)))
        & (label(p) == salt(k))
        & ((end(p) <= A(k)) >> (next_(A(k)) == A(k)))
        & forall(Page, lambda q: (maps(k, q) & ~(pos(p) == pos(q))) >> next_(maps(k, q)))
    )


@contract(events.publish)
def written_pages_are_shared(k: Record, a: Int) -> Formula:
    """The pages below `a` are in the tree, each under the one before it, locked, and written to the last token."""
    return (
        (next_(P(k)) == a)
        & (P(k) < a)
        & (a <= C(k))
        & forall(Page, lambda p: (maps(k, p) & (begin(p) < a)) >> (next_(in_tree(p)) & next_(locks(k, p))))
        & forall(Page, lambda p: (owns(k, p) & ~next_(owns(k, p))) >> (maps(k, p) & (end(p) <= a)))
        & forall(Page, Page, lambda p, q: (maps(k, p) & maps(k, q) & (begin(p) >= P(k)) & (end(p) <= a)
                                           & (end(q) == begin(p))) >> next_(parent(p, q)))
        & exists(Request, lambda r: kv(r, k))
    )  # fmt: skip


@contract(events.unlock)
def shorter_prefix_stays_locked(k: Record, a: Int) -> Formula:
    """The record keeps exactly `a` tokens of its prefix, mapped and locked."""
    return (
        (next_(A(k)) == a)
        & forall(Page, lambda p: (locks(k, p) & (begin(p) < a)) >> next_(locks(k, p)))
        & forall(Page, lambda p: (maps(k, p) & (begin(p) < a)) >> next_(maps(k, p)))
        & forall(Page, lambda p: next_(locks(k, p)) >> (begin(p) < a))
        & forall(Page, lambda p: (maps(k, p) & ~next_(maps(k, p))) >> in_tree(p))
    )


@contract(events.evict)
def evicted_page_is_free(p: Page) -> Formula:
    """The page can be acquired again as soon as nothing in flight touches it, and nobody had it locked."""
    return gone(p) & forall(Record, lambda k: ~locks(k, p))


@contract(events.transfer_to_session)
def session_holds_the_record(r: Request, k: Record, s: Session) -> Formula:
    """The slot of the request's own session has the record, and the request nothing."""
    return next_(slot_kv(s, k)) & turn(s, r) & forall(Record, lambda x: ~next_(kv(r, x)))


@contract(events.transfer_to_request)
def request_holds_the_record(s: Session, k: Record, r: Request) -> Formula:
    """The session's live turn has the record, and the slot nothing."""
    return next_(kv(r, k)) & turn(s, r) & forall(Record, lambda x: ~next_(slot_kv(s, x)))


@contract(events.close)
def record_is_gone(k: Record) -> Formula:
    """Nobody holds the record."""
    return forall(Request, lambda r: ~next_(kv(r, k))) & forall(Session, lambda s: ~next_(slot_kv(s, k)))


@contract(events.open_session)
def session_is_open(s: Session) -> Formula:
    """The session is open and was not."""
    return next_(opened(s)) & ~opened(s)


@contract(events.use)
def turn_is_live(s: Session, r: Request) -> Formula:
    """The request is the turn of a session that is not on its way out."""
    return next_(turn(s, r)) & ~closing(s)


@contract(events.unuse)
def turn_is_over(s: Session, r: Request) -> Formula:
    """The request was the session's turn, is not any more, and left no KV behind."""
    return turn(s, r) & ~next_(turn(s, r)) & forall(Record, lambda k: ~kv(r, k))


@contract(events.close_session)
def closing_is_noted(s: Session) -> Formula:
    """Closing waits, asked for once."""
    return next_(closing(s)) & ~closing(s)


@contract(events.end_session)
def session_is_gone(s: Session) -> Formula:
    """The session was asked to close, and is not open any more."""
    return closing(s) & ~next_(opened(s))


@contract(events.place_)
def move_is_an_edge(r: Request, q: Int) -> Formula:
    """The request is where it was sent; nobody runs without prefill or parks from the queue."""
    enters = (place(r) == Place.WAITING) >> ((q == Place.PREFILL) | (q == Place.RECEIVING) | (q == Place.OUT))
    sends = (q == Place.SENDING) >> (place(r) == Place.PREFILL)
    receives = (q == Place.RECEIVING) >> (place(r) == Place.WAITING)
    starts = (place(r) == Place.OUT) >> (q == Place.WAITING)
    decodes = (q == Place.RUNNING) >> ((place(r) == Place.PREFILL) | (place(r) == Place.RECEIVING))
    parks = (q == Place.PARKED) >> (place(r) == Place.PREFILL)
    resumes = (q == Place.PREFILL) >> ((place(r) == Place.WAITING) | (place(r) == Place.PARKED))
    return (next_(place(r)) == q) & enters & starts & decodes & parks & resumes & sends & receives
