"""Class L: KV moves between request, session slot and tree at the end of a turn, and something is left behind."""

from __future__ import annotations

from typing import Final

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.events import transfer_to_session, truncate, unuse
from freehold.spec.language import Law
from freehold.spec.operations import leave
from freehold.spec.pools import release_state
from freehold.spec.state import A, T, state
from freehold.spec.variant import edit, steps, variant


def aborted_turn_saves_its_own_length(law: Law) -> Law:
    """A turn that is refused for its length writes its short prefix over the slot; pages behind it belong to nobody."""
    return variant(law, steps("save", lambda r, k, s, a: [
        release_state(k, lambda z: state(k, z) & (a < T(z))), truncate(k, a), transfer_to_session(r, k, s), unuse(s, r),
        *leave(r),
    ]))  # fmt: skip


def tail_goes_along_with_the_slot(law: Law) -> Law:
    """What speculation allocated beyond the written tokens is not cut before the slot takes the record over."""
    return variant(law, steps("save", lambda r, k, s, a: [
        release_state(k, lambda z: state(k, z) & (a < T(z))), transfer_to_session(r, k, s), unuse(s, r), *leave(r),
    ]))  # fmt: skip


def resume_overwrites_the_entries(law: Law) -> Law:
    """A turn resumes below what its slot has allocated: new entries replace old ones whose pages nobody names then."""
    return variant(law, steps("rewind", lambda r, k, a: [
        release_state(k, lambda z: state(k, z) & (a < T(z))), truncate(k, a),
    ]))  # fmt: skip


def bonus_token_is_claimed_early(law: Law) -> Law:
    """A speculative worker counts its bonus token as written before there is a page for it."""
    return variant(law, edit("commit", swap={"committed tokens have a page behind them": lambda k, c: c <= A(k) + 1}))


def rejected_turn_clears_the_flag(law: Law) -> Law:
    """A turn that was rejected as the session was busy clears the busy flag of the turn that runs."""
    return variant(law, edit("use", drop="the session has no live turn"))


def close_looks_and_then_removes(law: Law) -> Law:
    """Closing asks whether a turn runs and removes the session in two steps; a turn starts in between."""
    return variant(law, edit("end_session", drop="no turn is live"))


_SESSION = small(Page=1, Session=1)

BUGS: Final = (
    Bug("sgl-project/sglang#22273", "L", "a turn that is refused overwrites what its session holds",
        Shows.STATE, aborted_turn_saves_its_own_length, _SESSION, 6),
    Bug("sgl-project/sglang#21875", "L", "a session takes over room that no token will fill",
        Shows.STATE, tail_goes_along_with_the_slot, _SESSION, 6),
    Bug("sgl-project/sglang#22862", "L", "a turn that resumes earlier loses the pages behind its prefix",
        Shows.STATE, resume_overwrites_the_entries, _SESSION, 6),
    Bug("sgl-project/sglang#28754", "L", "a session keeps more written tokens than it has room",
        Shows.STATE, bonus_token_is_claimed_early, small(Page=1, Session=1, row_width=2), 6),
    Bug("sgl-project/sglang#36503", "L", "two turns of one session run at once",
        Shows.STATE, rejected_turn_clears_the_flag, small(Page=1, Session=1, Request=2), 3),
    Bug("tenstorrent/tt-inference-server#3028", "L", "a session is removed under the turn that just began",
        Shows.STATE, close_looks_and_then_removes, _SESSION, 3),
)  # fmt: skip
