"""What a scheduler does, as compositions of events; at the end of each one the step invariants hold again.

An operation on many pages is a repetition of a one-page operation that restores the step invariants by itself, so a
proof of `extend_page` covers a chunk of any length: match-and-admit is `admit match_page* extend_page*`. A trace may
leave out an event that moves nothing (the release of no page).
"""

from __future__ import annotations

from collections.abc import Iterator

from freehold.spec.events import (
    acquire,
    attach,
    bind_row,
    close,
    close_session,
    commit,
    end_session,
    evict,
    extend,
    grow,
    lock,
    open_session,
    place_,
    publish,
    release,
    reset,
    tag,
    transfer_to_request,
    transfer_to_session,
    truncate,
    unbind_row,
    unlock,
    unuse,
    use,
)
from freehold.spec.language import Step
from freehold.spec.pools import drop_claim, drop_mirror, evict_state, release_state, unstash
from freehold.spec.state import (
    PAGE_SIZE,
    WINDOW,
    A,
    C,
    P,
    Page,
    Place,
    Record,
    Request,
    Row,
    Session,
    StateSlot,
    T,
    backup,
    claims,
    closing,
    in_use,
    kv,
    law,
    maps,
    mirror,
    owns,
    place,
    slot_kv,
    snapshot,
    state,
    turn,
)
from freehold.spec.terms import Formula, Int, no

Steps = Iterator[tuple[Formula, str] | Step]


def _lone_turn(r: Request) -> Formula:
    return no(Session, lambda s: turn(s, r))


def _no_claim(r: Request) -> Formula:
    return no(StateSlot, lambda z: claims(r, z))


def leave(r: Request) -> Steps:
    """The request is out, and keeps nothing on the host."""
    yield unstash(r, lambda h: backup(r, h))
    yield place_(r, Place.OUT)


def no_window() -> tuple[Formula, str]:
    return ~(WINDOW > 0), "the model has no sliding window"


# Arrival and admission -----------------------------------------------------------------------------------------------


@law.operation
def arrive(r: Request) -> Steps:
    """A request joins the queue."""
    yield place(r) == Place.OUT, "the request is new"
    yield place_(r, Place.WAITING)


@law.operation
def arrive_turn(s: Session, r: Request) -> Steps:
    """A session's next turn joins the queue."""
    yield place(r) == Place.OUT, "the request is new"
    yield use(s, r)
    yield place_(r, Place.WAITING)


@law.operation
def admit(r: Request, k: Record, w: Row) -> Steps:
    """A waiting request gets a record and a row; `match_page` and `extend_page` follow."""
    yield _no_claim(r), "the request has no state slot"
    yield bind_row(r, k, w)
    yield place_(r, Place.PREFILL)


@law.operation
def admit_turn(s: Session, k: Record, r: Request) -> Steps:
    """Lend: a waiting turn gets its session's record, with all the KV of earlier turns."""
    yield _no_claim(r), "the request has no state slot"
    yield transfer_to_request(s, k, r)
    yield place_(r, Place.PREFILL)


@law.operation
def match_page(k: Record, p: Page) -> Steps:
    """One more page of a prefix hit: lock, then attach."""
    yield A(k) == P(k), "nothing private is mapped yet"
    yield lock(k, p)
    yield attach(k, p)


@law.operation
def enter_namespace(k: Record, x: Int) -> Steps:
    """The content of a record that is admitted and still empty belongs to an adapter, a cache salt or a version."""
    yield tag(k, x)


# Growing -------------------------------------------------------------------------------------------------------------


@law.operation
def extend_page(k: Record, p: Page, a: Int) -> Steps:
    """Room for a chunk, or a reserve for speculation, a page at a time."""
    yield no_window()
    yield acquire(k, p)
    yield extend(k, p, a)


@law.operation
def extend_tail(k: Record, a: Int) -> Steps:
    """Room for a chunk inside the last page."""
    yield grow(k, a)


@law.operation
def write(k: Record, c: Int) -> Steps:
    """A forward has written a chunk."""
    yield commit(k, c)


@law.operation
def decode(k: Record) -> Steps:
    """One decode step inside the last page."""
    yield grow(k, A(k) + 1)
    yield commit(k, A(k))


@law.operation
def decode_page(k: Record, p: Page) -> Steps:
    """One decode step that needs a new page; with a sliding window `commit` refuses it."""
    yield acquire(k, p)
    yield extend(k, p, A(k) + 1)
    yield commit(k, A(k))


@law.operation
def trim(k: Record, a: Int) -> Steps:
    """After a rejected draft the room behind `a` is given back."""
    yield C(k) <= a, "written tokens stay"
    yield in_use(k), "a request holds the record"
    yield truncate(k, a)
    yield release(k, lambda p: owns(k, p) & ~maps(k, p))


@law.operation
def park(r: Request) -> Steps:
    """Between two chunks the request waits with its KV."""
    yield place_(r, Place.PARKED)


@law.operation
def resume(r: Request) -> Steps:
    """The next chunk of a parked request."""
    yield place(r) == Place.PARKED, "the request is parked"
    yield place_(r, Place.PREFILL)


@law.operation
def start_decode(r: Request) -> Steps:
    """The last chunk is done; who waits for a peer's KV starts by `received`."""
    yield place(r) == Place.PREFILL, "the request is in prefill"
    yield place_(r, Place.RUNNING)


# Publishing and eviction ---------------------------------------------------------------------------------------------


@law.operation
def publish_pages(k: Record, a: Int) -> Steps:
    """Written pages of the record become tree pages."""
    yield publish(k, a)


@law.operation
def dedupe_page(k: Record, p: Page, d: Page) -> Steps:
    """Another record published the same page first: take that one, give back the own one, which left the row."""
    yield lock(k, p)
    yield attach(k, p)
    yield release(k, d)


@law.operation
def evict_page(p: Page) -> Steps:
    """Tree eviction of one leaf page, with whatever hangs on it."""
    yield evict_state(p, lambda z: snapshot(p, z))
    yield drop_mirror(p, lambda h: mirror(p, h))
    yield evict(p)


@law.operation
def flush() -> Steps:
    """Drop all cached KV while nobody holds any; requests may wait."""
    yield reset()


# Giving back ---------------------------------------------------------------------------------------------------------


def everything(k: Record, w: Row) -> Steps:
    """Unwind a record from its end: state, private pages, prefix, row, and then the record itself."""
    yield release_state(k, lambda z: state(k, z))
    yield truncate(k, P(k))
    yield release(k, lambda p: owns(k, p))
    yield unlock(k, 0)
    yield unbind_row(k, w)
    yield close(k)


@law.operation
def retract(r: Request, k: Record, w: Row) -> Steps:
    """Under memory pressure the request gives all its KV back and queues again."""
    yield kv(r, k), "the request holds the record"
    yield from everything(k, w)
    yield place_(r, Place.WAITING)


@law.operation
def finish(r: Request, k: Record, w: Row) -> Steps:
    """Finish or abort of a request that holds KV, without publishing (more)."""
    yield kv(r, k), "the request holds the record"
    yield _lone_turn(r), "the request is no session's turn"
    yield from everything(k, w)
    yield from leave(r)


@law.operation
def finish_publish(r: Request, k: Record, w: Row, a: Int) -> Steps:
    """Finish that publishes the whole pages first; the rest is given back."""
    yield kv(r, k), "the request holds the record"
    yield _lone_turn(r), "the request is no session's turn"
    yield publish(k, a)
    yield from everything(k, w)
    yield from leave(r)


@law.operation
def abort_waiting(r: Request) -> Steps:
    """Abort of a request that waits; what it has claimed or kept on the host is given back."""
    yield (place(r) == Place.WAITING) & _lone_turn(r), "the request waits and is no session's turn"
    yield drop_claim(r, lambda z: claims(r, z))
    yield from leave(r)


@law.operation
def profile(r: Request, k: Record, w: Row, p: Page) -> Steps:
    """A measuring run before serving: it takes a page outside of any queue, and gives everything back itself."""
    yield place(r) == Place.OUT, "the request is in no queue"
    yield _lone_turn(r), "the request is no session's turn"
    yield bind_row(r, k, w)
    yield acquire(k, p)
    yield extend(k, p, PAGE_SIZE)
    yield from everything(k, w)


# Sessions ------------------------------------------------------------------------------------------------------------


def cut_and_hand_over(r: Request, k: Record, s: Session, a: Int) -> Steps:
    yield release_state(k, lambda z: state(k, z) & (a < T(z)))
    yield truncate(k, a)
    yield release(k, lambda p: owns(k, p) & ~maps(k, p))
    yield transfer_to_session(r, k, s)
    yield unuse(s, r)
    yield from leave(r)


def drop(r: Request, k: Record, w: Row, s: Session) -> Steps:
    yield kv(r, k), "the request holds the record"
    yield from everything(k, w)
    yield unuse(s, r)
    yield from leave(r)


def leave_queue(r: Request, s: Session) -> Steps:
    yield drop_claim(r, lambda z: claims(r, z))
    yield unuse(s, r)
    yield from leave(r)


@law.operation
def begin_session(s: Session) -> Steps:
    """Open a session."""
    yield open_session(s)


@law.operation
def save(r: Request, k: Record, s: Session, a: Int) -> Steps:
    """A turn ends, or is aborted, and its session keeps the KV up to `a`; in the first turn this is the take."""
    yield ~closing(s), "the session is not closing"
    yield a <= C(k), "only written tokens are kept"
    yield from cut_and_hand_over(r, k, s, a)


@law.operation
def save_and_end(r: Request, k: Record, s: Session, a: Int, w: Row) -> Steps:
    """The last turn of a closing session ends, and the session with it."""
    yield from cut_and_hand_over(r, k, s, a)
    yield from everything(k, w)
    yield end_session(s)


@law.operation
def rewind(r: Request, k: Record, a: Int) -> Steps:
    """A turn goes back behind what its session wrote: what follows `a` is given back, the prefix stays."""
    yield kv(r, k), "the request holds the record"
    yield a <= C(k), "only written tokens are kept"
    yield release_state(k, lambda z: state(k, z) & (a < T(z)))
    yield truncate(k, a)
    yield release(k, lambda p: owns(k, p) & ~maps(k, p))


@law.operation
def rewind_prefix(r: Request, k: Record, a: Int) -> Steps:
    """A turn goes back into the published prefix."""
    yield kv(r, k), "the request holds the record"
    yield release_state(k, lambda z: state(k, z) & (a < T(z)))
    yield truncate(k, P(k))
    yield release(k, lambda p: owns(k, p))
    yield unlock(k, a)


@law.operation
def drop_turn(r: Request, k: Record, w: Row, s: Session) -> Steps:
    """Abort of a turn whose session had no KV before it: everything is given back."""
    yield ~closing(s), "the session is not closing"
    yield from drop(r, k, w, s)


@law.operation
def drop_turn_and_end(r: Request, k: Record, w: Row, s: Session) -> Steps:
    """Abort of the only turn of a closing session that had no KV before it."""
    yield from drop(r, k, w, s)
    yield end_session(s)


@law.operation
def abort_waiting_turn(r: Request, s: Session) -> Steps:
    """Abort of a turn that waits; the session keeps what it has."""
    yield ~closing(s), "the session is not closing"
    yield from leave_queue(r, s)


@law.operation
def abort_waiting_turn_and_end(r: Request, s: Session) -> Steps:
    """Abort of the last turn, while it waits, of a closing session that holds nothing."""
    yield from leave_queue(r, s)
    yield end_session(s)


@law.operation
def abort_waiting_turn_and_close(r: Request, s: Session, k: Record, w: Row) -> Steps:
    """Abort of the last turn, while it waits, of a closing session that holds KV."""
    yield slot_kv(s, k), "the slot holds the record"
    yield from leave_queue(r, s)
    yield from everything(k, w)
    yield end_session(s)


@law.operation
def reclaim_session(s: Session, k: Record, w: Row) -> Steps:
    """Under memory pressure a session's kept KV is given back; its history stays and can be recomputed."""
    yield slot_kv(s, k), "the slot holds the record"
    yield from everything(k, w)


@law.operation
def close_idle(s: Session) -> Steps:
    """Close a session that holds nothing and has no live turn."""
    yield close_session(s)
    yield end_session(s)


@law.operation
def close_saved(s: Session, k: Record, w: Row) -> Steps:
    """Close an idle session and give its KV back."""
    yield slot_kv(s, k), "the slot holds the record"
    yield close_session(s)
    yield from everything(k, w)
    yield end_session(s)


@law.operation
def close_busy(s: Session, r: Request) -> Steps:
    """Close while a turn lives: deferred until it ends."""
    yield turn(s, r), "a turn is live"
    yield close_session(s)
