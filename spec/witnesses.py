"""States that must be reachable: for each property one in which it has something to say, and scenes that matter.

A property that nobody can come near is not evidence. The first list is derived from the properties themselves: where an
invariant says "if this then that", its witness is a state with a *this*. The scenes are written by hand. The exhaustive
search has to see every one of them.
"""

from __future__ import annotations

from freehold.spec import invariants as inv
from freehold.spec import pool_rules as rules
from freehold.spec.language import Property
from freehold.spec.state import (
    FULL,
    PAGE_SIZE,
    POOLS,
    ROW_WIDTH,
    A,
    C,
    E,
    Loan,
    P,
    Page,
    Place,
    Pool,
    Record,
    Request,
    Row,
    Session,
    StateSlot,
    SwaPage,
    T,
    behind,
    closing,
    end,
    free,
    held,
    in_tree,
    kv,
    law,
    lent,
    locks,
    maps,
    owns,
    parent,
    peer,
    place,
    row_free,
    slot_kv,
    spoilt,
    state,
    turn,
    writes,
)
from freehold.spec.terms import And, Formula, LawError, Not, Or, Quantified, exists


def occasion(term: Formula) -> Formula:
    """A state in which a property is put to the test: each of its premises is met somewhere."""
    match term:
        case And(parts):
            return And(tuple(occasion(p) for p in parts))
        case Quantified("forall", bound, Quantified("lone", inner, body)):
            return Quantified("exists", (*bound, *inner), body)
        case Quantified("forall", bound, Or((Not(premise), _))):
            return Quantified("exists", bound, premise)
        case Quantified("forall", bound, Not(And(parts))):
            return And(tuple(Quantified("exists", bound, p) for p in parts))
        case Quantified("forall", bound, Not(body)):
            return Not(Quantified("exists", bound, body))
        case Quantified("forall", bound, Or(parts)):
            return And(tuple(Quantified("exists", bound, p) for p in parts))
    raise LawError(f"no occasion can be derived from {term!r}: write a witness by hand")


witness = law.witness
BY_HAND = (
    inv.ladder, inv.prefix_is_aligned, inv.place_exists, inv.no_page_leaks, rules.cursor_is_behind_written,
    rules.no_page_has_a_rogue_writer,
    *(law.invariants[f"no_{pool.name}_unit_leaks"] for pool in POOLS if pool is not FULL),
)  # fmt: skip


@witness(inv.ladder)
def all_lengths_differ() -> Formula:
    """A full row whose lengths all differ."""
    return exists(Record, lambda k: (P(k) > 0) & (P(k) < C(k)) & (C(k) < A(k)) & (A(k) == ROW_WIDTH))


@witness(inv.prefix_is_aligned)
def unaligned_tail() -> Formula:
    """Written tokens end inside a page behind a published prefix."""
    return exists(Record, lambda k: (P(k) > 0) & (P(k) < C(k)) & (C(k) < P(k) + PAGE_SIZE))


@witness(inv.place_exists)
def everyone_runs() -> Formula:
    """No request is out: the scheduler is as full as it can be."""
    return ~exists(Request, lambda r: place(r) == Place.OUT)


@witness(inv.no_page_leaks)
def each_kind_of_owner() -> Formula:
    """Free, private and tree pages at once."""
    return exists(Page, lambda p: free(p)) & exists(Page, lambda p: in_tree(p)) & exists(
        Record, Page, lambda k, p: owns(k, p)
    )  # fmt: skip


@witness(inv.locks_are_one_path)
def shared_prefix() -> Formula:
    """Two records lock the same tree page."""
    return exists(Record, Record, Page, lambda k, x, p: locks(k, p) & locks(x, p) & ~(k == x))


@witness(inv.page_has_one_parent)
def fork_in_the_tree() -> Formula:
    """Two pages of the tree come behind the same one."""
    return exists(Page, Page, Page, lambda p, q, root: parent(p, root) & parent(q, root) & ~(p == q))


@witness(inv.row_has_a_holder)
def session_waits_with_kv() -> Formula:
    """A session keeps KV while its next turn waits in the queue."""
    return exists(Session, Record, Request, lambda s, k, r: slot_kv(s, k) & turn(s, r) & (place(r) == Place.WAITING))


@witness(inv.closing_session_is_busy)
def close_is_deferred() -> Formula:
    """A session is closing while its turn holds KV."""
    return exists(Session, Request, Record, lambda s, r, k: closing(s) & turn(s, r) & kv(r, k))


@witness(inv.no_row_leaks)
def no_row_is_left() -> Formula:
    """All rows are bound."""
    return ~exists(Row, lambda w: row_free(w)) & exists(Record, Page, lambda k, p: maps(k, p))


@witness(inv.no_page_leaks)
def page_waits_for_a_loan() -> Formula:
    """A page was given back, and something in flight still touches it."""
    return exists(Page, lambda p: held(p))


@witness(rules.cursor_is_behind_written)
def window_moved_on() -> Formula:
    """The window cursor stands in the middle of a record, and its pages before it are still there."""
    return exists(Record, Page, lambda k, p: (E(k) > 0) & (E(k) < C(k)) & owns(k, p) & (end(p) <= E(k)))


@witness(rules.cursor_is_behind_written)
def tombstone() -> Formula:
    """A tree page has lost its swa half, and another page behind it has one."""
    return exists(
        Page, Page, SwaPage,
        lambda p, q, v: in_tree(p) & parent(q, p) & peer(q, v) & ~exists(SwaPage, lambda u: peer(p, u)),
    )  # fmt: skip


@witness(rules.no_page_has_a_rogue_writer)
def released_page_is_still_written() -> Formula:
    """Something in flight writes a page that its record gave back."""
    return exists(Loan, Page, lambda o, p: writes(o, p) & held(p))


@witness(rules.writer_is_ordered)
def one_step_ahead() -> Formula:
    """Two forwards of one record are in flight, one behind the other, and write one page."""
    return exists(
        Loan, Loan, Record, Page,
        lambda o, m, k, p: behind(o, m) & lent(o, k) & lent(m, k) & writes(o, p) & writes(m, p),
    )  # fmt: skip


@witness(rules.kept_record_is_sound)
def write_failed() -> Formula:
    """A request holds a record into which a write failed."""
    return exists(Request, Record, lambda r, k: kv(r, k) & spoilt(k))


@witness(rules.state_is_not_ahead)
def state_caught_up() -> Formula:
    """A running state has seen all that is committed."""
    return exists(Record, StateSlot, lambda k, z: state(k, z) & (T(z) == C(k)) & (C(k) > 0))


def _exhausted(pool: Pool) -> None:
    name, unit = f"{pool.name} pool is empty", pool.unit
    nothing = ~exists(unit, lambda x: pool.free(x))
    law.witnesses[name] = Property(name, nothing, "No unit is free.", f"no_{pool.name}_unit_leaks")


for _pool in POOLS:
    if _pool is not FULL:
        _exhausted(_pool)


def _derive(prop: Property) -> None:
    term = occasion(prop.term)
    law.witnesses[f"occasion of {prop.name}"] = Property(f"occasion of {prop.name}", term, prop.doc, prop.name)


for _prop in law.invariants.values():
    if _prop.group in ("always", "step") and all(_prop is not p for p in BY_HAND):
        _derive(_prop)
