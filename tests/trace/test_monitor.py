"""The monitor: a good log holds; a bad one gets a verdict with rule, clause, unit, owners, number and kind."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freehold.spec.events import EDGES
from freehold.spec.law import law
from freehold.spec.monitor import Monitor
from freehold.spec.state import Place
from freehold.spec.trace import BadTrace, Event, Header
from freehold.spec.verdict import DEFICITS, ORDERS, Verdict

HEADER = Header(page_size=4, pages=8, rows=2, row_width=16)
ADMIT_A = [("place", "a", Place.WAITING), ("bind_row", "a", 1, 1), ("place", "a", Place.PREFILL)]
ADMIT_B = [("place", "b", Place.WAITING), ("bind_row", "b", 2, 2), ("place", "b", Place.PREFILL)]
FILL_A = [("acquire", 1, [1, 2]), ("extend", 1, [1, 2], 6), ("commit", 1, 6)]
END_A = [("unbind_row", 1, 1), ("close", 1), ("place", "a", Place.OUT)]
RUN_A = ("place", "a", Place.RUNNING)


def watch(*events: tuple[Any, ...]) -> Monitor:
    monitor = Monitor(HEADER)
    for event in events:
        monitor.emit(*event)
    return monitor


def verdict(*events: tuple[Any, ...]) -> Verdict:
    found = watch(*events).verdict
    assert found is not None
    assert found.event_number == len(events), found
    return found


def test_the_life_of_a_request_holds() -> None:
    monitor = watch(
        *ADMIT_A, *FILL_A, ("publish", 1, 4), ("mark", "step"), RUN_A, ("extend", 1, [], 7), ("commit", 1, 7),
        ("mark", "step"), ("truncate", 1, 4), ("release", 1, [2]), ("unlock", 1, 0), *END_A, ("mark", "step"),
        ("mark", "quiescent"),
        *ADMIT_B, ("lock", 2, [1]), ("attach", 2, [1]), ("mark", "step"),
    )  # fmt: skip
    assert monitor.verdict is None
    assert monitor.compiled.values["P"][2] == 4


def test_a_page_given_out_twice_is_an_excess_with_both_owners() -> None:
    found = verdict(*ADMIT_A, *FILL_A, *ADMIT_B, ("acquire", 2, [3, 2]))
    assert (found.rule, found.clause, found.kind) == ("acquire", "each page is free", "excess")
    assert found.unit == "page 2"
    assert any(o.startswith("record 1 (held by request a), owns it") for o in found.owners)
    assert any(o.startswith("record 2 (held by request b), claiming") for o in found.owners)


def test_a_double_free_is_an_excess() -> None:
    found = verdict(*ADMIT_A, ("acquire", 1, [1]), ("release", 1, [1]), ("release", 1, [1]))
    assert (found.clause, found.kind, found.unit) == ("the record owns each page", "excess", "page 1")
    assert "the free list" in found.owners


def test_a_page_named_twice_in_one_event_is_seen() -> None:
    found = verdict(*ADMIT_A, ("acquire", 1, [4, 4]))
    assert (found.clause, found.unit) == ("each page is free", "page 4")


def test_the_padding_page_is_never_given_out() -> None:
    found = verdict(*ADMIT_A, ("acquire", 1, [0]))
    assert (found.clause, found.unit) == ("each page is free", "page 0")


def test_a_row_that_goes_back_with_pages_is_a_deficit() -> None:
    found = verdict(*ADMIT_A, *FILL_A, ("unbind_row", 1, 1))
    assert (found.clause, found.kind) == ("the record owns no page", "deficit")
    assert found.unit in ("page 1", "page 2")


def test_a_lost_tail_is_a_deficit_at_the_next_mark() -> None:
    found = verdict(*ADMIT_A, *FILL_A, ("truncate", 1, 4), ("mark", "step"))
    assert (found.rule, found.kind, found.unit) == ("owned_page_is_mapped", "deficit", "page 2")
    assert any("record 1" in o for o in found.owners)


def test_a_leaked_lock_is_a_deficit() -> None:
    found = verdict(*ADMIT_A, *FILL_A, ("publish", 1, 4), ("truncate", 1, 4), ("release", 1, [2]), ("unbind_row", 1, 1))
    assert (found.clause, found.kind) == ("the record has no lock", "deficit")


def test_eviction_under_a_lock_is_an_excess() -> None:
    found = verdict(*ADMIT_A, *FILL_A, ("publish", 1, 4), ("evict", [1]))
    assert (found.rule, found.clause, found.kind) == ("evict", "no record locks the page", "excess")
    assert "the prefix tree" in found.owners


def test_an_unwritten_page_cannot_be_published() -> None:
    found = verdict(*ADMIT_A, ("acquire", 1, [1, 2]), ("extend", 1, [1, 2], 8), ("commit", 1, 5), ("publish", 1, 8))
    assert found.clause == "only written pages are published"


def test_committed_tokens_have_pages() -> None:
    found = verdict(*ADMIT_A, ("acquire", 1, [1]), ("extend", 1, [1], 4), ("commit", 1, 5))
    assert found.clause == "committed tokens have a page behind them"


def test_a_forgotten_page_in_an_extend_is_seen() -> None:
    found = verdict(*ADMIT_A, ("acquire", 1, [1, 2]), ("extend", 1, [1], 6))
    assert found.clause == "the new length ends inside the last page"


def test_a_saved_record_is_not_the_requests_any_more() -> None:
    events = [
        ("open_session", "s"), ("use", "s", "a"), *ADMIT_A, *FILL_A, RUN_A, ("transfer_to_session", "a", 1, "s"),
        ("acquire", 1, [5]),
    ]  # fmt: skip
    found = verdict(*events)
    assert (found.rule, found.clause) == ("acquire", "a request holds the record")
    assert any("held by session s" in o for o in found.owners)


def test_two_live_turns_are_an_order_fault() -> None:
    found = verdict(("open_session", "s"), ("use", "s", "a"), ("use", "s", "b"))
    assert (found.clause, found.kind) == ("the session has no live turn", "order")


@pytest.mark.parametrize("there", [p for p in Place if (Place.WAITING, p) not in EDGES])
def test_places_follow_the_graph(there: Place) -> None:
    found = verdict(("place", "a", Place.WAITING), ("place", "a", there))
    assert (found.clause, found.kind) == ("the edge exists in the place graph", "order")


def test_a_quiescent_mark_wants_everyone_out() -> None:
    assert verdict(("place", "a", Place.WAITING), ("mark", "quiescent")).clause == "every request is out"


def observed(**changes: Any) -> dict[str, Any]:
    state: dict[str, Any] = {name: [] for name in law.relations}
    state |= {"free": [[p] for p in range(1, 9)], "row_free": [[1], [2]]}
    return {**state, **changes}


def test_an_observed_state_that_agrees_holds() -> None:
    assert watch(("observe", observed())).verdict is None


def test_a_page_that_the_engine_lost_is_a_deficit() -> None:
    found = verdict(("observe", observed(free=[[p] for p in range(2, 9)])))
    assert (found.rule, found.kind, found.unit) == ("observe", "deficit", "page 1")


def test_a_page_that_the_engine_holds_twice_is_an_excess() -> None:
    events = [*ADMIT_A, *FILL_A, RUN_A]
    honest = {
        "owns": [[1, 1], [1, 2]],
        "maps": [[1, 1], [1, 2]],
        "kv": [["a", 1]],
        "row_of": [[1, 1]],
        "row_free": [[2]],
    }
    free = [[p] for p in range(2, 9)]
    found = verdict(*events, ("observe", observed(free=free, **honest)))
    assert (found.kind, found.unit) == ("excess", "page 2")
    assert any("record 1" in o for o in found.owners)
    assert any(o.startswith("the free list") for o in found.owners)


@pytest.mark.parametrize(("locks", "kind"), [([[1, 1]], "deficit"), ([], "excess")])
def test_a_lock_too_many_is_a_deficit_and_one_too_few_an_excess(locks: list[list[int]], kind: str) -> None:
    events = [*ADMIT_A, *FILL_A, ("publish", 1, 4), RUN_A]
    state = {"owns": [[1, 2]], "maps": [[1, 1], [1, 2]], "kv": [["a", 1]], "row_of": [[1, 1]], "row_free": [[2]],
             "free": [[p] for p in range(3, 9)], "in_tree": [[1]], "locks": locks}  # fmt: skip
    if kind == "deficit":  # the events let go of everything, the engine kept the receipt
        events += [("truncate", 1, 4), ("release", 1, [2]), ("unlock", 1, 0), *END_A]
        state |= {"owns": [], "maps": [], "kv": [], "row_of": [], "row_free": [[1], [2]],
                  "free": [[p] for p in range(2, 9)]}  # fmt: skip
    found = verdict(*events, ("observe", observed(**state)))
    assert (found.rule, found.kind, found.unit) == ("observe", kind, "page 1")


def test_a_wrong_length_in_the_engine_is_seen() -> None:
    events = [*ADMIT_A, *FILL_A, RUN_A]
    honest = {
        "owns": [[1, 1], [1, 2]],
        "maps": [[1, 1], [1, 2]],
        "kv": [["a", 1]],
        "row_of": [[1, 1]],
        "row_free": [[2]],
    }
    found = verdict(*events, ("observe", observed(free=[[p] for p in range(3, 9)], C={1: 5}, **honest)))
    assert "C is 6 by the events and 5 in the engine" in found.clause


def test_a_conflict_in_the_structures_is_reported_with_its_unit() -> None:
    found = verdict(("observe", observed(conflicts=["page 3 is on the free stack 2 times"])))
    assert (found.kind, found.unit) == ("excess", "page 3")
    assert found.owners[0] == "the free list"
    assert len(found.owners) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"free": 5}, "free must be a list of tuples"),
        ({"owns": [[1, {}]]}, "owns must be a list of tuples"),
        ({"owns": [[1]]}, "a tuple of owns has 2 places"),
        ({"C": [3]}, "C must be a list of pairs"),
    ],
)
def test_a_malformed_observation_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadTrace, match=message):
        watch(("observe", observed(**change)))


def test_a_missing_relation_is_refused() -> None:
    with pytest.raises(BadTrace, match="has no relation locks"):
        watch(("observe", {name: value for name, value in observed().items() if name != "locks"}))


def test_nothing_is_followed_behind_a_verdict() -> None:
    monitor = watch(("place", "a", Place.RUNNING), ("place", "a", Place.WAITING))
    assert monitor.verdict is not None
    assert monitor.verdict.event_number == 1
    assert monitor.feed(Event(3, "mark", ("step",))) is monitor.verdict


def test_the_words_that_decide_the_kind_are_the_laws() -> None:
    clauses = {c.text for a in law.actions.values() for c in a.guard} | set(law.invariants)
    assert clauses >= DEFICITS
    assert clauses >= ORDERS
    assert not DEFICITS & ORDERS


def test_a_verdict_reads_as_a_sentence_each_line() -> None:
    text = str(verdict(*ADMIT_A, ("acquire", 1, [0])))
    assert text.splitlines() == [
        "event 4: acquire(k=1, pages=0)",
        "  breaks   acquire: each page is free",
        "  kind     excess",
        "  unit     page 0",
        "  owners   record 1 (held by request a), claiming",
    ]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.sampled_from([*law.relations, *law.functions, "conflicts"]), values)
def test_whatever_is_observed_is_judged_or_refused(name: str, value: Any) -> None:
    monitor = watch(*ADMIT_A, *FILL_A, ("publish", 1, 4), RUN_A)
    honest = {"owns": [[1, 2]], "maps": [[1, 1], [1, 2]], "kv": [["a", 1]], "row_of": [[1, 1]], "row_free": [[2]],
              "free": [[p] for p in range(3, 9)], "in_tree": [[1]], "locks": [[1, 1]]}  # fmt: skip
    with contextlib.suppress(BadTrace):
        monitor.emit("observe", observed(**{**honest, name: value}))
        assert monitor.verdict is None or str(monitor.verdict)
