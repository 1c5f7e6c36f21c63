"""Class I: deadlock, livelock, starvation.

Everybody holds something and nobody lets go, or a request goes round for ever. Shown with requests that want a row of
tokens each and clients that never abort: the engine itself has to find the way out.
"""

from __future__ import annotations

from typing import Final

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.language import Law
from freehold.spec.state import (
    ROW_WIDTH,
    A,
    Page,
    Place,
    Record,
    Request,
    StateSlot,
    free,
    kv,
    place,
    state,
)
from freehold.spec.terms import FALSE, Formula, Relation, exists
from freehold.spec.variant import Edit, edit, variant

fetched = Relation("fetched", (Request,), "the request's receiver has succeeded once")


def _a_page_is_free(*_: object) -> Formula:
    return exists(Page, lambda p: free(p))


def _only_running_requests_are_retracted() -> Edit:
    return edit("retract", add={"the victim decodes": lambda r, k, w: place(r) == Place.RUNNING})


def session_kv_is_pinned(law: Law) -> Law:
    """What a session keeps is never reclaimed, and nothing bounds how much all sessions keep together."""
    return variant(law, edit("reclaim_session", add={"the session's KV is not pinned": lambda s, k, w: FALSE}))


def budget_stops_the_chunk_in_progress(law: Law) -> Law:
    """An inverted condition asks the chunked request that is under way for the budget of a new one."""
    return variant(
        law, edit("resume", add={"there is room for a new request": _a_page_is_free}),
        _only_running_requests_are_retracted(),
    )  # fmt: skip


def loaded_requests_wait_for_a_whole_sequence(law: Law) -> Law:
    """A remote load reserves only the loaded prefix; to start, the rest has to fit, and who waits is no victim."""

    def whole(r: Request) -> Formula:
        return exists(Record, lambda k: kv(r, k) & (A(k) == ROW_WIDTH))

    return variant(
        law, edit("start_decode", add={"there is room for the whole sequence": whole}),
        edit("admit", add={"KV comes from elsewhere": lambda r, k, w: FALSE}), _only_running_requests_are_retracted(),
    )  # fmt: skip


def loaded_requests_need_a_spare_page(law: Law) -> Law:
    """Two full loads fill the pool; to start, each needs one page more for its draft, and no victim is running."""
    return variant(
        law, edit("start_decode", add={"there is a page for the draft": _a_page_is_free}),
        _only_running_requests_are_retracted(),
    )  # fmt: skip


def gate_asks_for_more_than_there_is(law: Law) -> Law:
    """The gate wants the whole sequence free; nobody turns away what an empty pool could not take either."""

    def two_are_free(r: Request, k: Record, w: object) -> Formula:
        return exists(Page, Page, lambda p, q: free(p) & free(q) & (p != q))

    return variant(law, edit("bind_row", add={"the whole sequence and its reserve fit": two_are_free}))


def preempted_pages_wait_for_the_next_step(law: Law) -> Law:
    """Preempted pages wait behind a fence that only a next step moves, so the retry preempts whoever is left."""

    def somebody_steps(*_: object) -> Formula:
        return exists(Request, Record, lambda r, k: kv(r, k) & (A(k) > 0))

    step = {"a step runs behind it": somebody_steps}
    return variant(law, edit("acknowledge", add=step), edit("fail", add=step), edit("complete", add=step))


def two_pools_in_two_orders(law: Law) -> Law:
    """One request holds the first resource and waits for the second, another the other way round."""

    def has_state(r: Request) -> Formula:
        return exists(Record, StateSlot, lambda k, z: kv(r, k) & state(k, z))

    return variant(
        law, edit("start_decode", add={"the request has both": has_state}), _only_running_requests_are_retracted()
    )


def retracted_request_waits_for_its_first_transfer(law: Law) -> Law:
    """A retracted request queues for a transfer that its receiver has already seen succeed, and so never starts."""

    def more(law: Law) -> None:
        law.relations[fetched.name] = fetched

    return variant(
        law, edit("place", do=lambda r, q: [
            fetched.add(r, when=(place(r) == Place.RECEIVING) & (q == Place.RUNNING))
        ]),
        edit("receive", add={"the transfer has still to come": lambda r, k, w: ~fetched(r)}),
        edit("admit", add={"KV comes from elsewhere": lambda r, k, w: FALSE}),
        edit("start_decode", add={"KV comes from elsewhere": lambda r: FALSE}), extra=more,
    )  # fmt: skip


_TWO = {"Row": 2, "Record": 2, "Request": 2}

BUGS: Final = (
    Bug("sgl-project/sglang#27024", "I", "idle sessions pin the pool and a new request finds nothing to evict",
        Shows.PROGRESS, session_kv_is_pinned, small(Page=1, Record=2, Row=2, Request=2, Session=1), 8),
    Bug("kvcache-ai/sglang#44", "I", "the second chunk of a request waits for the budget that the first one took",
        Shows.PROGRESS, budget_stops_the_chunk_in_progress, small(Page=1, page_size=2, row_width=2), 4),
    Bug("vllm-project/vllm#45388", "I", "two loaded requests hold pages and each waits for those of the other",
        Shows.PROGRESS, loaded_requests_wait_for_a_whole_sequence, small(Page=2, row_width=2, **_TWO), 8),
    Bug("vllm-project/vllm#57104", "I", "two full loads leave no page for the draft that each needs to start",
        Shows.PROGRESS, loaded_requests_need_a_spare_page, small(Page=2, **_TWO), 8),
    Bug("vllm-project/vllm#39734", "I", "a request that an empty pool cannot take blocks the queue for ever",
        Shows.PROGRESS, gate_asks_for_more_than_there_is, small(Page=1), 1),
    Bug("vllm-project/vllm-ascend#16315", "I", "deferred frees make the scheduler preempt one request after another",
        Shows.PROGRESS, preempted_pages_wait_for_the_next_step, small(Page=1, Loan=1), 7),
    Bug("sgl-project/sglang#31473", "I", "two requests take two pools in opposite orders",
        Shows.PROGRESS, two_pools_in_two_orders, small(Page=1, Row=1, Record=1, Request=2, StateSlot=1), 4),
    Bug("sgl-project/sglang#6857", "I", "a retracted request waits for a transfer that has succeeded long ago",
        Shows.PROGRESS, retracted_request_waits_for_its_first_transfer, small(Page=1, Loan=1), 8),
)  # fmt: skip
