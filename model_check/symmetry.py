"""Symmetry by sorting: one canonical state of each orbit under renaming pages, rows and records, and the orbit's size.

Nothing is permuted and compared; each sort is put in an order that only depends on the state's shape:

* a record is known by its holder (requests and sessions keep their names), and records that nobody holds come last,
  in the order of their lengths;
* a row is known by the record that has it;
* pages are a forest under `parent`, labelled with everything else that the state says of a page. Subtrees are ranked
  from the leaves up (Aho, Hopcroft and Ullman's tree isomorphism), then pages are numbered from the roots down.

Two states get the same canonical state exactly when they lie in one orbit, and an orbit has `n!` states for each sort
divided by the renamings that change nothing: by the factorials of the sizes of groups of interchangeable things. So
the orbit sizes of a reduced search sum up to the count of the full search, which the tests compare.

All this leans on a shape that the law's invariants promise: one holder a record, one parent a page, no cycle, nothing
at a record that nobody holds. `canonical` says where it is lost; such states stay as they are, an orbit of one each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from freehold.model_check.vector import Batch, Tensor, every, some
from freehold.spec.errors import Unsupported
from freehold.spec.language import Law
from freehold.spec.state import Page, Record, Row
from freehold.spec.state import law as known_law
from freehold.spec.terms import Function, Relation, Sort

PERMUTED = (Record, Row, Page)
# The symbols of these sorts that the orders below look at; what only speaks of other sorts stays where it is.
PAGE_MARKS = ("in_tree", "free", "written")
KNOWN = frozenset({
    "kv", "slot_kv", "row_of", "row_free", "owns", "maps", "locks", "parent", "P", "C", "A", "pos", *PAGE_MARKS,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Canonical:
    """The canonical states, the sizes of their orbits `int64 [N]`, and which states had the shape, `bool [N]`."""

    batch: Batch
    orbits: Tensor
    regular: Tensor


@dataclass(frozen=True, slots=True)
class Order:
    """For one sort: `old[i]` is the element that gets place i, `[size, N]`; and the symmetries left over, `[N]`."""

    old: Tensor
    stabiliser: Tensor
    regular: Tensor


def check_supported(law: Law) -> None:
    """`Unsupported` when the law has a symbol of these sorts that the orders below don't know of."""
    symbols: dict[str, tuple[Relation | Function, tuple[Sort, ...]]] = {
        n: (r, r.sorts) for n, r in law.relations.items()
    }
    symbols |= {n: (f, (f.sort,)) for n, f in law.functions.items()}
    originals = {**known_law.relations, **known_law.functions}
    strange = [
        n for n, (symbol, sorts) in symbols.items()
        if set(sorts) & set(PERMUTED) and (n not in KNOWN or symbol is not originals[n])
    ]  # fmt: skip
    if strange:
        raise Unsupported(f"symmetry knows no place for {', '.join(strange)}; search without symmetry")


def canonical(law: Law, batch: Batch) -> Canonical:
    """The canonical state, orbit size and regularity of each state."""
    records = _records(batch)
    known = _rename(law, batch, {Record: records.old})
    rows, pages = _rows(known), _pages(known)
    regular = records.regular & pages.regular
    renamed = _rename(law, known, {Row: rows.old, Page: pages.old})
    columns = {n: torch.where(regular, renamed.column(n), batch.column(n)) for n in batch.columns}
    group = math.prod(math.factorial(batch.sizes[s]) for s in PERMUTED)
    orbits = group // (records.stabiliser * rows.stabiliser * pages.stabiliser)
    sizes = torch.where(regular, orbits, torch.ones_like(orbits))
    return Canonical(Batch(batch.sizes, batch.constants, columns, batch.count), sizes, regular)


def _rename(law: Law, batch: Batch, old: Mapping[Sort, Tensor]) -> Batch:
    """Every column with the elements of some sorts in a new order, which may differ from state to state."""
    columns = {}
    for name in batch.columns:
        column = batch.column(name)
        sorts = law.relations[name].sorts if name in law.relations else (law.functions[name].sort,)
        for dim, sort in enumerate(sorts):
            if sort in old:
                index = old[sort]
                if column.dim() == 3:
                    index = index.unsqueeze(1 - dim).expand(column.shape)
                column = column.gather(dim, index)
        columns[name] = column
    return Batch(batch.sizes, batch.constants, columns, batch.count)


def _ranks(keys: Tensor) -> Tensor:
    """For keys `[n, N]`, how many keys of the same state are smaller: equal keys share a rank."""
    return (keys.unsqueeze(1) > keys.unsqueeze(0)).sum(1)


def _places(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Places `[n, N]` in the order of keys `[n, N]`, ties by the old place; and how many ties come before each."""
    n = keys.shape[0]
    earlier = torch.ones((n, n), dtype=torch.bool, device=keys.device).tril(-1).unsqueeze(-1)
    ties = (earlier & (keys.unsqueeze(1) == keys.unsqueeze(0))).sum(1)
    return _ranks(keys) + ties, ties


def _order(places: Tensor, ties: Tensor) -> tuple[Tensor, Tensor]:
    """Who gets each place, and the product of the factorials of the sizes of the groups of ties."""
    return places.argsort(0), (ties + 1).prod(0)


def _bits(masks: Tensor) -> Tensor:
    """Bool `[m, n, N]` as numbers `[n, N]`, a bit for each place of the first axis."""
    weights = 1 << torch.arange(masks.shape[0], device=masks.device)
    return (masks * weights.view(-1, 1, 1)).sum(0)


def _records(batch: Batch) -> Order:
    holders = torch.cat([batch.column("kv"), batch.column("slot_kv")])  # [requests and sessions, records, N]
    held = some(holders, 0)
    lengths = torch.full_like(batch.column("P"), 1 << 13, dtype=torch.int64)  # behind every holder
    for name in ("P", "C", "A"):
        lengths = (lengths << 16) + batch.column(name)
    old, stabiliser = _order(*_places(torch.where(held, _bits(holders), lengths)))
    carries = some(torch.cat([batch.column(n) for n in ("owns", "maps", "locks", "row_of")], 1), 1)
    one_holder = every(holders.sum(0) <= 1, 0) & every(holders.sum(1) <= 1, 0)
    return Order(old, stabiliser, one_holder & every(held | ~carries, 0))


def _rows(batch: Batch) -> Order:
    """Order the rows of states whose records are in canonical order; nothing else knows of rows."""
    keys = _bits(torch.cat([batch.column("row_of"), batch.column("row_free").unsqueeze(0)]))
    return Order(*_order(*_places(keys)), torch.ones(batch.count, dtype=torch.bool, device=batch.device))


def _pages(batch: Batch) -> Order:
    """Order the pages of states whose records are in canonical order."""
    parent = batch.column("parent")  # [child, parent, N]
    depth, forest = _depths(parent)
    levels = int(depth.amax())
    colour = _subtrees(_labels(batch), parent, levels)
    n, place, ties = parent.shape[0], torch.zeros_like(colour), torch.zeros_like(colour)
    for _ in range(levels + 1):  # each round settles one more level, as parents come before their children
        behind = (parent * (place + 1)).sum(1)
        place, ties = _places((depth * (n + 1) + behind) * n + colour)
    return Order(*_order(place, ties), forest)


def _labels(batch: Batch) -> Tensor:
    """What a state says of each page beside `parent`, as ranks `[n, N]`."""
    masks = [batch.column(n) for n in ("owns", "maps", "locks")]
    masks += [batch.column(n).unsqueeze(0) for n in PAGE_MARKS if n in batch.columns]
    return _ranks((_bits(torch.cat(masks)) << 16) + batch.column("pos"))


def _subtrees(labels: Tensor, parent: Tensor, levels: int) -> Tensor:
    """Ranks `[n, N]` that are equal exactly for pages whose labelled subtrees are isomorphic."""
    n = labels.shape[0]
    width = n.bit_length()  # bits that count the children of one rank
    if (n + 1) * width > 62:
        raise Unsupported(f"symmetry has no room for {n} pages in a word; search without symmetry")
    colour = labels
    for _ in range(levels):
        children = (parent * (1 << colour * width).unsqueeze(1)).sum(0)  # a multiset of ranks, as one number
        colour = _ranks((labels << n * width) + children)
    return colour


def _depths(parent: Tensor) -> tuple[Tensor, Tensor]:
    """How many pages come before each page `[n, N]`, and where `parent` is a forest: bool `[N]`."""
    n, ancestor = parent.shape[0], parent
    depth = torch.zeros_like(parent[:, 0], dtype=torch.int64)
    for _ in range(n):
        reached = some(ancestor, 1)
        if int(reached.sum()) == 0:
            break
        depth += reached
        ancestor = some(ancestor.unsqueeze(2) & parent.unsqueeze(0), 1)
    return depth, every(parent.sum(1) <= 1, 0) & ~some(ancestor, (0, 1))
