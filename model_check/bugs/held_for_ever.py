"""Class E: the completion that would give KV back is lost, filtered, sent to a wrong address, or counted wrongly.

Sums stay right, as what is held has a nominal owner. Most show as a state from which the pools cannot drain any more.
"""

from __future__ import annotations

from typing import Final

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.language import Law
from freehold.spec.state import A, Loan, P, Page, Place, Record, Request, kv, lent, maps, place, reads, writes
from freehold.spec.terms import Formula, Int, Relation, exists
from freehold.spec.variant import edit, variant

unknown = Relation("unknown", (Loan,), "the entry by which the loan's end is found was overwritten")
silent = Relation("silent", (Loan,), "nothing had to be sent, and nobody says so")


def _writes(o: Loan) -> Formula:
    return exists(Page, lambda p: writes(o, p))


def _only_reads(o: Loan) -> Formula:
    return exists(Page, lambda p: reads(o, p)) & ~_writes(o)


def _is_received(r: Request) -> Formula:
    return place(r) == Place.RECEIVING


def only_known_requests_are_cut_off(law: Law) -> Law:
    """The watchdog of remote loads walks the requests that it still knows, and an abort has removed this one."""

    def known(o: Loan) -> Formula:
        return ~_writes(o) | exists(Record, lambda k: lent(o, k))

    return variant(law, edit("fail", add={"the request of the loan is still known": known}))


def senders_id_is_unknown(law: Law) -> Law:
    """The peer's release message carries its own id; the sender looks it up in its table and drops it."""
    ours = {"the id is one of this side's": lambda o: ~_only_reads(o)}
    return variant(
        law, edit("sent", add={"the id is one of this side's": lambda r, o, k, w: ~_only_reads(o)}),
        edit("acknowledge", add=ours), edit("fail", add=ours),
    )  # fmt: skip


def lookup_ends_only_in_a_load(law: Law) -> Law:
    """A match opens an external lookup; the hook that an abort calls to close it does nothing."""
    somebody = {"a request waits for it": lambda o: exists(Request, lambda r: place(r) == Place.WAITING)}
    return variant(law, edit("prefetch", add={
        "a request waits for it": lambda o, h, index, x: exists(Request, lambda r: place(r) == Place.WAITING)
    }), edit("prefetch_done", add={
        "a request waits for it": lambda o, h: exists(Request, lambda r: place(r) == Place.WAITING)
    }), edit("acknowledge", add=somebody), edit("fail", add=somebody))  # fmt: skip


def slot_goes_before_the_worker_looks(law: Law) -> Law:
    """The leader removes a finished request's entry; workers that find no entry drop its pending copies unfinished."""

    def still_there(o: Loan) -> Formula:
        return ~_only_reads(o) | exists(Record, Page, lambda k, p: maps(k, p) & reads(o, p))

    found = {"a running request has the page": still_there}
    return variant(
        law, edit("write_through_done", add={"a running request has the page": lambda o, p, h: still_there(o)}),
        edit("acknowledge", add=found), edit("fail", add=found),
    )  # fmt: skip


def only_success_leaves_transit(law: Law) -> Law:
    """Requests in transit, failed ones too, sit in one table, and only success takes them out of it."""

    def in_transit(o: Loan) -> Formula:
        sent = exists(Request, Record, lambda r, k: kv(r, k) & lent(o, k) & (place(r) == Place.SENDING))
        return sent & _only_reads(o)

    stays = {"the request is not in transit": lambda r, k, w: ~(place(r) == Place.SENDING)}
    return variant(
        law, edit("fail", add={"the loan's request is not in transit": lambda o: ~in_transit(o)}),
        edit("finish", add=stays), edit("retract", add=stays),
        edit("finish_publish", add={"the request is not in transit": lambda r, k, w, a: ~(place(r) == Place.SENDING)}),
    )  # fmt: skip


def nothing_to_send_is_never_said(law: Law) -> Law:
    """A delayed release is promised; the worker finds that the store has every page, and skips the signal as well."""

    def more(law: Law) -> None:
        law.relations[silent.name] = silent

    def nothing_new(k: Record, start: Int) -> Formula:
        return (P(k) == A(k)) & (A(k) > 0) & (start == A(k))

    signal = {"the worker had a reason to signal": lambda o: ~silent(o)}
    return variant(
        law, edit("lend", do=lambda o, k, start, after: [silent.add(o, when=nothing_new(k, start))]),
        edit("acknowledge", add=signal), edit("fail", add=signal),
        edit("sent", add={"the worker had a reason to signal": lambda r, o, k, w: ~silent(o)}), extra=more,
    )  # fmt: skip


def full_hit_waits_for_a_message(law: Law) -> Law:
    """With the whole prompt cached the receiver still expects a notification, of which the sender knows nothing."""

    def received(k: Record) -> Formula:
        return exists(Request, lambda r: kv(r, k) & _is_received(r))

    waits = "a received request waits for its message"
    stays = {waits: lambda r, k, *rest: ~_is_received(r)}
    return variant(
        law,
        edit("retract", add=stays),
        edit("rewind_prefix", add=stays),
        edit("start_decode", add={waits: lambda r: ~_is_received(r)}),
        edit("write", add={waits: lambda k, c: ~received(k)}),
        edit("decode_page", add={waits: lambda k, p: ~received(k)}),
        edit("extend_page", add={waits: lambda k, p, a: ~(received(k) & (A(k) > 0))}),
    )


def same_id_overwrites_the_entry(law: Law) -> Law:
    """The release table is keyed by an id that clients choose: a second request with it orphans the first's pages."""

    def more(law: Law) -> None:
        law.relations[unknown.name] = unknown

    return variant(
        law, edit("lend", do=lambda o, k, start, after: [
            unknown.gains(lambda m: _only_reads(m) & ~(m == o) & (start == A(k)) & (A(k) > 0))
        ]),
        edit("acknowledge", add={"the entry is there": lambda o: ~unknown(o)}),
        edit("sent", add={"the entry is there": lambda r, o, k, w: ~unknown(o)}),
        edit("complete", add={"the entry is there": lambda o, k, c: ~unknown(o)}),
        edit("fail", add={"the entry is there": lambda o: ~unknown(o)}), extra=more,
    )  # fmt: skip


_ONE = small(Page=1, Loan=1)

BUGS: Final = (
    Bug("vllm-project/vllm#46283", "E", "pages of an aborted remote load wait for a message that nobody will send",
        Shows.PROGRESS, only_known_requests_are_cut_off, _ONE, 7),
    Bug("vllm-project/vllm#36958", "E", "the release message names the peer's id, which the sender does not know",
        Shows.PROGRESS, senders_id_is_unknown, _ONE, 5),
    Bug("sgl-project/sglang#40360", "E", "an external lookup that a match opened is not closed by an abort",
        Shows.PROGRESS, lookup_ends_only_in_a_load, small(Page=1, HostPage=1, Loan=1), 3),
    Bug("ai-dynamo/dynamo#4171", "E", "the entry of a finished request is gone before its copies are done",
        Shows.PROGRESS, slot_goes_before_the_worker_looks, small(Page=1, HostPage=1, Loan=1), 7),
    Bug("NVIDIA/TensorRT-LLM#5820", "E", "a failed transfer keeps its request in the table of those in transit",
        Shows.PROGRESS, only_success_leaves_transit, _ONE, 6),
    Bug("vllm-project/vllm-ascend#10098", "E", "a sender that has nothing to send does not say that it is done",
        Shows.PROGRESS, nothing_to_send_is_never_said, _ONE, 7),
    Bug("sgl-project/sglang#35837", "E", "with a full prefix hit the receiver waits for a message that is not sent",
        Shows.PROGRESS, full_hit_waits_for_a_message, small(Page=1, Loan=1), 9),
    Bug("vllm-project/vllm#49796", "E", "a second transfer under one id overwrites the entry that releases the first",
        Shows.PROGRESS, same_id_overwrites_the_entry, small(Page=1, Loan=2), 9),
)  # fmt: skip
