"""Class C, use after free against a forward in flight: what it reads or writes goes back while it runs."""

from __future__ import annotations

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.language import Body, Law
from freehold.spec.operations import Steps
from freehold.spec.state import (
    Loan,
    Page,
    Record,
    begin,
    end,
    free,
    in_tree,
    in_use,
    lent,
    locks,
    maps,
    owns,
    parent,
    peer,
    swa_free,
    writes,
)
from freehold.spec.terms import Relation, exists, no
from freehold.spec.variant import edit, variant


def _tree_page_stays_private(law: Law) -> Law:
    """A chunk's pages join the tree, and the record goes on as if they were its own to free."""
    return variant(law, edit("publish", undo="owns"))


def _window_frees_at_once(law: Law) -> Law:
    return variant(
        law,
        edit("window_drop", undo=("swa_free", "swa_held"), do=lambda k, floor, e: [
            swa_free.gains(lambda v: exists(
                Page, lambda p: owns(k, p) & maps(k, p) & (begin(p) >= floor) & (end(p) <= e) & peer(p, v)
            )),
        ]),
    )  # fmt: skip


def _finish_frees_at_once(law: Law) -> Law:
    return variant(law, edit("release", undo=("free", "held"), do=lambda k, pages: [free.gains(pages)]))


def _one_staging_buffer(law: Law) -> None:
    @law.action
    def restage(o: Loan, k: Record) -> Body:
        """The table of the next batch overwrites the one that the forward has not read yet."""
        yield exists(Record, lambda m: lent(o, m) & ~(m == k)), "the forward runs for another record"
        yield in_use(k), "a request holds the record"
        yield writes[o].gains(lambda p: owns(k, p) & maps(k, p))

    @law.operation
    def stage(o: Loan, k: Record) -> Steps:
        """The scheduler, one step ahead, prepares the next batch."""
        yield restage(o, k)


def _stale_candidate(law: Law) -> Law:
    """Candidates for eviction are collected first and evicted later, without another look."""
    chosen = Relation("chosen", (Page,), "the page was found evictable when the list was made")

    def declare(law: Law) -> None:
        law.relations["chosen"] = chosen

        @law.action
        def choose(p: Page) -> Body:
            """The page can be evicted now, and goes on the list."""
            yield in_tree(p) & no(Record, lambda k: locks(k, p)), "no record locks the tree page"
            yield no(Page, lambda q: parent(q, p)), "no page comes behind it in the tree"
            yield chosen.add(p)

        @law.operation
        def collect(p: Page) -> Steps:
            """Look for pages to evict."""
            yield choose(p)

    stale = edit(
        "evict", swap={"the page is in the tree": lambda p: chosen(p)},
        drop=("no record locks the page", "no page comes behind it in the tree"), do=lambda p: [chosen.drop(p)],
    )  # fmt: skip
    return variant(law, stale, extra=declare)


BUGS = (
    Bug(
        "sgl-project/sglang#38319", "C", "a chunk's pages join the tree while the record still counts them as its own",
        Shows.STATE, _tree_page_stays_private, small(Page=1), 4,
    ),
    Bug(
        "vllm-project/vllm#47653", "C", "the window frees blocks at once that a step already dispatched still reads",
        Shows.STATE, _window_frees_at_once,
        small(Page=2, page_size=2, row_width=4, window=1, SwaPage=2, Loan=1), 6,
    ),
    Bug(
        "ovg-project/kvcached#463", "C", "a finished request's pages go while the next batch is on its way to them",
        Shows.STATE, _finish_frees_at_once, small(Page=1, Loan=1), 5,
    ),
    Bug(
        "sgl-project/sglang#24954", "C", "the clearing of a recycled state slot is put off and then lost",
        Shows.STATE, lambda law: variant(law, edit("take_state", undo="T")), small(Page=1, StateSlot=1), 7,
    ),
    Bug(
        "NVIDIA/TensorRT-LLM#15546", "C", "one staging buffer serves all batches: batch N runs on the table of N+1",
        Shows.STATE, lambda law: variant(law, extra=_one_staging_buffer),
        small(Page=2, Row=2, Record=2, Request=2, Loan=1), 7,
    ),
    Bug(
        "kvcache-ai/Mooncake#3421", "C", "eviction trusts a list of candidates that was made before others went on",
        Shows.STATE, _stale_candidate, small(Page=1), 8,
    ),
    Bug(
        "NVIDIA/TensorRT-LLM#12251", "C", "a look-up hands out the record itself, which is removed while it is used",
        Shows.STATE, lambda law: variant(law, edit("unbind_row", undo="lent")), small(Page=1, Loan=1), 4,
    ),
)  # fmt: skip
