"""All states of a small scope and the steps between them, for questions that no single state can answer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from freehold.model_check.bits import columns, pairs, within
from freehold.model_check.codes import Codec, CodeSet, mix
from freehold.model_check.counterexample import replay, retrace
from freehold.model_check.gates import compiled
from freehold.model_check.scopes import Scope
from freehold.model_check.steps import Taken
from freehold.model_check.successors import Expander, Grain
from freehold.model_check.vector import Tensor, batch_of
from freehold.spec import concrete
from freehold.spec.errors import Unsupported
from freehold.spec.language import Law
from freehold.spec.terms import Formula

CHUNK = 1 << 14


@dataclass(frozen=True, slots=True)
class Graph:
    """The reachable states by number, in the order of their distance from the start.

    `edges` holds numbers `int64 [3, M]`: where a step starts, where it ends, and which way of `expand` it takes.
    `parents` gives the number of the state that each was first reached from, -1 for the start.
    """

    law: Law
    codec: Codec
    expand: Expander
    codes: Tensor
    parents: Tensor
    edges: Tensor

    @property
    def count(self) -> int:
        return self.codes.shape[1]

    def where(self, term: Formula) -> Tensor:
        """In which states a formula holds, `bool [N]`."""
        ground, now = self.codec.ground()
        bits = columns(self.codes)
        found = compiled(ground.gates, [ground.holds(term, {}, now)]).run(bits)
        _, rows = pairs(found & within(self.count, bits.shape[1], self.codes.device))
        return torch.zeros(self.count, dtype=torch.bool).index_fill_(0, rows, True)

    def steps(self, leave_out: Collection[str] = ()) -> Tensor:
        """Where the steps of all operations but some start and end, `int64 [2, M]`."""
        counts = torch.tensor([way.operation.name not in leave_out for way in self.expand.ways])
        return self.edges[:2, counts[self.edges[2]]]

    def path(self, number: int) -> list[int]:
        """A shortest path from the start to a state."""
        found = [number]
        while self.parents[found[-1]] >= 0:
            found.append(int(self.parents[found[-1]]))
        return found[::-1]

    def taken(self, path: list[int]) -> list[Taken]:
        """The operations along neighbouring states."""
        return retrace(self.expand, [self.codes[:, n : n + 1] for n in path], lambda codes: codes)

    def replayed(self, path: list[int]) -> tuple[tuple[Taken, ...], concrete.State]:
        """The steps of a path from the start with their events, and its last state, by the concrete reading."""
        return replay(self.law, self.codec, Grain.OPERATIONS, self.taken(path))


def graph(law: Law, scope: Scope, budget: int = 300_000) -> Graph:
    """Every state that a scope reaches. `Unsupported` when there are more than `budget`: a part answers nothing."""
    reduced = scope.law(law)
    codec = Codec(reduced, scope)
    expand, known = Expander(codec, reduced.operations.values()), CodeSet(codec.words)
    known.add(codec.pack(batch_of(reduced, [concrete.initial(reduced, scope.sizes, scope.constants)])))
    parents = [torch.full((1,), -1, dtype=torch.int64)]
    edges = [torch.empty((3, 0), dtype=torch.int64)]
    low, level = 0, 1
    while low < known.count:
        if known.count > budget:
            raise Unsupported(f"scope {scope.name} has more than {budget} states: choose a smaller one")
        high = min(level, low + CHUNK)  # never across two levels: the numbers are in the order of the distance
        found = expand(known.codes(low, high))
        hashes, origins = mix(found.codes), found.rows + low
        edges.append(torch.stack((origins, hashes, found.ways)))
        parents.append(origins[known.add(found.codes, hashes)])
        low, level = high, known.count if high == level else level
    codes, steps = known.codes(0, known.count), torch.cat(edges, 1)
    steps[1] = _numbers(steps[1], codes)
    return Graph(reduced, codec, expand, codes, torch.cat(parents), steps)


def _numbers(targets: Tensor, codes: Tensor) -> Tensor:
    """Hashes become numbers: every target is a known state, and no two states share a hash."""
    hashes, order = mix(codes).sort()
    if bool((hashes[1:] == hashes[:-1]).any()):
        raise Unsupported("two states share a 64-bit hash: change the scope by one element")
    return order[torch.searchsorted(hashes, targets)]


def can_reach(wanted: Tensor, steps: Tensor) -> Tensor:
    """From which states `bool [N]` a wanted one can be reached by the steps `int64 [2, M]`."""
    sources, targets = steps
    while True:
        more = wanted.clone()
        more[sources[wanted[targets]]] = True
        if bool((more == wanted).all()):
            return wanted
        wanted = more
