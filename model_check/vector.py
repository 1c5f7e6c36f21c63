"""Many states as PyTorch tensors, on the CPU or a GPU: where single states and packed codes meet.

A relation is a bool tensor of shape `[*sizes, N]` and a function an integer tensor `[size, N]`; the N states come
last, so that one tuple of a relation is one contiguous column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from freehold.spec.concrete import State
from freehold.spec.language import Law
from freehold.spec.terms import Sort

Tensor = torch.Tensor
Universe: TypeAlias = Mapping[Sort, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """`count` states: the sizes of their sorts, the law's constants, and a column for each relation and function."""

    sizes: Universe
    constants: Mapping[str, int]
    columns: Mapping[str, Tensor]
    count: int

    @property
    def device(self) -> torch.device:
        return next(iter(self.columns.values())).device

    def column(self, name: str) -> Tensor:
        """The tensor of a relation `[*sizes, count]` or function `[size, count]`; not to be changed in place."""
        return self.columns[name]

    def select(self, rows: Tensor) -> Batch:
        """The states at the given places `[M]`, in that order."""
        columns = {name: column.index_select(-1, rows) for name, column in self.columns.items()}
        return Batch(self.sizes, self.constants, columns, rows.numel())


def number_type(constants: Mapping[str, int]) -> torch.dtype:
    """Eight bits where every sum and product of lengths that the law can form fits in them."""
    return torch.int8 if 4 * sum(constants.values()) <= 127 else torch.int16


def every(mask: Tensor, over: int | tuple[int, ...]) -> Tensor:
    """`all`, as a minimum of bytes: over a leading axis that is a hundred times faster on the CPU."""
    return mask.view(torch.uint8).amin(over).view(torch.bool)


def some(mask: Tensor, over: int | tuple[int, ...]) -> Tensor:
    """`any`, as a maximum of bytes."""
    return mask.view(torch.uint8).amax(over).view(torch.bool)


def batch_of(law: Law, states: Sequence[State], device: torch.device | str = "cpu") -> Batch:
    """Concrete states, over elements 0, 1, … of each sort and one universe, as a batch."""
    sizes = {sort: len(elements) for sort, elements in states[0].universe.items()}
    constants = states[0].constants
    columns: dict[str, Tensor] = {}
    for name, relation in law.relations.items():
        column = np.zeros((*(sizes[s] for s in relation.sorts), len(states)), dtype=bool)
        for i, state in enumerate(states):
            for place in state.relations[name]:
                column[(*place, i)] = True
        columns[name] = torch.from_numpy(column).to(device)
    for name, function in law.functions.items():
        values = [[s.functions[name].get(x, 0) for s in states] for x in range(sizes[function.sort])]
        columns[name] = torch.tensor(values, dtype=number_type(constants), device=device)
    return Batch(sizes, constants, columns, len(states))


def state_of(law: Law, batch: Batch, i: int) -> State:
    """State `i` of a batch as a concrete state."""
    relations = {n: {tuple(t) for t in batch.column(n)[..., i].nonzero().tolist()} for n in law.relations}
    functions = {n: dict(enumerate(batch.column(n)[..., i].tolist())) for n in law.functions}
    universe: dict[Sort, list[Any]] = {sort: list(range(size)) for sort, size in batch.sizes.items()}
    return State(universe, dict(batch.constants), relations, functions)
