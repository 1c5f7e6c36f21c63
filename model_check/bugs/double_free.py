"""Class B, double free: two paths give the same unit back, or one path what another owner holds."""

from __future__ import annotations

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.events import close, publish, release, truncate, unbind_row, unlock
from freehold.spec.language import Body, Law
from freehold.spec.operations import Steps, everything, leave
from freehold.spec.state import (
    End,
    HostPage,
    P,
    Page,
    end,
    filling,
    free,
    host_free,
    maps,
)
from freehold.spec.terms import Relation
from freehold.spec.variant import edit, steps, variant

ASKS_NOTHING = edit("release", drop=("the record owns each page", "no row entry keeps any of the pages"))


def _whole_row(law: Law) -> Law:
    """The row is given back from its first entry on, whoever owns that."""
    return variant(
        law, ASKS_NOTHING,
        steps("finish", lambda r, k, w: [
            release(k, lambda p: maps(k, p)), truncate(k, P(k)), unlock(k, 0), unbind_row(k, w), close(k), *leave(r),
        ]),
    )  # fmt: skip


def _one_token_more(law: Law) -> Law:
    """The tree has taken the row up to `a`; a second path frees from the token before that on."""
    return variant(
        law, ASKS_NOTHING,
        steps("finish_publish", lambda r, k, w, a: [
            publish(k, a), release(k, lambda p: maps(k, p) & (a < end(p) + 1)), *everything(k, w), *leave(r),
        ]),
    )  # fmt: skip


def _listed_twice(law: Law) -> Law:
    """Each page is linked into the free list twice, so the first who takes it leaves it there for the next."""
    twice = Relation("twice", (Page,), "the page stands on the free list twice")

    def declare(law: Law) -> None:
        law.relations["twice"] = twice

    return variant(
        law,
        edit("release", do=lambda k, pages: [twice.gains(pages)]),
        edit("acquire", undo="free", do=lambda k, pages: [
            free.loses(lambda p: pages(p) & ~twice(p)), twice.loses(pages),
        ]),
        extra=declare,
    )  # fmt: skip


def _both_release(law: Law) -> Law:
    """Who moves the pages releases the tail of a fetch that failed, and its caller, later, does so again."""
    owed = Relation("owed", (HostPage,), "the caller means to release the host page")

    def declare(law: Law) -> None:
        law.relations["owed"] = owed

        @law.action
        def free_tail(h: HostPage) -> Body:
            """The caller releases what it has on its list."""
            yield owed(h), "the caller has the page on its list"
            yield owed.drop(h)
            yield host_free.add(h)

        @law.operation
        def caller_releases(h: HostPage) -> Steps:
            """The caller of a fetch tidies up."""
            yield free_tail(h)

    kept = edit("loan_close", do=lambda o, how: [owed.gains(lambda h: filling(o, h) & ~(how == End.DONE))])
    return variant(law, kept, extra=declare)


BUGS = (
    Bug(
        "sgl-project/sglang#27666", "B", "a second finish path returns the whole row, with the tree's prefix in it",
        Shows.STATE, _whole_row, small(Page=1), 5,
    ),
    Bug(
        "sgl-project/sglang#12224", "B",
        "the length to free is derived anew at the end, so the tree and the tail both claim the last page",
        Shows.STATE, _one_token_more, small(Page=1), 4,
    ),
    Bug(
        "vllm-project/vllm#42571", "B", "one batch of frees names a page twice, and the free list links it twice",
        Shows.STATE, _listed_twice, small(Page=1), 4,
    ),
    Bug(
        "sgl-project/sglang#13483", "B", "the tail of a failed prefetch is released by the copier and by its caller",
        Shows.STATE, _both_release, small(Page=1, HostPage=1, Loan=1), 4,
    ),
)  # fmt: skip
