"""Events of what is in flight: a loan opens, touches units, and closes when its borrower has said so.

A loan is ordered *behind* others: it starts when they have ended. That is what one stream gives to forward steps, and
what a copy, a transfer or a remote peer does not have. Two loans may touch a page that one of them writes only if one
is behind the other. A loan that timed out is not closed: its borrower has to be asked, or cut off, first.
"""

from __future__ import annotations

from collections.abc import Iterator

from freehold.spec.language import Body
from freehold.spec.state import (
    FULL,
    POOLS,
    A,
    C,
    End,
    Loan,
    Page,
    Pool,
    Record,
    S,
    alive,
    behind,
    end,
    filling,
    has_row,
    host_free,
    in_use,
    law,
    lent,
    maps,
    out,
    owns,
    peer,
    reads,
    rogue,
    spoilt,
    state,
    target,
    uses_host,
    uses_slot,
    uses_swa,
    writes,
)
from freehold.spec.terms import Change, Element, Formula, Int, SetOf, exists, forall, no


@law.action
def lend(o: Loan, k: Record, start: Int, after: SetOf[Loan]) -> Body:
    """A forward, a transfer or a peer starts on the record: it reads what is mapped and writes from `start` on.

    Source: sgl-project/sglang#18803 (a forward and its pages).
    """
    yield ~out(o), "the loan is new"
    yield in_use(k), "a request holds the record"
    yield has_row(k), "the record has a row"
    yield C(k) <= start, "committed tokens are not written again"
    yield start <= A(k), "what is written has a page behind it"
    yield ~spoilt(k), "no write into the room has failed"
    yield alive(k), "the window before the new tokens is alive"
    yield forall(Loan, lambda x: after(x) >> out(x)), "what it is ordered behind is open"
    yield (
        forall(
            Loan, Page,
            lambda x, p: (maps(k, p) & (writes(x, p) | (reads(x, p) & owns(k, p)))) >> after(x),
        ),
        "it is ordered behind whatever writes what it touches, or reads what is private to the record",
    )  # fmt: skip
    yield out.add(o)
    yield lent.add(o, k)
    yield reads[o].gains(lambda p: maps(k, p))
    yield writes[o].gains(lambda p: owns(k, p) & maps(k, p) & (start < end(p)))
    yield uses_swa[o].gains(lambda v: exists(Page, lambda p: maps(k, p) & peer(p, v)))
    yield uses_slot[o].gains(lambda z: state(k, z))
    yield behind[o].gains(after)
    yield S.becomes(o, start)


def settle(pool: Pool, o: Loan) -> Iterator[Change]:
    """Units that wait for this loan and for no other are free."""

    def waits_for_it_alone(x: Element) -> Formula:
        return pool.held(x) & pool.touched(o, x) & no(Loan, lambda m: pool.touched(m, x) & (m != o))

    yield pool.free.gains(waits_for_it_alone)
    yield pool.held.loses(waits_for_it_alone)


@law.action
def loan_close(o: Loan, how: Int) -> Body:
    """The borrower is done, or says that it failed: units that waited for it alone are free.

    Source: sgl-project/sglang#24527, #35049, #35360, #38961 (no release without a word of the borrower).
    """
    yield out(o), "the loan is open"
    yield no(Loan, lambda m: behind(o, m)), "what it is ordered behind has closed"
    yield (how >= End.DONE) & (how <= End.TIMEOUT), "the end has a name"
    yield ~(how == End.TIMEOUT), "a timeout is no word of the borrower: cut it off first"
    for pool in POOLS:
        yield from settle(pool, o)
    yield FULL.free.gains(lambda p: target(o, p))
    yield target[o].clear()
    yield host_free.gains(lambda h: filling(o, h))
    yield filling[o].clear()
    yield spoilt.gains(lambda k: lent(o, k) & (S(o) < A(k)) & ~(how == End.DONE))
    yield rogue.gains(lambda p: writes(o, p) & (how == End.TIMEOUT))
    yield out.drop(o)
    yield lent[o].clear()
    yield reads[o].clear()
    yield writes[o].clear()
    yield uses_swa[o].clear()
    yield uses_slot[o].clear()
    yield uses_host[o].clear()
    yield behind.forget(o)
