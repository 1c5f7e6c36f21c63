"""What of the law a run has been through: its events, its operations, its guard clauses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from freehold.spec.arithmetic import ceil_to_page
from freehold.spec.law import law
from freehold.spec.monitor import Monitor
from freehold.spec.state import Place
from freehold.spec.trace import EVENTS, Event

# `mark` and `observe` are words of the log; everything else moves something.
MOVES = frozenset(EVENTS) - {"mark", "observe"}


@dataclass(slots=True)
class Coverage:
    """Counts that add up over runs.

    events: by name. actions: by the name of the law's action, one event with several pages counting several times.
    operations: paths that a scheduler takes, in plain words.
    """

    events: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    _before: str = ""

    def see(self, event: Event, monitor: Monitor) -> None:
        """Count an event that the monitor is about to take."""
        self.events[event.name] += 1
        self._see_actions(event, monitor)
        operation = self._operation(event, monitor)
        if operation:
            self.operations[operation] += 1
        self._before = event.name

    def update(self, other: Coverage) -> None:
        """Add what another run has been through."""
        self.events.update(other.events)
        self.actions.update(other.actions)
        self.operations.update(other.operations)

    @property
    def moves(self) -> int:
        """Events that moved something."""
        return sum(count for name, count in self.events.items() if name in MOVES)

    @property
    def clauses_seen(self) -> int:
        """Guard clauses that were evaluated."""
        return sum(len(action.guard) for name, action in law.actions.items() if self.actions[name])

    @property
    def clauses(self) -> int:
        """Guard clauses that the law has."""
        return sum(len(action.guard) for action in law.actions.values())

    @property
    def unseen(self) -> tuple[str, ...]:
        """Actions of the law that never happened."""
        return tuple(name for name in law.actions if not self.actions[name])

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
