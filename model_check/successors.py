"""All successors of many states: one walk through an operation's clauses and events for all its parameter values.

A parameter is bound when a clause or an event first needs it, and only the states that passed every clause before are
carried on. So a pair of parameters that no state allows costs one comparison, however many others follow it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any

from freehold.model_check.scopes import Scope
from freehold.model_check.vector import Batch, act, argument, enabled, singleton
from freehold.spec.language import Argument, Clause, Law, Operation, Step
from freehold.spec.terms import Element, Function, IntVar, Param, Relation, SetOf

Instance = Mapping[Param, int]
Emit = Callable[[Operation, Instance, Batch], None]


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


def walk(plan: Plan, batch: Batch, scope: Scope, emit: Emit) -> None:
    """Call `emit` with the states (never none) behind each instance that is possible somewhere in the batch."""
    _Walk(plan, scope, emit).on(0, batch, {}, {})


@dataclass(frozen=True, slots=True)
class _Walk:
    plan: Plan
    scope: Scope
    emit: Emit

    def on(self, at: int, batch: Batch, bound: dict[Param, int], env: dict[Param, Any]) -> None:
        """From stop `at` on; `env` has the values of `bound` as the vector reading takes them."""
        for i, stop in enumerate(self.plan.stops[at:], at):
            if any(p not in bound for p in stop.needs):
                self._bind(i, next(p for p in stop.needs if p not in bound), batch, bound, env)
                return
            inner = {p: argument(a, env, batch) for p, a in stop.arguments} if stop.step else env
            if stop.clause is not None:
                rows = enabled((stop.clause,), inner, batch).nonzero().view(-1)
                if rows.numel() == 0:
                    return
                if rows.numel() < batch.count:
                    batch = batch.select(rows)
            elif stop.step is not None:
                batch = act(stop.step.action, inner, batch)
        self.emit(self.plan.operation, bound, batch)

    def _bind(self, at: int, param: Param, batch: Batch, bound: dict[Param, int], env: dict[Param, Any]) -> None:
        for value in self.scope.values(param):
            given: Any = value
            if isinstance(param, SetOf):
                given = singleton(value, batch.sizes[param.sort], batch.device)
            self.on(at, batch, {**bound, param: value}, {**env, param: given})
