"""The scheduler's view of the law: the operations of `operations.py`, with what a scheduler knows and decides added.

The ownership law says what may be done with KV, not what is worth doing. The view adds a few ghosts (who came first,
how many tokens are still to come) and to each operation a *role*: clauses that tie it to one request's work, and the
step that keeps the ghosts right. A *policy* adds clauses of its own, operation by operation. The result is a `Law` like
any other, so that all readings apply; it allows nothing that the ownership law forbids.

`GROUPS` says for every operation who owes it: that table must be total, so that nobody adds an operation and forgets to
say whether the engine can be relied on to take it. The view itself is of an engine with one pool whose forwards end in
their step (`ABSENT`). Whoever brings loans in gives their operations roles here, and the rank a component that falls
while units are held: the open loans that touch them, in the order of `behind`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from freehold.spec.absent import without
from freehold.spec.language import Body, Clause, Law, Operation, Property, Step
from freehold.spec.law import law
from freehold.spec.state import (
    ROW_WIDTH,
    A,
    C,
    HostPage,
    Loan,
    Page,
    Place,
    Record,
    Request,
    Session,
    StateSlot,
    SwaPage,
    aligned,
    end,
    free,
    kv,
    place,
    slot_kv,
    turn,
)
from freehold.spec.terms import Constant, Formula, Int, IntVar, LawError, Param, Sort, exists, forall

POOL = Constant("pool")
"""Tokens that the whole pool has room for."""


class Group(StrEnum):
    """Who owes an operation. Weak fairness: a group that can act from some point on for ever, acts."""

    CLIENT = "client"
    """Arrivals, aborts, opening and closing of sessions: may happen, need never happen."""
    CACHE = "cache"
    """Sharing of prefixes: may happen, need never happen."""
    FAULT = "fault"
    """What goes wrong outside: may happen, need never happen."""
    SCHEDULER = "scheduler"
    """A scheduler step moves a request on; fair for each request."""
    FORWARD = "forward"
    """A forward step completes for a request; fair for each request."""
    ROOM = "room"
    """A scheduler step makes room; fair as a whole, not for each victim."""
    TRANSFER = "transfer"
    """A transfer ends, done or failed; fair for each request."""
    ACKNOWLEDGEMENT = "acknowledgement"
    """Who used a unit says that it is over, or a timeout says it; fair for each request."""

    @property
    def fair(self) -> bool:
        return self not in (Group.CLIENT, Group.CACHE, Group.FAULT)

    @property
    def of_request(self) -> bool:
        """Whether fairness is owed to each request (the operation's parameter `r`)."""
        return self.fair and self is not Group.ROOM


GROUPS: Mapping[str, Group] = {
    **dict.fromkeys(("arrive", "arrive_turn", "begin_session"), Group.CLIENT),
    **dict.fromkeys(("close_idle", "close_saved", "close_busy"), Group.CLIENT),
    **dict.fromkeys(("abort_waiting", "abort_waiting_turn", "abort_waiting_turn_and_end"), Group.CLIENT),
    **dict.fromkeys(("abort_waiting_turn_and_close", "drop_turn", "drop_turn_and_end"), Group.CLIENT),
    **dict.fromkeys(("match_page", "publish_pages", "dedupe_page", "enter_namespace"), Group.CACHE),
    **dict.fromkeys(("admit", "admit_turn", "extend_page", "extend_tail", "park", "resume"), Group.SCHEDULER),
    **dict.fromkeys(("start_decode", "finish", "finish_publish", "save", "save_and_end"), Group.SCHEDULER),
    **dict.fromkeys(("write", "decode", "decode_page"), Group.FORWARD),
    **dict.fromkeys(("evict_page", "retract", "reclaim_session"), Group.ROOM),
    **dict.fromkeys(("flush", "profile", "rewind", "rewind_prefix"), Group.CLIENT),
    **dict.fromkeys(("trim", "slide", "bury", "dedupe_tombstone", "checkpoint", "donate"), Group.CACHE),
    **dict.fromkeys(("back_up", "write_through", "load_back", "prefetch"), Group.CACHE),
    **dict.fromkeys(("extend_pair", "claim", "admit_state", "renew_state", "fork_state"), Group.SCHEDULER),
    **dict.fromkeys(("receive", "restore_page", "launch", "send", "await_peer"), Group.SCHEDULER),
    **dict.fromkeys(("decode_pair", "write_state", "decode_state", "complete", "complete_state"), Group.FORWARD),
    **dict.fromkeys(("give_up_state", "evict_checkpoint", "drop_backup", "demote_page", "drop_copy"), Group.ROOM),
    **dict.fromkeys(("evict_host_page",), Group.ROOM),
    **dict.fromkeys(("write_through_done", "load_back_done", "load_back_root_done"), Group.TRANSFER),
    **dict.fromkeys(("prefetch_done", "sent", "received"), Group.TRANSFER),
    **dict.fromkeys(("acknowledge", "fail"), Group.ACKNOWLEDGEMENT),
}
"""For every operation of the law, who owes it; a role may say otherwise for itself (a finish that is an abort)."""

ABSENT: tuple[Sort, ...] = (SwaPage, StateSlot, HostPage, Loan)
"""What the view leaves out: it is of an engine with one pool, whose forwards and copies end within their step."""
CONSTANTS: Mapping[str, int] = {"window": 0, "namespaces": 1}
OUTSIDE: Mapping[str, str] = {
    "receive": "who receives waits for a transfer, which is a loan",
    "slide": "there is no window",
}
"""Operations of the reduced law that nobody takes, and why."""

STALE: Mapping[str, str] = {"pos": "free"}
"""Functions whose value nobody reads for an element of this relation: states that differ there only are alike."""

# Ghosts --------------------------------------------------------------------------------------------------------------

ghosts = Law("what a scheduler knows about its requests")

older = ghosts.relation("older", Request, Request, doc="both are live, and the first one arrived before the second")
window = ghosts.relation("window", Request, doc="the request may still be admitted behind the head of the queue")
owes = ghosts.relation("owes", Request, doc="the request has resumed and its chunk is not written yet")
fresh = ghosts.relation("fresh", Request, doc="the turn was admitted and has written nothing: it may still go back")
lost = ghosts.relation("lost", Request, doc="the completion of the request's forward was lost")
known = ghosts.function("known", Request, doc="tokens of prompt and output so far: what must be written to go on")
need = ghosts.function("need", Request, doc="at most so many tokens are still to be generated")


def live(r: Request) -> Formula:
    return ~(place(r) == Place.OUT)


def waits(r: Request) -> Formula:
    return place(r) == Place.WAITING


def holds(r: Request) -> Formula:
    """Admitted: in prefill, parked or running."""
    return place(r) >= Place.PREFILL


def lacks(r: Request, k: Record) -> Formula:
    """The request, which holds the record, can't go on without another page."""
    chunk = (place(r) == Place.PREFILL) & (C(k) == A(k)) & (A(k) < known(r))
    token = (place(r) == Place.RUNNING) & (need(r) > 0)
    return aligned(A(k)) & (chunk | token)


def lacks_a_page(r: Request) -> Formula:
    return exists(Record, lambda k: kv(r, k) & lacks(r, k))


def continues(r: Request) -> Formula:
    """The request is a turn whose session keeps KV for it."""
    return exists(Session, Record, lambda s, k: turn(s, r) & slot_kv(s, k))


def a_page_is_free() -> Formula:
    return exists(Page, lambda p: free(p))


@ghosts.action
def joins(r: Request, m: Int, n: Int) -> Body:
    """The youngest of all; `m` tokens of prompt and at most `n` to generate."""
    yield older.gains(lambda x, y: live(x) & ~(x == r) & (y == r))
    yield known.becomes(r, m)
    yield need.becomes(r, n)


@ghosts.action
def leaves(r: Request) -> Body:
    """Nothing is remembered of a request that is out."""
    yield older.loses(lambda x, y: (x == r) | (y == r))
    yield window.drop(r)
    yield owes.drop(r)
    yield fresh.drop(r)
    yield lost.drop(r)
    yield known.becomes(r, 0)
    yield need.becomes(r, 0)


@ghosts.action
def seated(r: Request) -> Body:
    yield window.drop(r)


@ghosts.action
def may_go_back(r: Request) -> Body:
    yield fresh.add(r)


@ghosts.action
def went_back(r: Request) -> Body:
    yield fresh.drop(r)


@ghosts.action
def opens_the_window(r: Request) -> Body:
    """Behind the head, those that wait now may be admitted in any order until the next forward."""
    yield window.gains(lambda x: waits(x) & ~(x == r))


@ghosts.action
def must_write(r: Request) -> Body:
    yield owes.add(r)


@ghosts.action
def has_written(r: Request) -> Body:
    yield owes.drop(r)
    yield fresh.drop(r)
    yield window.loses(lambda x: window(x))


@ghosts.action
def generates(r: Request, n: Int) -> Body:
    """One more token; at most `n` follow it (a stop token makes `n` 0)."""
    yield known.becomes(r, known(r) + 1)
    yield need.becomes(r, n)
    yield window.loses(lambda x: window(x))


@ghosts.action
def gives_way(r: Request) -> Body:
    yield owes.drop(r)
    yield fresh.drop(r)
    yield lost.drop(r)


@ghosts.action
def loses(r: Request) -> Body:
    yield lost.add(r)


# Roles ---------------------------------------------------------------------------------------------------------------

Steps = Iterator[tuple[Formula, str] | Step]
Writer = Callable[..., Steps]


@dataclass(frozen=True, slots=True)
class Role:
    """One use of an operation: `write` takes the operation's parameters by name, and others that it adds.

    name: of the operation in the view. of: the operation of the law; "" for a fault that moves no unit.
    """

    name: str
    of: str
    group: Group
    write: Callable[..., Steps]


ROLES: list[Role] = []


def role(*operations: str, use: str = "", group: Group | None = None) -> Callable[[Writer], Writer]:
    """The role of these operations, or one of several when `use` says which."""

    def record(write: Writer) -> Writer:
        for name in operations:
            shown = f"{name} ({use})" if use else name
            ROLES.append(Role(shown, name, group or GROUPS[name], write))
        return write

    return record


def role_named(name: str) -> Role:
    return next(r for r in ROLES if r.name == name)


@role("arrive")
def _arrive(r: Request, m: Int, n: Int) -> Steps:
    yield (m >= 1) & (n >= 1), "there is a prompt, and something to generate"
    yield m + n <= ROW_WIDTH, "prompt and output fit a row"
    yield joins(r, m, n)


@role("arrive_turn")
def _arrive_turn(s: Session, r: Request, m: Int, n: Int) -> Steps:
    yield forall(Record, lambda k: slot_kv(s, k) >> (A(k) < m)), "the turn's prompt goes beyond the session's KV"
    yield from _arrive(r, m, n)


@role("admit")
def _admit(r: Request) -> Steps:
    yield ~continues(r), "the request is no turn whose session keeps KV"
    yield a_page_is_free(), "there is a page for it"
    yield seated(r)


@role("admit_turn")
def _admit_turn(r: Request) -> Steps:
    yield a_page_is_free(), "there is a page for it"
    yield seated(r)
    yield may_go_back(r)


@role("rewind", "rewind_prefix")
def _rewind(r: Request) -> Steps:
    yield fresh(r) & (place(r) == Place.PREFILL), "the turn was admitted and has written nothing"
    yield went_back(r)


@role("trim")
def _trim(k: Record, a: Int, r: Request) -> Steps:
    yield kv(r, k) & (known(r) <= a), "what is known keeps its room"


@role("match_page")
def _match(k: Record, p: Page, r: Request) -> Steps:
    yield kv(r, k) & (place(r) == Place.PREFILL), "the record's request is in prefill"
    yield end(p) < known(r), "at least one token is left to compute"


@role("dedupe_page")
def _dedupe(k: Record, p: Page) -> Steps:
    yield end(p) <= C(k), "the page was written"


@role(
    "publish_pages",
    "evict_page",
    "reclaim_session",
    "begin_session",
    "close_idle",
    "close_saved",
    "close_busy",
    "flush",
    "profile",
)
def _as_it_is() -> Steps:
    yield from ()


@role("extend_page", "extend_tail")
def _extend(k: Record, a: Int, r: Request) -> Steps:
    yield kv(r, k) & (place(r) == Place.PREFILL), "the record's request is in prefill"
    yield a <= known(r), "the room is for tokens that are known"


@role("write")
def _write(k: Record, c: Int, r: Request) -> Steps:
    yield kv(r, k) & (place(r) == Place.PREFILL), "the record's request is in prefill"
    yield c == A(k), "the whole chunk is written"
    yield has_written(r)


@role("decode", "decode_page")
def _decode(k: Record, r: Request, n: Int) -> Steps:
    yield kv(r, k) & (place(r) == Place.RUNNING), "the record's request runs"
    yield (n >= 0) & (n < need(r)), "one token fewer is to come, or none at all"
    yield generates(r, n)


@role("park")
def _park(r: Request) -> Steps:
    yield ~owes(r), "a chunk was written since the request resumed"
    yield (
        forall(Record, lambda k: kv(r, k) >> ((C(k) == A(k)) & (C(k) < known(r)))),
        "the chunk is written, and is not the last one",
    )


@role("resume")
def _resume(r: Request) -> Steps:
    yield must_write(r)


@role("start_decode")
def _start_decode(r: Request) -> Steps:
    yield forall(Record, lambda k: kv(r, k) >> (C(k) == known(r))), "all known tokens are written"


@role("retract")
def _retract(r: Request) -> Steps:
    yield ~a_page_is_free(), "no page is free"
    yield gives_way(r)


@role("finish", "finish_publish")
def _finish(r: Request) -> Steps:
    yield (place(r) == Place.RUNNING) & (need(r) == 0), "nothing is left to generate"
    yield leaves(r)


@role("save", "save_and_end")
def _save(r: Request, k: Record, a: Int) -> Steps:
    yield (place(r) == Place.RUNNING) & (need(r) == 0), "nothing is left to generate"
    yield a == C(k), "all that was written is kept"
    yield leaves(r)


@role(
    "abort_waiting", "abort_waiting_turn", "abort_waiting_turn_and_end", "abort_waiting_turn_and_close", "drop_turn",
    "drop_turn_and_end",
)  # fmt: skip
def _abort(r: Request) -> Steps:
    yield leaves(r)


role("finish", "save", "save_and_end", use="abort", group=Group.CLIENT)(_abort)

# Policies and the view -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Policy:
    """What a scheduler decides: more clauses for some roles, by the name of the role or its operation, and more roles.

    A role that has clauses of its own is not asked those of its operation.
    """

    name: str
    doc: str
    clauses: Mapping[str, Sequence[Callable[..., Steps]]]
    roles: Sequence[Role] = ()

    def decisions(self, role_: Role) -> Sequence[Callable[..., Steps]]:
        return self.clauses.get(role_.name, self.clauses.get(role_.of, ()))


@dataclass(frozen=True, slots=True)
class Schedule:
    """A policy over the ownership law, as a law; of each of its operations the group and the operation it is."""

    policy: Policy
    law: Law
    groups: Mapping[str, Group]
    origins: Mapping[str, str]


def schedule(policy: Policy, invariants: Mapping[str, Property] | None = None, of: Law = law) -> Schedule:
    """The law of a policy. Raises LawError where an operation has no group or no role, or a policy names none."""
    missing = [name for name in of.operations if name not in GROUPS]
    if missing:
        raise LawError(f"say in scheduling.GROUPS who owes {', '.join(missing)}")
    of = without(of, ABSENT, CONSTANTS)
    roles = [*ROLES, *policy.roles]
    missing = [name for name in of.operations if name not in OUTSIDE and all(r.of != name for r in ROLES)]
    if missing:
        raise LawError(f"give {', '.join(missing)} a role in scheduling.py, or say in OUTSIDE why it has none")
    unknown = set(policy.clauses) - {n for r in roles for n in (r.name, r.of)}
    if unknown:
        raise LawError(f"policy {policy.name} speaks of {', '.join(sorted(unknown))}, which no role is of")
    operations = {r.name: _composed(of, r, policy.decisions(r)) for r in roles}
    for r in roles:
        if r.group.of_request and all(p.name != "r" for p in operations[r.name].params):
            raise LawError(f"{r.name} is owed to each request, and has no parameter `r`")
    seen = replace(
        of,
        name=f"{of.name}, scheduled: {policy.name}",
        relations={**of.relations, **ghosts.relations},
        functions={**of.functions, **ghosts.functions},
        actions={**of.actions, **ghosts.actions},
        operations=operations,
        invariants={**of.invariants, **(invariants or {})},
        initial=[
            *of.initial,
            forall(Request, Request, lambda x, y: ~older(x, y)),
            forall(Request, lambda x: ~(window(x) | owes(x) | fresh(x) | lost(x)) & (known(x) == 0) & (need(x) == 0)),
        ],
    )
    return Schedule(policy, seen, {r.name: r.group for r in roles}, {r.name: r.of for r in roles})


def _composed(of: Law, role_: Role, more: Sequence[Callable[..., Steps]]) -> Operation:
    """The operation with the clauses of its role and its policy before it, and the ghosts' steps behind it."""
    base = of.operations[role_.of] if role_.of else Operation(role_.name, (), (), (), "")
    params: dict[str, Param] = {p.name: p for p in base.params}
    parts = [part for write in (role_.write, *more) for part in write(**_arguments(write, params))]
    guard = tuple(Clause(p[1], p[0]) for p in parts if isinstance(p, tuple))
    steps = tuple(p for p in parts if isinstance(p, Step))
    return Operation(role_.name, tuple(params.values()), guard + base.guard, base.steps + steps, base.doc)


def _arguments(write: Callable[..., Any], params: dict[str, Param]) -> dict[str, Param]:
    """The parameters by name; what is not there yet is added."""
    hints = inspect.get_annotations(write, eval_str=True)
    for name in inspect.signature(write).parameters:
        if name not in params:
            params[name] = IntVar(name) if hints[name] is Int else hints[name](name)
    return {name: params[name] for name in inspect.signature(write).parameters}
