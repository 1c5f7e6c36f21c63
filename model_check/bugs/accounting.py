"""Class H: wrong accounting, and checkers that are wrong themselves.

Three ways: a sum that raises an alarm where all is well, a sum that stays right while a double owner makes up for a
leak, and a decision by a count that leaves something out.
"""

from __future__ import annotations

from typing import Final

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.model_check.bugs.sums import WrongSum
from freehold.spec.census import Sheet, entry, sheet
from freehold.spec.events import attach, lock
from freehold.spec.language import Body, Law
from freehold.spec.state import (
    STATE,
    SWA,
    Page,
    Place,
    Record,
    Request,
    Session,
    StateSlot,
    SwaPage,
    free,
    host_free,
    in_tree,
    kv,
    locks,
    maps,
    owns,
    parent,
    peer,
    place,
    slot_free,
    slot_held,
    slot_kv,
    snapshot,
    state,
    swa_free,
    swa_held,
    turn,
)
from freehold.spec.terms import Formula, exists, no
from freehold.spec.variant import edit, steps, variant

# Sums that are wrong where all is well -------------------------------------------------------------------------------

_FREE = entry("free", Page, lambda p: free(p))
_TREE = entry("tree", Page, lambda p: in_tree(p))
_RUNNING = entry("running", Request, Record, Page, lambda r, k, p: kv(r, k) & owns(k, p))
_KEPT = entry("session", Session, Record, Page, lambda s, k, p: slot_kv(s, k) & owns(k, p))

BY_HOLDER: Final = Sheet("pages by holder", Page, (_FREE, _TREE, _RUNNING, _KEPT))
"""What a busy check of an engine without anything in flight should count."""


def _of_session(s: Session, k: Record) -> Formula:
    return slot_kv(s, k) | exists(Request, lambda r: turn(s, r) & kv(r, k))


LENT_COUNTS_TWICE: Final = Sheet("pages by holder", Page, (_FREE, _TREE, _RUNNING, entry(
    "session", Session, Record, Page, lambda s, k, p: _of_session(s, k) & owns(k, p)
)))  # fmt: skip
"""A session's KV counts in its slot while it is lent to the turn that runs, where it counts as well."""

CLAIMS_COUNT_NOT: Final = Sheet("state", StateSlot, (
    entry("free", StateSlot, lambda z: slot_free(z)), entry("held", StateSlot, lambda z: slot_held(z)),
    entry("running", Record, StateSlot, lambda k, z: state(k, z)),
    entry("cached", Page, StateSlot, lambda p, z: snapshot(p, z)),
))  # fmt: skip
"""A slot that a waiting request has taken already belongs to nobody whom the check knows."""

DROPPED_COUNTS: Final = Sheet("swa", SwaPage, (
    entry("free", SwaPage, lambda v: swa_free(v)), entry("held", SwaPage, lambda v: swa_held(v)),
    entry("mapped", Record, Page, lambda k, p: maps(k, p)),
    entry("tree", Page, SwaPage, lambda p, v: peer(p, v) & in_tree(p) & no(Record, lambda k: maps(k, p))),
))  # fmt: skip
"""Need is taken from the whole sequence: entries that left the window count as if they had a page."""

USED_NEVER_FALLS: Final = Sheet("pages in use", Page, (
    _FREE, entry("used", Page, lambda p: in_tree(p) | exists(Record, lambda k: owns(k, p))),
    entry("evictable", Page, lambda p: in_tree(p) & no(Record, lambda k: locks(k, p))),
))  # fmt: skip
"""A page is taken off the count of used ones only by its last holder, and the tree is a holder, too."""

USED_AND_EVICTABLE: Final = Sheet("pages in use", Page, (
    _FREE, entry("used", Page, lambda p: exists(Record, lambda k: owns(k, p) | locks(k, p))),
    entry("evictable", Page, lambda p: in_tree(p) & no(Record, lambda k: locks(k, p))),
))  # fmt: skip
"""The same count, with the tree no holder."""

_LOCKED = entry("protected", Page, lambda p: in_tree(p) & exists(Record, lambda k: locks(k, p)))

LEAVES_ONLY: Final = Sheet("tree", Page, (_LOCKED, entry(
    "evictable", Page,
    lambda p: in_tree(p) & no(Record, lambda k: locks(k, p)) & no(Page, lambda q: parent(q, p)),
)), _TREE)  # fmt: skip
"""One routine counts leaves, another all nodes."""

ALL_NODES: Final = Sheet("tree", Page, (_LOCKED, entry(
    "evictable", Page, lambda p: in_tree(p) & no(Record, lambda k: locks(k, p))
)), _TREE)  # fmt: skip
"""All nodes, everywhere."""


def as_it_is(law: Law) -> Law:
    """The engine is right; the checker is not."""
    return law


# Sums that are right where nothing is --------------------------------------------------------------------------------


def tree_page_is_freed_instead_of_the_copy(law: Law) -> Law:
    """Free and cached pages are counted and add up; nobody walks the tree and finds a page that is free as well."""

    def more(law: Law) -> None:
        @law.action
        def free_the_other(k: Record, p: Page, d: Page) -> Body:
            """The record lets its copy go, and the tree's page is put on the free list in its place."""
            yield owns(k, d), "the record owns the copy"
            yield locks(k, p), "the record locks the tree page"
            yield ~maps(k, d), "no row entry keeps the copy"
            yield owns.drop(k, d)
            yield free.add(p)

        law.operations.update(variant(law, steps(
            "dedupe_page", lambda k, p, d: [lock(k, p), attach(k, p), free_the_other(k, p, d)]
        )).operations)  # fmt: skip

    return variant(law, extra=more)


def other_levels_list_is_changed(law: Law) -> Law:
    """The level of a block is looked up after it changed, so the free list of the other level loses a block."""
    return variant(
        law, edit("copy_in", undo="free loses", do=lambda o, h, p: [host_free.loses(lambda g: host_free(g))])
    )


# Decisions by a wrong count ------------------------------------------------------------------------------------------


def cached_pages_count_as_used(law: Law) -> Law:
    """With few pages free nothing is admitted; pages that the tree could give up count as used."""
    running = {"a running request needs room": lambda p: exists(Request, lambda r: place(r) == Place.RUNNING)}
    return variant(
        law, edit("bind_row", add={"enough pages are free": lambda r, k, w: exists(Page, lambda p: free(p))}),
        edit("evict", add=running),
    )  # fmt: skip


BUGS: Final[tuple[Bug, ...]] = (
    WrongSum("sgl-project/sglang#22152", "H", "a session's KV counts twice while it is lent to a turn", Shows.STATE,
             as_it_is, small(Page=1, Session=1), 5, LENT_COUNTS_TWICE, BY_HOLDER),
    WrongSum("sgl-project/sglang#20185", "H", "a state slot that a waiting request holds looks leaked", Shows.STATE,
             as_it_is, small(Page=1, StateSlot=1), 2, CLAIMS_COUNT_NOT, sheet(STATE)),
    WrongSum("vllm-project/vllm#55818", "H", "entries that left the window count as pages", Shows.STATE,
             as_it_is, small(Page=2, SwaPage=2, row_width=2, window=1), 6, DROPPED_COUNTS, sheet(SWA)),
    WrongSum("xLLM-AI/xllm#828", "H", "a page in use that becomes a cached one never leaves the count", Shows.STATE,
             as_it_is, small(Page=1), 4, USED_NEVER_FALLS, USED_AND_EVICTABLE),
    WrongSum("UbiquitousLearning/mllm#656", "H", "evictable pages are leaves in one place and nodes in another",
             Shows.STATE, as_it_is, small(Page=2, row_width=2), 7, LEAVES_ONLY, ALL_NODES),
    Bug("sgl-project/mini-sglang#149", "H", "the sum is right while a page is free and cached and another is lost",
        Shows.STATE, tree_page_is_freed_instead_of_the_copy, small(Page=2), 8),
    Bug("NVIDIA/TensorRT-LLM#12834", "H", "a block is taken off the free list of the other level",
        Shows.STATE, other_levels_list_is_changed, small(Page=1, HostPage=2, Loan=1), 4),
    Bug("InternLM/lmdeploy#4100", "H", "cached pages count as used, and nothing is admitted any more",
        Shows.PROGRESS, cached_pages_count_as_used, small(Page=1, Request=2), 6),
)  # fmt: skip
