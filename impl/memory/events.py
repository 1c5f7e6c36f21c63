"""Where the memory says what moved: one `emit` for each atomic event of the law, after the move is done.

Arguments are positional, in the order of the law's action: record, page and row ids are ints, pages come as lists of
ints in row order, request and session ids are strings.
"""

from typing import Protocol


class EventSink(Protocol):
    """Listens to the events of one engine. Called on the scheduler's thread, between two moves."""

    def emit(self, name: str, *args: object) -> None:
        """The event `name` has just happened."""
        ...


class NullSink:
    """Nobody listens. The engine knows this class and builds no list of pages for it."""

    def emit(self, name: str, *args: object) -> None:
        """Nothing."""


class ListSink:
    """Keeps every event in order, as `(name, *args)`."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def emit(self, name: str, *args: object) -> None:
        """Append the event."""
        self.events.append((name, *args))


def listens(sink: EventSink) -> bool:
    """Whether an event's page list is worth building."""
    return not isinstance(sink, NullSink)
