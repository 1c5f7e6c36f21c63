"""All successors of many states: what can happen in a scope, compiled once and run on many states at a time.

Each operation with each choice of its parameters is a *way*: a circuit that says where it is possible, and new values
for some bits. A parameter is bound when a clause or an event first needs it, and a choice that the scope already rules
out ends there. Where a new bit is the same for all states it becomes part of a mask; the others are computed for all
states at once, packed in words so that one mask takes what a way needs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any

import torch

from freehold.model_check.bits import WORD_BITS, columns, pairs, signed, within, words
from freehold.model_check.codes import Codec
from freehold.model_check.gates import FALSE, TRUE, Gates, Node, compiled
from freehold.model_check.ground import Ground, World
from freehold.model_check.scopes import Scope
from freehold.model_check.vector import Tensor
from freehold.spec.errors import Unsupported
from freehold.spec.language import Argument, Clause, Law, Operation, Step
from freehold.spec.terms import Element, Function, IntVar, Param, Relation, SetOf

Instance = Mapping[Param, int]


class Grain(StrEnum):
    """What one step of a search is: a whole operation, or one atomic event with sets of one element."""

    OPERATIONS = "operations"
    EVENTS = "events"


def operations(law: Law, grain: Grain) -> tuple[Operation, ...]:
    """What a search of this grain takes as one step; an event counts as an operation of its own."""
    if grain is Grain.EVENTS:
        return tuple(Operation(a.name, a.params, (), (Step(a, a.params),), a.doc) for a in law.actions.values())
    return tuple(law.operations.values())


@dataclass(frozen=True, slots=True)
class Stop:
    """A clause to pass or, without one, the effect of `step`; with neither, only a place to bind what is left.

    `needs` are the operation's parameters that must be bound, `arguments` the step's arguments that are looked at, and
    `reads` and `writes` name relations and functions.
    """

    needs: tuple[Param, ...]
    clause: Clause | None
    step: Step | None
    arguments: tuple[tuple[Param, Argument], ...]
    reads: frozenset[str]
    writes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """An operation laid out for the walk."""

    operation: Operation
    stops: tuple[Stop, ...]


def plan(operation: Operation) -> Plan:
    """The clauses and effects of an operation, each clause as early as it means the same.

    A clause moves before the effects that write nothing it reads. Between two effects all clauses speak of one
    state, so they are taken in the order that binds the fewest parameters next.
    """
    stops: list[Stop] = []
    for stop in _written_order(operation):
        at = len(stops)
        while stop.clause is not None and at > 0 and not stops[at - 1].writes & stop.reads:
            at -= 1
        stops.insert(at, stop)
    end = Stop(operation.params, None, None, (), frozenset(), frozenset())
    return Plan(operation, (*_frugal(stops), end))


def _written_order(operation: Operation) -> Iterator[Stop]:
    params = operation.params
    for clause in operation.guard:
        yield Stop(_needs(params, clause.term), clause, None, (), _read(clause.term), frozenset())
    for step in operation.steps:
        arguments = tuple(zip(step.action.params, step.args, strict=True))
        for clause in step.action.guard:
            used = tuple((p, a) for p, a in arguments if p in mentioned(clause.term))
            values = tuple(a for _, a in used)
            reads = _read(clause.term) | _read(values)
            yield Stop(_needs(params, values), clause, step, used, reads, frozenset())
        writes = frozenset(update.of.name for update in step.action.updates)
        yield Stop(_needs(params, step.args), None, step, arguments, frozenset(), writes)


def _frugal(stops: Sequence[Stop]) -> Iterator[Stop]:
    bound: set[Param] = set()
    for effect, group in itertools.groupby(stops, lambda s: s.clause is None):
        rest = list(group)
        while rest:
            best = 0 if effect else min(range(len(rest)), key=lambda i: len(set(rest[i].needs) - bound))
            bound.update(rest[best].needs)
            yield rest.pop(best)


def _needs(params: Iterable[Param], term: Any) -> tuple[Param, ...]:
    there = mentioned(term)
    return tuple(p for p in params if p in there)


def _read(term: Any) -> frozenset[str]:
    return frozenset(t.name for t in mentioned(term) if isinstance(t, (Relation, Function)))


def mentioned(term: Any) -> frozenset[Any]:
    """Every variable, set, relation and function that occurs in a term, a step's argument or a tuple of them."""
    if isinstance(term, tuple):
        return frozenset[Any]().union(*(mentioned(t) for t in term))
    if isinstance(term, (Element, IntVar, SetOf, Relation, Function)):
        return frozenset((term,))
    if not is_dataclass(term):
        return frozenset()
    return mentioned(tuple(getattr(term, f.name) for f in fields(term)))


def ways(plan: Plan, ground: Ground, now: World, scope: Scope) -> Iterator[Way]:
    """The ways of an operation that are possible in some state, reachable or not."""
    yield from _Walk(plan, ground, scope).on(0, TRUE, now, {}, {})


@dataclass(frozen=True, slots=True)
class Way:
    """An operation and its parameters, where it is possible, and what the world is afterwards."""

    operation: Operation
    values: Instance
    guard: Node
    after: World


@dataclass(frozen=True, slots=True)
class _Walk:
    plan: Plan
    ground: Ground
    scope: Scope

    def on(self, at: int, guard: Node, now: World, bound: dict[Param, int], env: dict[Param, Any]) -> Iterator[Way]:
        """From stop `at` on; `env` has the values of `bound` as the ground reading takes them."""
        for i, stop in enumerate(self.plan.stops[at:], at):
            if any(p not in bound for p in stop.needs):
                yield from self._bind(i, next(p for p in stop.needs if p not in bound), guard, now, bound, env)
                return
            inner = {p: self.ground.argument(a, env, now) for p, a in stop.arguments} if stop.step else env
            if stop.clause is not None:
                guard = self.ground.gates.both(guard, self.ground.holds(stop.clause.term, inner, now))
                if guard == FALSE:
                    return
            elif stop.step is not None:
                now = self.ground.act(stop.step.action, inner, now)
        yield Way(self.plan.operation, bound, guard, now)

    def _bind(
        self, at: int, param: Param, guard: Node, now: World, bound: dict[Param, int], env: dict[Param, Any]
    ) -> Iterator[Way]:
        for value in self.scope.values(param):
            given: Any = value
            if isinstance(param, SetOf):
                given = tuple(TRUE if x == value else FALSE for x in range(self.ground.sizes[param.sort]))
            yield from self.on(at, guard, now, {**bound, param: value}, {**env, param: given})


# Running -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Steps:
    """What some states lead to: codes `[K, M]`, and for each which state it comes from and by which way, `[M]`."""

    codes: Tensor
    rows: Tensor
    ways: Tensor


class Expander:
    """The ways of some operations over a scope, ready to run. `ways` are in the order of the numbers in `Steps.ways`.

    A successor's word is `(word & keep) | put | (extra & take)`, where `extra` is a word of computed bits that several
    ways share; `keep`, `put`, `take` and `extra` are `int64 [K, ways]`.
    """

    def __init__(self, codec: Codec, taken: Iterable[Operation], device: torch.device | str = "cpu") -> None:
        ground, now = codec.ground()
        plans = [plan(o) for o in taken]
        self.codec, self.device = codec, torch.device(device)
        self._turn = threading.Lock()
        self.ways = [way for each in plans for way in ways(each, ground, now, codec.scope)]
        lost = {n: ground.gates.both(w.guard, codec.lost(ground.gates, w.after)) for n, w in enumerate(self.ways)}
        self._checks = [n for n, node in lost.items() if node != FALSE]
        masks, computed = _masks(ground.gates, [codec.bits(ground.gates, w.after) for w in self.ways])
        self._keep, self._put, self._take, self._extra = (m.to(device) for m in masks)
        guards = [w.guard for w in self.ways]
        self._program = compiled(ground.gates, [*guards, *(lost[n] for n in self._checks), *computed])

    def bytes_for(self, states: int, steps: int) -> int:
        """About what it takes to expand so many states, and to put so many steps into a set."""
        columns = self._program.outputs + self._program.scratch + WORD_BITS * self.codec.words
        return columns * states // 8 + (48 * self.codec.words + 128) * steps

    def __call__(self, codes: Tensor) -> Steps:
        """Everything that the states of codes `[K, N]` lead to. `Unsupported` when a value leaves its bits."""
        count = codes.shape[1]
        bits = columns(codes)
        width, many = bits.shape[1], len(self.ways)
        with self._turn:  # many small operations: two threads at once would only wait for the interpreter
            result = self._program.run(bits)
        possible = result[: many + len(self._checks)]
        possible &= within(count, width, self.device)
        for n, check in zip(self._checks, possible[many:], strict=True):
            if bool(check.any()):
                way = self.ways[n]
                raise Unsupported(f"a number leaves its bits in {way.operation.name} over scope {self.codec.scope}")
        extra = words(result[many + len(self._checks) :])
        numbers, rows = pairs(possible[:many])
        after = torch.empty((self.codec.words, rows.numel()), dtype=torch.int64, device=self.device)
        flat, size = extra.view(-1), extra.shape[-1]
        for k, to in enumerate(after.unbind(0)):
            torch.index_select(codes[k], 0, rows, out=to)
            to &= self._keep[k].index_select(0, numbers)
            to |= self._put[k].index_select(0, numbers)
            if flat.numel():
                places = self._extra[k].index_select(0, numbers).mul_(size).add_(rows)
                to |= flat.index_select(0, places).bitwise_and_(self._take[k].index_select(0, numbers))
        return Steps(after, rows, numbers)


def _masks(gates: Gates, ends: Sequence[Sequence[Node]]) -> tuple[list[Tensor], list[Node]]:
    """For the new bits of each way: `keep`, `put`, `take`, `extra` as in `Expander`; and 64 nodes an extra word."""
    count = gates.inputs // WORD_BITS
    keep, put, take, extra = ([[0] * len(ends) for _ in range(count)] for _ in range(4))
    shared: list[dict[int, Node]] = []
    for n, end in enumerate(ends):
        for k in range(count):
            needed: dict[int, Node] = {}
            for bit, node in enumerate(end[k * WORD_BITS : (k + 1) * WORD_BITS]):
                if node == TRUE:
                    put[k][n] |= 1 << bit
                elif node == gates.input(k * WORD_BITS + bit):
                    keep[k][n] |= 1 << bit
                elif node != FALSE:
                    needed[bit] = node
            if needed:
                extra[k][n] = _share(shared, needed)
                take[k][n] = sum(1 << bit for bit in needed)
    tables = [
        torch.tensor([[signed(m) for m in row] for row in t], dtype=torch.int64) for t in (keep, put, take, extra)
    ]
    return tables, [word.get(bit, FALSE) for word in shared for bit in range(WORD_BITS)]


def _share(shared: list[dict[int, Node]], needed: dict[int, Node]) -> int:
    """The number of the first word that has these bits or room for them."""
    for number, word in enumerate(shared):
        if all(word.get(bit, node) == node for bit, node in needed.items()):
            word.update(needed)
            return number
    shared.append(dict(needed))
    return len(shared) - 1
