"""Held for ever, and waiting for ever: states from which no sequence of operations leads to where things must end.

Within a small scope all states and steps are known, so "can still be reached" is a search backwards from the states
that are wanted. Two ends are asked for. *Drained*: every unit can become free again, whatever a client does, although
a message that says "done" may be lost. *Served*: every request that came in can end with all the tokens of a row, and
nobody aborts. New arrivals never count as a way out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from freehold.model_check.bugs.bug import Bug
from freehold.model_check.bugs.graph import Graph, can_reach, graph
from freehold.model_check.scopes import Scope
from freehold.model_check.steps import Taken, listing
from freehold.spec import concrete
from freehold.spec.flight import loan_close
from freehold.spec.language import Clause, Law, Operation
from freehold.spec.state import (
    POOLS,
    ROW_WIDTH,
    C,
    End,
    Loan,
    Place,
    Pool,
    Record,
    Request,
    Row,
    kv,
    out,
    place,
    row_free,
)
from freehold.spec.terms import And, Formula, Literal_, Relation, exists, forall
from freehold.spec.variant import edit, variant

lost = Relation("lost", (Loan,), "the message that the loan is done was lost")

CLIENTS: Final = frozenset(
    {"arrive", "arrive_turn", "begin_session", "close_idle", "close_saved", "close_busy", "profile", "flush", "lose"}
)
"""What somebody outside does: no way out may need it."""

SHRINKING: Final = frozenset({"trim", "rewind", "rewind_prefix"})
"""What a client or a rejected draft makes a request give back: no scheduler takes it to make room for others."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Where things must be able to end, under a reading of who does what; a way there takes no `outside` operation."""

    name: str
    reading: Callable[[Law], Law]
    met: Callable[[Law], Formula]
    outside: frozenset[str]


@dataclass(frozen=True, slots=True)
class Stuck:
    """A shortest trace to a state from which the goal cannot be reached any more.

    `loop` is what the engine can do there for ever, back to where the loop began; empty where nothing is left to do.
    """

    goal: str
    trace: tuple[Taken, ...]
    state: concrete.State
    loop: tuple[Taken, ...]
    states: int

    def __str__(self) -> str:
        ever = " · ".join(map(str, self.loop)) or "nothing"
        return f"never {self.goal} after {len(self.trace)} steps:\n{listing(self.trace)}\n  and then for ever: {ever}"


def stuck(law: Law, scope: Scope, goals: Iterable[Goal]) -> Stuck | None:
    """The first goal that a reachable state has lost, with a shortest trace to such a state; None when none has."""
    for goal in goals:
        read = goal.reading(law)
        states = graph(read, scope)
        wanted = states.where(scope.law(replace(read, idle=goal.met(read))).idle)
        hopeless = ~can_reach(wanted, states.steps(leave_out=goal.outside))
        if bool(hopeless.any()):
            number = int(hopeless.nonzero()[0])
            trace, state = states.replayed(states.path(number))
            return Stuck(goal.name, trace, state, _loop(states, number, goal.outside), states.count)
    return None


def _loop(states: Graph, start: int, outside: frozenset[str]) -> tuple[Taken, ...]:
    """A shortest loop of at least two states that is reachable from `start`, the nearest one."""
    follow: dict[int, list[int]] = {}
    for source, target in states.steps(leave_out=outside).t().tolist():
        if source != target:
            follow.setdefault(source, []).append(target)
    for first in _spread(follow, start):
        before = _spread(follow, first)
        ends = [n for n in before if first in follow.get(n, ())]
        if ends:
            way = [ends[0]]
            while way[-1] != first:
                way.append(before[way[-1]])
            return tuple(states.taken([*way[::-1], first]))
    return ()


def _spread(follow: dict[int, list[int]], start: int) -> dict[int, int]:
    """What is reachable from a state, nearest first, and where each was reached from."""
    before, queue = {start: start}, deque([start])
    while queue:
        here = queue.popleft()
        for there in follow.get(here, ()):
            if there not in before:
                before[there] = here
                queue.append(there)
    return before


# The two goals -------------------------------------------------------------------------------------------------------


def with_losses(law: Law) -> Law:
    """The law where the word that a loan is done may never come; somebody then has to say that it failed."""

    def guarded(operation: Operation) -> Operation:
        loans = [s.args[0] for s in operation.steps if s.action.name == loan_close.name and _is_done(s.args[1])]
        clauses = tuple(Clause("its message was not lost", ~lost(o)) for o in loans if isinstance(o, Loan))
        return replace(operation, guard=(*operation.guard, *clauses))

    def more(law: Law) -> None:
        law.relations[lost.name] = lost

        @law.action
        def lose(o: Loan):  # type: ignore[no-untyped-def]
            """The message that the loan is done is lost."""
            yield out(o), "the loan is open"
            yield lost.add(o)

        @law.operation
        def lose_(o: Loan):  # type: ignore[no-untyped-def]
            """The message that the loan is done is lost."""
            yield lose(o)

    law = variant(law, edit(loan_close.name, do=lambda o, how: [lost.drop(o)]), extra=more)
    return replace(law, operations={n: guarded(o) for n, o in law.operations.items()})


def _is_done(how: object) -> bool:
    return isinstance(how, Literal_) and how.value == End.DONE


def without_aborts(law: Law) -> Law:
    """The law where a request ends only when it decodes, or is sent, and has as many tokens as a row takes."""

    def guarded(operation: Operation) -> Operation:
        ends = [s.args[0] for s in operation.steps if s.action.name == "place" and _is_out(s.args[1])]
        clauses = tuple(Clause("the request has all its tokens", _complete(r)) for r in ends if isinstance(r, Request))
        return replace(operation, guard=(*operation.guard, *clauses))

    return replace(law, operations={n: guarded(o) for n, o in law.operations.items()})


def _is_out(where: object) -> bool:
    return isinstance(where, Literal_) and where.value == Place.OUT


def _complete(r: Request) -> Formula:
    return ((place(r) == Place.RUNNING) | (place(r) == Place.SENDING)) & exists(
        Record, lambda k: kv(r, k) & (C(k) == ROW_WIDTH)
    )


def everything_is_free(law: Law) -> Formula:
    """Nothing runs, nothing is in flight, and every unit of every pool is on its free list."""
    return And((law.idle, forall(Row, lambda w: row_free(w)), *map(_all_free, POOLS)))


def _all_free(pool: Pool) -> Formula:
    return forall(pool.unit, lambda x: pool.free(x))


DRAINED: Final = Goal("drained", with_losses, everything_is_free, CLIENTS)
SERVED: Final = Goal("served", without_aborts, lambda law: law.idle, CLIENTS | SHRINKING)


def goals(bug: Bug) -> tuple[Goal, ...]:
    """What a bug of its class takes away: class E holds units for ever, the others let requests wait for ever."""
    return (DRAINED, SERVED) if bug.kind == "E" else (SERVED,)
