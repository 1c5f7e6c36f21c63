"""What a breach has damaged: units that two have or nobody, holders that share one, and the law state that is left.

Read from an `Observation`, so from the engine's structures: what events said is no evidence any more once a rule is
broken.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from freehold.impl.observe import Observation
from freehold.spec.concrete import State
from freehold.spec.language import Law
from freehold.spec.state import POOLS, Row, row_free, row_of
from freehold.spec.trace import Header, to_ranges
from freehold.spec.verdict import Verdict, sort_name

Units = Mapping[str, AbstractSet[int]]
"""Ids of units by the name of their pool: full, swa, state, host or row."""

_OWNERS: Mapping[str, tuple[str, ...]] = {
    **{pool.name: (pool.free.name, pool.held.name, *(r.name for r in pool.owners)) for pool in POOLS},
    "row": (row_free.name, row_of.name),
}
_SORTS = {**{pool.name: pool.unit for pool in POOLS}, "row": Row}
UNIT_NAMES = {name: sort_name(sort) for name, sort in _SORTS.items()}
"""What a unit of each pool is called: a `swa page` of the pool `swa`."""
_POOLS = {unit: name for name, unit in UNIT_NAMES.items()}
_UNIT = re.compile(rf"({'|'.join(sorted(_POOLS, key=len, reverse=True))}) (\d+)\b")


@dataclass(frozen=True, slots=True)
class Damage:
    """units: those that must not be given out any more.

    requests, sessions: names of those whose KV can't be trusted, as their records have a unit that somebody else has
    too, and either may have written over the other's KV, or one that is known to have wrong KV. tree: whether the
    prefix tree can't be trusted for such a reason; what is in it has to go once they are ended.
    """

    units: Units
    requests: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    tree: bool = False

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.units or self.requests or self.sessions or self.tree)

    def __str__(self) -> str:
        units = "; ".join(f"{name} {to_ranges(sorted(found))}" for name, found in self.units.items())
        holders = ", ".join((*self.requests, *self.sessions, *(["the prefix tree"] if self.tree else [])))
        return f"under quarantine: {units or 'nothing'}; not to be trusted: {holders or 'nobody'}"


def assess(
    seen: Observation, header: Header, verdict: Verdict, withheld: Units, suspects: Units | None = None
) -> Damage:
    """The damage that an observation shows, and the unit that the verdict is about.

    `withheld`: units that are under quarantine already, which are not named again. `suspects`: units with wrong KV,
    which is nobody's to trust; the units themselves may be written again.
    """
    units, shared = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
    for name, found in (suspects or {}).items():
        shared[name] |= found
    for name, owners in _OWNERS.items():
        if not any(owner in seen.relations for owner in owners):
            continue  # the observation says nothing of such units
        times, users = _times(seen, owners), _times(seen, owners[1:])
        everything = range(1, header.units[_SORTS[name].__name__] + 1)
        units[name] |= {unit for unit in times if times[unit] > 1} | {unit for unit in everything if unit not in times}
        shared[name] |= {unit for unit in users if users[unit] > 1}
    for sentence in seen.conflicts:
        for name, unit in _named(sentence):
            units[name].add(unit)
            if "free" not in sentence:
                shared[name].add(unit)
    if verdict.kind != "order":
        for name, unit in _named(verdict.unit):
            units[name].add(unit)
    news = {name: these - withheld.get(name, set()) for name, these in units.items()}
    records = set(_records_of(seen, shared))
    return Damage(
        {name: these for name, these in news.items() if these},
        _holders(seen, "kv", records),
        _holders(seen, "slot_kv", records),
        any(shared.values()),
    )


def law_state(seen: Observation, law: Law, before: State) -> State:
    """The observed state as the law has it, for a monitor to go on from.

    A unit that nobody has is in no pool any more, so that nobody misses it. What the engine's structures don't say (of
    states: how far each has come) is believed as it was in `before`; a tree page counts as written.
    """
    relations = {name: set(seen.relations.get(name, before.relations[name])) for name in law.relations}
    if "written" in relations:
        relations["written"] = set(relations["in_tree"])
    functions = {name: dict(seen.functions.get(name, before.functions[name])) for name in law.functions}
    universe: dict[Any, list[Any]] = {}
    for sort in law.sorts:
        pool = next((name for name, unit in _SORTS.items() if unit is sort), None)
        if pool is None:
            known = _spoken_of(sort, law, relations, functions)
        else:
            known = {t[-1] for owner in _OWNERS[pool] for t in relations.get(owner, ())}
        universe[sort] = sorted(known)
    return State(universe, before.constants, relations, functions)


def as_logged(seen: Observation) -> dict[str, Any]:
    """The observed state as the log's `observe` event has it: lists of tuples, and lists of pairs for functions."""
    relations = {name: sorted(map(list, tuples), key=str) for name, tuples in seen.relations.items()}
    functions = {name: [[key, int(value)] for key, value in f.items()] for name, f in seen.functions.items()}
    return {**relations, **functions, "conflicts": list(seen.conflicts)}


def _times(seen: Observation, owners: Iterable[str]) -> Counter[int]:
    """How many of these owners each unit has."""
    return Counter(int(values[-1]) for owner in owners for values in seen.relations.get(owner, ()))


def _named(text: str) -> Iterator[tuple[str, int]]:
    """The pool and the id of the unit with which a sentence begins."""
    found = _UNIT.match(text)
    if found:
        yield _POOLS[found[1]], int(found[2])


def _records_of(seen: Observation, units: Units) -> Iterator[int]:
    """Records that have one of the units, or read it."""
    relations = defaultdict(set, seen.relations)
    pages = units.get("full", set()) | {p for p, half in relations["peer"] if half in units.get("swa", ())}
    for name, wanted in (
        ("owns", pages), ("maps", pages),
        ("state", units.get("state", set())), ("row_of", units.get("row", set())),
    ):  # fmt: skip
        yield from (int(record) for record, unit in relations[name] if unit in wanted)


def _holders(seen: Observation, relation: str, records: AbstractSet[int]) -> tuple[str, ...]:
    return tuple(sorted(str(holder) for holder, record in seen.relations[relation] if record in records))


def _spoken_of(
    sort: Any, law: Law, relations: Mapping[str, set[tuple[Any, ...]]], functions: Mapping[str, Mapping[Any, int]]
) -> set[Any]:
    """Elements of a sort that some fact is about."""
    known = {
        values[place]
        for name, relation in law.relations.items()
        for place, of in enumerate(relation.sorts)
        if of is sort
        for values in relations[name]
    }
    return known | {
        x for name, f in law.functions.items() if f.sort is sort for x, value in functions[name].items() if value
    }
