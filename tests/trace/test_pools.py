"""Logs of engines with other pools and with something in flight: good ones hold, bad ones name units and owners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from freehold.spec.law import law
from freehold.spec.monitor import Monitor
from freehold.spec.state import End, Place
from freehold.spec.trace import BadTrace, Event, Header, TraceWriter, read
from freehold.spec.verdict import VERBS, Verdict

Emitted = tuple[Any, ...]
PAGES = Header(page_size=2, pages=4, rows=2, row_width=8)
SWA = Header(page_size=2, pages=8, rows=2, row_width=12, swa_pages=4, window=2)
LOANS = Header(page_size=2, pages=4, rows=2, row_width=8, in_flight=True)
STATES = Header(page_size=2, pages=4, rows=2, row_width=8, state_slots=3)
HOST = Header(page_size=2, pages=4, rows=2, row_width=8, host_pages=3, in_flight=True)
NAMED = Header(page_size=2, pages=4, rows=2, row_width=8, namespaces=2)
STEP, QUIET = ("mark", "step"), ("mark", "quiescent")


def admitted(r: str, k: int, w: int) -> list[Emitted]:
    return [("place", r, Place.WAITING), ("bind_row", r, k, w), ("place", r, Place.PREFILL)]


def closed(r: str, k: int, w: int, q: Place = Place.OUT) -> list[Emitted]:
    return [("unbind_row", k, w), ("close", k), ("place", r, q)]


def filled(k: int, page: int, a: int) -> list[Emitted]:
    return [("acquire", k, [page]), ("extend", k, [page], a), ("commit", k, a)]


PAIRED = [
    *admitted("a", 1, 1), ("acquire", 1, [1, 2, 3]), ("pair", 1, 1, 1), ("pair", 1, 2, 2), ("pair", 1, 3, 3),
    ("extend", 1, [1, 2, 3], 6), ("commit", 1, 6), STEP,
]  # fmt: skip
WINDOW_LIFE = [
    *PAIRED, ("window_drop", 1, 0, 4), STEP, ("publish", 1, 4), STEP,
    *admitted("b", 2, 2), ("acquire", 2, [4]), ("pair", 2, 4, 1), ("extend", 2, [4], 2), ("commit", 2, 2), STEP,
    ("lock", 2, [1]), ("repeer", 2, 4, 1, 1), ("attach", 2, [1]), ("release", 2, [4]), STEP,
    ("unlock", 2, 0), *closed("b", 2, 2), STEP, ("evict_peer", 1, 1),
    ("truncate", 1, 4), ("release", 1, [3]), ("unlock", 1, 0), *closed("a", 1, 1), QUIET, ("evict", [2, 1]), QUIET,
]  # fmt: skip

LAUNCHED = [*admitted("a", 1, 1), ("acquire", 1, [1]), ("extend", 1, [1], 2), ("lend", 7, 1, 0, []), STEP]
LEFT_UNDER_A_LOAN = [*LAUNCHED, ("truncate", 1, 0), ("release", 1, [1]), *closed("a", 1, 1), STEP]
LOAN_LIFE = [
    *LEFT_UNDER_A_LOAN, *admitted("b", 2, 2), ("loan_close", 7, End.DONE), ("acquire", 2, [1]), ("extend", 2, [1], 1),
    ("lend", 8, 2, 0, []), ("lend", 9, 2, 0, [8]), ("loan_close", 8, End.DONE), ("loan_close", 9, End.FAILED), STEP,
    ("truncate", 2, 0), ("release", 2, [1]), *closed("b", 2, 2), QUIET,
]  # fmt: skip

CLAIMED = [("place", "a", Place.WAITING), ("claim_state", "a", 1), STEP]
STATEFUL = [*CLAIMED, ("bind_row", "a", 1, 1), ("adopt_state", "a", 1, 1), ("place", "a", Place.PREFILL), STEP]
CHECKPOINTED = [
    *STATEFUL, ("acquire", 1, [1]), ("extend", 1, [1], 2), ("advance_state", 1, 1, 2), ("commit", 1, 2),
    ("publish", 1, 2), ("checkpoint_state", 1, 1, 1, 2), STEP,
]  # fmt: skip
STATE_LIFE = [
    *CHECKPOINTED, ("acquire", 1, [2]), ("extend", 1, [2], 4), ("advance_state", 1, 1, 4), ("commit", 1, 4),
    ("publish", 1, 4), ("donate_state", 1, 1, 2), STEP, ("take_state", 1, 3), ("load_state", 1, 3, 2, 1), STEP,
    ("release_state", 1, [3]), ("unlock", 1, 0), *closed("a", 1, 1), QUIET,
    ("evict_state", 2, [1]), ("evict", [2]), QUIET,
    ("place", "b", Place.WAITING), ("claim_state", "b", 1), ("drop_claim", "b", [1]), ("place", "b", Place.OUT), QUIET,
]  # fmt: skip

STASHED = [*admitted("a", 1, 1), *filled(1, 1, 2), ("stash", "a", 1, 1, 1), STEP]
HOST_LIFE = [
    *STASHED, ("truncate", 1, 0), ("release", 1, [1]), *closed("a", 1, 1, Place.WAITING), STEP,
    ("bind_row", "a", 2, 1), ("place", "a", Place.PREFILL), *filled(2, 1, 2), ("unstash", "a", [1]), ("publish", 2, 2),
    ("copy_out", 1, 1, 2), STEP, ("keep_copy", 1, 1, 2), ("loan_close", 1, End.DONE), STEP,
    ("unlock", 2, 0), *closed("a", 2, 1), QUIET,
    ("demote", 1, 2), ("evict", [1]), ("copy_in", 2, 2, 3), STEP, ("land", 2, 2, 3, []), ("loan_close", 2, End.DONE),
    ("drop_mirror", 3, [2]), ("fetch", 3, 1, 0, 0), ("file_away", 3, 1), ("loan_close", 3, End.DONE),
    ("evict_host", 1), QUIET, ("reset",), QUIET, *admitted("b", 3, 1), ("acquire", 3, [1, 2, 3, 4]),
]  # fmt: skip

NAMED_LIFE = [
    ("place", "a", Place.WAITING), ("bind_row", "a", 1, 1), ("tag", 1, 1), ("place", "a", Place.PREFILL),
    *filled(1, 1, 2), ("publish", 1, 2), ("unlock", 1, 0), *closed("a", 1, 1), QUIET,
]  # fmt: skip
LIVES = {
    "window": (SWA, WINDOW_LIFE), "loans": (LOANS, LOAN_LIFE), "states": (STATES, STATE_LIFE),
    "host": (HOST, HOST_LIFE), "namespaces": (NAMED, NAMED_LIFE),
}  # fmt: skip


def watch(header: Header, *events: Emitted) -> Monitor:
    monitor = Monitor(header)
    for event in events:
        monitor.emit(*event)
    return monitor


def verdict(header: Header, *events: Emitted) -> Verdict:
    found = watch(header, *events).verdict
    assert found is not None
    assert found.event_number == len(events), found
    return found


@pytest.mark.parametrize(("header", "life"), LIVES.values(), ids=LIVES)
def test_a_life_in_each_pool_holds(header: Header, life: list[Emitted]) -> None:
    assert watch(header, *life).verdict is None


def test_nothing_is_remembered_of_loans_that_have_closed() -> None:
    monitor = watch(LOANS, *admitted("a", 1, 1), ("acquire", 1, [1, 2]), ("extend", 1, [1, 2], 4), ("commit", 1, 1))
    for loan in range(1, 4):
        monitor.emit("lend", loan, 1, loan, [])
        monitor.emit("loan_close", loan, End.DONE)
        monitor.emit("commit", 1, loan + 1)
        monitor.emit(*STEP)
    assert monitor.verdict is None
    assert (monitor.compiled.universe["Loan"], monitor.compiled.values["S"]) == ({}, {})


def test_they_go_through_every_event_of_the_pools() -> None:
    taken = {name for _, life in LIVES.values() for name, *_ in life}
    assert law.actions.keys() - PAGES.law().actions.keys() | {"reset"} <= taken


@pytest.mark.parametrize(("header", "life"), LIVES.values(), ids=LIVES)
def test_an_event_of_a_pool_that_the_header_does_not_name_is_told(header: Header, life: list[Emitted]) -> None:
    for event in life:
        if event[0] in header.law().actions.keys() - PAGES.law().actions.keys():
            found = verdict(PAGES, event)
            assert (found.rule, found.kind) == (event[0], "order")
            assert found.clause == "the event belongs to a pool that the header names, or to a waiver in force"


@pytest.mark.parametrize(("header", "life"), LIVES.values(), ids=LIVES)
def test_a_log_with_pools_comes_back(tmp_path: Path, header: Header, life: list[Emitted]) -> None:
    with TraceWriter(tmp_path / "log.jsonl", header) as writer:
        for event in life:
            writer.emit(*event)
    again, events = read(tmp_path / "log.jsonl")
    assert again == header
    assert [(e.name, *e.args) for e in events] == life


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("swa_pages", -1, "0 where there is none"),
        ("window", "2", "0 where there is none"),
        ("namespaces", 0, "above 0"),
        ("in_flight", 1, "true or false"),
    ],
)
def test_a_header_that_cannot_be_is_refused(field: str, value: Any, says: str) -> None:
    with pytest.raises(BadTrace, match=f"{field} must be .*{says}"):
        Header(2, 4, 2, 8, **{field: value})


# What is in flight ---------------------------------------------------------------------------------------------------


def test_a_page_that_is_given_back_under_a_loan_is_held_until_it_closes() -> None:
    monitor = watch(LOANS, *LEFT_UNDER_A_LOAN)
    assert (monitor.compiled.sets["held"], 1 in monitor.compiled.sets["free"]) == ({1}, False)
    monitor.emit("loan_close", 7, End.DONE)
    assert (monitor.compiled.sets["held"], 1 in monitor.compiled.sets["free"]) == (set(), True)


def test_a_held_page_cannot_be_acquired_and_the_verdict_names_loan_and_page() -> None:
    found = verdict(LOANS, *LEFT_UNDER_A_LOAN, *admitted("b", 2, 2), ("acquire", 2, [1]))
    assert (found.rule, found.clause, found.kind) == ("acquire", "each page is free", "excess")
    assert found.unit == "page 1"
    assert found.owners == (
        "record 2 (held by request b), claiming", "the held list, until the last loan that touches it closes",
        "loan 7, writes it",
    )  # fmt: skip


def test_two_writers_need_an_order() -> None:
    found = verdict(LOANS, *LAUNCHED, ("lend", 8, 1, 0, []))
    assert (
        found.clause == "it is ordered behind whatever writes what it touches, or reads what is private to the record"
    )
    assert (found.kind, found.unit) == ("excess", "page 1")
    assert "loan 7 (for record 1 (held by request a)), writes it" in found.owners


def test_a_timeout_closes_nothing() -> None:
    found = verdict(LOANS, *LAUNCHED, ("loan_close", 7, End.TIMEOUT))
    assert (found.clause, found.kind) == ("a timeout is no word of the borrower: cut it off first", "excess")
    assert (found.unit, found.owners) == ("loan 7", ("loan 7 (for record 1 (held by request a))",))


def test_a_loan_is_used_once() -> None:
    found = verdict(LOANS, *LAUNCHED, ("lend", 7, 1, 0, []))
    assert (found.clause, found.kind, found.unit) == ("the loan is new", "order", "loan 7")


def test_nothing_is_quiet_while_something_is_in_flight() -> None:
    found = verdict(LOANS, *LEFT_UNDER_A_LOAN, QUIET)
    assert (found.rule, found.clause, found.unit) == ("quiescent mark", "nothing is in flight", "loan 7")


# Units of each pool --------------------------------------------------------------------------------------------------

TAKEN = [
    (
        SWA, [*PAIRED, ("acquire", 1, [4]), ("pair", 1, 4, 2)], "the swa page is free", "swa page 2", "excess",
        "page 2 (of record 1 (held by request a)), has it as its other half",
    ),
    (
        STATES, [*CLAIMED, ("place", "b", Place.WAITING), ("claim_state", "b", 1)], "the slot is free", "state slot 1",
        "excess", "request a, claimed it",
    ),
    (
        STATES, [*STATEFUL, ("unbind_row", 1, 1)], "the record has no state", "state slot 1", "deficit",
        "record 1 (held by request a), runs in it",
    ),
    (
        STATES, [*CHECKPOINTED, ("checkpoint_state", 1, 1, 1, 3)], "the page has no checkpoint yet", "state slot 2",
        "excess", "page 1 (of the prefix tree), has it as its checkpoint",
    ),
    (
        STATES, [*STATEFUL, ("acquire", 1, [1]), ("extend", 1, [1], 2), ("commit", 1, 2)],
        "the running state has seen the new tokens", "state slot 1", "order",
        "record 1 (held by request a), runs in it",
    ),
    (
        HOST, [*STASHED, *admitted("b", 2, 2), *filled(2, 2, 2), ("stash", "b", 2, 2, 1)], "the host page is free",
        "host page 1", "excess", "request a, keeps KV in it",
    ),
    (
        HOST, [*STASHED, ("fetch", 3, 2, 0, 0), ("evict_host", 2)], "the host page stands for a tree page",
        "host page 2", "excess", "loan 3, fills it",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("header", "events", "clause", "unit", "kind", "owner"), TAKEN, ids=[t[2] for t in TAKEN])
def test_a_verdict_names_the_unit_and_who_has_it(
    header: Header, events: list[Emitted], clause: str, unit: str, kind: str, owner: str
) -> None:
    found = verdict(header, *events)
    assert (found.clause, found.unit, found.kind) == (clause, unit, kind)
    assert owner in found.owners


def test_a_claim_outlives_no_request() -> None:
    found = verdict(STATES, *CLAIMED, ("place", "a", Place.OUT), STEP)
    assert (found.rule, found.kind, found.unit) == ("claimant_waits", "deficit", "state slot 1")
    assert "request a, claimed it" in found.owners


def test_every_user_of_a_unit_has_a_verb() -> None:
    units = {"Page", "SwaPage", "StateSlot", "HostPage"}
    users = {
        n for n, r in law.relations.items()
        if len(r.sorts) == 2 and r.sorts[1].__name__ in units and r.sorts[0] is not r.sorts[1]
    }  # fmt: skip
    assert users == VERBS.keys()


# What an engine shows of its pools -----------------------------------------------------------------------------------


def shown(monitor: Monitor) -> dict[str, Any]:
    """The state as an honest engine would report it, which cannot see ghosts."""
    relations = monitor.compiled.state().relations
    return {n: sorted(map(list, ts), key=str) for n, ts in relations.items() if not monitor.law.relations[n].ghost}


@pytest.mark.parametrize(("header", "life"), LIVES.values(), ids=LIVES)
def test_an_honest_observation_holds(header: Header, life: list[Emitted]) -> None:
    """At each step mark, without the ghosts, which are not asked for."""
    monitor = Monitor(header)
    for event in life:
        monitor.emit(*event)
        if event[0] == "mark":
            monitor.feed(Event(monitor.count + 1, "observe", (shown(monitor),)))
    assert monitor.verdict is None


@pytest.mark.parametrize(
    ("header", "events", "change", "kind", "unit"),
    [
        (LOANS, LEFT_UNDER_A_LOAN, {"held": []}, "excess", "page 1"),
        (LOANS, LEFT_UNDER_A_LOAN, {"held": [[1], [2]]}, "deficit", "page 2"),
        (LOANS, LAUNCHED, {"writes": []}, "excess", "page 1"),
        (SWA, PAIRED, {"swa_free": []}, "deficit", "swa page 4"),
        (SWA, PAIRED, {"peer": [[1, 1], [2, 2], [3, 2], [3, 3]]}, "excess", "swa page 2"),
        (STATES, CLAIMED, {"claims": []}, "deficit", "state slot 1"),
        (HOST, STASHED, {"host_free": [[1], [2], [3]]}, "excess", "host page 1"),
        (HOST, STASHED, {"conflicts": ["host page 1 has two users"]}, "excess", "host page 1"),
    ],
)  # fmt: skip
def test_a_difference_in_a_pool_is_a_verdict(
    header: Header, events: list[Emitted], change: dict[str, Any], kind: str, unit: str
) -> None:
    monitor = watch(header, *events)
    monitor.emit("observe", shown(monitor) | change)
    assert monitor.verdict is not None
    assert (monitor.verdict.rule, monitor.verdict.kind, monitor.verdict.unit) == ("observe", kind, unit)
