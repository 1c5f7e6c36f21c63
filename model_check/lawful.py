"""Lawful steps and near misses: what the law allows and refuses where it gets to, and what a mutant makes of it.

A seeded walk collects reachable states of a small scope, some behind each operation at each depth. For an operation (or
an event as a step of its own) the steps of the law and of a mutant are then taken from all of these states, for all
parameters, and compared: a step that only one of them takes, or that leads both to different states. Since a mutant is
one small change, a step that only the mutant takes is a near miss: one that a single clause forbids.

This is a specification by example. It sees whatever the sampled states can show, but it is the law's own word: what
only the examples see is something that no invariant, contract or lost operation speaks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from freehold.model_check.codes import Codec, CodeSet
from freehold.model_check.killers import DIFFERENT, STRONGER, WEAKER, scope_of
from freehold.model_check.mutators import Mutant
from freehold.model_check.refute import CONSTANTS
from freehold.model_check.scopes import Scope
from freehold.model_check.successors import Grain, Instance, Plan, operations, plan, walk
from freehold.model_check.vector import Batch, Tensor, batch_of
from freehold.spec import concrete
from freehold.spec.language import Law, Operation

SIZES: Mapping[str, int] = {"Page": 4, "Row": 2, "Record": 2, "Request": 2, "Session": 1}
LEVELS: Mapping[Grain, int] = {Grain.OPERATIONS: 16, Grain.EVENTS: 24}
BEHIND = 32  # states that a level takes behind each operation


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one operation from all states of a corpus: sorted keys (instance and state), and what they lead to.

    `after` is a 64-bit fingerprint of the state behind the step; several steps never share a key.
    """

    keys: Tensor
    after: Tensor


@dataclass(slots=True)
class Corpus:
    """Reachable states of the law, between operations or between events, and the law's own steps from them."""

    law: Law
    grain: Grain
    seed: int = 0
    sizes: Mapping[str, int] = field(default_factory=lambda: SIZES)
    constants: Mapping[str, int] = field(default_factory=lambda: CONSTANTS)
    scope: Scope = field(init=False)
    states: Batch = field(init=False)
    names: frozenset[str] = field(init=False)
    _weights: dict[str, Tensor] = field(init=False)
    _marks: dict[str, Tensor] = field(init=False)
    _steps: dict[str, Steps] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.scope = Scope("examples", scope_of(self.law, self.sizes, 1), self.constants)
        draw = torch.Generator().manual_seed(self.seed)
        self.states, self.names = self._gather(draw)
        self._weights, self._marks = {}, {}
        for name in (*self.law.relations, *self.law.functions):
            column = self.states.column(name)
            shape = (*column.shape[:-1], 1)
            self._weights[name] = torch.randint(-(1 << 62), 1 << 62, shape, generator=draw, dtype=torch.int64)
            self._marks[name] = self._mark(name, column)

    def _gather(self, draw: torch.Generator) -> tuple[Batch, frozenset[str]]:
        """A walk in levels: each level takes up to `BEHIND` new states behind each operation of the one before."""
        codec = Codec(self.law, self.scope)
        known = CodeSet(codec.words)
        start = concrete.initial(self.law, self.scope.sizes, self.scope.constants)
        frontier = codec.pack(batch_of(self.law, [start]))
        known.add(frontier)
        plans = [plan(o) for o in operations(self.law, self.grain)]
        taken: set[str] = set()
        for _ in range(LEVELS[self.grain]):
            batch, new = codec.unpack(frontier), [frontier[:, :0]]
            for each in plans:
                codes = self._behind(codec, each, frontier, batch, draw)
                if codes.shape[1]:
                    taken.add(each.operation.name)
                    new.append(codes.index_select(1, known.add(codes))[:, :BEHIND])
            frontier = torch.cat(new, 1)
            if not frontier.shape[1]:
                break
        return codec.unpack(known.codes(0, known.count)), frozenset(taken)

    def _behind(self, codec: Codec, each: Plan, codes: Tensor, batch: Batch, draw: torch.Generator) -> Tensor:
        """Some successors by one operation: a few of each instance, then a few of all."""
        found = [codes[:, :0]]

        def note(_: Operation, __: Instance, after: Batch) -> None:
            some = torch.randperm(after.count, generator=draw)[:BEHIND]
            found.append(codec.repack(codes, after.select(some)))

        walk(each, batch, self.scope, note)
        every = torch.cat(found, 1)
        return every.index_select(1, torch.randperm(every.shape[1], generator=draw)[: 4 * BEHIND])

    # Comparing -------------------------------------------------------------------------------------------------------

    def compare(self, mutant: Mutant) -> tuple[str, ...]:
        """How the mutant's steps differ from the law's: weaker, stronger, different; empty when no example shows it."""
        found: set[str] = set()
        for operation in self._reached(mutant):
            lawful, mutated = self._base(operation.name), self.steps(operation)
            both, at = _where(lawful.keys, mutated.keys)
            if not bool(both.all()):
                found.add(WEAKER)
            if int(both.sum()) < lawful.keys.numel():
                found.add(STRONGER)
            if not torch.equal(mutated.after[both], lawful.after[at[both]]):
                found.add(DIFFERENT)
        return tuple(kind for kind in (WEAKER, STRONGER, DIFFERENT) if kind in found)

    def _reached(self, mutant: Mutant) -> Iterator[Operation]:
        if self.grain is Grain.OPERATIONS:
            yield from mutant.operations()
        elif mutant.of_action:
            yield next(o for o in operations(mutant.law, self.grain) if o.name == mutant.subject)

    def _base(self, name: str) -> Steps:
        if name not in self._steps:
            self._steps[name] = self.steps(next(o for o in operations(self.law, self.grain) if o.name == name))
        return self._steps[name]

    def steps(self, operation: Operation) -> Steps:
        """All steps of an operation from the states of the corpus."""
        keys = [torch.empty(0, dtype=torch.int64)]
        after = [torch.empty(0, dtype=torch.int64)]
        everyone = torch.arange(self.states.count)

        def note(_: Operation, instance: Instance, batch: Batch) -> None:
            rows = everyone if batch.rows is None else batch.rows
            keys.append(self._number(operation, instance) * self.states.count + rows)
            after.append(self._fingerprint(batch, rows))

        walk(plan(operation), self.states, self.scope, note)
        order = torch.cat(keys).argsort()
        return Steps(torch.cat(keys)[order], torch.cat(after)[order])

    def _number(self, operation: Operation, instance: Instance) -> int:
        number = 0
        for p in operation.params:
            number = number * len(self.scope.values(p)) + instance[p]
        return number

    def _fingerprint(self, batch: Batch, rows: Tensor) -> Tensor:
        """Equal for equal states; the columns that a step does not write are known."""
        total = torch.zeros(rows.numel(), dtype=torch.int64)
        for name in self._marks:
            total += self._mark(name, batch.column(name)) if name in batch.written else self._marks[name][rows]
        return total

    def _mark(self, name: str, column: Tensor) -> Tensor:
        return (column.to(torch.int64) * self._weights[name]).flatten(0, -2).sum(0)


def _where(lawful: Tensor, mutated: Tensor) -> tuple[Tensor, Tensor]:
    """Which mutated keys are lawful ones, and where those stand."""
    if not lawful.numel():
        return torch.zeros(mutated.numel(), dtype=torch.bool), torch.zeros(mutated.numel(), dtype=torch.int64)
    at = torch.searchsorted(lawful, mutated).clamp(max=lawful.numel() - 1)
    return lawful[at] == mutated, at


def missing(corpus: Corpus) -> tuple[str, ...]:
    """Operations (or events) that no state of the corpus allows."""
    return tuple(o.name for o in operations(corpus.law, corpus.grain) if o.name not in corpus.names)
