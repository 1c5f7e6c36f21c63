"""Lawful steps and near misses: what the law allows and refuses where it gets to, and what a mutant makes of it.

A seeded walk collects reachable states of a small scope, some behind each operation at each depth. For an operation (or
an event as a step of its own) the steps of the law and of a mutant are then taken from all of these states, for all
parameters, and compared: a step that only one of them takes, or that leads both to different states. Since a mutant is
one small change, a step that only the mutant takes is a near miss: one that a single clause forbids.

This is a specification by example. It sees whatever the sampled states can show, but it is the law's own word: what
only the examples see is something that no invariant, contract or lost operation speaks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from freehold.model_check.codes import Codec, CodeSet, mix
from freehold.model_check.killers import DIFFERENT, STRONGER, WEAKER
from freehold.model_check.mutators import Mutant
from freehold.model_check.scopes import Scope
from freehold.model_check.successors import Expander, Grain, Instance, operations
from freehold.model_check.vector import Tensor, batch_of
from freehold.spec import concrete
from freehold.spec.absent import likewise
from freehold.spec.errors import Unsupported
from freehold.spec.language import Action, Law, Operation


@dataclass(frozen=True, slots=True)
class Setting:
    """What an engine has: sizes by sort name, and constants. What is not named is empty, and the law is smaller."""

    name: str
    sizes: Mapping[str, int]
    numbers: Mapping[str, int]


_SIZES = {"Page": 4, "Row": 2, "Record": 2, "Request": 2, "Session": 1}
SETTINGS = (
    Setting(
        "no window",
        {**_SIZES, "StateSlot": 2, "HostPage": 2, "Loan": 2},
        {"page_size": 2, "row_width": 6, "window": 0, "namespaces": 2},
    ),
    Setting(
        "window",
        {**_SIZES, "SwaPage": 3, "StateSlot": 1, "Loan": 1},
        {"page_size": 2, "row_width": 7, "window": 2, "namespaces": 2},
    ),
    Setting(
        "host alone",
        {"Page": 2, "Row": 1, "Record": 1, "Request": 1, "HostPage": 2, "Loan": 1},
        {"page_size": 1, "row_width": 2, "window": 0, "namespaces": 2},
    ),
    Setting(
        "tombstones",
        {"Page": 3, "Row": 2, "Record": 2, "Request": 2, "SwaPage": 2},
        {"page_size": 1, "row_width": 2, "window": 1, "namespaces": 1},
    ),
    Setting("large pages", {**_SIZES, "Row": 1}, {"page_size": 4, "row_width": 14, "window": 0, "namespaces": 1}),
)
LEVELS: Mapping[Grain, int] = {Grain.OPERATIONS: 14, Grain.EVENTS: 28}
BEHIND = 16  # states that a level takes behind each operation


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one operation from all states of a corpus: sorted keys (instance and state), and what they lead to.

    `after` is a 64-bit fingerprint of the state behind the step; several steps never share a key.
    """

    keys: Tensor
    after: Tensor


NONE = Steps(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))


@dataclass(slots=True)
class Corpus:
    """Reachable states of the law, between operations or between events, and the law's own steps from them."""

    law: Law
    grain: Grain
    setting: Setting
    seed: int = 0
    codes: Tensor | None = None
    scope: Scope = field(init=False)
    codec: Codec = field(init=False)
    _steps: dict[str, Steps] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.scope = Scope(self.setting.name, self.setting.sizes, self.setting.numbers)
        self.law = self.scope.law(self.law)
        self.codec = Codec(self.law, self.scope)
        if self.codes is None:
            self.codes = self._gather(torch.Generator().manual_seed(self.seed))

    def _gather(self, draw: torch.Generator) -> Tensor:
        """A walk in levels: each level takes up to `BEHIND` new states behind each operation of the one before."""
        known = CodeSet(self.codec.words)
        start = concrete.initial(self.law, self.scope.sizes, self.scope.constants)
        frontier = self.codec.pack(batch_of(self.law, [start]))
        known.add(frontier)
        taken = operations(self.law, self.grain)
        expander = Expander(self.codec, taken)
        names = [o.name for o in taken]
        kind = torch.tensor([names.index(w.operation.name) for w in expander.ways])
        for _ in range(LEVELS[self.grain]):
            found, new = expander(frontier), [frontier[:, :0]]
            shuffled = torch.randperm(found.ways.numel(), generator=draw)
            kinds = kind[found.ways[shuffled]]
            for number in range(len(names)):
                some = shuffled[(kinds == number).nonzero().view(-1)[: 4 * BEHIND]]
                codes = found.codes.index_select(1, some)
                new.append(codes.index_select(1, known.add(codes))[:, :BEHIND])
            frontier = torch.cat(new, 1)
            if not frontier.shape[1]:
                break
        return known.codes(0, known.count).clone()

    # Comparing -------------------------------------------------------------------------------------------------------

    def compare(self, mutant: Mutant) -> tuple[str, ...]:
        """How the first operation that shows it differs: weaker, stronger, different; empty when no example does."""
        for name, operation in self._reached(mutant).items():
            found: set[str] = set()
            try:
                lawful, mutated = self._base(name), NONE if operation is None else self.steps(operation)
            except Unsupported:  # a number that no lawful step reaches
                return (DIFFERENT,)
            both, at = _where(lawful.keys, mutated.keys)
            if not bool(both.all()):
                found.add(WEAKER)
            if int(both.sum()) < lawful.keys.numel():
                found.add(STRONGER)
            if not torch.equal(mutated.after[both], lawful.after[at[both]]):
                found.add(DIFFERENT)
            if found:
                return tuple(kind for kind in (WEAKER, STRONGER, DIFFERENT) if kind in found)
        return ()

    def _reached(self, mutant: Mutant) -> dict[str, Operation | None]:
        """What takes the change, as it is in this setting; None where it can't happen at all."""
        reached = {o.name: o for o in mutant.operations()} if self.grain is Grain.OPERATIONS else {}
        names = tuple(reached) if self.grain is Grain.OPERATIONS else (mutant.subject,) if mutant.of_action else ()
        actions = {s.action.name: s.action for o in reached.values() for s in o.steps}
        if isinstance(mutant.item, Action):
            actions[mutant.subject] = mutant.item
        alone = Law("what takes the change", actions=actions, operations=reached)
        left = likewise(alone, mutant.base, self.law, self.setting.numbers)
        there = {o.name: o for o in operations(left, self.grain)}
        return {name: there.get(name) for name in names}

    def _base(self, name: str) -> Steps:
        if name not in self._steps:
            mine = next((o for o in operations(self.law, self.grain) if o.name == name), None)
            self._steps[name] = NONE if mine is None else self.steps(mine)
        return self._steps[name]

    def shown(self) -> frozenset[str]:
        """The operations that some state of this corpus allows."""
        return frozenset(o.name for o in operations(self.law, self.grain) if self._base(o.name).keys.numel())

    def steps(self, operation: Operation) -> Steps:
        """All steps of an operation from the states of the corpus."""
        assert self.codes is not None
        expander = Expander(self.codec, [operation])
        found = expander(self.codes)
        numbers = torch.tensor([self._number(operation, w.values) for w in expander.ways], dtype=torch.int64)
        keys = numbers[found.ways] * self.codes.shape[1] + found.rows
        order = keys.argsort()
        return Steps(keys[order], mix(found.codes)[order])

    def _number(self, operation: Operation, instance: Instance) -> int:
        number = 0
        for p in operation.params:
            number = number * len(self.scope.values(p)) + instance[p]
        return number


def _where(lawful: Tensor, mutated: Tensor) -> tuple[Tensor, Tensor]:
    """Which mutated keys are lawful ones, and where those stand."""
    if not lawful.numel():
        return torch.zeros(mutated.numel(), dtype=torch.bool), torch.zeros(mutated.numel(), dtype=torch.int64)
    at = torch.searchsorted(lawful, mutated).clamp(max=lawful.numel() - 1)
    return lawful[at] == mutated, at


def missing(law: Law, corpora: Iterable[Corpus]) -> frozenset[str]:
    """Operations (or events) of the law that no state of any of the corpora allows."""
    corpora = tuple(corpora)
    wanted = frozenset(o.name for o in operations(law, corpora[0].grain))
    return wanted.difference(*(c.shown() for c in corpora))
