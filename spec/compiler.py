"""How a formula reads as straight-line Python: expressions over indexed sets, and loops that bind variables.

A binary relation is kept twice, by its first and by its second place, so that `no(Record, lambda k: locks(k, p))` is
one dictionary look-up. A quantifier ranges over the smallest relation that binds its variables; where only a
disjunction or an inner `exists` says where to look, it is taken part by part, or witness by witness. A whole sort is
run over only where nothing else is left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from freehold.spec.language import Law
from freehold.spec.terms import (
    And,
    Apply,
    Arith,
    Atom,
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
)

Names = Mapping[Param, str]
Open = dict[int, Element]
Way = tuple[list[str], Names]
EMPTY: frozenset[Any] = frozenset()


def flatten(term: Formula, negated: bool = False) -> list[Formula]:
    """The conjuncts of a formula, or of its negation."""
    match term:
        case Not(body):
            return flatten(body, not negated)
        case And(parts) if not negated:
            return [c for p in parts for c in flatten(p)]
        case Or(parts) if negated:
            return [c for p in parts for c in flatten(p, negated=True)]
    return [Not(term) if negated else term]


def symbols(term: object) -> set[str]:
    """The relations and functions that a formula mentions."""
    match term:
        case And(parts) | Or(parts):
            return {s for p in parts for s in symbols(p)}
        case Not(body) | Quantified(_, _, body):
            return symbols(body)
        case Compare(_, left, right) | Arith(_, left, right):
            return symbols(left) | symbols(right)
        case Atom(of) | Apply(of):
            return {of.name}
    return set()


def mentions(term: object, variables: Mapping[int, Any]) -> bool:
    """Whether a formula or a number speaks of one of the variables, which are given by identity."""
    match term:
        case Element() | IntVar():
            return id(term) in variables
        case And(parts) | Or(parts):
            return any(mentions(p, variables) for p in parts)
        case Not(body) | Quantified(_, _, body):
            return mentions(body, variables)
        case Same(left, right) | Compare(_, left, right) | Arith(_, left, right):
            return mentions(left, variables) or mentions(right, variables)
        case Atom(of, args):
            return id(of) in variables or any(id(a) in variables for a in args)
        case Apply(_, arg):
            return id(arg) in variables
    return False


def generator(parts: Sequence[str]) -> str:
    """The clauses of a comprehension, which starts with a `for` even where nothing is bound."""
    return " ".join(parts if parts and parts[0].startswith("for") else ["for _ in (None,)", *parts])


class Compiler:
    """Turns terms into Python expressions; `names` gives the Python name of each variable in sight."""

    def __init__(self, law: Law, constants: Mapping[str, int]) -> None:
        self.law = law
        self.constants = constants
        self._fresh = 0

    def number(self, term: Int, names: Names) -> str:
        match term:
            case Literal_(value):
                return str(value)
            case Constant(name):
                return str(self.constants[name])
            case IntVar():
                return names[term]
            case Apply(of, arg):
                return f"{of.name}_fn.get({names[arg]}, 0)"
            case Arith(op, left, right):
                a, b = self.number(left, names), self.number(right, names)
                return f"{op}({a}, {b})" if op in ("min", "max") else f"({a} {op} {b})"
        raise TypeError(term)

    def formula(self, term: Formula, names: Names) -> str:
        match term:
            case And(parts):
                return "(" + (" and ".join(self.formula(p, names) for p in parts) or "True") + ")"
            case Or(parts):
                return "(" + (" or ".join(self.formula(p, names) for p in parts) or "False") + ")"
            case Not(body):
                return f"(not {self.formula(body, names)})"
            case Same(left, right):
                return f"({names[left]} == {names[right]})"
            case Compare(op, left, right):
                return f"({self.number(left, names)} {op} {self.number(right, names)})"
            case Atom(SetOf() as of, (arg,)):
                return f"({names[arg]} in {names[of]})"
            case Atom(of, (arg,)):
                return f"({names[arg]} in {of.name})"
            case Atom(of, (first, second)):
                return f"({names[second]} in {of.name}_by_first.get({names[first]}, EMPTY))"
            case Quantified(kind, bound, body):
                return self._quantified(kind, bound, body, names)
        raise TypeError(term)

    def all(self, conjuncts: list[Formula], names: Names) -> str:
        """The conjunction; nothing for none."""
        return " and ".join(self.formula(c, names) for c in conjuncts)

    def _quantified(self, kind: str, bound: tuple[Element, ...], body: Formula, names: Names) -> str:
        if kind == "forall":
            return f"(not {self._some(bound, flatten(body, negated=True), names)})"
        if kind in ("exists", "no"):
            some = self.look_up(bound, body, names) or self._some(bound, flatten(body), names)
            return some if kind == "exists" else f"(not {some})"
        ((parts, _),) = self.loops(bound, flatten(body), names, repeats=False)
        return f"(sum(1 {generator(parts)}) {'<=' if kind == 'lone' else '=='} 1)"

    def _some(self, bound: tuple[Element, ...], conjuncts: list[Formula], names: Names) -> str:
        ways = [f"any(True {generator(parts)})" for parts, _ in self.loops(bound, conjuncts, names)]
        return f"({' or '.join(ways)})" if len(ways) != 1 else ways[0]

    def look_up(self, bound: tuple[Element, ...], body: Formula, names: Names) -> str | None:
        """`exists x: rel(a, x)` is an entry in an index."""
        match body:
            case Atom(of, (a, b)) if len(bound) == 1:
                if b is bound[0] and a is not b:
                    return f"({names[a]} in {of.name}_by_first)"
                if a is bound[0] and a is not b:
                    return f"({names[b]} in {of.name}_by_second)"
        return None

    # Loops -----------------------------------------------------------------------------------------------------------

    def loops(
        self, bound: Sequence[Element], conjuncts: list[Formula], names: Names, repeats: bool = True
    ) -> list[Way]:
        """Ways through the values of `bound` for which all conjuncts hold: each a list of `for …` and `if …` clauses.

        With `repeats` a value may come more than once and in more than one way; without, there is one way.
        """
        return self._ways({id(v): v for v in bound}, list(conjuncts), dict(names), [], repeats)

    def _ways(
        self, open_: Open, rest: list[Formula], known: dict[Param, str], text: list[str], repeats: bool
    ) -> list[Way]:
        while True:
            ready = [c for c in rest if not mentions(c, open_)]
            text += [f"if {self.formula(c, known)}" for c in ready]
            rest = [c for c in rest if all(c is not r for r in ready)]
            if not open_:
                return [(text, known)]
            if repeats and not _narrow(rest, open_):
                some, either = _witnessed(rest, open_, known), _choice(rest, open_)
                if some is not None:
                    open_ |= {id(v): v for v in some.bound}
                    rest = [*(c for c in rest if c is not some), *flatten(some.body)]
                    continue
                if either is not None:
                    others = [c for c in rest if c is not either]
                    branches = [[*others, *flatten(p)] for p in either.parts]
                    return [w for b in branches for w in self._ways(dict(open_), b, dict(known), [*text], repeats)]
            inner = any(part.startswith("for") for part in text)
            text += [p for part in self._generator(rest, open_, known) for p in (_guarded(part) if inner else [part])]

    def _generator(self, rest: list[Formula], open_: Open, known: dict[Param, str]) -> list[str]:
        """A `for` or two that bind some open variables; leaves the conjuncts that it ranges over out of `rest`."""
        ranked = sorted((c for c in rest if isinstance(c, Atom)), key=lambda c: _cost(c, open_))
        for atom in ranked:
            free = [a for a in atom.args if id(a) in open_]
            if not free or len({id(a) for a in free}) != len(free):
                continue
            for a in free:
                known[a] = self._name(a)
                del open_[id(a)]
            if len(free) == 2:
                rest[:] = [c for c in rest if c is not atom]
                first, second = (known[a] for a in free)
                return [f"for {first}, _{first} in {atom.of.name}_by_first.items()", f"for {second} in _{first}"]
            if isinstance(atom.of, SetOf):
                rest[:] = [c for c in rest if c is not atom]
                return [f"for {known[free[0]]} in {known[atom.of]}"]
            # Other conjuncts that list the same variable's values: Python meets sets by the smaller one.
            same = [atom, *(c for c in ranked if c is not atom and _lists(c, free[0], open_))]
            rest[:] = [c for c in rest if all(c is not s for s in same)]
            values = dict.fromkeys(self._values(c, free[0], known) for c in same)
            return [f"for {known[free[0]]} in {' & '.join(values)}"]
        variable = next(iter(open_.values()))
        del open_[id(variable)]
        known[variable] = self._name(variable)
        return [f"for {known[variable]} in universe[{type(variable).__name__!r}]"]

    def _values(self, atom: Atom, variable: Element, known: Names) -> str:
        if len(atom.args) == 1:
            return str(atom.of.name)
        first, second = atom.args
        if variable is second:
            return f"{atom.of.name}_by_first.get({known[first]}, EMPTY)"
        return f"{atom.of.name}_by_second.get({known[second]}, EMPTY)"

    def _name(self, variable: Element) -> str:
        self._fresh += 1
        return f"{variable.name}_{self._fresh}"


def _guarded(part: str) -> list[str]:
    """An inner loop over an entry of an index: asking whether there is one costs less than a loop over nothing."""
    entry = re.fullmatch(r"(for \w+ in )(\w+)\.get\((\w+), EMPTY\)", part)
    return [f"if {entry[3]} in {entry[2]}", f"{entry[1]}{entry[2]}[{entry[3]}]"] if entry else [part]


def _cost(atom: Atom, open_: Open) -> int:
    free = sum(id(a) in open_ for a in atom.args)
    return 2 * free + (0 if isinstance(atom.of, SetOf) else 1)


def _lists(term: Formula, variable: Element, open_: Open) -> bool:
    """Whether a conjunct is a relation that gives the values of the variable alone."""
    if not isinstance(term, Atom) or isinstance(term.of, SetOf):
        return False
    return sum(a is variable for a in term.args) == 1 and not any(id(a) in open_ for a in term.args)


def _narrow(conjuncts: list[Formula], open_: Open) -> bool:
    """Whether one of them lists the few values that an open variable can have: an entry of an index, or a set."""
    atoms = [c for c in conjuncts if isinstance(c, Atom)]
    free = [(a, sum(id(x) in open_ for x in a.args)) for a in atoms]
    return any(n == 1 and (len(a.args) == 2 or isinstance(a.of, SetOf)) for a, n in free)


def _witnessed(rest: list[Formula], open_: Open, known: Names) -> Quantified | None:
    """An `exists` that shows where an open variable's values are to be found."""
    for c in rest:
        if isinstance(c, Quantified) and c.kind == "exists":
            fresh = all(id(v) not in open_ and v not in known for v in c.bound)
            if fresh and _narrow(flatten(c.body), open_ | {id(v): v for v in c.bound}):
                return c
    return None


def _choice(rest: list[Formula], open_: Open) -> Or | None:
    """A disjunction each part of which shows where an open variable's values are to be found."""
    ors = (c for c in rest if isinstance(c, Or))
    return next((c for c in ors if c.parts and all(_narrow(flatten(p), open_) for p in c.parts)), None)
