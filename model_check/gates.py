"""Circuits: Boolean functions of the bits of a state, shared as far as they agree, and run on 64 states a word.

A node is a number: 0 is false, 1 is true, then the inputs, then what was built. Nodes that are built from the same
parts are one node, and the few laws of Boolean algebra below fold constants away, so a condition that a scope decides
costs nothing. Integers are small decision trees: a leaf is a number, an inner node asks one bit. That makes every
operation on integers exact, whatever it is, as long as the integers take few values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

Node: TypeAlias = int
Tree: TypeAlias = "int | tuple[Node, Tree, Tree]"
"""A number, or a node with the tree where it is true and the tree where it is false."""

FALSE, TRUE = 0, 1
AND, OR, NOT, INPUT = "and", "or", "not", "input"


class Gates:
    """Nodes over `inputs` bits."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self._gates: list[tuple[str, Node, Node]] = [(INPUT, 0, 0)] * (2 + inputs)
        self._known: dict[tuple[str, Node, Node], Node] = {}

    def input(self, number: int) -> Node:
        return 2 + number

    def gate(self, node: Node) -> tuple[str, Node, Node]:
        """What a node is made of; the last place is void for `not`, both are for inputs and constants."""
        return self._gates[node]

    def both(self, a: Node, b: Node) -> Node:
        return self._join(AND, OR, TRUE, FALSE, a, b)

    def either(self, a: Node, b: Node) -> Node:
        return self._join(OR, AND, FALSE, TRUE, a, b)

    def negate(self, a: Node) -> Node:
        if a <= TRUE:
            return 1 - a
        kind, x, _ = self._gates[a]
        return x if kind == NOT else self._make(NOT, a, a)

    def choose(self, on: Node, a: Node, b: Node) -> Node:
        """`a` where `on` is true, `b` elsewhere."""
        if a == b:
            return a
        return self.either(self.both(on, a), self.both(self.negate(on), b))

    def every(self, nodes: Iterable[Node]) -> Node:
        """Conjunction; stops to ask for nodes at the first that is false."""
        all_ = TRUE
        for node in nodes:
            all_ = self.both(all_, node)
            if all_ == FALSE:
                break
        return all_

    def some(self, nodes: Iterable[Node]) -> Node:
        """Disjunction; stops to ask for nodes at the first that is true."""
        any_ = FALSE
        for node in nodes:
            any_ = self.either(any_, node)
            if any_ == TRUE:
                break
        return any_

    def _join(self, kind: str, dual: str, neutral: Node, absorbing: Node, a: Node, b: Node) -> Node:
        if absorbing in (a, b):
            return absorbing
        if a in (neutral, b):
            return b
        if b == neutral:
            return a
        for here, other in ((a, b), (b, a)):
            how, x, y = self._gates[other]
            if how == NOT:
                if x == here:
                    return absorbing
                inner, u, v = self._gates[x]
                if inner == dual and here in (u, v):  # a & ~(a | v) is false
                    return absorbing
                if inner == kind and here in (u, v):  # a & ~(a & v) is a & ~v
                    return self._join(kind, dual, neutral, absorbing, here, self.negate(v if here == u else u))
            elif how == kind:
                if here in (x, y):
                    return other
                if self.negate(here) in (x, y):
                    return absorbing
            elif how == dual:
                if here in (x, y):
                    return here
                opposite = self.negate(here)
                if opposite in (x, y):  # a & (~a | v) is a & v
                    return self._join(kind, dual, neutral, absorbing, here, y if opposite == x else x)
        return self._make(kind, min(a, b), max(a, b))

    def _make(self, kind: str, a: Node, b: Node) -> Node:
        key = (kind, a, b)
        node = self._known.get(key)
        if node is None:
            node = self._known[key] = len(self._gates)
            self._gates.append(key)
        return node

    # Integers --------------------------------------------------------------------------------------------------------

    def natural(self, bits: Sequence[Node], value: int = 0) -> Tree:
        """The number with these binary digits, the lowest first."""
        if not bits:
            return value
        here = 1 << len(bits) - 1
        return branch(bits[-1], self.natural(bits[:-1], value + here), self.natural(bits[:-1], value))

    def where(self, tree: Tree, true: Callable[[int], bool]) -> Node:
        """Where a number is one of those that `true` accepts."""
        if isinstance(tree, int):
            return TRUE if true(tree) else FALSE
        on, high, low = tree
        return self.choose(on, self.where(high, true), self.where(low, true))


def branch(on: Node, high: Tree, low: Tree) -> Tree:
    """`high` where `on` is true, `low` elsewhere."""
    if on <= TRUE:
        return high if on == TRUE else low
    return high if high == low else (on, high, low)


def combine(operate: Callable[[int, int], int], a: Tree, b: Tree) -> Tree:
    """An operation on two numbers; the two trees are read by turns, so comparisons end at the highest digits."""

    def meet(x: Tree, y: Tree, turned: bool, known: Mapping[Node, bool]) -> Tree:
        while not isinstance(x, int) and x[0] in known:
            x = x[1] if known[x[0]] else x[2]
        if isinstance(x, int):
            if isinstance(y, int):
                return operate(y, x) if turned else operate(x, y)
            return meet(y, x, not turned, known)
        on, high, low = x
        return branch(
            on, meet(y, high, not turned, {**known, on: True}), meet(y, low, not turned, {**known, on: False})
        )

    return meet(a, b, turned=False, known={})


# Running -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Program:
    """A circuit's outputs as straight-line code over registers, each of which holds one bit of many states.

    Registers are counted from the inputs (`inputs`, those that `reads` names), over `scratch` of the program's own, to
    one for each output. `steps` are `(kind, a, b, to)`; `copies` are what is left to do for outputs, `(from, to)`, that
    are inputs or come twice; `constants` are outputs that are the same for all states, `(to, value)`.
    """

    reads: tuple[int, ...]
    scratch: int
    outputs: int
    steps: tuple[tuple[str, int, int, int], ...]
    copies: tuple[tuple[int, int], ...]
    constants: tuple[tuple[int, bool], ...]

    def run(self, bits: torch.Tensor) -> torch.Tensor:
        """Outputs `int64 [outputs, W]` for inputs `int64 [inputs, W]`; each bit of a word is a state of its own."""
        own = torch.empty((self.scratch, bits.shape[1]), dtype=torch.int64, device=bits.device)
        result = torch.empty((self.outputs, bits.shape[1]), dtype=torch.int64, device=bits.device)
        at = [*(bits[i] for i in self.reads), *own.unbind(0), *result.unbind(0)]
        both, either, negate = torch.bitwise_and, torch.bitwise_or, torch.bitwise_not
        for kind, a, b, to in self.steps:
            if kind == AND:
                both(at[a], at[b], out=at[to])
            elif kind == OR:
                either(at[a], at[b], out=at[to])
            else:
                negate(at[a], out=at[to])
        for a, to in self.copies:
            at[to].copy_(at[a])
        for to, value in self.constants:
            at[to].fill_(-1 if value else 0)
        return result


def compiled(gates: Gates, outputs: Sequence[Node]) -> Program:
    """A program for some nodes. A register of its own is used again as soon as nothing needs what is in it."""
    order, uses = _order(gates, outputs)
    reads = tuple(n - 2 for n in order if gates.gate(n)[0] == INPUT)
    homes = {n: ("in", i) for i, n in enumerate(n for n in order if gates.gate(n)[0] == INPUT)}
    copies: list[tuple[tuple[str, int], tuple[str, int]]] = []
    for place, node in enumerate(outputs):
        if node in homes:
            copies.append((homes[node], ("out", place)))
        elif node > TRUE:
            homes[node] = ("out", place)
    steps: list[tuple[str, tuple[str, int], tuple[str, int], tuple[str, int]]] = []
    free, scratch = list[int](), 0
    for node in order:
        kind, a, b = gates.gate(node)
        if kind == INPUT:
            continue
        sources = (homes[a], homes[b])
        for source in {a, b}:
            uses[source] -= 1
            if uses[source] == 0 and homes[source][0] == "own":
                free.append(homes[source][1])
        if node not in homes:
            if not free:
                free, scratch = [scratch], scratch + 1
            homes[node] = ("own", free.pop())
        steps.append((kind, *sources, homes[node]))
    base = {"in": 0, "own": len(reads), "out": len(reads) + scratch}

    def register(home: tuple[str, int]) -> int:
        return base[home[0]] + home[1]

    return Program(
        reads, scratch, len(outputs),
        tuple((kind, register(a), register(b), register(to)) for kind, a, b, to in steps),
        tuple((register(a), register(to)) for a, to in copies),
        tuple((register(("out", i)), n == TRUE) for i, n in enumerate(outputs) if n <= TRUE),
    )  # fmt: skip


def _order(gates: Gates, outputs: Sequence[Node]) -> tuple[list[Node], dict[Node, int]]:
    """All nodes below some, parts before wholes, and by how many nodes each is used."""
    order, uses, seen = list[Node](), dict[Node, int](), set[Node]()
    for output in outputs:
        stack = [output]
        while stack:
            node = stack[-1]
            kind, a, b = gates.gate(node)
            parts = set() if kind == INPUT else {a, b}
            waiting = [p for p in parts if p not in seen]
            if node in seen or node <= TRUE or not waiting:
                stack.pop()
                if node > TRUE and node not in seen:
                    seen.add(node)
                    order.append(node)
                    for part in parts:
                        uses[part] = uses.get(part, 0) + 1
            else:
                stack += waiting
    return order, uses
