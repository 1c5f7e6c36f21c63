"""Class D, use after free against a transfer in flight: a remote or copying reader or writer does not count as one."""

from __future__ import annotations

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.events import close, place_, truncate, unbind_row, unlock
from freehold.spec.flight import loan_close
from freehold.spec.language import Body, Law
from freehold.spec.operations import Steps
from freehold.spec.state import (
    End,
    Loan,
    P,
    Page,
    Place,
    Record,
    Request,
    Row,
    free,
    held,
    host_free,
    kv,
    maps,
    owns,
    place,
    reads,
    target,
    writes,
)
from freehold.spec.terms import exists, no
from freehold.spec.variant import edit, variant


def _abort_frees_at_once(law: Law) -> None:
    @law.action
    def free_now(k: Record) -> Body:
        """The record's pages go to the free list, whoever writes them."""
        yield no(Page, lambda p: owns(k, p) & maps(k, p)), "no row entry keeps any of them"
        yield free.gains(lambda p: owns(k, p))
        yield owns[k].loses(lambda p: owns(k, p))

    @law.operation
    def abort_receiving(r: Request, k: Record, w: Row) -> Steps:
        """Abort of a request whose KV a peer is sending."""
        yield (place(r) == Place.RECEIVING) & kv(r, k), "the request is being received"
        yield truncate(k, P(k))
        yield free_now(k)
        yield unlock(k, 0)
        yield unbind_row(k, w)
        yield close(k)
        yield place_(r, Place.OUT)


def _any_end_frees(law: Law) -> Law:
    """Only the last of several acknowledgements is waited for by name, so any of them lets the pages go."""
    return variant(
        law,
        edit("loan_close", undo=("free", "held"), do=lambda o, how: [
            free.gains(lambda p: (held(p) & (reads(o, p) | writes(o, p))) | target(o, p)),
            held.loses(lambda p: reads(o, p) | writes(o, p)),
        ]),
    )  # fmt: skip


def _lease_runs_out(law: Law) -> None:
    @law.action
    def expire(p: Page) -> Body:
        """The timer takes a page back that waits for its reader."""
        yield held(p), "the page waits for a loan"
        yield held.drop(p)
        yield free.add(p)

    @law.operation
    def timer(p: Page) -> Steps:
        """The time that a peer has to fetch the KV is over."""
        yield expire(p)


def _waiting_page_is_loaded_into(law: Law) -> Law:
    return variant(
        law,
        edit(
            "copy_in", swap={"the page is free": lambda o, h, p: free(p) | held(p)}, do=lambda o, h, p: [held.drop(p)]
        ),
    )


def _give_up(law: Law) -> None:
    @law.operation
    def give_up(o: Loan) -> Steps:
        """The peer took too long; what it writes to goes on without it."""
        yield loan_close(o, End.TIMEOUT)


BUGS = (
    Bug(
        "sgl-project/sglang#24527", "D", "abort on the decode side frees pages that the prefill side still writes",
        Shows.STATE, lambda law: variant(law, extra=_abort_frees_at_once), small(Page=1, Loan=1), 5,
    ),
    Bug(
        "sgl-project/sglang#32564", "D", "a timeout ends the transfer in the books and not on the wire",
        Shows.STATE,
        lambda law: variant(
            law, edit("loan_close", drop="a timeout is no word of the borrower: cut it off first"), extra=_give_up
        ),
        small(Page=1, Loan=1), 5,
    ),
    Bug(
        "sgl-project/sglang#38961", "D", "with two transfers on a record, the end of one lets its pages go",
        Shows.STATE, _any_end_frees, small(Page=1, Loan=2), 7,
    ),
    Bug(
        "vllm-project/vllm#21570", "D", "a timer frees the pages of a finished prefill whose reader has not come yet",
        Shows.STATE, lambda law: variant(law, extra=_lease_runs_out), small(Page=1, Loan=1), 6,
    ),
    Bug(
        "NVIDIA/TensorRT-LLM#12542", "D", "the sender has only named its blocks: the tree evicts them before it comes",
        Shows.STATE,
        lambda law: variant(law, edit("evict", undo=("free", "held"), do=lambda p: [free.add(p)])),
        small(Page=1, Loan=1), 6,
    ),
    Bug(
        "sgl-project/sglang#26728", "D", "a load from the host reads host pages that its own pressure has evicted",
        Shows.STATE,
        lambda law: variant(law, edit("evict_host", undo=("host_free", "host_held"), do=lambda h: [host_free.add(h)])),
        small(Page=1, HostPage=1, Loan=1), 4,
    ),
    Bug(
        "vllm-project/vllm#45704", "D", "a block is stored to the host before the forward that fills it is done",
        Shows.STATE,
        lambda law: variant(law, edit("copy_out", swap={
            "the page is in the tree": lambda o, p, h: exists(Record, lambda k: owns(k, p) & maps(k, p)),
        })),
        small(Page=1, HostPage=1, Loan=2), 5,
    ),
    Bug(
        "vllm-project/vllm#47282", "D", "a load lands in a freed block that a forward in flight still reads",
        Shows.STATE, _waiting_page_is_loaded_into, small(Page=1, HostPage=1, Loan=2), 8,
    ),
)  # fmt: skip
