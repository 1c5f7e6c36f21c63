"""What of the law a run has been through: its events, its operations, its guard clauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from freehold.spec.arithmetic import ceil_to_page
from freehold.spec.events import EDGES
from freehold.spec.monitor import Monitor
from freehold.spec.source import Compiled
from freehold.spec.state import Place
from freehold.spec.trace import BLOCKS, EVENTS, Event, Header, single_events

# The law of an engine that has pages and rows, and none of the other pools; how many does not matter.
LAW = Header(page_size=1, pages=1, rows=1, row_width=1).law()
# What that law allows and the engine cannot do yet: events, operations, places and edges, with the reason. Coverage
# demands everything else.
NOT_YET: Mapping[str, str] = {
    "reset": "the tree is never flushed",
    "flush": "the tree is never flushed",
    "profile": "the pool's size is given, and no run measures it",
    "trim": "no speculation, so no draft is rejected: a later issue",
    "rewind": "a turn only continues its session: issue 4",
    "rewind_prefix": "a turn only continues its session: issue 4",
    "receive": "prefill and decode run on one machine: a later issue",
    "sending": "prefill and decode run on one machine: a later issue",
    "receiving": "prefill and decode run on one machine: a later issue",
    "prefill to waiting": "a request is in prefill inside a step alone, and nobody gives way there",
}
PLACES = [place for place in Place if place.name.lower() not in NOT_YET]
EDGES_BY_NAME = {
    f"{here.name.lower()} to {there.name.lower()}" for here, there in EDGES if here in PLACES and there in PLACES
} - NOT_YET.keys()
# Operations that have an event of their own.
SINGLE: Mapping[str, str] = {
    "commit": "write", "publish": "publish_pages", "evict": "evict_page", "open_session": "begin_session",
}  # fmt: skip
# `mark` and `observe` are words of the log; everything else moves something.
MOVES = frozenset(EVENTS) - {"mark", "observe"} - BLOCKS.keys()


@dataclass(slots=True)
class Coverage:
    """Counts that add up over runs.

    events: by name. actions: by the name of the law's action, one event with several pages counting several times.
    operations: paths that a scheduler takes, in plain words. law_operations: by the name of the law's operation.
    """

    events: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    law_operations: Counter[str] = field(default_factory=Counter)
    _before: str = ""
    _published: bool = False

    def see(self, event: Event, monitor: Monitor) -> None:
        """Count an event that the monitor is about to take; a block counts as the events that it means.

        A block holds one event of each record, so that the state before the block tells what each of them does.
        """
        for single in single_events(event):
            self._see_single(single, monitor)

    def _see_single(self, event: Event, monitor: Monitor) -> None:
        self.events[event.name] += 1
        self._see_actions(event, monitor)
        operation = self._operation(event, monitor)
        if operation:
            self.operations[operation] += 1
        self.law_operations.update(self._law_operations(event, monitor))
        self._before = event.name
        self._published = event.name == "publish" or (self._published and event.name not in ("commit", "place", "mark"))

    def update(self, other: Coverage) -> None:
        """Add what another run has been through."""
        self.events.update(other.events)
        self.actions.update(other.actions)
        self.operations.update(other.operations)
        self.law_operations.update(other.law_operations)

    @property
    def moves(self) -> int:
        """Events that moved something."""
        return sum(count for name, count in self.events.items() if name in MOVES)

    @property
    def clauses_seen(self) -> int:
        """Guard clauses that were evaluated."""
        return sum(len(action.guard) for name, action in LAW.actions.items() if self.actions[name])

    @property
    def clauses(self) -> int:
        """Guard clauses that the law has for the engine."""
        return sum(len(action.guard) for name, action in LAW.actions.items() if name not in NOT_YET)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Actions of the law that never happened."""
        return tuple(name for name in LAW.actions if not self.actions[name] and name not in NOT_YET)

    @property
    def operations_unseen(self) -> tuple[str, ...]:
        """Operations of the law that no run has been through, and edges between places that nobody took."""
        operations = [name for name in LAW.operations if not self.law_operations[name] and name not in NOT_YET]
        return (*operations, *sorted(edge for edge in EDGES_BY_NAME if not self.operations[edge]))

    def _see_actions(self, event: Event, monitor: Monitor) -> None:
        if event.name not in MOVES:
            return
        if event.name != "extend":
            pages = event.args[-1] if event.name in ("lock", "attach", "evict") else (None,)
            self.actions[event.name] += len(pages)
            return
        k, pages, wanted = event.args
        self.actions["extend"] += len(pages)
        if ceil_to_page(monitor.compiled.values["A"].get(k, 0), monitor.header.page_size) >= wanted:
            self.actions["grow"] += 1

    def _operation(self, event: Event, monitor: Monitor) -> str | None:
        state = monitor.compiled
        match event.name, event.args:
            case "place", (r, q):
                here = Place(state.values["place"].get(r, 0)).name.lower()
                return f"{here} to {q.name.lower()}"
            case "lock", _:
                return "prefix hit" if self._before == "bind_row" else "same pages published by another"
            case "release", _ if self._before == "attach":
                return "duplicates given back"
            case "unbind_row", (k, _) if k in state.pairs["slot_kv"].by_second:
                (s,) = state.pairs["slot_kv"].by_second[k]
                return "saved KV closed" if s in state.sets["closing"] else "saved KV reclaimed"
            case "close_session", (s,):
                return "closed while busy" if s in state.pairs["turn"].by_first else "closed while idle"
            case ("publish" | "evict" | "transfer_to_session" | "transfer_to_request" | "end_session") as name, _:
                return name.replace("_", " ")
        return None

    def _law_operations(self, event: Event, monitor: Monitor) -> Iterator[str]:
        """The operations of the law that an event shows, by what came before it and who takes part."""
        state = monitor.compiled
        match event.name, event.args:
            case "place", (r, q):
                yield from self._moved(Place(state.values["place"].get(r, 0)), q, r in state.pairs["turn"].by_second)
            case "lock", (k, _):
                private = state.values["A"].get(k, 0) > state.values["P"].get(k, 0)
                yield "dedupe_page" if private else "match_page"
            case "extend", (k, pages, wanted):
                allocated = state.values["A"].get(k, 0)
                runs = any(
                    state.values["place"].get(r) == Place.RUNNING for r in state.pairs["kv"].by_second.get(k, ())
                )
                if runs and wanted == allocated + 1:
                    yield "decode_page" if pages else "decode"
                else:
                    yield "extend_page" if pages else "extend_tail"
            case "unuse", (s, r):
                yield from self._turn_ended(s, r, state)
            case "close_session", (s,):
                saved, busy = (s in state.pairs[name].by_first for name in ("slot_kv", "turn"))
                yield "close_busy" if busy else "close_saved" if saved else "close_idle"
            case "unbind_row", (k, _) if k in state.pairs["slot_kv"].by_second:
                (s,) = state.pairs["slot_kv"].by_second[k]
                if s not in state.sets["closing"]:
                    yield "reclaim_session"
            case name, _ if name in SINGLE:
                yield SINGLE[name]

    def _moved(self, here: Place, there: Place, is_turn: bool) -> Iterator[str]:
        match here, there:
            case Place.OUT, Place.WAITING:
                yield "arrive_turn" if is_turn else "arrive"
            case Place.WAITING, Place.PREFILL:
                yield "admit_turn" if self._before == "transfer_to_request" else "admit"
            case (Place.PREFILL, Place.PARKED) | (Place.PARKED, Place.PREFILL) | (Place.PREFILL, Place.RUNNING):
                yield {Place.PARKED: "park", Place.PREFILL: "resume", Place.RUNNING: "start_decode"}[there]
            case _, Place.WAITING:
                yield "retract"
            case _, Place.OUT if self._before != "unuse":
                ended = "finish_publish" if self._published else "finish"
                yield "abort_waiting" if here is Place.WAITING else ended

    def _turn_ended(self, s: str, r: str, state: Compiled) -> Iterator[str]:
        closing = s in state.sets["closing"]
        if state.values["place"].get(r) == Place.WAITING:
            ends = "_and_close" if s in state.pairs["slot_kv"].by_first else "_and_end"
            yield "abort_waiting_turn" + (ends if closing else "")
        else:
            yield ("save" if self._before == "transfer_to_session" else "drop_turn") + ("_and_end" if closing else "")
