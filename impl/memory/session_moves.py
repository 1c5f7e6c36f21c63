"""How a session's record moves between its slot and its turns.

lend      transfer_to_request          a turn takes what its session saved
save      truncate release  transfer_to_session
abandon   as rewind and save, back to the last finished turn; or as release
close     close_session, then settle
settle    as release, then end_session, where the session was asked to close
"""

from freehold.impl.memory.arrays import Tokens
from freehold.impl.memory.cache import KvCache
from freehold.impl.memory.record import Holder, KvRecord, record_of
from freehold.impl.memory.sessions import SessionSlot
from freehold.spec.errors import RuleBroken


def lend(cache: KvCache, slot: SessionSlot) -> KvRecord:
    """The record goes from the slot to its live turn."""
    turn, kv = turn_of(slot), record_of(slot)
    if turn.kv is not None:
        raise RuleBroken(f"turn {turn.id!r} would get a second record")
    turn.kv, slot.kv = slot.kv, None
    cache.sink.emit("transfer_to_request", slot.id, kv.id, turn.id)
    return kv


def resume(cache: KvCache, slot: SessionSlot, kept_tokens: int) -> KvRecord:
    """The record goes to the live turn, which goes on from its first `kept_tokens` tokens."""
    kv = lend(cache, slot)
    cache.rewind(kv, kept_tokens)
    return kv


def save(cache: KvCache, slot: SessionSlot, history: Tokens) -> None:
    """The record goes from the live turn, which has finished, to the slot. `history`: all tokens up to here."""
    kv = record_of(turn_of(slot))
    cache.rewind(kv, kv.committed_tokens)
    kv.saved_tokens = kv.committed_tokens
    slot.history = history.copy()
    _give_back(cache, slot)


def abandon(cache: KvCache, slot: SessionSlot) -> None:
    """The live turn ends unfinished: what finished turns wrote goes to the slot, what this one wrote goes free.

    Where the next turn could not build on it, all of it goes free; the session's history stays.
    """
    turn = turn_of(slot)
    if turn.kv is None:
        return
    if cache.usable_tokens(turn.kv, turn.kv.saved_tokens):
        cache.rewind(turn.kv, turn.kv.saved_tokens)
        _give_back(cache, slot)
    else:
        cache.release(turn)


def close_session(cache: KvCache, slot: SessionSlot) -> None:
    """The session ends: now, or with its live turn."""
    cache.sessions.ask_close(slot)
    settle(cache, slot)


def settle(cache: KvCache, slot: SessionSlot) -> None:
    """If the session was asked to close and no turn is live, its KV goes free and it is gone."""
    if slot.closing and slot.turn is None:
        if slot.kv is not None:
            cache.release(slot)
        cache.sessions.end(slot)


def turn_of(slot: SessionSlot) -> Holder:
    """The session's live turn. Raises RuleBroken where there is none."""
    if slot.turn is None:
        raise RuleBroken(f"session {slot.id!r} has no live turn")
    return slot.turn


def _give_back(cache: KvCache, slot: SessionSlot) -> None:
    """The record goes from the live turn to the slot."""
    turn = turn_of(slot)
    kv = record_of(turn)
    if slot.kv is not None:
        raise RuleBroken(f"session {slot.id!r} would get a second record")
    slot.kv, turn.kv = turn.kv, None
    cache.sessions.touch(slot)
    cache.sink.emit("transfer_to_session", turn.id, kv.id, slot.id)
