"""Propositional circuits: conjunctions of literals with equal ones shared, and their form as Z3 expressions.

A literal is a number, its negation the number with the last bit flipped; `TRUE` and `FALSE` are literals. A circuit
built with these few rules is already small: constants vanish, a conjunction of opposites is false, and what is written
twice is there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import z3

Bit = int
TRUE: Bit = 0
FALSE: Bit = 1


class Circuit:
    """Nodes in an order in which each one comes after its parts; node n has the literals 2n and 2n + 1."""

    def __init__(self) -> None:
        self._parts: list[tuple[Bit, ...] | None] = [()]  # None is an input, () the constant true
        self._known: dict[tuple[Bit, ...], Bit] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def input(self) -> Bit:
        """A fresh variable."""
        self._parts.append(None)
        return 2 * len(self._parts) - 2

    def conj(self, bits: Iterable[Bit]) -> Bit:
        """All of them."""
        parts = set(bits)
        parts.discard(TRUE)
        if not parts:
            return TRUE
        if FALSE in parts or any(b ^ 1 in parts for b in parts if b & 1):
            return FALSE
        if len(parts) == 1:
            return parts.pop()
        key = tuple(sorted(parts))
        found = self._known.get(key)
        if found is None:
            self._parts.append(key)
            found = self._known[key] = 2 * len(self._parts) - 2
        return found

    def disj(self, bits: Iterable[Bit]) -> Bit:
        """One of them at least."""
        return self.conj([b ^ 1 for b in bits]) ^ 1

    def same(self, left: Bit, right: Bit) -> Bit:
        """Both or neither."""
        return self.disj((self.conj((left, right)), self.conj((left ^ 1, right ^ 1))))

    def at_most_one(self, bits: Sequence[Bit]) -> Bit:
        """No two of them."""
        return self.conj(self.disj((a ^ 1, b ^ 1)) for i, a in enumerate(bits) for b in bits[:i])

    def expressions(self, roots: Sequence[Bit], inputs: dict[Bit, Any]) -> list[Any]:
        """The roots as Z3 expressions over the given ones for the inputs that they need."""
        needed = self._below(roots)
        made: dict[int, Any] = {0: z3.BoolVal(True)}
        for node in sorted(needed):
            parts = self._parts[node]
            if parts is None:
                made[node] = inputs[2 * node]
            elif parts:
                made[node] = z3.And([_signed(made, b) for b in parts])
        return [_signed(made, b) for b in roots]

    def _below(self, roots: Iterable[Bit]) -> set[int]:
        found, stack = set[int](), [b >> 1 for b in roots]
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack += [b >> 1 for b in self._parts[node] or ()]
        return found


def _signed(made: dict[int, Any], bit: Bit) -> Any:
    return z3.Not(made[bit >> 1]) if bit & 1 else made[bit >> 1]
