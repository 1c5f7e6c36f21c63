"""Lassos of a policy in a small scope: a stem to a loop in which somebody who is live never ends.

All states that the policy reaches are built, and all steps between them kept (`reach.py`). A set of states that can be
walked round for ever is a run that weak fairness allows when each fair group acts in it, or is unable to act somewhere
in it. A state in which no fair group can act at all is a loop of no steps: everybody waits.

What is reported is replayed by the concrete reading from the beginning, operation by operation, to the very same state.
Loops that need no client come first, then those without aborts: the fewer outsiders, the plainer the fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from freehold.model_check.reach import Graph, Mask, build, follow
from freehold.model_check.refute import facts
from freehold.model_check.scopes import Scope
from freehold.model_check.steps import ReadingsDisagree, Taken, taken
from freehold.spec import concrete
from freehold.spec.language import Clause
from freehold.spec.scheduling import Group, Policy, lacks_a_page, leaves, live, waits
from freehold.spec.state import Request
from freehold.spec.terms import exists

ROUNDS = 24
"""So often is a loop walked until all names come back: more than any order of a few pages needs."""
_R = Request("r")


class Kind(StrEnum):
    """What a lasso shows."""

    DEADLOCK = "deadlock"
    """Somebody waits for room, and nothing that the engine owes can happen."""
    HELD = "held for ever"
    """Nobody waits for room, and nothing that the engine owes can happen."""
    LIVELOCK = "livelock"
    """The engine works for ever, and nobody ends."""
    STARVATION = "starvation"
    """Others come and end for ever, and somebody does not."""


@dataclass(frozen=True, slots=True)
class Lasso:
    """A run in which `request` stays live for ever: `stem`, and then `loop` for ever (nothing, when it is empty).

    states: the state before the loop, and the one after each of its steps; the last is the first.
    """

    kind: Kind
    request: int
    stem: tuple[Taken, ...]
    loop: tuple[Taken, ...]
    states: tuple[concrete.State, ...]

    def __str__(self) -> str:
        lines = [f"{self.kind}: request {self.request} never ends", "  first"]
        lines += [f"    {i}. {step}" for i, step in enumerate(self.stem, start=1)]
        if not self.loop:
            lines += ["  and then nothing that the engine owes can happen:", *_told(self.states[0], "      ")]
            return "\n".join(lines)
        lines += ["  and then for ever, from", *_told(self.states[0], "      ")]
        for i, step in enumerate(self.loop, start=1):
            lines.append(f"    {i}. {step}")
            lines += _changes(self.states[i - 1], self.states[i])
        return "\n".join([*lines, "  which is where the loop began"])


def _told(state: concrete.State, indent: str) -> list[str]:
    return [f"{indent}{name:9} {shown}" for name, shown in facts(state).items() if shown]


def _changes(before: concrete.State, after: concrete.State) -> list[str]:
    """What a step changed, a line a symbol: before and after."""
    old, new = facts(before), facts(after)
    return [f"         {n:9} {old[n] or '-'}  ->  {new[n] or '-'}" for n in old if old[n] != new[n]]


@dataclass(frozen=True, slots=True)
class LassoReport:
    """What the search of one policy in one scope found; `lasso` is None when every fair run ends everybody."""

    policy: Policy
    scope: Scope
    states: int
    steps: int
    lasso: Lasso | None
    seconds: float


def search_lasso(
    policy: Policy, scope: Scope, jobs: Sequence[tuple[int, int]], *, leave_out: Sequence[Group] = (),
    budget: int = 300_000,
) -> LassoReport:  # fmt: skip
    """A plain lasso that a policy allows when each request has one of the `jobs` (prompt and output tokens).

    Raises InvalidInput when the scope has more than `budget` states: a part of them shows nothing.
    """
    started = time.perf_counter()
    graph = build(policy, scope, jobs, budget, leave_out)
    found = plainest(graph)
    return LassoReport(policy, scope, graph.count, len(graph.source), found, time.perf_counter() - started)


def plainest(graph: Graph) -> Lasso | None:
    """The lasso with the fewest outsiders and, of those, the shortest stem; None when there is none."""
    inside = graph.where(live(_R), _R)
    for allowed in _kinds_of_step(graph):
        best: tuple[int, int, list[int], int] | None = None
        for request in range(len(inside)):
            part = Part(graph, inside[request], allowed)
            for component in part.components():
                if part.is_fair(component):
                    first = min(component)
                    if best is None or (graph.depths[first], len(component)) < best[:2]:
                        best = graph.depths[first], len(component), component, request
        if best is not None:
            request = best[3]
            return _lasso(Part(graph, inside[request], allowed), best[2], request)
    return None


def _kinds_of_step(graph: Graph) -> Iterator[Mask]:
    """Which steps a loop may take: the engine's own, then also those of clients who stay, then all."""
    operations = graph.operations
    own = np.array([graph.groups[o].fair for o, _ in graph.labels], bool)
    ends = np.array([any(s.action.name == leaves.name for s in operations[o].steps) for o, _ in graph.labels], bool)
    yield own[graph.label]
    yield (own | ~ends)[graph.label]
    yield np.ones(len(graph.label), bool)


class Part:
    """Some states of a graph, and the allowed steps between them."""

    def __init__(self, graph: Graph, inside: Mask, allowed: Mask) -> None:
        self.graph = graph
        kept = (inside[graph.source] & inside[graph.target] & allowed).nonzero()[0]
        self.inside = inside
        self.steps = kept[np.argsort(graph.source[kept], kind="stable")]
        self.begin = np.searchsorted(graph.source[self.steps], np.arange(graph.count + 1)).tolist()
        self.to: list[int] = graph.target[self.steps].tolist()

    def out(self, state: int) -> Iterator[tuple[int, int]]:
        """The steps from a state, each with the state it leads to."""
        for i in range(self.begin[state], self.begin[state + 1]):
            yield int(self.steps[i]), self.to[i]

    def components(self) -> Iterator[list[int]]:
        """The strongly connected components (Tarjan, without recursion)."""
        order: dict[int, int] = {}
        low: dict[int, int] = {}
        stack: list[int] = []
        place: dict[int, int] = {}
        for root in self.inside.nonzero()[0].tolist():
            work = [] if root in order else [(root, self.begin[root])]
            while work:
                n, at = work.pop()
                if n not in order:
                    order[n] = low[n] = len(order)
                    place[n] = len(stack)
                    stack.append(n)
                for i in range(at, self.begin[n + 1]):
                    target = self.to[i]
                    if target not in order:
                        work += [(n, i), (target, self.begin[target])]
                        break
                    if target in place:
                        low[n] = min(low[n], low[target])
                else:
                    if low[n] == order[n]:
                        members = stack[place[n] :]
                        del stack[place[n] :]
                        for m in members:
                            del place[m]
                        yield members

    def is_fair(self, component: Sequence[int]) -> bool:
        """Whether a run may stay in the component for ever: each fair group acts in it, or somewhere can't."""
        always = int(np.bitwise_and.reduce(self.graph.able[component]))
        if always and len(component) > 1:
            members = set(component)
            for n in component:
                for step, target in self.out(n):
                    if target in members:
                        always &= ~self.graph.bit(step)
        elif always:
            for step, target in self.out(component[0]):
                if target == component[0]:
                    always &= ~self.graph.bit(step)
        return not always

    def path(self, members: set[int], start: int, wanted: Callable[[int, int], bool]) -> list[int]:
        """The shortest walk among `members` whose last step, given with the state it leads to, is wanted."""
        came: dict[int, tuple[int, int]] = {}
        queue = [start]
        for n in queue:
            for step, target in self.out(n):
                if target not in members:
                    continue
                if wanted(step, target):
                    walked = [step]
                    while n != start:
                        n, before = came[n]
                        walked.append(before)
                    return walked[::-1]
                if target not in came and target != start:
                    came[target] = n, step
                    queue.append(target)
        raise ReadingsDisagree("a component has no such walk: it is not strongly connected, or not fair")

    def loop(self, members: set[int], first: int) -> list[int]:
        """A walk from `first` and back, on which every fair group acts or was unable to act."""
        graph, here, walked = self.graph, first, list[int]()
        waiting = int(graph.able[first])  # who can't act here is content
        while waiting or not walked:
            path = self.path(members, here, partial(self._helps, waiting))
            for step in path:
                waiting &= ~self._settles(step, waiting)
            walked += path
            here = int(graph.target[walked[-1]])
        return walked if here == first else walked + self.path(members, here, lambda _, target: target == first)

    def _helps(self, waiting: int, step: int, target: int) -> bool:
        return not waiting or bool(self._settles(step, waiting))

    def _settles(self, step: int, waiting: int) -> int:
        """Of some groups, those that act in a step, or can't act where it leads."""
        return waiting & (self.graph.bit(step) | ~int(self.graph.able[self.graph.target[step]]))


# What is reported ----------------------------------------------------------------------------------------------------


def _lasso(part: Part, component: Sequence[int], request: int) -> Lasso:
    """A stem into the component and a loop through it, replayed.

    The graph forgets names and stale values, so the loop is walked until they come back too; rounds before that belong
    to the stem. Raises ReadingsDisagree when a step is forbidden, or the loop does not come back.
    """
    graph, first = part.graph, min(component)
    stuck = next((n for n in sorted(component) if not graph.able[n]), None)
    around = part.loop(set(component), first) if stuck is None else []
    start = concrete.initial(graph.law, graph.scope.sizes, graph.scope.constants)
    stem, states = _run(graph, start, graph.path_to(first if stuck is None else stuck))
    loop, round_ = _run(graph, states[-1], around)
    borders = [round_[-1].key()] if stuck is not None else [round_[0].key(), round_[-1].key()]
    while stuck is None and borders[-1] not in borders[:-1]:
        if len(borders) > ROUNDS:
            raise ReadingsDisagree("the loop does not come back to where it began")
        more, states = _run(graph, round_[-1], around)
        loop, round_ = loop + more, round_ + states[1:]
        borders.append(round_[-1].key())
    before = borders.index(borders[-1]) * len(around)
    stem, loop, round_ = stem + loop[:before], loop[before:], round_[before:]
    if not all(concrete.holds(live(_R), {_R: request}, s) for s in round_):
        raise ReadingsDisagree(f"request {request} ends on the way")
    return Lasso(_kind(graph, round_[0], loop), request, stem, loop, tuple(round_))


def _run(graph: Graph, state: concrete.State, steps: Sequence[int]) -> tuple[tuple[Taken, ...], list[concrete.State]]:
    """Steps of the graph by the concrete reading, and the states along them."""
    walked: list[Taken] = []
    states = [state]
    for step in steps:
        operation = graph.operations[graph.labels[int(graph.label[step])][0]]
        env = follow(graph, states[-1], step)
        outcome = concrete.operate(operation, env, states[-1])
        if isinstance(outcome, Clause):
            raise ReadingsDisagree(f"the concrete reading forbids {operation.name}: {outcome.text}")
        walked.append(taken(operation, env, outcome[0]))
        states.append(outcome[1])
    return tuple(walked), states


def _kind(graph: Graph, state: concrete.State, loop: Sequence[Taken]) -> Kind:
    if not loop:
        short = exists(Request, lambda r: waits(r) | lacks_a_page(r))
        return Kind.DEADLOCK if concrete.holds(short, {}, state) else Kind.HELD
    ends = any(s.action.name == leaves.name for t in loop for s in graph.law.operations[t.operation].steps)
    return Kind.STARVATION if ends else Kind.LIVELOCK
