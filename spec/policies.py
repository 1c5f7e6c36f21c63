"""Scheduling policies as clauses over the law: the engine's own, and those of engines that got stuck.

A policy is small: who may be admitted, who may take a page, who gives way, and what is refused at the door. Each of the
bad ones is the good one with one decision changed, after a public bug or a textbook mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from freehold.spec.scheduling import (
    POOL,
    Group,
    Policy,
    Role,
    Steps,
    holds,
    lacks_a_page,
    leaves,
    loses,
    lost,
    older,
    opens_the_window,
    role_named,
    waits,
    window,
)
from freehold.spec.state import Place, Request, place
from freehold.spec.terms import FALSE, Int, exists, forall, no

Clauses = Mapping[str, Sequence[Callable[..., Steps]]]

# Decisions -----------------------------------------------------------------------------------------------------------


def fits_alone(m: Int, n: Int) -> Steps:
    """Asked at arrival: what can never run is refused."""
    yield m + n <= POOL, "the request fits the pool alone"


def oldest_first(r: Request) -> Steps:
    """The order of the queue; what gave way goes back to its place in front."""
    yield no(Request, lambda y: waits(y) & older(y, r)), "nobody who waits came before it"


def newest_first(r: Request) -> Steps:
    yield no(Request, lambda y: waits(y) & older(r, y)), "nobody who waits came after it"


def holders_first() -> Steps:
    """A newcomer would take the pages for which someone just gave way."""
    yield no(Request, lambda y: holds(y) & lacks_a_page(y)), "nobody who is admitted lacks a page"


def opens_window(r: Request) -> Steps:
    yield opens_the_window(r)


def behind_the_head(r: Request) -> Steps:
    """The engine's `LongestPrefix`: who shares most is admitted next, but only behind the head, in the same step."""
    yield window(r), "the head of the queue was admitted in this step"


def older_first(r: Request) -> Steps:
    """Room is made for a whole plan before anyone takes it; so its order is free, and here it is by age."""
    yield no(Request, lambda y: older(y, r) & holds(y) & lacks_a_page(y)), "nobody older lacks a page"


def youngest_gives_way(r: Request) -> Steps:
    yield forall(Request, lambda x: holds(x) >> ((x == r) | older(x, r))), "it is the youngest that holds KV"
    yield exists(Request, lambda y: older(y, r) & holds(y) & lacks_a_page(y)), "somebody older lacks a page"


def anyone_gives_way(r: Request) -> Steps:
    yield exists(Request, lambda y: holds(y) & lacks_a_page(y)), "somebody lacks a page"


def oldest_gives_way(r: Request) -> Steps:
    yield forall(Request, lambda x: holds(x) >> ((x == r) | older(r, x))), "it is the oldest that holds KV"
    yield exists(Request, lambda y: older(r, y) & holds(y) & lacks_a_page(y)), "somebody younger lacks a page"


def only_running_gives_way(r: Request) -> Steps:
    yield place(r) == Place.RUNNING, "it runs: one that waits with its KV is no victim"
    yield from youngest_gives_way(r)


def never() -> Steps:
    yield FALSE, "never"


def has_its_completion(r: Request) -> Steps:
    yield ~lost(r), "its completion was not lost"


def _fault(r: Request) -> Steps:
    yield holds(r) & ~(place(r) == Place.PARKED), "a forward step computes for it"
    yield ~lost(r), "it was not lost before"
    yield loses(r)


def _times_out(r: Request) -> Steps:
    yield lost(r), "its completion did not come in time"
    yield leaves(r)


LOSS = Role("lose a completion", "", Group.FAULT, _fault)
TIMEOUTS = tuple(
    Role(f"{name} (timeout)", name, Group.ACKNOWLEDGEMENT, _times_out)
    for name in ("finish", "drop_turn", "drop_turn_and_end")
)

# Policies ------------------------------------------------------------------------------------------------------------


def admissions(*clauses: Callable[..., Steps]) -> Clauses:
    return dict.fromkeys(("admit", "admit_turn"), clauses)


_ENGINE: Clauses = {
    "arrive": (fits_alone,),
    "arrive_turn": (fits_alone,),
    **admissions(oldest_first, holders_first),
    "extend_page": (older_first,),
    "decode_page": (older_first,),
    "retract": (youngest_gives_way,),
}
_NO_RESERVE: Clauses = {"extend_page": (), "decode_page": ()}
_LOSSY: Clauses = {**_ENGINE, **dict.fromkeys(("write", "decode"), (has_its_completion,))}
_LOSSY = {**_LOSSY, "decode_page": (older_first, has_its_completion)}
BEHIND = tuple(replace(role_named(name), name=f"{name} (behind the head)") for name in ("admit", "admit_turn"))

FIRST_COME = Policy(
    "first come, youngest gives way",
    "The engine's default: admission in order of arrival, room for the older first, the youngest is retracted.",
    _ENGINE,
)
LONGEST_PREFIX = Policy(
    "longest prefix behind the head",
    "The engine's other policy: whoever shares most is admitted, but only behind the head and in the same step.",
    {
        **_ENGINE,
        **admissions(oldest_first, holders_first, opens_window),
        **{r.name: (behind_the_head, holders_first) for r in BEHIND},
    },
    roles=BEHIND,
)
TIMEOUT = Policy(
    "lost completions, with timeouts",
    "The default where the completion of a forward may be lost; after a while its request is ended.",
    _LOSSY,
    roles=(LOSS, *TIMEOUTS),
)
LONGEST_PREFIX_UNBOUNDED = Policy(
    "longest prefix, unbounded",
    "Whoever shares most is admitted, however long the head has waited.",
    {**_ENGINE, **admissions(holders_first)},
)
THRASHING = Policy(
    "newcomers take the room",
    "The youngest gives way, and is admitted again into the pages for which it gave way (vllm-ascend#16315's kind).",
    {**_ENGINE, **admissions(oldest_first), **_NO_RESERVE},
)
RETRACT_ANY = Policy(
    "anyone gives way",
    "Whoever lacks a page may have any other retracted, or itself.",
    {**_ENGINE, **admissions(oldest_first), **_NO_RESERVE, "retract": (anyone_gives_way,)},
)
LAST_COME = Policy(
    "last come first, oldest gives way",
    "The newest is admitted first, and the oldest is retracted.",
    {**_ENGINE, **admissions(newest_first, holders_first), **_NO_RESERVE, "retract": (oldest_gives_way,)},
)
PINNED_SESSIONS = Policy(
    "pinned sessions",
    "What a session keeps is never taken back (sglang#27024).",
    {**_ENGINE, "reclaim_session": (never,)},
)
NO_FIT_CHECK = Policy(
    "no fit check",
    "A request that the empty pool has no room for is queued instead of refused (vllm#39734, #35570).",
    {**_ENGINE, "arrive": (), "arrive_turn": ()},
)
WAITING_HOLDERS = Policy(
    "only running ones give way",
    "A request that waits with its KV for another page is no victim (vllm#57104, #45388).",
    {**_ENGINE, "retract": (only_running_gives_way,)},
)
NO_TIMEOUT = Policy(
    "lost completions, no timeout",
    "The completion of a forward may be lost, and nobody minds.",
    _LOSSY,
    roles=(LOSS,),
)
GOOD = (FIRST_COME, LONGEST_PREFIX, TIMEOUT)
BAD = (
    LONGEST_PREFIX_UNBOUNDED,
    THRASHING,
    RETRACT_ANY,
    LAST_COME,
    PINNED_SESSIONS,
    NO_FIT_CHECK,
    WAITING_HOLDERS,
    NO_TIMEOUT,
)
