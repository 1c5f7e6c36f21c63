"""The law's state: who holds what, as relations that mirror the engine's own structures.

Ownership is deliberately *several* relations (`free`, `owns`, `in_tree`): that each page has exactly one owner is a
theorem about them and not a property of their type, so a double free can be said, searched for and found.

A tree node holds one page and is named by it. A page's `pos` is its index in the token sequence, the same for the row
that maps it and for the tree that caches it. Reference counts do not exist: a lock is a receipt held by a record.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import cast

from freehold.spec import arithmetic
from freehold.spec.language import Law
from freehold.spec.terms import Constant, Element, Formula, Int, no


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


class Place(IntEnum):
    """Where a request is in the scheduler."""

    OUT = 0
    WAITING = 1
    PREFILL = 2
    PARKED = 3
    RUNNING = 4


law = Law("ownership of KV pages by requests, sessions and the prefix tree")
law.sort(Page, Row, Record, Request, Session)

PAGE_SIZE = Constant("page_size")
ROW_WIDTH = Constant("row_width")

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

P = law.function("P", Record, doc="published tokens: row positions [0, P) are tree pages that the record locks")
C = law.function("C", Record, doc="committed tokens: positions [0, C) are written")
A = law.function("A", Record, doc="allocated tokens: positions [0, A) have a page behind them")
pos = law.function("pos", Page, doc="index of the page in its token sequence")
place = law.function("place", Request, doc="where the scheduler has the request")


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
