"""The monitor: follows an engine's events, and says at the first wrong one what is wrong and who is involved.

It checks the guard of each event as it comes; that the guards keep the `always` invariants is proved for any size, so
they need not be recounted each time. The `step` invariants are evaluated at step marks, everything at quiescent marks
and wherever the engine reports its true tensors (`observe`), which also shows events that were never emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from freehold.spec import concrete
from freehold.spec.arithmetic import ceil_to_page
from freehold.spec.language import Action, Law
from freehold.spec.observed import compare
from freehold.spec.source import Compiled
from freehold.spec.state import Place
from freehold.spec.terms import Element, Formula, Quantified, SetOf
from freehold.spec.trace import BLOCKS, EVENTS, BadTrace, Event, Header, single_event
from freehold.spec.verdict import Verdict, describe
from freehold.spec.writer import COMING_AND_GOING


@dataclass(slots=True)
class Monitor:
    """One engine's law state, under the waivers named (see `waivers`).

    After a verdict the monitor stops: what follows a broken rule has no meaning.
    """

    header: Header
    waivers: tuple[str, ...] = ()
    count: int = 0
    verdict: Verdict | None = None
    law: Law = field(init=False)
    compiled: Compiled = field(init=False)
    _comers: dict[str, list[tuple[int, dict[Any, None]]]] = field(init=False)
    _handlers: dict[str, Callable[..., Verdict | None]] = field(init=False)

    def __post_init__(self) -> None:
        self.law, units = self.header.law(self.waivers), self.header.units
        universe = {s.__name__: range(1, units.get(s.__name__, 0) + 1) for s in self.law.sorts}
        self.compiled = Compiled(self.law, self.header.constants, universe)
        self.compiled.load(concrete.full(self.law, universe, self.header.constants))
        self._comers = {
            n: [
                (i, self.compiled.universe[type(p).__name__])
                for i, p in enumerate(a.params)
                if type(p).__name__ in COMING_AND_GOING
            ]
            for n, a in self.law.actions.items()
        }
        self._handlers = {
            "extend": self._extend,
            "lock": self._each_page,
            "attach": self._each_page,
            "evict": self._each_page,
            "acquire": self._pages,
            "release": self._pages,
            "place": self._place,
            "mark": self._mark,
            "observe": self._observe,
            **dict.fromkeys(BLOCKS, self._block),
        }

    def emit(self, name: str, *args: object) -> None:
        """An `EventSink`: the next event, numbered by the monitor."""
        self.feed(Event(self.count + 1, name, args))

    def feed(self, event: Event) -> Verdict | None:
        """Check one event and take it; the verdict if it (or an earlier one) breaks a rule."""
        if self.verdict is None:
            self.count = event.number
            handler = self._handlers.get(event.name)
            if handler is None and event.name not in self.law.actions:
                self.verdict = self._foreign(event)
            elif handler is None:
                self.verdict = self._single(event, event.name, *event.args)
            else:
                self.verdict = handler(event, *event.args)
        return self.verdict

    # One handler per form of event -----------------------------------------------------------------------------------

    def _single(self, event: Event, action: str, *args: Any) -> Verdict | None:
        for place, universe in self._comers[action]:
            universe[args[place]] = None
        broken = self.compiled.actions[action](*args)
        return None if broken < 0 else self._broken_clause(event, self.law.actions[action], broken, args)

    def _block(self, event: Event, *columns: Sequence[Any]) -> Verdict | None:
        """The fold of the block's events; the verdict is that of the single event. Raises BadTrace for uneven lists."""
        action = BLOCKS[event.name]
        if action not in self.law.actions:
            return self._foreign(event)
        if len({len(column) for column in columns}) > 1:
            raise BadTrace(f"event {event.number}: the lists {', '.join(EVENTS[event.name])} must have one length")
        wrong = self.compiled.block(action)(*columns)
        if wrong < 0:
            return None
        return self._single(single_event(event, wrong), action, *(column[wrong] for column in columns))

    def _foreign(self, event: Event) -> Verdict:
        """An event of a pool that the engine said it does not have, or of a waiver that is not in force."""
        text = "the event belongs to a pool that the header names, or to a waiver in force"
        return Verdict(event.name, text, event.number, str(event), "order", "the scheduler", ())

    def _pages(self, event: Event, k: int, pages: Sequence[int]) -> Verdict | None:
        distinct = frozenset(pages)
        if len(distinct) == len(pages):
            return self._single(event, event.name, k, distinct)
        return self._first(self._single(event, event.name, k, frozenset((p,))) for p in pages)

    def _each_page(self, event: Event, *args: Any) -> Verdict | None:
        *rest, pages = args
        return self._first(self._single(event, event.name, *rest, p) for p in pages)

    def _extend(self, event: Event, k: int, pages: Sequence[int], a: int) -> Verdict | None:
        size, allocated = self.header.page_size, self.compiled.values["A"]
        for p in pages:
            room = ceil_to_page(allocated.get(k, 0), size) + size
            verdict = self._single(event, "extend", k, p, min(a, room))
            if verdict is not None:
                return verdict
        return None if pages and allocated.get(k, 0) == a else self._single(event, "grow", k, a)

    def _place(self, event: Event, r: str, q: Place) -> Verdict | None:
        return self._single(event, "place", r, int(q))

    def _mark(self, event: Event, kind: str) -> Verdict | None:
        broken = self.compiled.settle()
        if broken is not None:
            return self._broken_invariant(event, broken)
        if kind == "step":
            return None
        if any(self.compiled.values["place"].values()):
            busy = [r for r, q in self.compiled.values["place"].items() if q]
            text = "every request is out"
            return Verdict("quiescent mark", text, event.number, str(event), "order", f"request {busy[0]}", ())
        if self.compiled.sets.get("out"):
            busy_loan = f"loan {min(self.compiled.sets['out'], key=str)}"
            return Verdict("quiescent mark", "nothing is in flight", event.number, str(event), "order", busy_loan, ())
        return self._invariants(event, ("always", "step", "quiescent"))

    def _observe(self, event: Event, state: Mapping[str, Any]) -> Verdict | None:
        return compare(event, state, self.compiled) or self._invariants(event, ("always", "step"))

    def _invariants(self, event: Event, groups: Sequence[str]) -> Verdict | None:
        for name, prop in self.law.invariants.items():
            if prop.group in groups and not self.compiled.properties[name]():
                return self._broken_invariant(event, name)
        return None

    def _broken_invariant(self, event: Event, name: str) -> Verdict:
        prop, state = self.law.invariants[name], self.compiled.state()
        return describe(name, prop.doc, event, prop.term, falsifier(prop.term, {}, state), {}, state)

    def _broken_clause(self, event: Event, action: Action, number: int, args: Sequence[Any]) -> Verdict:
        clause = action.guard[number]
        state = self.compiled.state()
        env = dict(zip(action.params, args, strict=True))
        for param, value in env.items():
            if isinstance(param, SetOf):  # a page outside the pool is in no universe, and yet it is the culprit
                known = state.universe[param.sort]
                known.extend(v for v in value if v not in known)
        return describe(action.name, clause.text, event, clause.term, falsifier(clause.term, env, state), env, state)

    @staticmethod
    def _first(verdicts: Any) -> Verdict | None:
        return next((v for v in verdicts if v is not None), None)


def falsifier(term: Formula, env: Mapping[Any, Any], state: concrete.State) -> dict[Element, Any]:
    """Values for the outer variables of a false formula that show that it is false."""
    match term:
        case Quantified("forall", bound, body):
            for found in concrete.bindings(bound, state):
                if not concrete.holds(body, {**env, **found}, state):
                    inner = falsifier(body, {**env, **found}, state)
                    return {**{v: found[v] for v in bound}, **inner}
        case Quantified("no" | "lone", bound, body):
            hits = [e for e in concrete.bindings(bound, state) if concrete.holds(body, {**env, **e}, state)]
            twins = tuple(type(v)(f"{v.name}'") for v in bound)
            first = {v: hits[0][v] for v in bound} if hits else {}
            second = {t: hits[1][v] for v, t in zip(bound, twins, strict=True)} if len(hits) > 1 else {}
            return {**first, **second}
    parts = getattr(term, "parts", ())
    if type(term).__name__ == "And":
        return next((falsifier(p, env, state) for p in parts if not concrete.holds(p, env, state)), {})
    return {}
