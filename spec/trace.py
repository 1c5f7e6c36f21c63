"""The event log: JSON Lines, one event a line, made to be written by any engine and read by a person.

    {"freehold": 1, "page_size": 16, "pages": 512, "rows": 8, "row_width": 2048}
    {"n": 1, "event": "place", "r": "a", "q": "waiting"}
    {"n": 2, "event": "acquire", "k": 3, "pages": "5-7,12"}
    {"n": 3, "event": "observe", "state": {"free": [[1], [2]], …}}
    {"end": 3}

The first line gives the pools: page ids are 1..pages and row ids 1..rows (0 is padding and never owned). It may add
`swa_pages`, `state_slots`, `host_pages`, `window` (tokens), `namespaces`, and `in_flight` (true for an engine that
reports its loans); an engine that has none of one leaves that out, and is held to the law without it. `n` counts from 1
without a gap. The last line gives the number of events: a log without it was cut off and proves nothing. An event with
several pages means the fold of its single events, in the order written. Files that end in `.gz` are compressed.

What happens to many records in one step may be written as a *block*, with a list for each argument of the single event:

    {"n": 4, "event": "grow_all", "ks": [3, 4], "as": [71, 18]}
    {"n": 5, "event": "commit_all", "ks": [3, 4], "cs": [71, 18]}
    {"n": 6, "event": "lend_all", "os": [8, 9], "ks": [3, 4], "starts": [71, 18], "afters": ["6", "7"]}
    {"n": 7, "event": "close_all", "os": [6, 7], "hows": ["done", "done"]}

A block means the fold of its single events in order: `extend` without pages, `commit`, `lend`, `loan_close`. The lists
of one block have one length. It counts as one event of the log.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from freehold.spec.absent import without
from freehold.spec.errors import InvalidInput
from freehold.spec.language import Law
from freehold.spec.law import law
from freehold.spec.state import End, Loan, Place, Request, Session
from freehold.spec.terms import SetOf, Sort
from freehold.spec.waivers import WAIVERS, waive

VERSION = 1
LOANS_AT_ONCE = 1 << 16

# Events that a log writes in its own form: several pages at once, and marks. `grow` is a part of `extend`.
_OWN_FORM: Mapping[str, tuple[str, ...]] = {
    "extend": ("k", "pages", "a"),
    "lock": ("k", "pages"),
    "attach": ("k", "pages"),
    "evict": ("pages",),
    "mark": ("kind",),
    "observe": ("state",),
}
# Blocks by name, each with the action whose events it holds; the list of an argument has its name with an s behind it.
BLOCKS: Mapping[str, str] = {
    "grow_all": "grow", "commit_all": "commit", "lend_all": "lend", "close_all": "loan_close",
}  # fmt: skip
# The arguments of each event in order; a name says its type, the same in every event.
EVENTS: Mapping[str, tuple[str, ...]] = {
    **{n: tuple(p.name for p in a.params) for n, a in waive(law, WAIVERS).actions.items() if n != "grow"},
    **_OWN_FORM,
    **{n: tuple(f"{p.name}s" for p in law.actions[a].params) for n, a in BLOCKS.items()},
}
_COLUMNS: Mapping[str, str] = {key: key[:-1] for name in BLOCKS for key in EVENTS[name]}
PLACES = {p.name.lower(): p for p in Place}
ENDS = {e.name.lower(): e for e in End}
MARKS = ("step", "quiescent")
_SETS = frozenset(p.name for a in law.actions.values() for p in a.params if isinstance(p, SetOf))
_NAMES = frozenset(p.name for a in law.actions.values() for p in a.params if isinstance(p, Request | Session))
_INTEGERS = frozenset(p.name for a in law.actions.values() for p in a.params) - _SETS - _NAMES - {"q", "how"}


class BadTrace(InvalidInput):
    """A log that is not one: the message names the line and what was expected there."""


@dataclass(frozen=True, slots=True)
class Header:
    """The pools that a log speaks about."""

    page_size: int
    pages: int
    rows: int
    row_width: int
    swa_pages: int = 0
    state_slots: int = 0
    host_pages: int = 0
    window: int = 0
    namespaces: int = 1
    in_flight: bool = False

    def __post_init__(self) -> None:
        for name in ("page_size", "pages", "rows", "row_width", "namespaces"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise BadTrace(f"the header's {name} must be a whole number above 0")
        for name in ("swa_pages", "state_slots", "host_pages", "window"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 0:
                raise BadTrace(f"the header's {name} must be a whole number, 0 where there is none")
        if not isinstance(self.in_flight, bool):
            raise BadTrace("the header's in_flight must be true or false")

    @property
    def units(self) -> dict[str, int]:
        """How many units there are of each sort that has a fixed number."""
        return {
            "Page": self.pages, "Row": self.rows, "SwaPage": self.swa_pages, "StateSlot": self.state_slots,
            "HostPage": self.host_pages,
        }  # fmt: skip

    @property
    def constants(self) -> dict[str, int]:
        """The law's constants."""
        return {n: getattr(self, n) for n in ("page_size", "row_width", "window", "namespaces")}

    def law(self, waivers: Iterable[str] = ()) -> Law:
        """The law for these pools, with some waivers in force: sorts of which there are none leave the text."""
        empty = {s for s in law.sorts if self.units.get(s.__name__) == 0} | (set() if self.in_flight else {Loan})
        return _law_without(frozenset(empty), self.window, self.namespaces, tuple(waivers))


@lru_cache(maxsize=64)
def _law_without(empty: frozenset[Sort], window: int, namespaces: int, waivers: tuple[str, ...]) -> Law:
    """Made once for all engines that have the same pools."""
    return without(waive(law, waivers), empty, {"window": window, "namespaces": namespaces})


@dataclass(frozen=True, slots=True)
class Event:
    """One event with its number; arguments in the order of `EVENTS`."""

    number: int
    name: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        named = zip(EVENTS[self.name], self.args, strict=True)
        shown = (f"{n}={'…' if n == 'state' else _written(n, v)}" for n, v in named)
        return f"{self.name}({', '.join(shown)})"


def single_event(block: Event, index: int) -> Event:
    """One of the events that a block means; it has the block's number."""
    values = tuple(column[index] for column in block.args)
    if BLOCKS[block.name] == "grow":
        k, a = values
        return Event(block.number, "extend", (k, [], a))
    return Event(block.number, BLOCKS[block.name], values)


def single_events(event: Event) -> Iterator[Event]:
    """The events that a block means, in order; an event that is no block means itself."""
    if event.name not in BLOCKS:
        yield event
        return
    yield from (single_event(event, index) for index in range(len(event.args[0])))


def to_ranges(pages: Sequence[int]) -> str:
    """`[5, 6, 7, 12]` as `5-7,12`; the order is kept, as it is the order in the row."""
    parts: list[list[int]] = []
    for page in pages:
        if parts and parts[-1][1] + 1 == page:
            parts[-1][1] = page
        else:
            parts.append([page, page])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def from_ranges(text: str, limit: int) -> list[int]:
    """The pages of a range list; `limit` bounds what a broken line can make us build."""
    pages: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high or high - low >= limit:
            raise ValueError(f"{part!r} is not a range of pages")
        pages += range(low, high + 1)
    return pages


def _written(key: str, value: Any) -> Any:
    """An argument as JSON has it."""
    if key in _COLUMNS:
        return [_written(_COLUMNS[key], x) for x in value]
    return to_ranges(value) if key in _SETS else value.name.lower() if key in ("q", "how") else value


class TraceWriter:
    """Writes a log; an `EventSink` for the engine. Use it as a context manager: leaving it writes the end line."""

    def __init__(self, path: Path | str, header: Header) -> None:
        self._path = Path(path)
        self._file = _open(self._path, "w")
        self._count = 0
        fields = {n: getattr(header, n) for n in Header.__dataclass_fields__}
        self._write({"freehold": VERSION} | {n: v for n, v in fields.items() if v != getattr(Header, n, None)})

    def emit(self, name: str, *args: object) -> None:
        self._count += 1
        line: dict[str, Any] = {"n": self._count, "event": name}
        for key, value in zip(EVENTS[name], args, strict=True):
            line[key] = _written(key, value)
        self._write(line)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        if not self._file.closed:
            self._write({"end": self._count})
            self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _open(path: Path, mode: str) -> IO[str]:
    try:
        if path.suffix == ".gz":
            return cast(IO[str], gzip.open(path, f"{mode}t", encoding="utf-8"))
        return path.open(mode, encoding="utf-8")
    except OSError as error:
        raise BadTrace(f"{path}: {error.strerror or error}; give the path of a trace file") from error


def read(path: Path | str) -> tuple[Header, Iterator[Event]]:
    """The header of a log and its events, read as they are asked for.

    Raises BadTrace for anything that is not a complete, well-formed log, with the line number.
    """
    source = Path(path)
    file = _open(source, "r")
    lines = enumerate(_lines(source, file), start=1)
    number, first = next(lines, (1, ""))
    line = _parse(source, number, first)
    if line.pop("freehold", None) != VERSION:
        raise BadTrace(f"{source}:1: not a Freehold trace of version {VERSION}: the first line must say so")
    try:
        header = Header(**line)
    except TypeError as error:
        wanted, more = (
            ", ".join(list(Header.__dataclass_fields__)[:4]),
            ", ".join(list(Header.__dataclass_fields__)[4:]),
        )
        raise BadTrace(f"{source}:1: the header has exactly freehold, {wanted}, and may have {more}") from error
    return header, _events(source, lines, header, file)


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    try:
        yield from file
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: cannot be read to its end ({error}); the file is damaged or cut off") from error


def _parse(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadTrace(f"{path}:{number}: not a line of JSON; was the file cut off here?") from error
    if not isinstance(line, dict):
        raise BadTrace(f"{path}:{number}: a line must be a JSON object")
    return line


def _events(path: Path, lines: Iterable[tuple[int, str]], header: Header, file: IO[str]) -> Iterator[Event]:
    count, ended = 0, False
    with file:
        for number, text in lines:
            line = _parse(path, number, text)
            if ended:
                raise BadTrace(f"{path}:{number}: something follows the end line")
            if "end" in line:
                if line != {"end": count}:
                    raise BadTrace(f"{path}:{number}: the end line counts {line['end']!r} events, the log has {count}")
                ended = True
                continue
            count += 1
            if line.pop("n", None) != count:
                raise BadTrace(f"{path}:{number}: event number {count} was expected; an event is missing or doubled")
            yield Event(count, *_event(f"{path}:{number}", line, header))
    if not ended:
        raise BadTrace(f"{path}: the log ends without its end line after {count} events: it was cut off")


def _event(where: str, line: dict[str, Any], header: Header) -> tuple[str, tuple[Any, ...]]:
    name = line.pop("event", None)
    if not isinstance(name, str) or name not in EVENTS:
        raise BadTrace(f"{where}: unknown event {name!r}; known are {', '.join(EVENTS)}")
    if set(line) != set(EVENTS[name]):
        raise BadTrace(f"{where}: {name} takes exactly {', '.join(EVENTS[name])}, got {', '.join(line) or 'nothing'}")
    args = tuple(_value(where, key, line[key], header) for key in EVENTS[name])
    if name in BLOCKS and len({len(column) for column in args}) > 1:
        raise BadTrace(f"{where}: the lists {', '.join(EVENTS[name])} of a {name} must have one length")
    return name, args


def _value(where: str, key: str, value: Any, header: Header) -> Any:
    if key in _COLUMNS:
        if not isinstance(value, list):
            raise BadTrace(f"{where}: {key} must be a list, one {_COLUMNS[key]} for each event of the block")
        return [_value(where, _COLUMNS[key], x, header) for x in value]
    if key in _SETS:
        try:
            return from_ranges(value, max(LOANS_AT_ONCE, *header.units.values()) + 1)
        except (ValueError, AttributeError, TypeError) as error:
            raise BadTrace(f"{where}: {key} are written like 5-7,12, not {value!r}") from error
    if key in _INTEGERS and (not isinstance(value, int) or isinstance(value, bool)):
        raise BadTrace(f"{where}: {key} must be a whole number, not {value!r}")
    if key in _NAMES and not isinstance(value, str):
        raise BadTrace(f"{where}: {key} must be a name in quotes, not {value!r}")
    if key == "q" and value not in PLACES:
        raise BadTrace(f"{where}: unknown place {value!r}; places are {', '.join(PLACES)}")
    if key == "q":
        return PLACES[value]
    if key == "how" and value not in ENDS:
        raise BadTrace(f"{where}: unknown end {value!r}; ends are {', '.join(ENDS)}")
    if key == "how":
        return ENDS[value]
    if key == "kind" and value not in MARKS:
        raise BadTrace(f"{where}: unknown mark {value!r}; marks are {', '.join(MARKS)}")
    if key == "state" and not isinstance(value, dict):
        raise BadTrace(f"{where}: an observed state is an object of relations and functions")
    return value
