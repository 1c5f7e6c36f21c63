"""Streaming sessions: a slot that keeps the KV of a conversation between its turns."""

from dataclasses import dataclass, field

import numpy as np

from freehold.impl.memory.arrays import Tokens
from freehold.impl.memory.events import EventSink
from freehold.impl.memory.record import Holder, KvRecord
from freehold.spec.errors import InvalidInput, RuleBroken


@dataclass(slots=True, eq=False)
class SessionSlot:
    """One open session.

    history: tokens of all finished turns, prompts and outputs, shape [tokens]. It outlives the KV: a turn that finds
        the slot empty computes it again.
    kv: the record that the finished turns left; None while a live turn has it, or when nothing is saved.
    turn: the one live turn.
    closing: the client asked for the end. The only fact here that cannot be read from who holds what.
    idle_since_s: by the scheduler's clock, when it was opened or its last turn left.
    """

    id: str
    history: Tokens = field(default_factory=lambda: np.empty(0, np.int32))
    kv: KvRecord | None = None
    turn: Holder | None = None
    closing: bool = False
    idle_since_s: float = 0.0


class SessionTable:
    """The open sessions, the one whose KV was saved longest ago first."""

    def __init__(self, sink: EventSink) -> None:
        self.slots: dict[str, SessionSlot] = {}
        self._sink = sink

    def open(self, session_id: str) -> SessionSlot:
        """A new session with an empty slot. Raises InvalidInput when the name is taken."""
        if session_id in self.slots:
            raise InvalidInput(f"session {session_id!r} is open already: choose another name or close it first")
        slot = self.slots[session_id] = SessionSlot(session_id)
        self._sink.emit("open_session", session_id)
        return slot

    def find(self, session_id: str) -> SessionSlot:
        """The open session of that name. Raises InvalidInput when there is none."""
        try:
            return self.slots[session_id]
        except KeyError:
            raise InvalidInput(f"session {session_id!r} is not open: open it first") from None

    def use(self, slot: SessionSlot, turn: Holder) -> None:
        """`turn` becomes the session's one live turn.

        Raises InvalidInput when another one is live, or the session is closing.
        """
        if slot.closing:
            raise InvalidInput(f"session {slot.id!r} is closing: open another one")
        if slot.turn is not None:
            raise InvalidInput(f"session {slot.id!r} has a live turn {slot.turn.id!r}: wait for its end or abort it")
        slot.turn = turn
        self._sink.emit("use", slot.id, turn.id)

    def unuse(self, slot: SessionSlot) -> None:
        """The live turn is over; by now it holds nothing."""
        turn = slot.turn
        if turn is None or turn.kv is not None:
            raise RuleBroken(f"the turn of session {slot.id!r} is over, but {turn} is not out")
        slot.turn = None
        self._sink.emit("unuse", slot.id, turn.id)

    def ask_close(self, slot: SessionSlot) -> None:
        """The session is to end as soon as no turn is live. Asking again changes nothing."""
        if not slot.closing:
            slot.closing = True
            self._sink.emit("close_session", slot.id)

    def end(self, slot: SessionSlot) -> None:
        """The session, whose slot is empty by now, is gone."""
        if slot.turn is not None or slot.kv is not None:
            raise RuleBroken(f"session {slot.id!r} ends with a turn or with KV: it would be lost")
        del self.slots[slot.id]
        self._sink.emit("end_session", slot.id)

    def touch(self, slot: SessionSlot) -> None:
        """The slot was saved to just now: it is the last to be reclaimed."""
        self.slots[slot.id] = self.slots.pop(slot.id)

    def idlest(self, sparing: SessionSlot | None) -> SessionSlot | None:
        """The slot to reclaim: it holds KV, nobody waits for it if possible, and it was saved longest ago."""
        full = (slot for slot in self.slots.values() if slot.kv is not None and slot is not sparing)
        return min(full, key=lambda slot: slot.turn is not None, default=None)
