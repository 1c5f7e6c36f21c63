"""Invariants of the pools and of what is in flight.

The same rules hold for each pool, so they are written once and made for each: one kind of owner a unit, one owner of a
kind, no leak, nothing free in flight, nothing held for nothing. Conservation follows: each unit counts exactly once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from freehold.spec.invariants import always, step
from freehold.spec.state import (
    FULL,
    POOLS,
    WINDOW,
    C,
    E,
    HostPage,
    Loan,
    Page,
    Place,
    Pool,
    Record,
    Request,
    S,
    Session,
    StateSlot,
    SwaPage,
    T,
    aligned,
    backup,
    begin,
    behind,
    claims,
    end,
    filling,
    free,
    has_peer,
    has_row,
    held,
    host_label,
    host_pos,
    in_tree,
    label,
    law,
    lent,
    maps,
    mirror,
    out,
    owns,
    parent,
    peer,
    place,
    pos,
    reads,
    rogue,
    salt,
    slot_kv,
    snapshot,
    spoilt,
    state,
    target,
    touches,
    uses_host,
    writes,
    written,
)
from freehold.spec.terms import And, Element, Formula, Or, Relation, exists, forall, lone

# Rules that follow from others: each is proved from the ones named here, and may then be used like any other.
FOLLOWS: Mapping[str, tuple[str, ...]] = {
    **{
        f"{pool.free.name}_or_{pool.held.name}": (
            f"free_{pool.name}_unit_is_untouched", f"held_{pool.name}_unit_is_touched",
        )
        for pool in POOLS
    },
    "free_or_target": ("free_full_unit_is_untouched", "target_is_its_loans_alone"),
    "in_tree_or_target": ("tree_page_is_not_written", "target_is_its_loans_alone"),
    "owns_or_target": (
        "private_page_is_written_for_its_owner", "target_is_its_loans_alone", "load_has_no_account",
    ),
    "target_has_one_owner": ("target_is_its_loans_alone",),
    "host_held_or_filling": ("held_host_unit_is_touched", "filling_loan_is_open"),
    "claims_or_snapshot": (
        "claimed_state_is_fresh", "snapshot_is_of_its_page", "snapshot_is_in_tree", "tree_position_is_natural",
    ),
}  # fmt: skip
_later: list[Callable[[], Formula]] = []


def _named(name: str, doc: str, write: Callable[[], Formula]) -> None:
    write.__name__, write.__doc__ = name, doc
    if name in FOLLOWS:
        _later.append(write)
    else:
        always(write)


def _owned_by(relation: Relation, x: Element) -> Formula:
    """Somebody owns the unit by this relation."""
    if len(relation.sorts) == 1:
        return relation(x)
    return exists(relation.sorts[0], lambda holder: relation(holder, x))


def _apart(pool: Pool, left: Relation, right: Relation) -> Formula:
    """No unit has an owner of either kind."""
    sorts = (*left.sorts[:-1], *right.sorts[:-1])
    split = len(left.sorts) - 1
    if not sorts:
        return forall(pool.unit, lambda x: ~(left(x) & right(x)))
    if len(sorts) == 1:
        return forall(*sorts, pool.unit, lambda a, x: ~(left(*(a,) * split, x) & right(*(a,) * (1 - split), x)))
    return forall(*sorts, pool.unit, lambda a, b, x: ~(left(a, x) & right(b, x)))


def _one_kind_of_owner(pool: Pool) -> None:
    """The pairs that `invariants` has not named already."""
    for left, right in itertools.combinations((pool.free, pool.held, *pool.owners), 2):
        if pool is FULL and held not in (left, right) and target not in (left, right):
            continue
        _named(
            f"{left.name}_or_{right.name}", f"No unit of `{pool.name}` is in both.",
            lambda left=left, right=right: _apart(pool, left, right),  # type: ignore[misc]
        )  # fmt: skip


def _rules(pool: Pool) -> None:
    unit = pool.unit
    _one_kind_of_owner(pool)
    for owner in pool.owners:
        if len(owner.sorts) == 2 and owner.name != "owns":
            _named(
                f"{owner.name}_has_one_owner", f"A unit of `{pool.name}` has at most one owner of this kind.",
                lambda owner=owner: forall(unit, lambda x: lone(owner.sorts[0], lambda a: owner(a, x))),  # type: ignore[misc]
            )  # fmt: skip
    if pool is not FULL:
        _named(
            f"no_{pool.name}_unit_leaks", f"Each unit of `{pool.name}` is free, waits for a loan, or has an owner.",
            lambda: forall(unit, lambda x: Or(tuple(_owned_by(r, x) for r in (pool.free, pool.held, *pool.owners)))),
        )  # fmt: skip
    _named(
        f"free_{pool.name}_unit_is_untouched", f"Nothing in flight touches a free unit of `{pool.name}`.",
        lambda: forall(Loan, unit, lambda o, x: ~(pool.touched(o, x) & pool.free(x))),
    )  # fmt: skip
    _named(
        f"held_{pool.name}_unit_is_touched", f"A unit of `{pool.name}` waits only for a loan that touches it.",
        lambda: forall(unit, lambda x: pool.held(x) >> exists(Loan, lambda o: pool.touched(o, x))),
    )  # fmt: skip
    _named(
        f"only_open_loans_touch_{pool.name}", f"What touches a unit of `{pool.name}` is open.",
        lambda: forall(Loan, unit, lambda o, x: pool.touched(o, x) >> out(o)),
    )  # fmt: skip


for _pool in POOLS:
    _rules(_pool)


# The window ----------------------------------------------------------------------------------------------------------


@always
def page_has_one_peer() -> Formula:
    """A page has at most one swa half."""
    return forall(Page, lambda p: lone(SwaPage, lambda v: peer(p, v)))


@always
def peer_has_the_pages_owner() -> Formula:
    """A page that is free, or waits for a loan, has no swa half."""
    return forall(Page, SwaPage, lambda p, v: ~(peer(p, v) & (free(p) | held(p))))


@always
def loaded_page_has_no_peer() -> Formula:
    """A page that is being loaded has no swa half."""
    return forall(Loan, Page, SwaPage, lambda o, p, v: ~(peer(p, v) & target(o, p)))


@always
def cursor_is_behind_written() -> Formula:
    """0 <= E <= C, at a page border."""
    return forall(Record, lambda k: (E(k) >= 0) & (E(k) <= C(k)) & aligned(E(k)))


@step
def private_page_has_its_peer() -> Formula:
    """With a sliding window, each private page from the cursor on has its swa half."""
    return forall(
        Record, Page,
        lambda k, p: And((WINDOW > 0, owns(k, p), maps(k, p), begin(p) >= E(k))) >> has_peer(p),
    )  # fmt: skip


# States --------------------------------------------------------------------------------------------------------------


@always
def record_has_one_state() -> Formula:
    """A record has at most one running state."""
    return forall(Record, lambda k: lone(StateSlot, lambda z: state(k, z)))


@always
def page_has_one_snapshot() -> Formula:
    """A page has at most one checkpoint."""
    return forall(Page, lambda p: lone(StateSlot, lambda z: snapshot(p, z)))


@always
def request_has_one_claim() -> Formula:
    """A request claims at most one slot."""
    return forall(Request, lambda r: lone(StateSlot, lambda z: claims(r, z)))


@always
def claimed_state_is_fresh() -> Formula:
    """A slot that a request claims before it has a record has seen nothing."""
    return forall(Request, StateSlot, lambda r, z: claims(r, z) >> (T(z) == 0))


@always
def state_needs_a_row() -> Formula:
    """A record with a running state has a row."""
    return forall(Record, StateSlot, lambda k, z: state(k, z) >> has_row(k))


@always
def snapshot_is_in_tree() -> Formula:
    """A checkpoint hangs on a tree page."""
    return forall(Page, StateSlot, lambda p, z: snapshot(p, z) >> in_tree(p))


@always
def snapshot_is_of_its_page() -> Formula:
    """A checkpoint has seen exactly the tokens up to the end of its page."""
    return forall(Page, StateSlot, lambda p, z: snapshot(p, z) >> (T(z) == end(p)))


@step
def state_is_not_ahead() -> Formula:
    """A running state has seen no token that is not committed."""
    return forall(Record, StateSlot, lambda k, z: state(k, z) >> (T(z) <= C(k)))


@step
def claimant_waits() -> Formula:
    """A request that has a slot and no record yet waits in the queue."""
    return forall(Request, StateSlot, lambda r, z: claims(r, z) >> (place(r) == Place.WAITING))


# The host ------------------------------------------------------------------------------------------------------------


@always
def mirror_is_of_a_tree_page() -> Formula:
    """A host copy is of a page that is in the tree."""
    return forall(Page, HostPage, lambda p, h: mirror(p, h) >> in_tree(p))


@always
def page_has_one_mirror() -> Formula:
    """A tree page has at most one host copy."""
    return forall(Page, lambda p: lone(HostPage, lambda h: mirror(p, h)))


@step
def backup_has_a_user() -> Formula:
    """A request that keeps KV on the host is somewhere in the scheduler."""
    return forall(Request, HostPage, lambda r, h: backup(r, h) >> ~(place(r) == Place.OUT))


# Content -------------------------------------------------------------------------------------------------------------


@always
def tree_page_is_written() -> Formula:
    """A page is in the tree only with all its tokens."""
    return forall(Page, lambda p: in_tree(p) >> written(p))


@always
def only_tree_pages_are_written() -> Formula:
    """A page that left the tree says nothing of its content."""
    return forall(Page, lambda p: written(p) >> in_tree(p))


@always
def entry_has_the_namespace() -> Formula:
    """A row entry is of the record's namespace."""
    return forall(Record, Page, lambda k, p: maps(k, p) >> (label(p) == salt(k)))


@always
def path_has_one_namespace() -> Formula:
    """A tree page is of the namespace of the page before it."""
    return forall(Page, Page, lambda p, q: parent(p, q) >> (label(p) == label(q)))


def _same_content(p: Page, h: HostPage) -> Formula:
    return (host_pos(h) == pos(p)) & (host_label(h) == label(p))


@always
def mirror_has_its_pages_content() -> Formula:
    """A host copy has the position and the namespace of its page."""
    return forall(Page, HostPage, lambda p, h: mirror(p, h) >> _same_content(p, h))


@always
def copy_out_has_its_pages_content() -> Formula:
    """What a loan fills on the host has the position and the namespace of the page that it reads."""
    return forall(Loan, Page, HostPage, lambda o, p, h: (reads(o, p) & filling(o, h)) >> _same_content(p, h))


@always
def copy_in_has_its_sources_content() -> Formula:
    """What a loan fills on the device has the position and the namespace of the host page that it reads."""
    return forall(Loan, Page, HostPage, lambda o, p, h: (target(o, p) & uses_host(o, h)) >> _same_content(p, h))


@always
def namespace_needs_a_row() -> Formula:
    """A record without a row has no namespace."""
    return forall(Record, lambda k: ~(salt(k) == 0) >> has_row(k))


@always
def failed_write_needs_a_row() -> Formula:
    """A record without a row has no failed write."""
    return forall(Record, lambda k: spoilt(k) >> has_row(k))


@always
def loan_needs_a_row() -> Formula:
    """A record without a row has nothing in flight on its account."""
    return forall(Loan, Record, lambda o, k: lent(o, k) >> has_row(k))


@step
def kept_record_is_sound() -> Formula:
    """A record in a session's slot has no failed write: its room was cut back."""
    return forall(Session, Record, lambda s, k: slot_kv(s, k) >> ~spoilt(k))


# In flight -----------------------------------------------------------------------------------------------------------


@always
def no_page_has_a_rogue_writer() -> Formula:
    """Nothing that was given up can still write a page."""
    return forall(Page, lambda p: ~rogue(p))


@always
def loan_has_one_account() -> Formula:
    """A loan runs on at most one record's account, and is open."""
    return forall(Loan, lambda o: lone(Record, lambda k: lent(o, k))) & forall(
        Loan, Record, lambda o, k: lent(o, k) >> out(o)
    )


@always
def load_has_no_account() -> Formula:
    """A loan that fills a page from its copy runs on no record's account."""
    return forall(Loan, Record, Page, lambda o, k, p: target(o, p) >> ~lent(o, k))


@always
def store_has_no_account() -> Formula:
    """A loan that fills a host page runs on no record's account."""
    return forall(Loan, Record, HostPage, lambda o, k, h: filling(o, h) >> ~lent(o, k))


@always
def committed_is_not_written() -> Formula:
    """Nothing in flight writes a token that is committed already."""
    return forall(Loan, Record, lambda o, k: lent(o, k) >> (C(k) <= S(o)))


@always
def tree_page_is_not_written() -> Formula:
    """Nothing in flight writes a page of the tree."""
    return forall(Loan, Page, lambda o, p: ~(writes(o, p) & in_tree(p)))


@always
def private_page_is_written_for_its_owner() -> Formula:
    """What writes a private page runs on its owner's account."""
    return forall(Loan, Record, Page, lambda o, k, p: (writes(o, p) & owns(k, p)) >> lent(o, k))


@always
def write_starts_in_its_pages() -> Formula:
    """A loan writes only pages that reach beyond its first position."""
    return forall(Loan, Record, Page, lambda o, k, p: And((writes(o, p), owns(k, p), maps(k, p))) >> (S(o) < end(p)))


@always
def writer_is_ordered() -> Formula:
    """Of two loans that touch a page which one of them writes, one waits for the other."""
    return forall(
        Loan, Loan, Page,
        lambda o, m, p: (writes(o, p) & touches(m, p) & ~(o == m)) >> (behind(o, m) | behind(m, o)),
    )  # fmt: skip


@always
def order_is_of_open_loans() -> Formula:
    """Waiting loans are open, and no two wait for each other."""
    return forall(Loan, Loan, lambda o, m: behind(o, m) >> (out(o) & out(m))) & forall(
        Loan, Loan, lambda o, m: ~(behind(o, m) & behind(m, o))
    )


@always
def target_is_its_loans_alone() -> Formula:
    """A page that a loan owns is written by it and touched by no other."""
    return forall(Loan, Page, lambda o, p: target(o, p) >> writes(o, p)) & forall(
        Loan, Loan, Page, lambda o, m, p: (target(o, p) & touches(m, p)) >> (o == m)
    )


@always
def filling_loan_is_open() -> Formula:
    """A host page belongs to a loan only while that is open, and nothing reads it yet."""
    return forall(Loan, HostPage, lambda o, h: filling(o, h) >> out(o)) & forall(
        Loan, Loan, HostPage, lambda o, m, h: ~(filling(o, h) & uses_host(m, h))
    )


@law.theorem(private_page_is_written_for_its_owner, committed_is_not_written, write_starts_in_its_pages)
def written_page_is_not_committed() -> Formula:
    """A private page that something in flight writes reaches beyond what is committed."""
    return forall(Loan, Record, Page, lambda o, k, p: And((writes(o, p), owns(k, p), maps(k, p))) >> (C(k) < end(p)))


for _write in _later:
    law.theorem(*(law.invariants[name] for name in FOLLOWS[_write.__name__]))(_write)
