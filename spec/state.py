"""The law's state: who holds what, as relations that mirror the engine's own structures.

Ownership is deliberately *several* relations (`free`, `owns`, `in_tree`): that each page has exactly one owner is a
theorem about them and not a property of their type, so a double free can be said, searched for and found.

A tree node holds one page and is named by it. A page's `pos` is its index in the token sequence, the same for the row
that maps it and for the tree that caches it. Reference counts do not exist: a lock is a receipt held by a record.

Units come from four pools (`full`, `swa`, `state`, `host`) and from the rows. A *loan* is something in flight that
touches units: a forward step, a copy, a transfer, a remote peer. What is given back while a loan touches it is not free
but *held*, until the last such loan closes. An engine that has no such pool, or nothing in flight, has an empty sort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import cast

from freehold.spec import arithmetic
from freehold.spec.language import Law
from freehold.spec.terms import Constant, Element, Formula, Int, Relation, Sort, exists, forall, no


class Page(Element):
    """A page of the `full` pool."""


class Row(Element):
    """A row of the page table (pool `row`)."""


class Record(Element):
    """A KV record; it exists exactly while a request or a session slot holds it."""


class Request(Element):
    """A request, from its arrival to its end."""


class Session(Element):
    """A streaming session, whose slot keeps the KV of its turns."""


class SwaPage(Element):
    """A page of the `swa` pool: the layers with a sliding window keep their part of a full page there."""


class StateSlot(Element):
    """A slot of the `state` pool, for the recurrent state of state-space layers."""


class HostPage(Element):
    """A page of the `host` pool."""


class Loan(Element):
    """Something in flight: a forward step of one record, a copy, a transfer, a remote peer."""


class Place(IntEnum):
    """Where a request is in the scheduler; from PREFILL on it holds KV."""

    OUT = 0
    WAITING = 1
    PREFILL = 2
    PARKED = 3
    RUNNING = 4
    SENDING = 5
    RECEIVING = 6


class End(IntEnum):
    """How a loan ends. A timeout is a guess of the lender; the other two are words of the borrower."""

    DONE = 0
    FAILED = 1
    TIMEOUT = 2


law = Law("ownership of KV pages by requests, sessions and the prefix tree")
law.sort(Page, Row, Record, Request, Session, SwaPage, StateSlot, HostPage, Loan)

PAGE_SIZE = Constant("page_size")
ROW_WIDTH = Constant("row_width")
WINDOW = Constant("window")  # tokens that a sliding-window layer looks back; 0 where there is none
NAMESPACES = Constant("namespaces")  # kinds of content that must not be mixed: adapters, cache salts, model versions

free = law.relation("free", Page, doc="the page is on the free list")
owns = law.relation("owns", Record, Page, doc="the page is private to the record")
in_tree = law.relation("in_tree", Page, doc="the page is a node of the prefix tree")
parent = law.relation("parent", Page, Page, doc="the second page comes just before the first in the prefix tree")
locks = law.relation("locks", Record, Page, doc="the record has a lock receipt on the tree page")
maps = law.relation("maps", Record, Page, doc="the record's row has an entry for the page")
row_free = law.relation("row_free", Row, doc="the row is free")
row_of = law.relation("row_of", Record, Row, doc="the row belongs to the record")
kv = law.relation("kv", Request, Record, doc="`request.kv is record`")
slot_kv = law.relation("slot_kv", Session, Record, doc="`slot.kv is record`")
turn = law.relation("turn", Session, Request, doc="the request is the live turn of the session")
opened = law.relation("opened", Session, doc="the session is open")
closing = law.relation("closing", Session, doc="closing was asked for and waits for the live turn")

held = law.relation("held", Page, doc="the page was given back while a loan touched it, and waits for the loan")
written = law.relation("written", Page, doc="every token of the tree page is there", ghost=True)
spoilt = law.relation("spoilt", Record, doc="a loan into the record's room failed: nothing behind C can be committed")

out = law.relation("out", Loan, doc="the loan is open")
lent = law.relation("lent", Loan, Record, doc="the loan runs on the record's account")
reads = law.relation("reads", Loan, Page, doc="the loan reads the page")
writes = law.relation("writes", Loan, Page, doc="the loan writes the page")
target = law.relation("target", Loan, Page, doc="the loan owns the page, which it fills")
behind = law.relation("behind", Loan, Loan, doc="the first loan starts when the second has ended")

swa_free = law.relation("swa_free", SwaPage, doc="the swa page is on its free list")
swa_held = law.relation("swa_held", SwaPage, doc="the swa page waits for a loan")
peer = law.relation("peer", Page, SwaPage, doc="the swa page is the full page's other half, and has its owner")
uses_swa = law.relation("uses_swa", Loan, SwaPage, doc="the loan touches the swa page")

slot_free = law.relation("slot_free", StateSlot, doc="the state slot is free")
slot_held = law.relation("slot_held", StateSlot, doc="the state slot waits for a loan")
claims = law.relation("claims", Request, StateSlot, doc="the request took the slot before it has a record")
state = law.relation("state", Record, StateSlot, doc="the slot is the record's running state")
snapshot = law.relation("snapshot", Page, StateSlot, doc="the slot is a checkpoint at the end of the tree page")
uses_slot = law.relation("uses_slot", Loan, StateSlot, doc="the loan touches the slot")

host_free = law.relation("host_free", HostPage, doc="the host page is free")
host_held = law.relation("host_held", HostPage, doc="the host page waits for a loan")
archive = law.relation("archive", HostPage, doc="the host page is a tree page that lives on the host alone")
rogue = law.relation("rogue", Page, doc="a borrower that was given up may still write the page", ghost=True)
backup = law.relation("backup", Request, HostPage, doc="the host page keeps KV of the retracted request")
mirror = law.relation("mirror", Page, HostPage, doc="the host page is a copy of the tree page")
filling = law.relation("filling", Loan, HostPage, doc="the loan owns the host page, which it fills")
uses_host = law.relation("uses_host", Loan, HostPage, doc="the loan reads the host page")

P = law.function("P", Record, doc="published tokens: row positions [0, P) are tree pages that the record locks")
C = law.function("C", Record, doc="committed tokens: positions [0, C) are written")
A = law.function("A", Record, doc="allocated tokens: positions [0, A) have a page behind them")
E = law.function("E", Record, doc="window cursor: private pages behind position E have their swa page")
salt = law.function("salt", Record, doc="namespace of the record's content")
S = law.function("S", Loan, doc="first token position that the loan may write in its record")
T = law.function("T", StateSlot, doc="tokens that the state in the slot has seen")
label = law.function("label", Page, doc="namespace of the page's content")
host_pos = law.function("host_pos", HostPage, doc="index of the host page in its token sequence")
host_label = law.function("host_label", HostPage, doc="namespace of the host page's content")
pos = law.function("pos", Page, doc="index of the page in its token sequence")
place = law.function("place", Request, doc="where the scheduler has the request")

law.idle = forall(Request, lambda r: place(r) == Place.OUT) & no(Loan, lambda o: out(o))

ceil_pages = cast(Callable[[Int, Int], Int], arithmetic.ceil_pages)
floor_to_page = cast(Callable[[Int, Int], Int], arithmetic.floor_to_page)
ceil_to_page = cast(Callable[[Int, Int], Int], arithmetic.ceil_to_page)


def begin(p: Page) -> Int:
    """First token position of the page."""
    return pos(p) * PAGE_SIZE


def end(p: Page) -> Int:
    """Token position just behind the page."""
    return pos(p) * PAGE_SIZE + PAGE_SIZE


def aligned(tokens: Int) -> Formula:
    return floor_to_page(tokens, PAGE_SIZE) == tokens


def holds_nothing(r: Request) -> Formula:
    """`request.kv is None`."""
    return no(Record, lambda x: kv(r, x))


def empty(s: Session) -> Formula:
    """`slot.kv is None`."""
    return no(Record, lambda x: slot_kv(s, x))


def has_row(k: Record) -> Formula:
    return exists(Row, lambda w: row_of(k, w))


def in_use(k: Record) -> Formula:
    """A request holds the record: nobody else may make it grow."""
    return exists(Request, lambda r: kv(r, k))


def touches(x: Loan, p: Page) -> Formula:
    return reads(x, p) | writes(x, p)


def in_window(k: Record, p: Page) -> Formula:
    """The page reaches into the window that the record's next token looks back on."""
    return C(k) < end(p) + WINDOW


def has_peer(p: Page) -> Formula:
    return exists(SwaPage, lambda v: peer(p, v))


def alive(k: Record) -> Formula:
    """Every page that the next token looks back on has its swa half, where the model has a sliding window."""
    return (WINDOW > 0) >> forall(Page, lambda p: (maps(k, p) & in_window(k, p)) >> has_peer(p))


@dataclass(frozen=True, slots=True)
class Pool:
    """One kind of unit: its free list, where it waits for a loan, who else can own it, and what a loan does to it.

    Relations in `owners` have the unit as their last place; those of one place are an owner by themselves.
    """

    name: str
    unit: Sort
    free: Relation
    held: Relation
    owners: tuple[Relation, ...]
    touched: Callable[[Loan, Element], Formula]


FULL = Pool("full", Page, free, held, (in_tree, owns, target), cast(Callable[[Loan, Element], Formula], touches))
SWA = Pool("swa", SwaPage, swa_free, swa_held, (peer,), uses_swa)
STATE = Pool("state", StateSlot, slot_free, slot_held, (claims, state, snapshot), uses_slot)
HOST = Pool("host", HostPage, host_free, host_held, (archive, backup, mirror, filling), uses_host)
POOLS = (FULL, SWA, STATE, HOST)
