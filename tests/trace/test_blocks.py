"""Blocks: the same event of many records in one word of the log means the fold of its single events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from freehold.model_check.coverage import Coverage
from freehold.spec.monitor import Monitor
from freehold.spec.state import End, Place
from freehold.spec.trace import BadTrace, Event, Header, TraceWriter, read, single_events

Emitted = tuple[Any, ...]
SIZES: dict[str, Any] = {"page_size": 2, "pages": 12, "rows": 3, "row_width": 8}
HEADERS = {
    "plain": Header(**SIZES), "window": Header(**SIZES, swa_pages=12, window=2),
    "in flight": Header(**SIZES, in_flight=True),
    "both": Header(**SIZES, swa_pages=12, window=2, in_flight=True),
}  # fmt: skip
RECORDS = (1, 2, 3)
# A page that is free at first, for each record to grow into.
SPARE = {k: 9 + k for k in RECORDS}


def started(header: Header) -> Monitor:
    """Three records of five tokens in three pages each, of which four are committed; a step has ended."""
    monitor = Monitor(header)
    for k in RECORDS:
        pages = [3 * k - 2, 3 * k - 1, 3 * k]
        for word in (("place", f"r{k}", Place.WAITING), ("bind_row", f"r{k}", k, k), ("place", f"r{k}", Place.PREFILL)):
            monitor.emit(*word)
        monitor.emit("acquire", k, pages)
        for p in pages if header.window else ():
            monitor.emit("pair", k, p, p)
        monitor.emit("extend", k, pages, 5)
        monitor.emit("commit", k, 4)
    monitor.emit("mark", "step")
    assert monitor.verdict is None
    return monitor


class Steps:
    """Turns drawn words into events: numbers are relative to what the law's state has, so that many of them hold."""

    def __init__(self, header: Header) -> None:
        self.header, self.loans, self.open = header, 0, list[int]()

    def words(self, name: str, rows: list[tuple[int, int]], monitor: Monitor) -> Iterator[Emitted]:
        values = monitor.compiled.values
        allocated, committed = dict(values["A"]), dict(values["C"])
        match name:
            case "grow_all" | "commit_all":
                lengths = allocated if name == "grow_all" else committed
                column = []
                for k, by in rows:
                    lengths[k] = lengths.get(k, 0) + by
                    column.append(lengths[k])
                yield name, [k for k, _ in rows], column
            case "lend_all" if self.header.in_flight:
                yield name, *map(list, zip(*self._lent(rows, committed), strict=True))
            case "close_all" if self.header.in_flight:
                gone = [self.open.pop(0) if by and self.open else 99 for _, by in rows]
                yield name, gone, [End.FAILED if by == 2 else End.DONE for _, by in rows]
            case "window_drop" if self.header.window:
                for k, by in rows:
                    yield name, k, 0, values["E"].get(k, 0) + 2 * by
            case "extend":
                for k, by in rows:
                    yield "acquire", k, [SPARE.get(k, 0)]
                    if self.header.window and by == 1:
                        yield "pair", k, SPARE.get(k, 0), SPARE.get(k, 0)
                    yield name, k, [SPARE.get(k, 0)], allocated.get(k, 0) + by
            case "truncate":
                for k, by in rows:
                    yield name, k, allocated.get(k, 0) - by
            case "mark":
                yield name, "step"

    def _lent(self, rows: list[tuple[int, int]], committed: dict[int, int]) -> Iterator[tuple[Any, ...]]:
        for k, by in rows:
            self.loans += 1
            yield self.loans, k, committed.get(k, 0) + by - 1, list(self.open) if by else []
            self.open.append(self.loans)


def outcome(monitor: Monitor) -> tuple[Any, ...]:
    state = monitor.compiled.state()
    universe = {s: set(xs) for s, xs in monitor.compiled.universe.items()}
    return monitor.verdict, state.key(), universe, {f: set(xs) for f, xs in monitor.compiled.touched.items()}


NAMES = ("grow_all", "commit_all", "lend_all", "close_all", "window_drop", "extend", "truncate", "mark")
ROWS = st.lists(st.tuples(st.sampled_from((1, 2, 3, 1, 2, 3, 4)), st.sampled_from((1, 1, 1, 2, 0))), max_size=4)
WORDS = st.lists(st.tuples(st.sampled_from(NAMES), ROWS), max_size=12)
ALL = [(k, 1) for k in RECORDS]


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
@settings(max_examples=60, derandomize=True, deadline=None)
@given(words=WORDS)
@example(words=[("grow_all", ALL), ("lend_all", ALL), ("close_all", ALL), ("commit_all", ALL), ("commit_all", ALL)])
@example(words=[("grow_all", [(1, 1), (1, 1)])])
@example(words=[("commit_all", ALL), ("window_drop", ALL), ("extend", ALL), ("commit_all", [*ALL, (4, 1)])])
def test_a_block_is_the_fold_of_its_events(header: Header, words: list[tuple[str, list[tuple[int, int]]]]) -> None:
    """Equal states and equal verdicts, with repeated records, unknown ones and numbers that are wrong."""
    blocks, singles, steps = started(header), started(header), Steps(header)
    for name, rows in words:
        for word in steps.words(name, rows, blocks) if rows else ():
            block = Event(blocks.count + 1, word[0], word[1:])
            blocks.feed(block)
            for single in single_events(block):
                singles.feed(single)
            assert outcome(blocks) == outcome(singles)
    event(f"verdict: {blocks.verdict.rule if blocks.verdict else None}")


def test_a_verdict_in_a_block_is_that_of_the_single_event() -> None:
    monitor = started(HEADERS["plain"])
    monitor.emit("grow_all", [1, 2, 3], [6, 7, 6])
    found = monitor.verdict
    assert found is not None
    assert (found.rule, found.clause) == ("grow", "the new length ends inside the last page")
    assert found.event == "extend(k=2, pages=, a=7)"
    assert found.event_number == monitor.count
    assert any(owner.startswith("record 2") for owner in found.owners)
    assert {k: monitor.compiled.values["A"][k] for k in RECORDS} == {1: 6, 2: 5, 3: 5}


def test_a_dead_window_is_seen_behind_commits_that_were_right() -> None:
    """That a window is alive stands until it can have lost a page, and is asked again then."""
    monitor = started(HEADERS["window"])
    monitor.emit("commit_all", [1, 2, 3], [5, 5, 5])
    monitor.emit("acquire", 2, [SPARE[2]])  # and it gets no swa half
    monitor.emit("extend", 2, [SPARE[2]], 7)
    monitor.emit("grow_all", [1, 3], [6, 6])
    assert monitor.verdict is None
    monitor.emit("commit_all", [1, 2, 3], [6, 6, 6])
    assert monitor.verdict is not None
    assert monitor.verdict.clause == "the window before the new tokens is alive"
    assert monitor.verdict.event == "commit(k=2, c=6)"
    assert {k: monitor.compiled.values["C"][k] for k in RECORDS} == {1: 6, 2: 5, 3: 5}


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(BadTrace, match=r"event \d+: the lists ks, cs must have one length"):
        started(HEADERS["plain"]).emit("commit_all", [1, 2], [5])


def test_a_block_of_loans_is_foreign_to_an_engine_that_reports_none() -> None:
    monitor = started(HEADERS["plain"])
    monitor.emit("close_all", [1], [End.DONE])
    assert monitor.verdict is not None
    assert "a pool that the header names" in monitor.verdict.clause


BLOCKS: list[Emitted] = [
    ("grow_all", [3, 4], [71, 18]), ("commit_all", [3, 4], [70, 18]),
    ("lend_all", [8, 9], [3, 4], [70, 18], [[6, 7], []]), ("close_all", [6, 7], [End.DONE, End.FAILED]),
]  # fmt: skip


def test_a_log_keeps_blocks(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with TraceWriter(path, HEADERS["both"]) as writer:
        for word in BLOCKS:
            writer.emit(*word)
    assert [(e.name, *e.args) for e in read(path)[1]] == BLOCKS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[1] == {"n": 1, "event": "grow_all", "ks": [3, 4], "as": [71, 18]}
    assert lines[3]["afters"] == ["6-7", ""]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cs": [5]}, "the lists ks, cs of a commit_all must have one length"),
        ({"cs": 5}, "cs must be a list, one c for each event of the block"),
        ({"ks": "1-2"}, "ks must be a list, one k for each event"),
        ({"ks": [1, "2"]}, "k must be a whole number"),
        ({"as": [1, 2]}, "commit_all takes exactly ks, cs"),
    ],
)
def test_what_is_no_block_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    line = {"n": 1, "event": "commit_all", "ks": [1, 2], "cs": [5, 5], **change}
    lines = [{"freehold": 1, **SIZES}, line, {"end": 1}]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    with pytest.raises(BadTrace, match=f":2: .*{message}"):
        list(read(path)[1])


def test_coverage_counts_a_block_as_its_events() -> None:
    blocks, singles = Coverage(), Coverage()
    monitor = started(HEADERS["plain"])
    for k in RECORDS:
        monitor.emit("place", f"r{k}", Place.RUNNING)
    for word in (("grow_all", [1, 2, 3], [6, 6, 6]), ("commit_all", [1, 2, 3], [6, 6, 6])):
        block = Event(monitor.count + 1, word[0], word[1:])
        blocks.see(block, monitor)
        for single in single_events(block):
            singles.see(single, monitor)
        monitor.feed(block)
    assert monitor.verdict is None
    assert blocks == singles
    assert (blocks.actions["grow"], blocks.actions["commit"], blocks.law_operations["decode"]) == (3, 3, 3)
    assert blocks.moves == 6
