"""Where every live request is."""

from collections import OrderedDict
from collections.abc import Iterator

from freehold.impl.memory.events import EventSink
from freehold.impl.scheduling.request import Request
from freehold.spec.state import Place


class Queues:
    """One queue for each place but OUT, each in the order of entry.

    `move` is the only way from one to another, and the one place where the event `place` is told.
    """

    def __init__(self, sink: EventSink) -> None:
        self.waiting: OrderedDict[str, Request] = OrderedDict()
        self.prefill: OrderedDict[str, Request] = OrderedDict()
        self.parked: OrderedDict[str, Request] = OrderedDict()
        self.running: OrderedDict[str, Request] = OrderedDict()
        self.by_place = {
            Place.WAITING: self.waiting,
            Place.PREFILL: self.prefill,
            Place.PARKED: self.parked,
            Place.RUNNING: self.running,
        }
        self._sink = sink

    def move(self, request: Request, place: Place) -> None:
        """The request leaves its queue for that of `place`. What comes back to the waiting ones goes first there."""
        origin = request.place
        if origin is not Place.OUT:
            del self.by_place[origin][request.id]
        if place is not Place.OUT:
            self.by_place[place][request.id] = request
        if place is Place.WAITING and origin is not Place.OUT:
            self.waiting.move_to_end(request.id, last=False)
        request.place = place
        self._sink.emit("place", request.id, place)

    def find(self, request_id: str) -> Request | None:
        """The live request of that name."""
        return next((queue[request_id] for queue in self.by_place.values() if request_id in queue), None)

    def all(self) -> Iterator[Request]:
        """Every live request."""
        for queue in self.by_place.values():
            yield from queue.values()

    def holders(self) -> Iterator[Request]:
        """The requests that hold KV."""
        for queue in (self.running, self.parked, self.prefill):
            yield from queue.values()

    def count_holders(self) -> int:
        """How many requests hold KV."""
        return len(self.running) + len(self.parked) + len(self.prefill)

    def __bool__(self) -> bool:
        """Whether any request is live."""
        return any(self.by_place.values())
