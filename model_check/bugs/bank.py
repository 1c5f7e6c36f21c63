"""All public bugs of the bank, class by class."""

from __future__ import annotations

from freehold.model_check.bugs import (
    accounting,
    contamination,
    content,
    double_free,
    forwards,
    held_for_ever,
    leaks,
    liveness,
    locks,
    replicas,
    rounding,
    rows,
    sessions,
    stale_views,
    transfers,
)
from freehold.model_check.bugs.bug import Bug
from freehold.spec.errors import InvalidInput

KINDS = {
    "A": "leak",
    "B": "double free",
    "C": "use after free against a forward in flight",
    "D": "use after free against a transfer in flight",
    "E": "held for ever",
    "F": "lock or pin imbalance",
    "G": "page arithmetic",
    "H": "wrong accounting",
    "I": "deadlock, livelock, starvation",
    "J": "stale or wrong content",
    "K": "stale map, cursor or second view",
    "L": "session lifetime and hand-over",
    "M": "contamination by slot reuse",
    "N": "row overflow",
    "O": "replicas that come apart",
}
UNITS: tuple[Bug, ...] = (
    *leaks.BUGS, *double_free.BUGS, *forwards.BUGS, *transfers.BUGS, *locks.BUGS, *rounding.BUGS, *stale_views.BUGS,
)  # fmt: skip
"""Bugs that leave some unit with the wrong owner."""
OTHERS: tuple[Bug, ...] = (
    *held_for_ever.BUGS, *accounting.BUGS, *liveness.BUGS, *content.BUGS, *sessions.BUGS, *contamination.BUGS,
    *rows.BUGS, *replicas.BUGS,
)  # fmt: skip
"""Bugs of time, of sums, of content, of sessions and rows, and between ranks."""
BUGS: tuple[Bug, ...] = tuple(sorted((*UNITS, *OTHERS), key=lambda b: b.kind))


def bugs_named(part: str | None) -> tuple[Bug, ...]:
    """The bugs whose reference contains `part`, or whose class it is; all without one. InvalidInput when none is."""
    found = BUGS if part is None else tuple(b for b in BUGS if part == b.kind or part in b.reference)
    if not found:
        raise InvalidInput(f"no bug is named {part!r}: give a class, A to O, or a part of owner/repository#number")
    return found
