"""Named waivers: where SGLang 0.5.23 deviates from the strict law on purpose, and what that costs.

A monitor can be told to accept one by its name. `relaxes` says which invariants the deviation opens for a while, or
gives up; whatever else it breaks, the proof of the law under the waiver shows with a counterexample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from freehold.spec.errors import InvalidInput
from freehold.spec.language import Body, Group, Law, Property
from freehold.spec.operations import Steps
from freehold.spec.state import (
    ROW_WIDTH,
    A,
    P,
    Page,
    Place,
    Record,
    Request,
    Session,
    aligned,
    free,
    held,
    in_use,
    kv,
    locks,
    turn,
)
from freehold.spec.terms import Formula, Int, SetOf, forall
from freehold.spec.variant import Edit, edit, variant


@dataclass(frozen=True, slots=True)
class Waiver:
    """One deviation that is accepted.

    relaxes: invariants that hold only at the end of a step under it (`"step"`), or not at all (None).
    """

    name: str
    what: str
    edits: tuple[Edit, ...] = ()
    relaxes: Mapping[str, Group | None] = field(default_factory=dict)
    extra: Callable[[Law], None] | None = None


def _free_or_held(_: Record, pages: SetOf[Page]) -> Formula:
    return forall(Page, lambda p: pages(p) >> (free(p) | held(p)))


def _promise(law: Law) -> None:
    """W4: room is promised before the pages that will stand there are known."""

    @law.action
    def promise(k: Record, a: Int) -> Body:
        """Room up to `a` is promised: a prefix that is on its way will be attached there."""
        yield in_use(k), "a request holds the record"
        yield A(k) == P(k), "nothing private is mapped yet"
        yield aligned(a), "only whole pages are promised"
        yield (A(k) < a) & (a <= ROW_WIDTH), "the row is wide enough"
        yield A.becomes(k, a)

    @law.operation
    def promise_prefix(k: Record, a: Int) -> Steps:
        """Room is promised for a prefix that is being restored."""
        yield promise(k, a)


def _unpin(law: Law) -> None:
    """W6: receipts can be given back while the row still names the pages."""

    @law.action
    def unpin(k: Record) -> Body:
        """All receipts of the record go; its row stays as it is until they are taken anew."""
        yield in_use(k), "a request holds the record"
        yield locks[k].clear()

    @law.operation
    def relock(k: Record, p: Page) -> Steps:
        """A checkpoint lets go of the old path and locks the new one."""
        yield law.actions["unpin"](k)
        yield law.actions["lock"](k, p)


def _return_to_session(law: Law) -> None:
    """W7: a retracted turn leaves everything with its session, and waits."""

    @law.operation
    def retract_turn(r: Request, k: Record, s: Session) -> Steps:
        """Under pressure a turn goes back to the queue; its session gets the record as it is."""
        yield kv(r, k), "the request holds the record"
        yield turn(s, r), "the request is the session's live turn"
        yield law.actions["transfer_to_session"](r, k, s)
        yield law.actions["place"](r, Place.WAITING)


WAIVERS: Mapping[str, Waiver] = {
    w.name: w
    for w in (
        Waiver(
            "W1", "Tokens count as committed when their forward is launched, before the bytes are there.",
            (edit("commit", drop="nothing in flight still writes below the new length"),),
        ),
        Waiver(
            "W2", "Pages given back while an ordered forward still writes them are handed out at once.",
            (
                edit(
                    "acquire",
                    swap={"each page is free": _free_or_held},
                    do=lambda _, pages: [held.loses(pages)],
                ),
                edit("extend", drop="nothing in flight touches the page"),
            ),
            {"private_page_is_written_for_its_owner": None, "write_starts_in_its_pages": None},
        ),
        Waiver(
            "W3", "A transfer that timed out is closed, and its pages are handed out, without a word of the peer.",
            (edit("loan_close", drop="a timeout is no word of the borrower: cut it off first"),),
        ),
        Waiver(
            "W4", "Room is reserved for a prefix that is still being restored: its positions are holes meanwhile.",
            (edit("extend", swap={
                "the new length reaches into the new page": lambda k, p, a: A(k) < a,
            }),),
            {"row_has_no_hole": None, "room_has_pages": None},
            _promise,
        ),
        Waiver(
            "W5", "Looking a session's prefix up cuts its record, even when no turn is admitted.",
            (edit("truncate", drop="only a request shortens the record, unless it is given up"),),
        ),
        Waiver(
            "W6", "Inside a checkpoint the published prefix is without a lock for a moment.",
            (), {"prefix_entry_is_locked": "step"}, _unpin,
        ),
        Waiver(
            "W7", "A retracted session turn gives nothing back: the session has the record, unwritten room and all.",
            (), {"kept_room_is_written": None}, _return_to_session,
        ),
    )
}  # fmt: skip


def waive(law: Law, names: Iterable[str]) -> Law:
    """The law with some waivers in force. Raises InvalidInput for a name that is none."""
    for name in names:
        if name not in WAIVERS:
            raise InvalidInput(f"no waiver is named {name!r}; there are {', '.join(WAIVERS)}")
        one = WAIVERS[name]
        law = variant(law, *one.edits, extra=one.extra)
        law = replace(law, invariants=_relaxed(law.invariants, one.relaxes))
    return law


def _relaxed(invariants: Mapping[str, Property], relaxes: Mapping[str, Group | None]) -> dict[str, Property]:
    """The invariants that are left: a theorem goes with what it was drawn from."""
    kept: dict[str, Property] = {}
    for name, prop in invariants.items():
        group = relaxes.get(name, prop.group)
        if group is not None and not any(u.name in relaxes for u in prop.uses):
            kept[name] = prop if group == prop.group else replace(prop, group=group)
    return kept
