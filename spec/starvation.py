"""The starvation monitor: says which request, and which state of it, has not been left for too many steps of a run.

It is fed the events that the monitor of the law is fed. A wait begins with one event and ends with another; what it
counts is steps *with right of way*: steps since it began, or since somebody older last left. For the older may go
first, and each of them ends; only who waits without anybody older leaving is passed over, or stuck.

    starving = Starvation(patience_steps(header))
    for event in read(path): starving.feed(event)
    for alarm in starving.alarms: print(alarm)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from freehold.spec.errors import InvalidInput
from freehold.spec.state import Place
from freehold.spec.trace import Event, Header


def patience_steps(header: Header) -> int:
    """Steps with right of way in which anyone must move on.

    Of those that hold KV the oldest gets a token a step, so it leaves in as many steps as a row has tokens; the oldest
    of all may have to wait for so many, each in turn, as there are rows.
    """
    return (header.rows + 1) * (header.row_width + 1)


@dataclass(frozen=True, slots=True)
class Alarm:
    """`who` has been `state` since a step and an event, for too many `steps` with right of way."""

    who: str
    state: str
    since_step: int
    since_event: int
    steps: int
    at_step: int

    def __str__(self) -> str:
        return (
            f"{self.who} is {self.state} since step {self.since_step} (event {self.since_event}): "
            f"nobody older has left for {self.steps} steps"
        )


@dataclass(slots=True)
class _Wait:
    """clock: the step from which steps count. request: whose age says who is older; None when nobody is."""

    who: str
    state: str
    request: Any
    step: int
    event: int
    clock: int
    told: bool = False


@dataclass(slots=True)
class Starvation:
    """Follows one run; `alarms` grows by one for each wait that lasts longer than `bound_steps`."""

    bound_steps: int
    alarms: list[Alarm] = field(default_factory=list)
    step: int = 0
    count: int = 0
    _places: dict[Any, Place] = field(default_factory=dict)
    _ages: dict[Any, int] = field(default_factory=dict)
    _turns: dict[Any, Any] = field(default_factory=dict)
    _waits: dict[tuple[str, Any], _Wait] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bound_steps < 1:
            raise InvalidInput(f"a bound must be at least one step, not {self.bound_steps}")

    def emit(self, name: str, *args: object) -> None:
        """An `EventSink`: the next event, numbered here."""
        self.feed(Event(self.count + 1, name, args))

    def feed(self, event: Event) -> list[Alarm]:
        """Take one event; the alarms that it raises."""
        self.count = event.number
        match event.name:
            case "place":
                self._place(*event.args)
            case "use":
                session, request = event.args
                self._turns[session] = request
            case "close_session":
                (session,) = event.args
                self._begin(("closing", session), f"session {session}", self._turns.get(session))
            case "end_session":
                (session,) = event.args
                self._end(("closing", session))
            case "mark" if event.args == ("step",):
                return self._mark()
        return []

    def _place(self, request: Any, there: Place) -> None:
        here = self._places.get(request, Place.OUT)
        self._places[request] = there
        who = f"request {request}"
        for state in ("waiting", "retracted", "parked"):
            self._end((state, request))
        if there is Place.OUT:
            self._leave(request)
            return
        if here is Place.OUT:
            self._ages[request] = self.count
            self._begin(("live", request), who, request)
        if there is Place.WAITING:
            self._begin(("waiting" if here is Place.OUT else "retracted", request), who, request)
        elif there is Place.PARKED:
            self._begin(("parked", request), who, request)

    def _leave(self, request: Any) -> None:
        """Who waits behind an older one starts counting anew when that one is out."""
        self._end(("live", request))
        age = self._ages.pop(request, None)
        del self._places[request]
        if age is None:
            return
        for wait in self._waits.values():
            if wait.request is not None and self._ages.get(wait.request, age) > age:
                wait.clock = self.step

    def _begin(self, key: tuple[str, Any], who: str, request: Any) -> None:
        self._waits[key] = _Wait(who, key[0], request, self.step, self.count, self.step)

    def _end(self, key: tuple[str, Any]) -> None:
        self._waits.pop(key, None)

    def _mark(self) -> list[Alarm]:
        self.step += 1
        raised = []
        for wait in self._waits.values():
            steps = self.step - wait.clock
            if steps > self.bound_steps and not wait.told:
                wait.told = True
                raised.append(Alarm(wait.who, wait.state, wait.step, wait.event, steps, self.step))
        self.alarms += raised
        return raised
