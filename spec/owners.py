"""Who can own what, read off the law: pools and their owners, holders, and the events that move a unit between them.

Nothing is listed here. A *pool* is a sort of which some invariant says that no element leaks: each one is in one of
several relations, and these are its owners. A *life* is a sort whose elements are held by one of several others, each
at most one at a time. An event *moves* an element from the relation that loses it to the one that gains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from freehold.spec.concrete import State
from freehold.spec.language import Action, Law
from freehold.spec.terms import And, Atom, Change, Element, Formula, Or, Quantified, Relation, Same, Sort


@dataclass(frozen=True, slots=True)
class Kept:
    """A sort whose elements change hands: the relations that say who has one. `pool`: someone must have each."""

    sort: Sort
    owners: tuple[Relation, ...]
    pool: bool


@dataclass(frozen=True, slots=True)
class Move:
    """An event takes an element from one owner to another; None is nobody."""

    event: str
    source: Relation | None
    target: Relation | None


def pools(law: Law) -> tuple[Kept, ...]:
    """The sorts of which no element may leak, with the owners that the invariants name."""
    owners: dict[Sort, list[Relation]] = {}
    for invariant in law.invariants.values():
        match invariant.term:
            case Quantified("forall", (unit,), Or() as body):
                known = owners.setdefault(type(unit), [])
                known += [r for r in _owners(body, unit) if all(r is not k for k in known)]
    return tuple(Kept(sort, tuple(owners[sort]), pool=True) for sort in law.sorts if owners.get(sort))


def lives(law: Law) -> tuple[Kept, ...]:
    """The sorts that are no pool and whose elements are held by one of several others."""
    taken = {k.sort for k in pools(law)}
    found = ((s, holders(law, s)) for s in law.sorts if s not in taken)
    return tuple(Kept(sort, relations, pool=False) for sort, relations in found if len(relations) > 1)


def kept(law: Law) -> tuple[Kept, ...]:
    """Pools and lives."""
    return (*pools(law), *lives(law))


def holders(law: Law, sort: Sort) -> tuple[Relation, ...]:
    """The relations in which at most one element of another sort has an element of this one."""
    found: list[Relation] = []
    for invariant in law.invariants.values():
        match invariant.term:
            case Quantified("forall", (x,), Quantified("lone", (y,), Atom(Relation() as of, (first, last)))):
                if type(x) is sort and last is x and first is y and type(y) is not sort:
                    found.append(of)
    return tuple(found)


def moves(law: Law, what: Kept) -> tuple[Move, ...]:
    """Every way in which an event moves an element of the sort, in the order of the law's text."""
    found: list[Move] = []
    for action in law.actions.values():
        for move in _moves(action, what):
            if move not in found:
                found.append(move)
    return tuple(found)


def _moves(action: Action, what: Kept) -> Iterator[Move]:
    changes = [u for u in action.updates if isinstance(u, Change) and any(u.of is r for r in what.owners)]
    lost = [(_subject(c, what.sort), c.of) for c in changes if not c.gains]
    gained = [(_subject(c, what.sort), c.of) for c in changes if c.gains]
    whence, whither = {key for key, _ in lost}, {key for key, _ in gained}
    for key, source in lost:  # what is said of other elements, or in other words, goes to whatever gains is left
        targets = [t for k, t in gained if (k == key if key in whither else k not in whence)]
        yield from (Move(action.name, source, target) for target in targets or (None,))
    if whence <= whither:
        yield from (Move(action.name, None, target) for key, target in gained if key not in whence)


def _subject(change: Change, sort: Sort) -> str:
    """Which elements of the sort a change is about, as a text that is the same for the same elements."""
    element = change.args[-1] if isinstance(change.args[-1], sort) else change.args[0]
    if all(element is not v for v in change.bound):
        return element.name
    return f"{{{_shape(change.where, element)}}}"


def _shape(term: Formula, element: Element) -> str:
    match term:
        case Atom(of, args):
            return f"{of.name}({', '.join('_' if a is element else a.name for a in args)})"
        case And(parts):
            return " & ".join(_shape(p, element) for p in parts)
        case Same(left, right):
            return " = ".join(sorted("_" if a is element else a.name for a in (left, right)))
    return type(term).__name__


def _owners(term: Formula, unit: Element) -> list[Relation]:
    """The relations of a positive statement about the unit; none where a part says anything else."""
    match term:
        case Atom(Relation() as of, args):
            return [of] if any(a is unit for a in args) else []
        case Or(parts):
            named = [_owners(p, unit) for p in parts]
            return [r for some in named for r in some] if all(named) else []
        case And(parts):
            return [r for p in parts for r in _owners(p, unit)]
        case Quantified("exists", _, body):
            return _owners(body, unit)
    return []


@dataclass(frozen=True, slots=True)
class Handed:
    """A unit that changed hands, in words: `page 2`, `free`, `record 0 (request 1)`."""

    unit: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.unit}: {self.before} -> {self.after}"


class Owners:
    """The owners of a law's units in states, in words."""

    def __init__(self, law: Law) -> None:
        self.kept = kept(law)
        self._holders = {sort: holders(law, sort) for sort in law.sorts}

    def of(self, what: Kept, unit: Any, state: State) -> tuple[str, ...]:
        """Who has a unit: `free`, `record 0 (request 1)`."""
        return tuple(self._owner(what, relation, row, state) for relation, row in _rows(what, unit, state))

    def changed(self, before: State, after: State) -> tuple[Handed, ...]:
        """The units with another owner than before, in the order of the law's sorts."""
        found = []
        for what in self.kept:
            for unit in before.universe[what.sort]:
                if _rows(what, unit, before) != _rows(what, unit, after):
                    old, new = (" and ".join(self.of(what, unit, s)) or "nobody" for s in (before, after))
                    found.append(Handed(_named(what.sort, unit), old, new))
        return tuple(found)

    def odd(self, state: State) -> tuple[str, ...]:
        """The units with two owners, or with none where someone must have them."""
        found = []
        for what in self.kept:
            for unit in state.universe[what.sort]:
                owners = self.of(what, unit, state)
                if len(owners) > 1:
                    found.append(f"{_named(what.sort, unit)} has {len(owners)} owners: {', '.join(owners)}")
                elif not owners and what.pool:
                    found.append(f"{_named(what.sort, unit)} has no owner")
        return tuple(found)

    def _owner(self, what: Kept, relation: Relation, row: tuple[Any, ...], state: State) -> str:
        if len(row) == 1:
            return " ".join(w for w in relation.name.split("_") if w != what.sort.__name__.lower())
        twins = [r for r in what.owners if r.sorts == relation.sorts]
        owner = self._name(relation.sorts[0], row[0], state)
        return f"{owner} by {relation.name}" if len(twins) > 1 else owner

    def _name(self, sort: Sort, element: Any, state: State) -> str:
        """`record 0 (request 1)`: an element with the one that holds it, if another does."""
        relations = (
            (r, row[0])
            for r in self._holders[sort]
            for row in sorted(state.relations[r.name], key=str)
            if row[1] == element
        )
        by = [_named(r.sorts[0], first) for r, first in relations]
        return f"{_named(sort, element)} ({', '.join(by)})" if by else _named(sort, element)


def _rows(what: Kept, unit: Any, state: State) -> list[tuple[Relation, tuple[Any, ...]]]:
    """The tuples that give the unit an owner."""
    return [
        (relation, row)
        for relation in what.owners
        for row in sorted(state.relations[relation.name], key=str)
        if row[-1] == unit
    ]


def _named(sort: Sort, element: Any) -> str:
    return f"{sort.__name__.lower()} {element}"
