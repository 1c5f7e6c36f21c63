"""The finite reading: terms over a scope become propositional circuits, for a search by a plain SAT solver.

A relation is a bit for each tuple. An integer is a bit for each value that it can have, exactly one of which is true:
arithmetic on so few values is exact, and nothing is left for a theory. A quantifier is expanded; a parameter is a bit
for each element it can be, so an operation is read once, whatever its parameters are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from freehold.model_check.circuit import FALSE, TRUE, Bit, Circuit
from freehold.spec.language import Action, Argument, Comprehension, Law, Operation
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
    Literal_,
    Not,
    Or,
    Param,
    Quantified,
    Same,
    SetOf,
    Sort,
)

Number = Mapping[int, Bit]
Choice = int | tuple[Bit, ...]
"""An element: its number when it is known, else a bit for each number."""

_OPS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b,
    "min": min, "max": max,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    """One state: a bit for each tuple of a relation, a number for each element of a function's sort."""

    relations: Mapping[str, Mapping[tuple[int, ...], Bit]]
    functions: Mapping[str, tuple[Number, ...]]


class Finite:
    """Reads one law over a scope into a circuit."""

    def __init__(self, law: Law, circuit: Circuit, scope: Mapping[str, int], constants: Mapping[str, int]) -> None:
        self.law, self.circuit, self.constants = law, circuit, constants
        self.sizes: dict[Sort, int] = {s: scope[s.__name__] for s in law.sorts}

    def tuples(self, sorts: Sequence[Sort]) -> Iterable[tuple[int, ...]]:
        """All tuples of elements."""
        return itertools.product(*(range(self.sizes[s]) for s in sorts))

    # Terms -----------------------------------------------------------------------------------------------------------

    def formula(self, term: Formula, env: Mapping[Param, Any], now: Frame) -> Bit:
        """The bit of a formula in a state."""
        match term:
            case And(parts):
                return self._all(self.formula(p, env, now) for p in parts)
            case Or(parts):
                return self._all(self.formula(p, env, now) ^ 1 for p in parts) ^ 1
            case Not(body):
                return self.formula(body, env, now) ^ 1
            case Same(left, right):
                return self.equal(env[left], env[right])
            case Compare(op, left, right):
                return self._compare(op, self.number(left, env, now), self.number(right, env, now))
            case Atom(SetOf() as of, (arg,)):
                members = env[of]
                return self._pick([env[arg]], lambda index: members[index[0]])
            case Atom(of, args, False):
                bits = now.relations[of.name]
                return self._pick([env[a] for a in args], lambda index: bits[index])
            case Quantified(kind, bound, body):
                return self._quantified(kind, bound, lambda e: self.formula(body, {**env, **e}, now))
        raise TypeError(term)

    def number(self, term: Int, env: Mapping[Param, Any], now: Frame) -> Number:
        """The bits of an integer, one for each value that it can have."""
        match term:
            case Literal_(value):
                return {int(value): TRUE}
            case Constant(name):
                return {self.constants[name]: TRUE}
            case IntVar():
                found: Number = env[term]
                return found
            case Apply(of, arg, False):
                values, choice = now.functions[of.name], env[arg]
                if isinstance(choice, int):
                    return values[choice]
                return self._merge((v, (choice[i], b)) for i, number in enumerate(values) for v, b in number.items())
            case Arith(op, left, right):
                a, b = self.number(left, env, now), self.number(right, env, now)
                pairs = itertools.product(a.items(), b.items())
                return self._merge((_OPS[op](v, w), (x, y)) for (v, x), (w, y) in pairs)
        raise TypeError(term)

    def equal(self, left: Choice, right: Choice) -> Bit:
        """Whether two elements are the same one."""
        if isinstance(left, int) and isinstance(right, int):
            return TRUE if left == right else FALSE
        if isinstance(left, int) or isinstance(right, int):
            known, choice = (left, right) if isinstance(left, int) else (right, left)
            return choice[known]  # type: ignore[index]
        return self.circuit.disj(self.circuit.conj(pair) for pair in zip(left, right, strict=True))

    def _all(self, bits: Iterable[Bit]) -> Bit:
        found: list[Bit] = []
        for bit in bits:
            if bit == FALSE:
                return FALSE
            found.append(bit)
        return self.circuit.conj(found)

    def _pick(self, choices: Sequence[Choice], bit: Callable[[tuple[int, ...]], Bit]) -> Bit:
        """The bit at an index whose places are elements."""
        if all(isinstance(c, int) for c in choices):
            return bit(tuple(choices))  # type: ignore[arg-type]
        places = [((c, TRUE),) if isinstance(c, int) else tuple(enumerate(c)) for c in choices]
        hits = []
        for places_taken in itertools.product(*places):
            value = bit(tuple(i for i, _ in places_taken))
            if value != FALSE:
                hits.append(self.circuit.conj([value, *(b for _, b in places_taken)]))
        return self.circuit.disj(hits)

    def _merge(self, cases: Iterable[tuple[int, tuple[Bit, ...]]]) -> Number:
        """A number from its cases: a value, and the bits under which it is that."""
        ways: dict[int, list[Bit]] = {}
        for value, bits in cases:
            way = self.circuit.conj(bits)
            if way != FALSE:
                ways.setdefault(value, []).append(way)
        return {value: self.circuit.disj(some) for value, some in ways.items()}

    def _compare(self, op: str, left: Number, right: Number) -> Bit:
        fits = {"<": int.__lt__, "<=": int.__le__, "==": int.__eq__}[op]
        disj = self.circuit.disj
        return disj(self.circuit.conj((x, disj(y for w, y in right.items() if fits(v, w)))) for v, x in left.items())

    def _quantified(self, kind: str, bound: Sequence[Element], body: Callable[[Mapping[Param, Any]], Bit]) -> Bit:
        indices = self.tuples([type(v) for v in bound])
        bits = (body(dict(zip(bound, index, strict=True))) for index in indices)
        if kind == "forall":
            return self._all(bits)
        if kind in ("exists", "no"):
            none = self._all(b ^ 1 for b in bits)
            return none if kind == "no" else none ^ 1
        hits = list(bits)
        lone = self.circuit.at_most_one(hits)
        return lone if kind == "lone" else self.circuit.conj((lone, self.circuit.disj(hits)))

    # Events and operations -------------------------------------------------------------------------------------------

    def act(self, action: Action, env: Mapping[Param, Any], now: Frame) -> Frame:
        """The state after an event; its guard is not looked at."""
        relations, functions = dict(now.relations), dict(now.functions)
        for update in action.updates:
            match update:
                case Change(of):
                    relations[of.name] = self._changed(update, relations[of.name], env, now)
                case Assign(of, arg, value):
                    functions[of.name] = self._assigned(now.functions[of.name], env[arg], self.number(value, env, now))
        return Frame(relations, functions)

    def _changed(
        self, change: Change, old: Mapping[tuple[int, ...], Bit], env: Mapping[Param, Any], now: Frame
    ) -> Mapping[tuple[int, ...], Bit]:
        free, bits = frozenset(change.bound), dict(old)
        for index in self.tuples(change.of.sorts):
            places = list(zip(change.args, index, strict=True))
            fixed = self._all(self.equal(env[a], i) for a, i in places if a not in free)
            if fixed == FALSE:
                continue
            here: dict[Param, Any] = {**env, **{a: i for a, i in places if a in free}}
            hit = self.circuit.conj((fixed, self.formula(change.where, here, now)))
            before = bits[index]
            bits[index] = self.circuit.disj((before, hit)) if change.gains else self.circuit.conj((before, hit ^ 1))
        return bits

    def _assigned(self, old: tuple[Number, ...], arg: Choice, new: Number) -> tuple[Number, ...]:
        found = []
        for i, before in enumerate(old):
            hit = self.equal(arg, i)
            cases = [(v, (hit, b)) for v, b in new.items()] + [(v, (hit ^ 1, b)) for v, b in before.items()]
            found.append(self._merge(cases))
        return tuple(found)

    def operate(self, operation: Operation, env: Mapping[Param, Any], now: Frame) -> tuple[list[Bit], Frame]:
        """The guards of an operation along its steps, and the state at its end."""
        guards = [self.formula(c.term, env, now) for c in operation.guard]
        for step in operation.steps:
            values = zip(step.action.params, step.args, strict=True)
            inner = {p: self._argument(a, env, now) for p, a in values}
            guards += [self.formula(c.term, inner, now) for c in step.action.guard]
            now = self.act(step.action, inner, now)
        return guards, now

    def _argument(self, arg: Argument, env: Mapping[Param, Any], now: Frame) -> Any:
        match arg:
            case Comprehension(bound, where):
                return tuple(self.formula(where, {**env, bound: i}, now) for i in range(self.sizes[type(bound)]))
            case Int():
                return self.number(arg, env, now)
        return env[arg]
