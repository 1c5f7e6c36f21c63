"""Class A, leaks: on some path a release is missed, and a unit is neither free nor anybody's."""

from __future__ import annotations

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.events import acquire, close, commit, place_, release, truncate, unbind_row
from freehold.spec.flight import loan_close
from freehold.spec.language import Law
from freehold.spec.operations import Steps, leave
from freehold.spec.pools import drop_claim, release_state, unstash
from freehold.spec.state import A, End, P, Page, Place, Record, Request, backup, claims, owns, place, state
from freehold.spec.variant import edit, steps, variant


def _prefix_stays_locked(law: Law) -> Law:
    """The record unwinds as always, but for its receipts; the row does not ask for them."""
    return variant(
        law,
        edit("unbind_row", drop="the record has no lock"),
        steps("finish", lambda r, k, w: [
            release_state(k, lambda z: state(k, z)), truncate(k, P(k)), release(k, lambda p: owns(k, p)),
            unbind_row(k, w), close(k), *leave(r),
        ]),
    )  # fmt: skip


def _take_fails(law: Law) -> None:
    @law.operation
    def take_and_fail(k: Record, p: Page) -> Steps:
        """The second of two pages is not there, and the first one stays where it is."""
        yield acquire(k, p)


def _roll_back(law: Law) -> None:
    @law.operation
    def roll_back(k: Record) -> Steps:
        """A failed growth empties the row, not only of what this growth had put there."""
        yield truncate(k, P(k))


def _unschedule(law: Law) -> None:
    @law.operation
    def unschedule(r: Request) -> Steps:
        """A request that received its KV finds no room to run in and queues again."""
        yield place(r) == Place.RECEIVING, "the request is being received"
        yield place_(r, Place.WAITING)


BUGS = (
    Bug(
        "sgl-project/sglang#18701", "A", "abort of a retracted request leaves its backup on the host behind",
        Shows.STATE,
        lambda law: variant(law, steps("abort_waiting", lambda r: [
            drop_claim(r, lambda z: claims(r, z)), place_(r, Place.OUT),
        ])),
        small(Page=1, HostPage=1), 6,
    ),
    Bug(
        "sgl-project/sglang#12693", "A", "abort between match and admission loses the state slot that the match took",
        Shows.STATE,
        lambda law: variant(law, steps("abort_waiting", lambda r: [
            unstash(r, lambda h: backup(r, h)), place_(r, Place.OUT),
        ])),
        small(Page=1, StateSlot=1), 3,
    ),
    Bug(
        "ovg-project/kvcached#364", "A", "an allocation that fails half way keeps the pages it had taken",
        Shows.STATE, lambda law: variant(law, extra=_take_fails), small(Page=1), 3,
    ),
    Bug(
        "inference-sim/inference-sim#1061", "A", "rolling back a failed growth drops the request's whole table",
        Shows.STATE, lambda law: variant(law, extra=_roll_back), small(Page=1), 4,
    ),
    Bug(
        "vllm-project/vllm#18411", "A", "a request with received KV goes back to the queue and keeps its pages",
        Shows.STATE, lambda law: variant(law, extra=_unschedule), small(Page=1), 3,
    ),
    Bug(
        "sgl-project/sglang#23216", "A", "a flush empties the tree and forgets the host pages that belonged to it",
        Shows.STATE, lambda law: variant(law, edit("reset", undo="host_free")), small(Page=1, HostPage=1, Loan=1), 3,
    ),
    Bug(
        "sgl-project/sglang-jax#1614", "A",
        "the last received page holds one token that is computed again; it leaves the row and nobody gives it back",
        Shows.STATE,
        lambda law: variant(law, steps("received", lambda r, o, k: [
            loan_close(o, End.DONE), commit(k, A(k)), truncate(k, A(k) - 1), place_(r, Place.RUNNING),
        ])),
        small(Page=2, page_size=2, row_width=4, Loan=1), 5,
    ),
    Bug(
        "jjang-ai/vmlx#68", "A", "a finished request drops its table and not the references behind it",
        Shows.STATE, _prefix_stays_locked, small(Page=1), 5,
    ),
)  # fmt: skip
