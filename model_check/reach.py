"""The graph of a policy in a small scope: every state it reaches and every step between them, by the vector reading.

Requests and sessions keep their names, as fairness is owed to them. All other elements are interchangeable: a state is
stored with them in an order that depends on what is said of them, so that most states that differ only in names meet.
Values that nobody reads (`scheduling.STALE`) are forgotten. So a step of the graph stands for the same step under other
names; `follow` finds the one that a given state can take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from freehold.model_check.bits import columns, pairs
from freehold.model_check.bits import within as inside
from freehold.model_check.codes import Codec
from freehold.model_check.gates import compiled
from freehold.model_check.scopes import Scope
from freehold.model_check.steps import ReadingsDisagree
from freehold.model_check.successors import Expander, Way
from freehold.model_check.vector import Batch, Tensor, batch_of
from freehold.spec import concrete
from freehold.spec.absent import without
from freehold.spec.errors import InvalidInput
from freehold.spec.language import Clause, Law, Operation
from freehold.spec.scheduling import STALE, Group, Policy, joins, schedule
from freehold.spec.state import Request, Session
from freehold.spec.terms import Element, Formula, Int, Or, Param, Sort

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Label = tuple[int, tuple[int, ...]]
"""An operation by number, and the values of its parameters."""


CHUNK = 1 << 16
"""So many states are put in order at once."""


@dataclass(slots=True)
class Graph:
    """States by number, in the order of their distance from the beginning; steps as three columns.

    able: for each state, a bit for each fair group that can act in it.
    """

    law: Law
    scope: Scope
    groups: Sequence[Group]
    codec: Codec
    codes: Tensor
    depths: Numbers
    labels: list[Label]
    source: Numbers
    target: Numbers
    label: Numbers
    bits: Numbers = field(init=False)
    able: Numbers = field(init=False)
    operations: list[Operation] = field(init=False)
    fair: dict[tuple[Group, int | None], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.operations = list(self.law.operations.values())
        self.bits = np.array([self._bit_of(each) for each in self.labels], np.int64)
        self.able = np.zeros(self.count, np.int64)
        np.bitwise_or.at(self.able, self.source, self.bits[self.label])

    @property
    def count(self) -> int:
        return self.codes.shape[1]

    def _bit_of(self, label: Label) -> int:
        """A fair group's bit; fairness is owed to each request of its own where the group says so."""
        number, values = label
        group = self.groups[number]
        if not group.fair:
            return 0
        params = self.operations[number].params
        owed = next(v for p, v in zip(params, values, strict=True) if p.name == "r") if group.of_request else None
        return 1 << self.fair.setdefault((group, owed), len(self.fair))

    def bit(self, step: int) -> int:
        return int(self.bits[self.label[step]])

    def path_to(self, state: int) -> list[int]:
        """The steps from the beginning to a state, along which each is the first that was found."""
        path: list[int] = []
        while state:
            nearer = (self.target == state) & (self.depths[self.source] < self.depths[state])
            path.append(int(nearer.nonzero()[0][0]))
            state = int(self.source[path[-1]])
        return path[::-1]

    def where(self, term: Formula, of: Element) -> list[Mask]:
        """For each value of a formula's one variable, the states in which the formula holds."""
        return self._masks([(term, {of: n}) for n in range(self.scope.sizes[type(of).__name__])])

    def all_hold(self, term: Formula) -> bool:
        """Whether a closed formula is true in every state."""
        return bool(self._masks([(term, {})])[0].all())

    def _masks(self, questions: Sequence[tuple[Formula, Mapping[Param, Any]]]) -> list[Mask]:
        ground, now = self.codec.ground()
        program = compiled(ground.gates, [ground.holds(term, env, now) for term, env in questions])
        masks = np.zeros((len(questions), self.count), bool)
        for start in range(0, self.count, CHUNK):
            bits = columns(self.codes[:, start : start + CHUNK])
            there = inside(min(CHUNK, self.count - start), bits.shape[1], bits.device)
            numbers, rows = pairs(program.run(bits) & there)
            masks[numbers.numpy(), rows.numpy() + start] = True
        return list(masks)


def build(
    policy: Policy, scope: Scope, jobs: Sequence[tuple[int, int]], budget: int, leave_out: Sequence[Group] = ()
) -> Graph:
    """Every state that a policy reaches when each request has one of the `jobs`: prompt and output tokens.

    The constant `pool` comes from the scope's pages; operations of the groups in `leave_out`, which nobody owes, never
    happen. Raises InvalidInput when there are more than `budget` states, or a group to leave out is owed.
    """
    if any(group.fair for group in leave_out):
        raise InvalidInput(f"a search can't leave out what is owed: {', '.join(g for g in leave_out if g.fair)}")
    made = schedule(policy)
    pool = scope.constants["page_size"] * scope.sizes["Page"]
    within = replace(scope, constants={**scope.constants, "pool": pool})
    kept = {n: o for n, o in made.law.operations.items() if made.groups[n] not in leave_out}
    law = replace(made.law, operations=_with_jobs(kept, jobs))
    law = without(law, [s for s in law.sorts if s.__name__ not in scope.sizes])
    codec = Codec(law, within)
    growth = _Growth(codec, Expander(codec, law.operations.values()), list(law.operations))
    growth.put(canonical(codec, batch_of(law, [concrete.initial(law, within.sizes, within.constants)])), 0)
    low = depth = 0
    while low < len(growth.depths):
        if len(growth.depths) > budget:
            raise InvalidInput(f"{policy.name} has more than {budget:,} states in scope {scope}: take a smaller one")
        depth, high = depth + 1, len(growth.depths)
        growth.expand(low, high, depth)
        low = high
    return Graph(
        law, within, [made.groups[name] for name in law.operations], codec, growth.codes, np.array(growth.depths),
        list(growth.labels), *(np.concatenate(c) for c in (growth.source, growth.target, growth.label)),
    )  # fmt: skip


def _with_jobs(operations: Mapping[str, Operation], jobs: Sequence[tuple[int, int]]) -> dict[str, Operation]:
    """Who arrives has one of the jobs."""

    def limited(operation: Operation) -> Operation:
        joining = [s for s in operation.steps if s.action.name == joins.name]
        if not joining:
            return operation
        _, m, n = joining[0].args
        assert isinstance(m, Int)
        assert isinstance(n, Int)
        offered = Or(tuple((m == prompt) & (n == output) for prompt, output in jobs))
        return replace(operation, guard=(Clause("the job is one of the scope's", offered), *operation.guard))

    return {name: limited(o) for name, o in operations.items()}


@dataclass(slots=True)
class _Growth:
    """The graph while it grows, a level at a time."""

    codec: Codec
    expander: Expander
    operations: Sequence[str]
    numbers: dict[bytes, int] = field(default_factory=dict)
    depths: list[int] = field(default_factory=list)
    blocks: list[Tensor] = field(default_factory=list)
    labels: dict[Label, int] = field(default_factory=dict)
    source: list[Numbers] = field(default_factory=list)
    target: list[Numbers] = field(default_factory=list)
    label: list[Numbers] = field(default_factory=list)

    @property
    def codes(self) -> Tensor:
        return torch.cat(self.blocks, 1)

    def put(self, codes: Tensor, depth: int) -> Numbers:
        """The numbers of states by their codes `[K, M]`; new ones get the next numbers."""
        rows = np.ascontiguousarray(codes.T.numpy())
        numbers, new = np.empty(len(rows), np.int64), list[int]()
        for i, row in enumerate(rows):
            numbers[i] = self.numbers.setdefault(row.tobytes(), len(self.depths))
            if numbers[i] == len(self.depths):
                self.depths.append(depth)
                new.append(i)
        self.blocks.append(codes[:, new])
        return numbers

    def expand(self, low: int, high: int, depth: int) -> None:
        """All steps of the states in `[low, high)`, the states of one level."""
        self.blocks = [self.codes]
        known = np.array([self._label(way) for way in self.expander.ways], np.int64)
        for codes in torch.split(self.blocks[0][:, low:high], CHUNK, 1):
            found = self.expander(codes)
            self.source.append(found.rows.numpy() + low)
            self.label.append(known[found.ways.numpy()])
            low += codes.shape[1]
            for reached in torch.split(found.codes, CHUNK, 1):
                self.target.append(self.put(canonical(self.codec, self.codec.unpack(reached)), depth))

    def _label(self, way: Way) -> int:
        values = tuple(way.values[p] for p in way.operation.params)
        return self.labels.setdefault((self.operations.index(way.operation.name), values), len(self.labels))


# Names ---------------------------------------------------------------------------------------------------------------

NAMED: frozenset[Sort] = frozenset({Request, Session})
"""Sorts whose elements are told apart by their names."""


def canonical(codec: Codec, batch: Batch) -> Tensor:
    """Codes `[K, N]` of a batch, with stale values forgotten and the elements of nameless sorts in order."""
    law = codec.law
    columns = {name: batch.column(name) for name in codec.fields}
    for name, relation in STALE.items():
        if name in columns:
            columns[name] = ~columns[relation] * columns[name]
    settled = set(NAMED)
    nameless = [s for s in law.sorts if s not in NAMED]
    sorts = {n: r.sorts for n, r in law.relations.items()} | {n: (f.sort,) for n, f in law.functions.items()}

    def ties(sort: Sort) -> int:
        """How many relations tie it to what has a name."""
        return sum(sort in places and not NAMED.isdisjoint(places) for places in sorts.values())

    for sort in sorted(nameless, key=ties, reverse=True):
        order = _order(law, sort, settled, columns)
        for name, places in sorts.items():
            for place in (i for i, s in enumerate(places) if s is sort):
                columns[name] = _permuted(columns[name], place, order)
        settled.add(sort)
    return codec.pack(Batch(batch.sizes, batch.constants, columns, batch.count))


def _order(law: Law, sort: Sort, settled: set[Sort], columns: Mapping[str, Tensor]) -> Tensor:
    """The order `[size, N]` of a sort's elements by what is said of them and of elements that have their order."""
    said: list[Tensor] = []
    for name, relation in law.relations.items():
        if relation.sorts == (sort,):
            said.append(columns[name])
        elif sort in relation.sorts and relation.sorts != (sort, sort):
            place = relation.sorts.index(sort)
            if relation.sorts[1 - place] in settled:
                said += columns[name].movedim(place, 0).unbind(1)
    said += [columns[n] for n, f in law.functions.items() if f.sort is sort]
    order = torch.arange(said[0].shape[0]).unsqueeze(1).expand(said[0].shape)
    for column in said:  # the last one counts most
        moved = torch.gather(column, 0, order)
        order = torch.gather(order, 0, torch.argsort(moved.to(torch.int16), dim=0, stable=True))
    return order


def _permuted(column: Tensor, place: int, order: Tensor) -> Tensor:
    moved = column.movedim(place, 0)
    index = order.view(order.shape[0], *([1] * (moved.dim() - 2)), order.shape[1]).expand(moved.shape)
    return torch.gather(moved, 0, index).movedim(0, place)


def follow(graph: Graph, state: concrete.State, step: int) -> dict[Param, Any]:
    """The values with which a state takes a step of the graph, under its own names.

    Raises ReadingsDisagree when there are none.
    """
    number, values = graph.labels[int(graph.label[step])]
    operation, wanted = graph.operations[number], graph.codes[:, int(graph.target[step])]
    expander = Expander(graph.codec, graph.operations)
    steps = expander(graph.codec.pack(batch_of(graph.law, [state])))
    ends = canonical(graph.codec, graph.codec.unpack(steps.codes))
    named = {p: v for p, v in zip(operation.params, values, strict=True) if type(p) in NAMED}
    for i in (ends == wanted.unsqueeze(1)).all(0).nonzero().view(-1).tolist():
        way = expander.ways[int(steps.ways[i])]
        if way.operation.name == operation.name and all(way.values[p] == v for p, v in named.items()):
            return {p: way.values[p] for p in operation.params}
    raise ReadingsDisagree(f"no {operation.name} leads from the state to the one of the graph")
