"""Conditions that stay true until something speaks against them: which changes of the state can make a formula false.

`alive(k)` in the guard of every commit ranges over all pages of a record, and what it says changes once a page at most.
The monitor therefore remembers for which records such a condition was found true, and asks again only behind a change
that can have made it false: a fact is walked to with its sign, so the direction of the harmful change is known too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from freehold.spec.compiler import flatten, mentions
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
    Literal_,
    Not,
    Or,
    Param,
    Quantified,
    Relation,
)

Direction = Literal["gain", "lose", "up", "down"]
Way = int | tuple[int, str, Literal["first", "second"]] | None
FLIPPED: dict[Direction, Direction] = {"up": "down", "down": "up"}


@dataclass(frozen=True, slots=True)
class Harm:
    """A change that can make a standing condition of an element `x` false.

    symbol, direction: of the relation or function that changes. of: how to get from the changed fact to the elements
    concerned: the place of `x` in it; or the place of another element, and the relation and place in it that tie it to
    `x`; or None, where every element may be concerned.
    """

    symbol: str
    direction: Direction
    of: Way


def standing_subject(term: Formula, params: Sequence[Param], sorts: Sequence[str]) -> Element | None:
    """The one parameter that a `forall` speaks of, if it is an element of one of the sorts and no other is in it."""
    if not isinstance(term, Quantified) or term.kind != "forall":
        return None
    said = [p for p in params if mentions(term, {id(p): p})]
    if len(said) != 1 or not isinstance(said[0], Element) or type(said[0]).__name__ not in sorts:
        return None
    return said[0]


def harms(term: Quantified, subject: Element) -> list[Harm]:
    """Every change that can make the `forall` false.

    A fact without the subject matters only for elements that the subject is tied to by a positive conjunct of what
    would be a counterexample; a change that ties it to a new one is itself in the list.
    """
    facts = [c for c in flatten(term.body, negated=True) if isinstance(c, Atom)]
    ties = [c for c in facts if len(c.args) == 2 and sum(a is subject for a in c.args) == 1]
    found = [
        Harm(fact.of.name, direction, _way(fact, subject, ties))
        for direction, fact in _movers(term.body, helps=False)
    ]  # fmt: skip
    return list(dict.fromkeys(found))


def _way(fact: Atom | Apply, subject: Element, ties: list[Atom]) -> Way:
    args: tuple[Element, ...] = fact.args if isinstance(fact, Atom) else (fact.arg,)
    for place, arg in enumerate(args):
        if arg is subject:
            return place
    for tie in ties:
        for place, arg in enumerate(args):
            if any(arg is a for a in tie.args):
                return place, tie.of.name, "second" if tie.args[1] is arg else "first"
    return None


def _movers(term: Formula, helps: bool) -> Iterator[tuple[Direction, Atom | Apply]]:
    """The facts of a formula, each with the change that makes it true (`helps`), or false."""
    match term:
        case Atom(Relation()):
            yield "gain" if helps else "lose", term
        case Not(body):
            yield from _movers(body, not helps)
        case And(parts) | Or(parts):
            for part in parts:
                yield from _movers(part, helps)
        case Quantified("forall" | "exists", _, body):
            yield from _movers(body, helps)
        case Quantified("no", _, body):
            yield from _movers(body, not helps)
        case Quantified(_, _, body):
            yield from _movers(body, helps)
            yield from _movers(body, not helps)
        case Compare("<" | "<=", left, right):
            yield from _shifts(left, ("down",) if helps else ("up",))
            yield from _shifts(right, ("up",) if helps else ("down",))
        case Compare(_, left, right):
            yield from _shifts(left, ("up", "down"))
            yield from _shifts(right, ("up", "down"))


def _shifts(term: Int, wanted: tuple[Direction, ...]) -> Iterator[tuple[Direction, Apply]]:
    """The functions in a number, each with the change that moves the number as wanted."""
    match term:
        case Apply():
            yield from ((direction, term) for direction in wanted)
        case Arith("+" | "min" | "max", left, right):
            yield from _shifts(left, wanted)
            yield from _shifts(right, wanted)
        case Arith("-", left, right):
            yield from _shifts(left, wanted)
            yield from _shifts(right, tuple(FLIPPED[d] for d in wanted))
        case Arith("*" | "//", left, right) if _is_natural(right):
            yield from _shifts(left, wanted)
        case Arith(_, left, right):
            yield from _shifts(left, ("up", "down"))
            yield from _shifts(right, ("up", "down"))


def _is_natural(term: Int) -> bool:
    """A constant of the law is a size, and no size is negative."""
    return isinstance(term, Constant) or (isinstance(term, Literal_) and term.value >= 0)
