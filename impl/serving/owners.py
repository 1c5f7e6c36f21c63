"""Who owns what right now, in a shape for people and dashboards."""

import msgspec

from freehold.impl.engine import Engine
from freehold.impl.observe import Observation
from freehold.spec.state import Place
from freehold.spec.trace import to_ranges


class PageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Pages by owner; all but locked add up to total, unless a page has leaked.

    in_flight: given back, and free when the forward step that still touches them has ended.
    locked: pages of the prefix tree that some record keeps from eviction.
    """

    total: int
    free: int
    prefix_tree: int
    requests: int
    sessions: int
    in_flight: int
    locked: int


class RowCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of the page table by state."""

    total: int
    free: int
    bound: int


class OwnerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A holder and its record.

    owned, locked: pages as ranges like 5-7,12. published, committed and allocated: lengths as in the law's P, C, A.
    """

    kind: str
    id: str
    place: str | None
    record: int
    rows: list[int]
    owned: str
    locked: str
    published_tokens: int
    committed_tokens: int
    allocated_tokens: int


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot between two steps. conflicts: contradictions between the engine's structures; empty if all is well."""

    page_size: int
    pages: PageCounts
    rows: RowCounts
    owners: list[OwnerEntry]
    conflicts: list[str]


def owners_of(engine: Engine) -> Owners:
    """Read the engine's structures. Takes time in proportion to the pool."""
    seen, geometry = engine.observe(), engine.config.geometry
    entries = [*_entries(seen, "request", "kv"), *_entries(seen, "session", "slot_kv")]
    relations = seen.relations
    owned = {kind: _pages(seen, relation) for kind, relation in (("request", "kv"), ("session", "slot_kv"))}
    return Owners(
        page_size=geometry.page_size,
        pages=PageCounts(
            total=geometry.num_pages,
            free=len(relations["free"]),
            prefix_tree=len(relations["in_tree"]),
            requests=owned["request"],
            sessions=owned["session"],
            in_flight=len(relations["held"]),
            locked=len({page for _, page in relations["locks"]}),
        ),
        rows=RowCounts(total=geometry.num_rows, free=len(relations["row_free"]), bound=len(relations["row_of"])),
        owners=entries,
        conflicts=seen.conflicts,
    )


def _pages(seen: Observation, holds: str) -> int:
    """Pages owned by the records of one kind of holder."""
    records = {record for _, record in seen.relations[holds]}
    return sum(record in records for record, _ in seen.relations["owns"])


def _entries(seen: Observation, kind: str, holds: str) -> list[OwnerEntry]:
    places, lengths = seen.functions["place"], seen.functions
    return [
        OwnerEntry(
            kind=kind,
            id=str(holder),
            place=Place(places[holder]).name.lower() if holder in places and kind == "request" else None,
            record=int(record),
            rows=sorted(_of(seen, "row_of", record)),
            owned=to_ranges(sorted(_of(seen, "owns", record))),
            locked=to_ranges(sorted(_of(seen, "locks", record))),
            published_tokens=lengths["P"][record],
            committed_tokens=lengths["C"][record],
            allocated_tokens=lengths["A"][record],
        )
        for holder, record in sorted(seen.relations[holds], key=lambda pair: int(pair[1]))
    ]


def _of(seen: Observation, relation: str, record: int | str) -> list[int]:
    return [int(unit) for holder, unit in seen.relations[relation] if holder == record]
