"""Class O: the scheduler's state is copied on each rank, and a decision uses what only one rank knows."""

from __future__ import annotations

from typing import Final

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.replicas_search import arrived, host_short, replicated, short
from freehold.model_check.scopes import Scope
from freehold.spec.language import Law
from freehold.spec.state import HostPage, Loan, Page, filling, free, reads
from freehold.spec.terms import Formula, exists, forall
from freehold.spec.variant import edit, variant

_SEEN = "every rank has seen its end"


def backup_by_own_allocator(law: Law) -> Law:
    """Whether a page is written to the host depends on this rank's allocator, and nobody compares the outcomes."""
    return variant(replicated(law), edit("copy_out", add={"this rank can serve it": lambda o, p, h: ~host_short(h)}))


def load_back_by_own_free_space(law: Law) -> Law:
    """How much is loaded back depends on the pages that this rank has free."""
    return variant(replicated(law), edit("copy_in", add={"this rank can serve it": lambda o, h, p: ~short(p)}))


def copies_end_when_this_rank_sees_it(law: Law) -> Law:
    """A copy counts as done in the step in which this rank sees its end, so locks and victims differ."""

    def copied(p: Page) -> Formula:
        return forall(Loan, lambda o: reads(o, p) >> arrived(o))

    return variant(
        replicated(law),
        edit("write_through_done", swap={_SEEN: lambda o, p, h: arrived(o)}),
        edit("evict_page", add={"no copy of it is under way": copied}),
    )


def prefetch_is_polled_until_the_batch_is_full(law: Law) -> Law:
    """A rank asks for the end of a prefetch only while it has room for another request, by its own allocator."""

    def room(*_: object) -> Formula:
        return exists(Page, lambda p: free(p) & ~short(p))

    return variant(replicated(law), edit("prefetch_done", add={"this rank's batch is not full": room}))


def prefetch_stops_by_own_clock(law: Law) -> Law:
    """A prefetch that is late by this rank's clock, as its end was not seen here, is given up here."""

    def late(o: Loan) -> Formula:
        return exists(HostPage, lambda h: filling(o, h)) & ~arrived(o)

    return variant(replicated(law), edit("fail", swap={_SEEN: late}))


_CONSTANTS = {"page_size": 1, "row_width": 1, "window": 0, "namespaces": 1}
_HOST = Scope("host alone", {"Page": 1, "HostPage": 1, "Loan": 1}, _CONSTANTS)

BUGS: Final = (
    Bug("sgl-project/sglang#28429", "O", "one rank writes a page to the host and the other does not",
        Shows.REPLICAS, backup_by_own_allocator, _HOST, 13),
    Bug("sgl-project/sglang#33442", "O", "ranks load back different numbers of pages",
        Shows.REPLICAS, load_back_by_own_free_space, _HOST, 7),
    Bug("sgl-project/sglang#26923", "O", "ranks see the end of a copy in different steps and evict different pages",
        Shows.REPLICAS, copies_end_when_this_rank_sees_it, _HOST, 14),
    Bug("sgl-project/sglang#30760", "O", "one rank asks whether a prefetch is done and the other has stopped asking",
        Shows.REPLICAS, prefetch_is_polled_until_the_batch_is_full, _HOST, 6),
    Bug("sgl-project/sglang#22607", "O", "ranks stop one prefetch at different points",
        Shows.REPLICAS, prefetch_stops_by_own_clock, _HOST, 3),
)  # fmt: skip
