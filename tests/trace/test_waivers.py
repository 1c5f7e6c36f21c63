"""Each waiver, as an engine would need it: a log that the strict law refuses, and the waived one accepts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from freehold.spec.errors import InvalidInput
from freehold.spec.law import law
from freehold.spec.monitor import Monitor
from freehold.spec.state import End, Place
from freehold.spec.trace import Header
from freehold.spec.waivers import WAIVERS, waive

HEADER = Header(page_size=2, pages=4, rows=2, row_width=8, in_flight=True)


def admit(m: Monitor, r: str = "a", k: int = 1, w: int = 1) -> None:
    m.emit("place", r, Place.WAITING)
    m.emit("bind_row", r, k, w)
    m.emit("place", r, Place.PREFILL)


def grow(m: Monitor, page: int, a: int, k: int = 1) -> None:
    m.emit("acquire", k, [page])
    m.emit("extend", k, [page], a)


def launched(m: Monitor) -> None:
    """A forward that writes the record's first page is in flight."""
    admit(m)
    grow(m, 1, 2)
    m.emit("lend", 1, 1, 0, ())


def turn_with_room(m: Monitor) -> None:
    """A session's turn has room for two tokens, one of them written."""
    m.emit("open_session", "s")
    m.emit("use", "s", "a")
    admit(m)
    grow(m, 1, 2)
    m.emit("commit", 1, 1)


def commit_at_launch(m: Monitor) -> None:
    launched(m)
    m.emit("commit", 1, 2)


def hand_out_under_a_forward(m: Monitor) -> None:
    launched(m)
    m.emit("truncate", 1, 0)
    m.emit("release", 1, [1])
    m.emit("unlock", 1, 0)
    m.emit("unbind_row", 1, 1)
    m.emit("close", 1)
    m.emit("place", "a", Place.OUT)
    admit(m, "b", 2, 2)
    grow(m, 1, 2, k=2)


def close_on_timeout(m: Monitor) -> None:
    launched(m)
    m.emit("loan_close", 1, End.TIMEOUT)


def leave_a_hole(m: Monitor) -> None:
    admit(m)
    m.emit("promise", 1, 2)
    grow(m, 1, 4)
    m.emit("mark", "step")


def probe_a_session(m: Monitor) -> None:
    turn_with_room(m)
    m.emit("commit", 1, 2)
    m.emit("transfer_to_session", "a", 1, "s")
    m.emit("unuse", "s", "a")
    m.emit("place", "a", Place.OUT)
    m.emit("mark", "step")
    m.emit("truncate", 1, 1)
    m.emit("mark", "step")


def move_the_lock(m: Monitor) -> None:
    admit(m)
    grow(m, 1, 2)
    m.emit("commit", 1, 2)
    m.emit("publish", 1, 2)
    m.emit("unpin", 1)
    m.emit("lock", 1, [1])
    m.emit("mark", "step")


def retract_a_turn(m: Monitor) -> None:
    turn_with_room(m)
    m.emit("transfer_to_session", "a", 1, "s")
    m.emit("place", "a", Place.WAITING)
    m.emit("mark", "step")


LOGS: dict[str, Callable[[Monitor], None]] = {
    "W1": commit_at_launch,
    "W2": hand_out_under_a_forward,
    "W3": close_on_timeout,
    "W4": leave_a_hole,
    "W5": probe_a_session,
    "W6": move_the_lock,
    "W7": retract_a_turn,
}


def test_each_waiver_has_a_log() -> None:
    assert set(LOGS) == set(WAIVERS)


@pytest.mark.parametrize("name", LOGS)
def test_a_waiver_is_needed_and_enough(name: str) -> None:
    strict, waived = Monitor(HEADER), Monitor(HEADER, (name,))
    LOGS[name](strict)
    LOGS[name](waived)
    assert strict.verdict is not None
    assert waived.verdict is None, str(waived.verdict)


@pytest.mark.parametrize("name", LOGS)
def test_no_other_waiver_accepts_the_log(name: str) -> None:
    others = Monitor(HEADER, tuple(w for w in WAIVERS if w != name))
    LOGS[name](others)
    assert others.verdict is not None


def test_a_waiver_leaves_the_law_as_it_was() -> None:
    before = dict(law.actions)
    waive(law, WAIVERS)
    assert dict(law.actions) == before
    assert "promise" not in law.actions


def test_an_unknown_waiver_is_refused() -> None:
    with pytest.raises(InvalidInput, match="there are W1, W2"):
        Monitor(HEADER, ("W9",))
