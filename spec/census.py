"""A census: how many units of a pool each kind of owner has, and who counts twice or not at all.

A balance sheet is a list of *entries* whose counts should add up to a total. The one that follows from the ownership
relations is right in every state that keeps the rules. Engines check such sums, too; a sum can be wrong where all is
well (an owner is forgotten, or counted twice) and right where it is not (a double owner makes up for a leak). So the
census also names the units: who is counted twice, and who is lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from freehold.spec import concrete
from freehold.spec.state import POOLS, Pool, Row, row_free, row_of
from freehold.spec.terms import Element, Formula, Relation, Sort, bind


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a balance sheet: it counts the ways to choose `bound` so that `where` holds; the last is the unit."""

    name: str
    bound: tuple[Element, ...]
    where: Formula

    def units(self, state: concrete.State) -> Counter[Any]:
        """How often each unit is counted."""
        found = (e for e in concrete.bindings(self.bound, state) if concrete.holds(self.where, e, state))
        return Counter(e[self.bound[-1]] for e in found)


def entry(name: str, *of: Any) -> Entry:
    """`entry("running", Request, Record, Page, lambda r, k, p: kv(r, k) & owns(k, p))`."""
    return Entry(name, *bind(of[:-1], of[-1]))


@dataclass(frozen=True, slots=True)
class Sheet:
    """A balance sheet: its entries should add up to the number of units, or to what another entry counts."""

    name: str
    unit: Sort
    entries: tuple[Entry, ...]
    total: Entry | None = None

    def count(self, state: concrete.State) -> Census:
        """The counts in a state, which may lack sorts, relations and functions: those are empty."""
        state = _whole(state)
        found = {e.name: e.units(state) for e in self.entries}
        units = state.universe[self.unit]
        wanted = Counter(units) if self.total is None else self.total.units(state)
        times = sum(found.values(), Counter[Any]())
        return Census(
            self.name,
            {name: c.total() for name, c in found.items()},
            wanted.total(),
            tuple(u for u in units if times[u] > max(1, wanted[u])),
            tuple(u for u in units if times[u] < wanted[u]),
        )


@dataclass(frozen=True, slots=True)
class Census:
    """Counts by entry, what they should add up to, the units that count more than once, and those that do not count."""

    name: str
    counts: Mapping[str, int]
    total: int
    doubled: tuple[Any, ...]
    lost: tuple[Any, ...]

    @property
    def balanced(self) -> bool:
        """The sum is right, which says nothing of each unit."""
        return sum(self.counts.values()) == self.total

    @property
    def sound(self) -> bool:
        """Each unit counts exactly once."""
        return not self.doubled and not self.lost

    def __str__(self) -> str:
        terms = " + ".join(f"{name} {n}" for name, n in self.counts.items() if n) or "nothing"
        sign = "=" if self.balanced else "≠"
        words = [f"{kind}: {', '.join(map(str, u))}" for kind, u in (("twice", self.doubled), ("lost", self.lost)) if u]
        return "; ".join([f"{self.name}: {terms} {sign} {self.total}", *words])


def _whole(state: concrete.State) -> concrete.State:
    return concrete.State(
        defaultdict(list, state.universe), state.constants,
        defaultdict(set, state.relations), defaultdict(dict, state.functions),
    )  # fmt: skip


def _counts(relation: Relation) -> Entry:
    write: dict[int, Callable[..., Formula]] = {1: lambda x: relation(x), 2: lambda a, x: relation(a, x)}
    return entry(relation.name, *relation.sorts, write[len(relation.sorts)])


def sheet(pool: Pool) -> Sheet:
    """The balance of a pool: free, held, and each kind of owner."""
    return Sheet(pool.name, pool.unit, tuple(map(_counts, (pool.free, pool.held, *pool.owners))))


SHEETS = (*map(sheet, POOLS), Sheet("row", Row, (_counts(row_free), _counts(row_of))))


def census(state: concrete.State, sheets: Sequence[Sheet] = SHEETS) -> tuple[Census, ...]:
    """The census of each pool of which the state has units."""
    return tuple(s.count(state) for s in sheets if state.universe.get(s.unit))
