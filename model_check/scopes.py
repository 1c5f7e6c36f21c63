"""Named scopes: how many elements of each sort there are, and the constants. A search is exhaustive within one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from freehold.spec.absent import without
from freehold.spec.errors import InvalidInput
from freehold.spec.language import Law
from freehold.spec.law import law as the_law
from freehold.spec.state import Place
from freehold.spec.terms import IntVar, Param, SetOf, Sort


@dataclass(frozen=True, slots=True)
class Scope:
    """Sizes by sort name and the law's constants; `page_size` and `row_width` are in tokens."""

    name: str
    sizes: Mapping[str, int]
    constants: Mapping[str, int]

    def __post_init__(self) -> None:
        if min(*self.sizes.values(), *(v for n, v in self.constants.items() if n != "window")) < 1:
            raise InvalidInput(f"scope {self.name} needs at least one of everything that it names: {self}")

    def universe(self) -> dict[Sort, int]:
        """The size of each sort that the scope has; a sort that it does not name is empty."""
        return {sort: self.sizes[sort.__name__] for sort in the_law.sorts if sort.__name__ in self.sizes}

    def law(self, law: Law) -> Law:
        """The law for the sorts and constants of this scope: other sorts are empty."""
        fixed = {n: v for n, v in self.constants.items() if n in ("window", "namespaces")}
        return without(law, [s for s in law.sorts if s.__name__ not in self.sizes], fixed)

    @property
    def numbers(self) -> range:
        """What an integer parameter can be: any length in a row, any place."""
        return range(max(self.constants["row_width"], *Place) + 1)

    def values(self, param: Param) -> range:
        """What a parameter can be: an element, the one element of a set, or a number."""
        if isinstance(param, IntVar):
            return self.numbers
        return range(self.sizes[(param.sort if isinstance(param, SetOf) else type(param)).__name__])

    def __str__(self) -> str:
        numbers: dict[str, int] = {**self.sizes, **self.constants}
        return f"{self.name} ({', '.join(f'{k} {v}' for k, v in numbers.items())})"


def scope(
    name: str,
    *,
    pages: int,
    rows: int,
    records: int,
    requests: int,
    sessions: int,
    page_size: int,
    row_width: int,
    window: int = 0,
    namespaces: int = 1,
    **more: int,
) -> Scope:
    """A scope from its numbers."""
    sizes = {"Page": pages, "Row": rows, "Record": records, "Request": requests, "Session": sessions}
    numbers = constants(page_size, row_width, window=window, namespaces=namespaces)
    return Scope(name, sizes | {n: s for n, s in more.items() if s}, numbers)


def _named() -> Iterator[Scope]:
    yield scope("tiny", pages=2, rows=1, records=2, requests=1, sessions=1, page_size=2, row_width=4)
    yield scope("ci", pages=3, rows=2, records=2, requests=2, sessions=1, page_size=2, row_width=4)
    yield scope("deep", pages=4, rows=3, records=3, requests=3, sessions=1, page_size=2, row_width=4)
    yield scope("wide", pages=6, rows=3, records=3, requests=3, sessions=2, page_size=2, row_width=5)
    one = {"Row": 1, "Record": 1, "Request": 1}
    two = {"Page": 3, "Row": 2, "Record": 2, "Request": 2, "Session": 1}
    yield Scope("flight", {**two, "SwaPage": 2, "Loan": 1}, constants(2, 4, window=1))
    yield Scope("ahead", {**one, "Page": 2, "SwaPage": 2, "Session": 1, "Loan": 2}, constants(2, 3, window=1))
    yield Scope("state", {**one, "Page": 2, "StateSlot": 2, "Session": 1}, constants(2, 3))
    yield Scope("recurrent", {**one, "Page": 2, "StateSlot": 2, "Loan": 1}, constants(2, 3))
    yield Scope("host", {**one, "Page": 2, "HostPage": 2, "Loan": 1}, constants(1, 2))
    yield Scope("tier", {**one, "Page": 2, "HostPage": 2, "Loan": 2}, constants(1, 1, namespaces=2))
    yield Scope("window", {**one, "Page": 2, "SwaPage": 2, "Session": 1, "Loan": 1}, constants(1, 2, window=1))
    yield Scope("both", {**one, "Page": 2, "SwaPage": 1, "HostPage": 1, "Loan": 1}, constants(1, 2, window=1))


def constants(page_size: int, row_width: int, *, window: int = 0, namespaces: int = 1) -> dict[str, int]:
    """The law's constants."""
    return {"page_size": page_size, "row_width": row_width, "window": window, "namespaces": namespaces}


SCOPES: Mapping[str, Scope] = {s.name: s for s in _named()}


def scope_named(name: str) -> Scope:
    """The scope of a name; `InvalidInput` when there is none."""
    if name not in SCOPES:
        raise InvalidInput(f"no scope is named {name!r}; choose one of: {', '.join(SCOPES)}")
    return SCOPES[name]
