"""What of the law a run has been through: its events, its operations, its guard clauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from freehold.spec.arithmetic import ceil_to_page
from freehold.spec.events import EDGES
from freehold.spec.monitor import Monitor
from freehold.spec.source import Compiled
from freehold.spec.state import End, Place
from freehold.spec.trace import BLOCKS, EVENTS, Event, Header, single_events

# What engines there are: with or without a window, a step in flight, recurrent states; how many units does not matter.
_WINDOW: dict[str, Any] = {"swa_pages": 1, "window": 1}
_AHEAD: dict[str, Any] = {"in_flight": True}
_STATES: dict[str, Any] = {"state_slots": 1}
_POOLS: tuple[dict[str, Any], ...] = (
    {}, _WINDOW, _AHEAD, _WINDOW | _AHEAD, _STATES, _STATES | _WINDOW,
)  # fmt: skip
LAWS = tuple(Header(page_size=1, pages=1, rows=1, row_width=1, **pools).law() for pools in _POOLS)
# What those laws allow and the engine cannot do: events, operations, places and edges, with the reason. Coverage
# demands everything else.
NOT_YET: Mapping[str, str] = {
    "profile": "the pool's size is given, and no run measures it",
    "trim": "no speculation, so no draft is rejected: a later issue",
    "send": "prefill and decode run on one machine: a later issue",
    "sent": "prefill and decode run on one machine: a later issue",
    "receive": "prefill and decode run on one machine: a later issue",
    "await_peer": "prefill and decode run on one machine: a later issue",
    "received": "prefill and decode run on one machine: a later issue",
    "sending": "prefill and decode run on one machine: a later issue",
    "receiving": "prefill and decode run on one machine: a later issue",
    "prefill to waiting": "in prefill is whose chunk is in flight, and nobody gives way before that has landed",
    "drop_claim": "a request that claims a state slot has a record in the same step: no abort comes between",
}
ACTIONS = {name: action for law in LAWS for name, action in law.actions.items() if name not in NOT_YET}
OPERATIONS = {name: operation for law in LAWS for name, operation in law.operations.items() if name not in NOT_YET}
CLAUSES = frozenset(
    (name, clause.text) for law in LAWS for name in law.actions if name in ACTIONS for clause in law.actions[name].guard
)
PLACES = [place for place in Place if place.name.lower() not in NOT_YET]
EDGES_BY_NAME = {
    f"{here.name.lower()} to {there.name.lower()}" for here, there in EDGES if here in PLACES and there in PLACES
} - NOT_YET.keys()
# Operations that have an event of their own.
SINGLE: Mapping[str, str] = {
    "commit": "write", "publish": "publish_pages", "evict": "evict_page", "open_session": "begin_session",
    "reset": "flush", "window_drop": "slide", "evict_peer": "bury", "repeer": "dedupe_tombstone",
    "claim_state": "claim", "take_state": "renew_state", "load_state": "fork_state", "advance_state": "write_state",
    "checkpoint_state": "checkpoint", "donate_state": "donate", "lend": "launch",
}  # fmt: skip
# `mark` and `observe` are words of the log; everything else moves something.
MOVES = frozenset(EVENTS) - {"mark", "observe"} - BLOCKS.keys()


@dataclass(slots=True)
class Coverage:
    """Counts that add up over runs.

    events: by name. actions: by the name of the law's action, one event with several pages counting several times.
    operations: paths that a scheduler takes, in plain words. law_operations: by the name of the law's operation.
    pairs: operations of the law, each with the one that came next.
    held: guard clauses that allowed an event, by action and text. refused: clauses that were false of an event that
        could have come next, in a state that the engine was in; only where a `Probe` asks.
    """

    events: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    law_operations: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    held: set[tuple[str, str]] = field(default_factory=set)
    refused: set[tuple[str, str]] = field(default_factory=set)
    _before: str = ""
    _last: str = ""
    _record_by: str = ""
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
        for name in self._law_operations(event, monitor):
            self.law_operations[name] += 1
            self.pairs[self._last, name] += 1
            self._last = name
        if event.name in ("bind_row", "transfer_to_request"):
            self._record_by = event.name
        self._before = event.name
        self._published = event.name == "publish" or (self._published and event.name not in ("commit", "place", "mark"))

    def update(self, other: Coverage) -> None:
        """Add what another run has been through."""
        self.events.update(other.events)
        self.actions.update(other.actions)
        self.operations.update(other.operations)
        self.law_operations.update(other.law_operations)
        self.pairs.update(other.pairs)
        self.held |= other.held
        self.refused |= other.refused

    @property
    def moves(self) -> int:
        """Events that moved something."""
        return sum(count for name, count in self.events.items() if name in MOVES)

    @property
    def never_held(self) -> tuple[tuple[str, str], ...]:
        """Guard clauses that never allowed anything."""
        return tuple(sorted(CLAUSES - self.held))

    @property
    def never_refused(self) -> tuple[tuple[str, str], ...]:
        """Guard clauses that were never false."""
        return tuple(sorted(CLAUSES - self.refused))

    @property
    def pairs_seen(self) -> int:
        """Different pairs of operations, one right behind the other."""
        return sum(before in OPERATIONS and after in OPERATIONS for before, after in self.pairs)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Actions of the law that never happened."""
        return tuple(name for name in ACTIONS if not self.actions[name])

    @property
    def operations_unseen(self) -> tuple[str, ...]:
        """Operations of the law that no run has been through, and edges between places that nobody took."""
        operations = [name for name in OPERATIONS if not self.law_operations[name]]
        return (*operations, *sorted(edge for edge in EDGES_BY_NAME if not self.operations[edge]))

    def _see_actions(self, event: Event, monitor: Monitor) -> None:
        if event.name not in MOVES:
            return
        if event.name != "extend":
            pages = event.args[-1] if event.name in ("lock", "attach", "evict") else (None,)
            self._see_action(event.name, len(pages), monitor)
            return
        k, pages, wanted = event.args
        self._see_action("extend", len(pages), monitor)
        if ceil_to_page(monitor.compiled.values["A"].get(k, 0), monitor.header.page_size) >= wanted:
            self._see_action("grow", 1, monitor)

    def _see_action(self, name: str, times: int, monitor: Monitor) -> None:
        if times and not self.actions[name] and name in monitor.law.actions:
            self.held.update((name, clause.text) for clause in monitor.law.actions[name].guard)
        self.actions[name] += times

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
        if self._before == "evict_state" and event.name not in ("evict_state", "evict"):
            yield "evict_checkpoint"
        match event.name, event.args:
            case "place", (r, q):
                yield from self._moved(Place(state.values["place"].get(r, 0)), q, r, state)
            case "lock", (k, _):
                private = state.values["A"].get(k, 0) > state.values["P"].get(k, 0)
                yield "dedupe_page" if private else "match_page"
            case "extend", (k, pages, wanted):
                yield self._extended(k, pages, wanted, state)
            case "truncate" | "unlock", (k, _) if self._holder_is(k, Place.WAITING, state):
                yield "rewind" if event.name == "truncate" else "rewind_prefix"
            case "take_state", _ if self._before == "release_state":
                yield from ("give_up_state", "renew_state")
            case "loan_close", (o, how):
                (k,) = state.pairs["lent"].by_first.get(o, (None,))
                done = "complete" if k in state.pairs["kv"].by_second else "acknowledge"
                yield done if how == End.DONE else "fail"
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

    def _holder_is(self, k: int, place: Place, state: Compiled) -> bool:
        return any(state.values["place"].get(r) == place for r in state.pairs["kv"].by_second.get(k, ()))

    def _extended(self, k: int, pages: list[int], wanted: int, state: Compiled) -> str:
        windowed = "peer" in state.pairs
        if self._holder_is(k, Place.RUNNING, state) and wanted == state.values["A"].get(k, 0) + 1:
            inside = "decode_state" if "state" in state.pairs else "decode"
            return ("decode_pair" if windowed else "decode_page") if pages else inside
        return ("extend_pair" if windowed else "extend_page") if pages else "extend_tail"

    def _moved(self, here: Place, there: Place, r: str, state: Compiled) -> Iterator[str]:
        match here, there:
            case Place.OUT, Place.WAITING:
                yield "arrive_turn" if r in state.pairs["turn"].by_second else "arrive"
            case Place.WAITING, Place.PREFILL:
                fresh = "admit_state" if "state" in state.pairs else "admit"
                yield fresh if self._record_by == "bind_row" else "admit_turn"
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
