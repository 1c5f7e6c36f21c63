"""The atomic events: every way in which ownership of a page, a row, a record or a lock can move.

Guards say what must be true for the move to be right; updates say who owns what afterwards. Lengths are in tokens.
Sources: the operations of SGLang 0.5.23 and the record of its KV-decoupling series, restated over relations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from freehold.spec.language import Body
from freehold.spec.state import (
    FULL,
    HOST,
    NAMESPACES,
    PAGE_SIZE,
    ROW_WIDTH,
    STATE,
    SWA,
    A,
    C,
    E,
    HostPage,
    Loan,
    P,
    Page,
    Place,
    Pool,
    Record,
    Request,
    Row,
    S,
    Session,
    StateSlot,
    T,
    aligned,
    alive,
    archive,
    begin,
    ceil_pages,
    ceil_to_page,
    closing,
    empty,
    end,
    free,
    has_row,
    holds_nothing,
    in_tree,
    in_use,
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
    row_free,
    row_of,
    salt,
    slot_kv,
    snapshot,
    spoilt,
    state,
    touches,
    turn,
    written,
)
from freehold.spec.terms import Change, Element, Formula, Int, Or, SetOf, exists, forall, maximum, minimum, no


def give_back(pool: Pool, where: Callable[..., Formula]) -> Iterator[Change]:
    """The units go to the free list, or wait there for the loans that touch them."""
    yield pool.free.gains(lambda x: where(x) & no(Loan, lambda o: pool.touched(o, x)))
    yield pool.held.gains(lambda x: where(x) & exists(Loan, lambda o: pool.touched(o, x)))


def give_back_one(pool: Pool, unit: Element) -> Iterator[Change]:
    yield pool.free.add(unit, when=no(Loan, lambda o: pool.touched(o, unit)))
    yield pool.held.add(unit, when=exists(Loan, lambda o: pool.touched(o, unit)))


# Pages ---------------------------------------------------------------------------------------------------------------


@law.action
def acquire(k: Record, pages: SetOf[Page]) -> Body:
    """Pages go from the free list to the record, which does not map them yet.

    Source: sgl-project/sglang#34399 (the free list is read after the check).
    """
    yield forall(Page, lambda p: pages(p) >> free(p)), "each page is free"
    yield in_use(k), "a request holds the record"
    yield has_row(k), "the record has a row"
    yield free.loses(pages)
    yield owns[k].gains(pages)


@law.action
def release(k: Record, pages: SetOf[Page]) -> Body:
    """Pages go from the record to the free list, with their swa halves.

    Source: sgl-project/sglang#12224, #29428, #38941 (one exit, whole pages, once).
    """
    yield forall(Page, lambda p: pages(p) >> owns(k, p)), "the record owns each page"
    yield forall(Page, lambda p: pages(p) >> ~maps(k, p)), "no row entry keeps any of the pages"
    yield owns[k].loses(pages)
    yield from give_back(FULL, pages)
    yield peer.loses(lambda p, v: pages(p) & peer(p, v))
    yield from give_back(SWA, lambda v: exists(Page, lambda p: pages(p) & peer(p, v)))


# Rows and lengths ----------------------------------------------------------------------------------------------------


@law.action
def bind_row(r: Request, k: Record, w: Row) -> Body:
    """A free row goes to a new record, which the request holds from now on: `request.kv = record`.

    Source: sgl-project/sglang#29429, #37094 (the record exists where KV is allocated).
    """
    yield row_free(w), "the row is free"
    yield holds_nothing(r), "the request holds no record"
    yield no(Request, lambda x: kv(x, k)), "the record is new: no request holds it"
    yield no(Session, lambda x: slot_kv(x, k)), "the record is new: no session holds it"
    yield row_free.drop(w)
    yield row_of.add(k, w)
    yield kv.add(r, k)


@law.action
def unbind_row(k: Record, w: Row) -> Body:
    """The row of a record that is empty goes back to the free rows.

    Source: sgl-project/sglang#37167.
    """
    yield row_of(k, w), "the row is the record's"
    yield no(Page, lambda p: owns(k, p)), "the record owns no page"
    yield no(Page, lambda p: locks(k, p)), "the record has no lock"
    yield no(StateSlot, lambda z: state(k, z)), "the record has no state"
    yield row_of.drop(k, w)
    yield row_free.add(w)
    yield lent.forget(k)
    yield spoilt.drop(k)
    yield salt.becomes(k, 0)


@law.action
def tag(k: Record, x: Int) -> Body:
    """The content of an empty record belongs to a namespace: an adapter, a cache salt, a version of the weights.

    Source: vllm-project/vllm#30931, #42125 (adapters and weights that are reloaded).
    """
    yield NAMESPACES > 1, "there is more than one namespace"
    yield in_use(k), "a request holds the record"
    yield has_row(k), "the record has a row"
    yield A(k) == 0, "the record is empty"
    yield (x >= 0) & (x < NAMESPACES), "the namespace exists"
    yield salt.becomes(k, x)


@law.action
def extend(k: Record, p: Page, a: Int) -> Body:
    """The next row entry points at an owned page; room grows to `a` tokens, which end inside that page.

    Source: sgl-project/sglang#31616, #26972 (reserve by pages, inside the row).
    """
    yield owns(k, p), "the record owns the page"
    yield ~maps(k, p), "the page is not mapped yet"
    yield in_use(k), "a request holds the record"
    yield no(Loan, lambda o: touches(o, p)), "nothing in flight touches the page"
    yield ceil_to_page(A(k), PAGE_SIZE) < a, "the new length reaches into the new page"
    yield a <= ceil_to_page(A(k), PAGE_SIZE) + PAGE_SIZE, "the new length ends inside the new page"
    yield a <= ROW_WIDTH, "the row is wide enough"
    yield maps.add(k, p)
    yield pos.becomes(p, ceil_pages(A(k), PAGE_SIZE))
    yield label.becomes(p, salt(k))
    yield A.becomes(k, a)


@law.action
def grow(k: Record, a: Int) -> Body:
    """Room grows inside the last page: no new page is needed."""
    yield in_use(k), "a request holds the record"
    yield A(k) < a, "the length grows"
    yield a <= ceil_to_page(A(k), PAGE_SIZE), "the new length ends inside the last page"
    yield a <= ROW_WIDTH, "the row is wide enough"
    yield A.becomes(k, a)


@law.action
def commit(k: Record, c: Int) -> Body:
    """Positions [C, c) have been written.

    Source: sgl-project/sglang#12224, #37085, #28754 (committed apart from allocated).
    """
    yield in_use(k), "a request holds the record"
    yield C(k) < c, "the length grows"
    yield c <= A(k), "committed tokens have a page behind them"
    yield forall(Loan, lambda o: lent(o, k) >> (c <= S(o))), "nothing in flight still writes below the new length"
    yield ~spoilt(k), "no write into the room has failed"
    yield alive(k), "the window before the new tokens is alive"
    yield forall(StateSlot, lambda z: state(k, z) >> (T(z) == c)), "the running state has seen the new tokens"
    yield C.becomes(k, c)


@law.action
def truncate(k: Record, a: Int) -> Body:
    """Row entries behind `a` go; their pages stay with the record until they are released.

    Source: sgl-project/sglang#22862 (the tail of a turn).
    """
    yield P(k) <= a, "the published prefix stays"
    yield a <= A(k), "the length does not grow"
    yield in_use(k) | (a == P(k)), "only a request shortens the record, unless it is given up"
    yield (E(k) <= a) | aligned(a), "a cut before the window is at a page border"
    yield maps[k].loses(lambda p: maps(k, p) & (begin(p) >= a))
    yield A.becomes(k, a)
    yield C.becomes(k, minimum(C(k), a))
    yield E.becomes(k, minimum(E(k), a))
    yield spoilt.drop(k, when=a <= C(k))


# The prefix tree -----------------------------------------------------------------------------------------------------


@law.action
def lock(k: Record, p: Page) -> Body:
    """The record takes a receipt on a tree page, from the root down: the page can't be evicted.

    Source: sgl-project/sglang#36848 (a lock is a receipt); sgl-project/mini-sglang#52.
    """
    yield in_tree(p), "the page is in the tree"
    yield in_use(k), "a request holds the record"
    yield has_row(k), "the record has a row"
    yield forall(Page, lambda q: parent(p, q) >> locks(k, q)), "the page before it is locked"
    yield forall(Page, lambda q: locks(k, q) >> (pos(q) < pos(p))), "receipts form one path, taken downwards"
    yield locks.add(k, p)


@law.action
def attach(k: Record, p: Page) -> Body:
    """The record's prefix continues with a locked tree page; a private page with the same tokens leaves the row.

    Source: sgl-project/sglang#37481 (duplicates of an insert).
    """
    yield locks(k, p), "the record locks the page"
    yield begin(p) == P(k), "the page continues the published prefix"
    yield label(p) == salt(k), "the page has the record's namespace"
    yield forall(Loan, lambda o: lent(o, k) >> (end(p) <= S(o))), "nothing in flight writes into the prefix"
    yield maps[k].loses(lambda q: maps(k, q) & (pos(q) == pos(p)))
    yield maps.add(k, p)
    yield P.becomes(k, end(p))
    yield C.becomes(k, maximum(C(k), end(p)))
    yield A.becomes(k, maximum(A(k), end(p)))


@law.action
def publish(k: Record, a: Int) -> Body:
    """The record's private pages below `a` go to the tree, under its locked prefix, and are locked by it.

    Source: GeeeekExplorer/nano-vllm#209; sgl-project/sglang#36909.
    """
    yield in_use(k), "a request holds the record"
    yield aligned(a), "only whole pages are published"
    yield P(k) < a, "there is something to publish"
    yield a <= C(k), "only written pages are published"
    yield no(Page, lambda p: locks(k, p) & ~maps(k, p)), "no lock waits to be attached"
    yield owns[k].loses(lambda p: owns(k, p) & maps(k, p) & (begin(p) < a))
    yield in_tree.gains(lambda p: owns(k, p) & maps(k, p) & (begin(p) < a))
    yield locks[k].gains(lambda p: owns(k, p) & maps(k, p) & (begin(p) < a))
    yield written.gains(lambda p: owns(k, p) & maps(k, p) & (begin(p) < a) & (end(p) <= C(k)))
    yield parent.gains(lambda p, q: owns(k, p) & maps(k, p) & (begin(p) < a) & maps(k, q) & (pos(p) == pos(q) + 1))
    yield P.becomes(k, a)


@law.action
def unlock(k: Record, a: Int) -> Body:
    """The record lets go of its prefix from `a` on: entries and receipts go together.

    Source: sgl-project/sglang#36848.
    """
    yield aligned(a), "the prefix is cut at a page border"
    yield (P(k) >= a) & (a >= 0), "the cut lies in the published prefix"
    yield A(k) == P(k), "nothing is allocated behind the prefix"
    yield locks[k].loses(lambda p: locks(k, p) & (begin(p) >= a))
    yield maps[k].loses(lambda p: maps(k, p) & (begin(p) >= a))
    yield P.becomes(k, a)
    yield C.becomes(k, a)
    yield A.becomes(k, a)
    yield E.becomes(k, minimum(E(k), a))


@law.action
def evict(p: Page) -> Body:
    """An unlocked leaf goes from the tree to the free list.

    Source: sgl-project/mini-sglang#52; bytedance-iaas/sglang#748.
    """
    yield in_tree(p), "the page is in the tree"
    yield no(Record, lambda k: locks(k, p)), "no record locks the page"
    yield no(Page, lambda q: parent(q, p)), "no page comes behind it in the tree"
    yield no(StateSlot, lambda z: snapshot(p, z)), "no state hangs on it"
    yield no(HostPage, lambda h: mirror(p, h)), "no host copy hangs on it"
    yield in_tree.drop(p)
    yield written.drop(p)
    yield parent[p].clear()
    yield from give_back_one(FULL, p)
    yield peer[p].clear()
    yield from give_back(SWA, lambda v: peer(p, v))


@law.action
def reset() -> Body:
    """Flush: while nobody holds KV and nothing is in flight, the tree and its host side are emptied at once.

    Source: sgl-project/sglang#23216 (a flush that forgot the host).
    """
    yield no(Record, Row, lambda k, w: row_of(k, w)), "no record has a row"
    yield no(Loan, lambda o: out(o)), "nothing is in flight"
    yield free.gains(lambda p: in_tree(p))
    yield in_tree.loses(lambda p: in_tree(p))
    yield written.loses(lambda p: written(p))
    yield parent.loses(lambda p, q: parent(p, q))
    yield SWA.free.gains(lambda v: exists(Page, lambda p: peer(p, v)))
    yield peer.loses(lambda p, v: peer(p, v))
    yield STATE.free.gains(lambda z: exists(Page, lambda p: snapshot(p, z)))
    yield snapshot.loses(lambda p, z: snapshot(p, z))
    yield HOST.free.gains(lambda h: archive(h) | exists(Page, lambda p: mirror(p, h)))
    yield archive.loses(lambda h: archive(h))
    yield mirror.loses(lambda p, h: mirror(p, h))


# Holders -------------------------------------------------------------------------------------------------------------


@law.action
def transfer_to_session(r: Request, k: Record, s: Session) -> Body:
    """The whole record goes from the request to the session's slot: `slot.kv, request.kv = request.kv, None`.

    Source: sgl-project/sglang#29429, #37108 (hand over the whole record).
    """
    yield kv(r, k), "the request holds the record"
    yield turn(s, r), "the request is the session's live turn"
    yield empty(s), "the slot is empty"
    yield kv.drop(r, k)
    yield slot_kv.add(s, k)


@law.action
def transfer_to_request(s: Session, k: Record, r: Request) -> Body:
    """The whole record goes from the session's slot to its live turn: `request.kv, slot.kv = slot.kv, None`.

    Source: sgl-project/sglang#37108.
    """
    yield slot_kv(s, k), "the slot holds the record"
    yield turn(s, r), "the request is the session's live turn"
    yield holds_nothing(r), "the request holds no record"
    yield slot_kv.drop(s, k)
    yield kv.add(r, k)


@law.action
def close(k: Record) -> Body:
    """The record is gone; its holder's `kv` is None."""
    yield ~has_row(k), "the record has no row any more"
    yield kv.forget(k)
    yield slot_kv.forget(k)


@law.action
def open_session(s: Session) -> Body:
    """A session with an empty slot."""
    yield ~opened(s), "the session is not open"
    yield opened.add(s)


@law.action
def use(s: Session, r: Request) -> Body:
    """The request becomes the session's one live turn.

    Source: sgl-project/sglang#36503 (one live turn).
    """
    yield opened(s), "the session is open"
    yield ~closing(s), "the session is not closing"
    yield no(Request, lambda x: turn(s, x)), "the session has no live turn"
    yield no(Session, lambda x: turn(x, r)), "the request is no other session's turn"
    yield turn.add(s, r)


@law.action
def unuse(s: Session, r: Request) -> Body:
    """The turn is over; its KV was saved or given back before."""
    yield turn(s, r), "the request is the session's live turn"
    yield holds_nothing(r), "the request holds no record any more"
    yield turn.drop(s, r)


@law.action
def close_session(s: Session) -> Body:
    """Closing is asked for; it waits while a turn lives.

    Source: sgl-project/sglang#21875 (closed while in use).
    """
    yield opened(s), "the session is open"
    yield ~closing(s), "closing was not asked for before"
    yield closing.add(s)


@law.action
def end_session(s: Session) -> Body:
    """The session is gone."""
    yield closing(s), "closing was asked for"
    yield no(Request, lambda r: turn(s, r)), "no turn is live"
    yield empty(s), "the slot is empty"
    yield opened.drop(s)
    yield closing.drop(s)


# Places --------------------------------------------------------------------------------------------------------------

EDGES = (
    (Place.OUT, Place.WAITING),
    (Place.WAITING, Place.PREFILL),
    (Place.WAITING, Place.OUT),
    (Place.PREFILL, Place.PARKED),
    (Place.PARKED, Place.PREFILL),
    (Place.PREFILL, Place.RUNNING),
    (Place.PREFILL, Place.SENDING),
    (Place.WAITING, Place.RECEIVING),
    (Place.RECEIVING, Place.RUNNING),
    *((here, back) for here in tuple(Place)[Place.PREFILL :] for back in (Place.WAITING, Place.OUT)),
)


@law.action
def place_(r: Request, q: Int) -> Body:
    """The scheduler moves the request along an edge of its place graph."""
    legal = tuple((place(r) == here) & (q == there) for here, there in EDGES)
    yield Or(legal), "the edge exists in the place graph"
    yield place.becomes(r, q)
