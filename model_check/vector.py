"""The vector reading: many states at once as torch tensors, on the CPU or a GPU, with the same code.

A relation is a bool tensor of shape `[*sizes, N]` and a function an integer tensor `[size, N]`; the N states come
last, so that one tuple of a relation is one contiguous column. Parameters are Python integers, so they pick a column
before anything is computed. Variables of quantifiers become axes on the left of N, the innermost one leftmost, and a
quantifier reduces its axes; terms that don't mention a variable broadcast over it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from freehold.spec.concrete import State
from freehold.spec.language import Action, Argument, Clause, Comprehension, Law, Operation
from freehold.spec.terms import (
    And,
    Apply,
    Arith,
    Assign,
    Atom,
    Change,
    Compare,
    Constant,
    Element,
    Formula,
    Int,
    IntVar,
    LawError,
    Literal_,
    Not,
    Or,
    Param,
    Quantified,
    Same,
    SetOf,
    Sort,
)

Tensor = torch.Tensor
Truth: TypeAlias = Tensor | bool
Number: TypeAlias = Tensor | int
Env: TypeAlias = Mapping[Param, Any]
Universe: TypeAlias = Mapping[Sort, int]


@dataclass(frozen=True, slots=True)
class Axis:
    """The value of a bound variable: all elements of its sort, along the axis `depth` places to the left of N."""

    depth: int


@dataclass(slots=True)
class Batch:
    """`count` states. `rows` selects states of `columns`, and a column is gathered when it is first read.

    `own` holds gathered and written columns; `written` names those that differ from the ones in `columns`.
    """

    sizes: Universe
    constants: Mapping[str, int]
    columns: Mapping[str, Tensor]
    count: int
    rows: Tensor | None = None
    own: dict[str, Tensor] = field(default_factory=dict)
    written: frozenset[str] = frozenset()

    @property
    def device(self) -> torch.device:
        return next(iter(self.columns.values())).device

    def column(self, name: str) -> Tensor:
        """The tensor of a relation `[*sizes, count]` or function `[size, count]`; not to be changed in place."""
        got = self.own.get(name)
        if got is None:
            got = self.columns[name]
            if self.rows is not None:
                got = self.own[name] = gather(got, self.rows)
        return got

    def select(self, rows: Tensor) -> Batch:
        """The states at the given places `[M]`, in that order."""
        return Batch(
            self.sizes,
            self.constants,
            self.columns,
            rows.numel(),
            rows if self.rows is None else self.rows.index_select(0, rows),
            {name: gather(self.own[name], rows) for name in self.written},
            self.written,
        )

    def write(self, columns: Mapping[str, Tensor]) -> Batch:
        """The same states with other columns in place of some."""
        own, written = {**self.own, **columns}, self.written | columns.keys()
        return Batch(self.sizes, self.constants, self.columns, self.count, self.rows, own, written)


def gather(column: Tensor, rows: Tensor) -> Tensor:
    """`column[..., rows]`. Many rows go one contiguous column at a time, several times faster than all at once."""
    if rows.numel() < 512:
        return column.index_select(-1, rows)
    flat = column.reshape(-1, column.shape[-1])
    out = torch.empty((flat.shape[0], rows.numel()), dtype=column.dtype, device=column.device)
    for source, target in zip(flat.unbind(0), out.unbind(0), strict=True):
        torch.index_select(source, 0, rows, out=target)
    return out.view(*column.shape[:-1], rows.numel())


def number_type(constants: Mapping[str, int]) -> torch.dtype:
    """Eight bits where every sum and product of lengths that the law can form fits in them."""
    return torch.int8 if 4 * sum(constants.values()) <= 127 else torch.int16


# Terms ---------------------------------------------------------------------------------------------------------------


def holds(term: Formula, env: Env, batch: Batch, depth: int = 0) -> Truth:
    """Where a formula is true: a bool tensor that broadcasts to `[*axes, count]`, or a bool when all states agree."""
    match term:
        case And(parts):
            return _connect(parts, env, batch, depth, neutral=True)
        case Or(parts):
            return _connect(parts, env, batch, depth, neutral=False)
        case Not(body):
            value = holds(body, env, batch, depth)
            return not value if isinstance(value, bool) else ~value
        case Same(left, right):
            return _same(left, right, env, batch)
        case Compare(op, left, right):
            a, b = number(left, env, batch), number(right, env, batch)
            return a < b if op == "<" else a <= b if op == "<=" else a == b
        case Atom(SetOf() as of, args):
            return aligned(env[of], [env[a] for a in args])
        case Atom(of, args, primed):
            if primed:
                raise LawError("the vector reading sees one state: contracts are not for it")
            return aligned(batch.column(of.name), [env[a] for a in args])
        case Quantified(kind, bound, body):
            here = _with_axes(env, bound, depth)
            axes = [batch.sizes[type(v)] for v in reversed(bound)]
            return _quantify(kind, holds(body, here, batch, depth + len(bound)), axes, depth)
    raise TypeError(term)


def number(term: Int, env: Env, batch: Batch) -> Number:
    """The values of an integer term: a tensor that broadcasts to `[*axes, count]`, or one integer for all states."""
    match term:
        case Literal_(value):
            return value
        case Constant(name):
            return batch.constants[name]
        case IntVar():
            value = env[term]
            return value if isinstance(value, Tensor) else int(value)
        case Apply(of, arg, primed):
            if primed:
                raise LawError("the vector reading sees one state: contracts are not for it")
            return aligned(batch.column(of.name), [env[arg]])
        case Arith(op, left, right):
            return _arith(op, number(left, env, batch), number(right, env, batch))
    raise TypeError(term)


def aligned(column: Tensor, places: Sequence[int | Axis]) -> Tensor:
    """A column tensor `[*sizes, N]` at the given places: fixed elements are gone, axes stand where their depth says.

    The result is a view, so it can be written through.
    """
    for dim in reversed(range(len(places))):
        place = places[dim]
        if isinstance(place, int):
            column = column.select(dim, place)
    depths = [p.depth for p in places if isinstance(p, Axis)]
    if len(depths) == 2 and depths[0] == depths[1]:
        column, depths = column.diagonal(0, 0, 1).movedim(-1, 0), depths[:1]
    elif len(depths) == 2 and depths[0] < depths[1]:
        column, depths = column.transpose(0, 1), depths[::-1]
    below = 0
    for depth in reversed(depths):
        for gap in range(below, depth):
            column = column.unsqueeze(-2 - gap)
        below = depth + 1
    return column


def _with_axes(env: Env, bound: Sequence[Element], depth: int) -> Env:
    axes: dict[Param, Any] = {v: Axis(depth + i) for i, v in enumerate(bound)}
    return {**env, **axes}


def _connect(parts: Sequence[Formula], env: Env, batch: Batch, depth: int, neutral: bool) -> Truth:
    """Conjunction (`neutral` is True) or disjunction; parts that all states agree on never become tensors."""
    value: Truth = neutral
    for part in parts:
        new = holds(part, env, batch, depth)
        if isinstance(new, bool):
            if new != neutral:
                return new
        elif isinstance(value, bool):
            value = new
        else:
            value = value & new if neutral else value | new
    return value


def _same(left: Element, right: Element, env: Env, batch: Batch) -> Truth:
    places = (env[left], env[right])
    if all(isinstance(p, int) for p in places):
        return bool(places[0] == places[1])
    identity = torch.eye(batch.sizes[type(left)], dtype=torch.bool, device=batch.device)
    return aligned(identity.unsqueeze(-1), places)


def _quantify(kind: str, body: Truth, axes: Sequence[int], depth: int) -> Truth:
    """Reduce the axes (sizes, the leftmost first) that lie beyond `depth`."""
    if isinstance(body, bool):
        count = body * math.prod(axes)
        return body if kind in ("forall", "exists") else count == 1 or (kind != "one" and count == 0)
    while body.dim() < len(axes) + depth + 1:
        body = body.unsqueeze(0)
    over = tuple(range(len(axes)))
    if kind in ("lone", "one"):
        counts = body.expand(*axes, *body.shape[len(axes) :]).sum(over, dtype=torch.int16)
        return counts <= 1 if kind == "lone" else counts == 1
    if kind == "forall":
        return every(body, over)
    return ~some(body, over) if kind == "no" else some(body, over)


def every(mask: Tensor, over: int | tuple[int, ...]) -> Tensor:
    """`all`, as a minimum of bytes: over a leading axis that is a hundred times faster on the CPU."""
    return mask.view(torch.uint8).amin(over).view(torch.bool)


def some(mask: Tensor, over: int | tuple[int, ...]) -> Tensor:
    """`any`, as a maximum of bytes."""
    return mask.view(torch.uint8).amax(over).view(torch.bool)


def _arith(op: str, a: Number, b: Number) -> Number:
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            if isinstance(a, Tensor) and isinstance(b, int) and b > 0 and b & (b - 1) == 0:
                return a >> (b.bit_length() - 1)  # an arithmetic shift is the floor, also below zero
            return a // b
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b) if op == "min" else max(a, b)
    if isinstance(a, int):
        a, b = b, a
    if isinstance(a, Tensor) and isinstance(b, int):
        return a.clamp(max=b) if op == "min" else a.clamp(min=b)
    choose = torch.minimum if op == "min" else torch.maximum
    return choose(torch.as_tensor(a), torch.as_tensor(b))


# Actions and operations ----------------------------------------------------------------------------------------------


def everywhere(value: Truth, batch: Batch) -> Tensor:
    """The value of a closed formula as a bool tensor `[count]`."""
    if isinstance(value, bool):
        return torch.full((batch.count,), value, dtype=torch.bool, device=batch.device)
    return value.expand(batch.count)


def enabled(guard: Sequence[Clause], env: Env, batch: Batch) -> Tensor:
    """Where every clause holds: bool `[count]`."""
    return everywhere(_connect([c.term for c in guard], env, batch, 0, neutral=True), batch)


def act(action: Action, env: Env, batch: Batch) -> Batch:
    """The states after an action; its guard is not looked at. Conditions and values read the old states."""
    new: dict[str, Tensor] = {}
    for update in action.updates:
        name = update.of.name
        if name not in new:
            new[name] = batch.column(name).clone()
        match update:
            case Change():
                _change(new[name], update, env, batch)
            case Assign(_, arg, value):
                amount = number(value, env, batch)
                target = aligned(new[name], [env[arg]])
                _ = target.copy_(amount) if isinstance(amount, Tensor) else target.fill_(amount)
    return batch.write(new)


def _change(column: Tensor, update: Change, env: Env, batch: Batch) -> None:
    here = _with_axes(env, update.bound, 0)
    hit = holds(update.where, here, batch, len(update.bound))
    target = aligned(column, [here[a] for a in update.args])
    if isinstance(hit, bool):
        if hit:
            target.fill_(update.gains)
    elif update.gains:
        target |= hit
    else:
        target &= ~hit


def argument(arg: Argument, env: Env, batch: Batch) -> Any:
    """A step's argument in the states just before the step: an element, a set `[size, count or 1]`, or a number."""
    match arg:
        case Comprehension(bound, where):
            size = batch.sizes[type(bound)]
            value = holds(where, {**env, bound: Axis(0)}, batch, 1)
            if isinstance(value, bool):
                return torch.full((size, 1), value, dtype=torch.bool, device=batch.device)
            return value.expand(size, value.shape[-1])
        case Int():
            return number(arg, env, batch)
    return env[arg]


def operate(operation: Operation, env: Env, batch: Batch) -> tuple[Tensor, Batch]:
    """Where the whole operation is possible (bool `[count]`), and the states at its end, void elsewhere."""
    possible = enabled(operation.guard, env, batch)
    for step in operation.steps:
        inner = {p: argument(a, env, batch) for p, a in zip(step.action.params, step.args, strict=True)}
        possible = possible & enabled(step.action.guard, inner, batch)
        batch = act(step.action, inner, batch)
    return possible, batch


# Single states -------------------------------------------------------------------------------------------------------


def singleton(index: int, size: int, device: torch.device) -> Tensor:
    """The value `[size, 1]` of a set parameter that holds one element in every state."""
    mask = torch.zeros((size, 1), dtype=torch.bool, device=device)
    mask[index] = True
    return mask


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
