"""The event log: what is written comes back, and whatever is not a complete log is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freehold.spec.law import law
from freehold.spec.state import Place
from freehold.spec.trace import BLOCKS, EVENTS, BadTrace, Header, TraceWriter, from_ranges, read, to_ranges
from freehold.spec.waivers import WAIVERS, waive

HEADER = Header(page_size=4, pages=8, rows=2, row_width=16)
LINES = [
    {"freehold": 1, "page_size": 4, "pages": 8, "rows": 2, "row_width": 16},
    {"n": 1, "event": "place", "r": "a", "q": "waiting"},
    {"n": 2, "event": "acquire", "k": 0, "pages": "1-2,5"},
    {"end": 2},
]


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def load(path: Path) -> list[tuple[Any, ...]]:
    return [(e.number, e.name, e.args) for e in read(path)[1]]


def test_every_event_of_the_law_can_be_written() -> None:
    folded = {"grow": "extend"}
    assert {folded.get(name, name) for name in waive(law, WAIVERS).actions} == set(EVENTS) - BLOCKS.keys() - {
        "mark", "observe",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_what_is_written_comes_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with TraceWriter(path, HEADER) as writer:
        writer.emit("place", "a", Place.WAITING)
        writer.emit("extend", 3, [7, 8, 1], 12)
        writer.emit("observe", {"free": [[1]]})
    header, events = read(path)
    assert header == HEADER
    assert [(e.name, e.args) for e in events] == [
        ("place", ("a", Place.WAITING)),
        ("extend", (3, [7, 8, 1], 12)),
        ("observe", ({"free": [[1]]},)),
    ]


@given(st.lists(st.integers(0, 40), max_size=30))
def test_ranges_keep_the_order(pages: list[int]) -> None:
    assert from_ranges(to_ranges(pages), 64) == pages


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:-1], "without its end line"),
        (lambda lines: lines[1:], "not a Freehold trace"),
        (lambda lines: [*lines, lines[1]], "follows the end line"),
        (lambda lines: [*lines[:-1], {"end": 3}], "counts 3 events, the log has 2"),
        (lambda lines: [lines[0], lines[2], {"end": 1}], "event number 1 was expected"),
        (lambda lines: [lines[0], {**lines[1], "q": "nowhere"}, *lines[2:]], "unknown place 'nowhere'"),
        (lambda lines: [lines[0], {**lines[1], "event": "seize"}, *lines[2:]], "unknown event 'seize'"),
        (lambda lines: [lines[0], {**lines[1], "extra": 1}, *lines[2:]], "takes exactly r, q"),
        (lambda lines: [lines[0], {**lines[1], "r": 5}, *lines[2:]], "r must be a name in quotes"),
        (lambda lines: [*lines[:2], {**lines[2], "pages": "5-1"}, lines[3]], "pages are written like"),
        (lambda lines: [*lines[:2], {**lines[2], "pages": "1-99999999999"}, lines[3]], "pages are written like"),
        (lambda lines: [*lines[:2], {**lines[2], "pages": 5}, lines[3]], "pages are written like"),
        (lambda lines: [*lines[:2], {**lines[2], "k": "0"}, lines[3]], "k must be a whole number"),
        (lambda lines: [{**lines[0], "pages": 0}, *lines[1:]], "pages must be a whole number above 0"),
        (lambda lines: [{**lines[0], "colour": 1}, *lines[1:]], "the header has exactly"),
        (lambda lines: [lines[0], [1], *lines[1:]], "must be a JSON object"),
        (lambda lines: [], "not a line of JSON"),
    ],
)
def test_what_is_not_a_log_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = write(tmp_path / "log.jsonl", change(list(LINES)))
    with pytest.raises(BadTrace, match=message):
        load(path)


def test_a_log_cut_off_inside_a_line_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", LINES)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(BadTrace, match=r"log\.jsonl:\d+: .*cut off"):
        load(path)


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    with TraceWriter(path, HEADER) as writer:
        for _ in range(100):
            writer.emit("mark", "step")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadTrace, match="damaged or cut off"):
        load(path)


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="No such file"):
        read(tmp_path / "none.jsonl")
