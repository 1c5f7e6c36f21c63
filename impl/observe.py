"""Who holds what, read from the engine's own structures and from nothing else.

No event, no count and no flag is believed here: free pages come from the free stack, owners from the rows of the
records that holders have, locks from walking each receipt to the root. Where structures contradict each other, or
one contradicts itself, `conflicts` says so in words: a set alone would hide a page that is there twice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from freehold.impl.memory.cache import KvCache
from freehold.impl.memory.device_pages import DevicePages
from freehold.impl.memory.flights import StepLoan
from freehold.impl.memory.pool import PagePool
from freehold.impl.memory.record import Holder, KvRecord
from freehold.impl.memory.sessions import SessionSlot
from freehold.impl.memory.tree_node import TreeNode
from freehold.impl.scheduling.queues import Queues
from freehold.impl.scheduling.request import Request
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.spec.arithmetic import ceil_pages

Tuples = set[tuple[int | str, ...]]

RELATIONS = (
    "free", "owns", "in_tree", "parent", "locks", "maps", "row_free", "row_of",
    "kv", "slot_kv", "turn", "opened", "closing",
    "swa_free", "swa_held", "peer", "slot_free", "claims", "state", "snapshot",
    "held", "spoilt", "out", "lent", "reads", "writes", "behind", "uses_swa",
)  # fmt: skip
FUNCTIONS = ("P", "C", "A", "E", "S", "pos", "place")


@dataclass(slots=True, kw_only=True)
class Observation:
    """The state in the words of the law.

    relations: by the names in RELATIONS, each a set of tuples of page, row and record numbers and of request and
        session names, in the order of the law. Those of pools that the engine does not have are empty.
    functions: `P C A E` of each record; `S` of each loan; `pos` of each page that a row or the tree has; `place`
        of each request that is live or left in the last step (all others are OUT).
    conflicts: contradictions between the structures, in words; empty when all is well.
    """

    relations: dict[str, Tuples] = field(default_factory=lambda: {name: set() for name in RELATIONS})
    functions: dict[str, dict[int | str, int]] = field(default_factory=lambda: {name: {} for name in FUNCTIONS})
    conflicts: list[str] = field(default_factory=list)


def observe(scheduler: Scheduler) -> Observation:
    """Read everything. Takes time in proportion to the pool; changes nothing."""
    seen, cache = Observation(), scheduler.cache
    requests = [*scheduler.queues.all(), *scheduler.departed]
    slots = list(cache.sessions.slots.values())
    holders: list[Holder] = [*requests, *slots]
    records = {holder.kv.id: holder.kv for holder in holders if holder.kv}
    _see_holders(seen, requests, slots)
    _see_free(seen, cache)
    _see_tree(seen, cache, records)
    for kv in records.values():
        _see_record(seen, cache, kv)
    _see_rows(seen, cache, records)
    _see_halves(seen, cache.pages)
    _see_states(seen, cache, records)
    _see_flights(seen, cache, records)
    _see_queues(seen, scheduler.queues)
    return seen


# Holders, from the requests and slots themselves ----------------------------------------------------------------------


def _see_holders(seen: Observation, requests: Iterable[Request], slots: Iterable[SessionSlot]) -> None:
    seen.relations["kv"] = _held_by(requests)
    seen.relations["slot_kv"] = _held_by(slots)
    seen.relations["opened"] = {(slot.id,) for slot in slots}
    seen.relations["closing"] = {(slot.id,) for slot in slots if slot.closing}
    seen.relations["turn"] = {(slot.id, slot.turn.id) for slot in slots if slot.turn}
    seen.functions["place"] = {request.id: int(request.place) for request in requests}


def _held_by(holders: Iterable[Holder]) -> Tuples:
    return {(holder.id, holder.kv.id) for holder in holders if holder.kv}


# Pages, from the free stack, the tree and the page table --------------------------------------------------------------


def _see_free(seen: Observation, cache: KvCache) -> None:
    seen.relations["free"] = _free_units(seen, cache.pages.full, "page")


def _free_units(seen: Observation, pool: PagePool, unit: str) -> Tuples:
    stack = pool.stack[: pool.free_pages].tolist()
    _once(seen, stack, f"{unit} {{}} is on the free stack {{}} times")
    for each in stack:
        if not 1 <= each <= pool.num_pages:
            seen.conflicts.append(f"{unit} {each} on the free stack is no {unit} of the pool")
    return {(each,) for each in stack}


def _see_tree(seen: Observation, cache: KvCache, records: Mapping[int, KvRecord]) -> None:
    receipts = _receipts(records.values())
    pages: list[int] = []
    unlocked_pages = 0
    todo: list[tuple[TreeNode, int, int]] = [(cache.tree.root, 0, 0)]
    while todo:
        node, before, depth = todo.pop()
        run = node.pages.tolist()
        pages += run
        for index, page in enumerate(run):
            _see_position(seen, page, depth + index)
            if before:
                seen.relations["parent"].add((page, before))
            before = page
        counted = receipts[node]
        if node.locks != counted:
            seen.conflicts.append(f"the node of pages {run} counts {node.locks} locks, but {counted} receipts cover it")
        unlocked_pages += 0 if counted else len(run)
        for child in node.children.values():
            if child.parent is not node:
                seen.conflicts.append(f"the node of pages {child.pages.tolist()} does not know its parent")
            todo.append((child, before, depth + len(run)))
    _once(seen, pages, "page {} is in the tree {} times")
    if unlocked_pages != cache.tree.unlocked_pages:
        seen.conflicts.append(f"the tree counts {cache.tree.unlocked_pages} unlocked pages, but has {unlocked_pages}")
    seen.relations["in_tree"] = {(page,) for page in pages}
    seen.relations["locks"] = {
        (kv.id, page)
        for kv in records.values()
        if kv.lock
        for node in kv.lock.anchor.upwards()
        for page in node.pages.tolist()
    }


def _receipts(records: Iterable[KvRecord]) -> Counter[TreeNode]:
    """How many receipts cover each node."""
    return Counter(node for kv in records if kv.lock for node in kv.lock.anchor.upwards())


def _see_record(seen: Observation, cache: KvCache, kv: KvRecord) -> None:
    seen.functions["P"][kv.id] = kv.published_tokens
    seen.functions["C"][kv.id] = kv.committed_tokens
    seen.functions["A"][kv.id] = kv.allocated_tokens
    seen.functions["E"][kv.id] = kv.cursor_tokens
    row = cache.rows.page_table[kv.row].tolist()
    published = ceil_pages(kv.published_tokens, cache.page_size)
    allocated = ceil_pages(kv.allocated_tokens, cache.page_size)
    if 0 in row[:allocated]:
        seen.conflicts.append(f"record {kv.id} has a hole in its row at page {row.index(0)} of {allocated}")
    for index, page in enumerate(row):
        if page:
            _see_position(seen, page, index)
    _once(seen, [page for page in row if page], f"page {{}} is in the row of record {kv.id} {{}} times")
    seen.relations["maps"].update((kv.id, page) for page in row if page)
    seen.relations["owns"].update((kv.id, page) for page in row[published:allocated] if page)
    seen.relations["row_of"].add((kv.id, kv.row))


def _see_rows(seen: Observation, cache: KvCache, records: Mapping[int, KvRecord]) -> None:
    rows = cache.rows
    bound = [kv.row for kv in records.values()]
    _once(seen, rows.free_rows, "row {} is free {} times")
    _once(seen, bound, "row {} is bound to {} records")
    for row, kv in rows.bound.items():
        if kv.row != row or records.get(kv.id) is not kv:
            seen.conflicts.append(f"row {row} is bound to record {kv.id}, which nobody holds or which has row {kv.row}")
    if len(rows.bound) != len(bound):
        seen.conflicts.append(f"{len(rows.bound)} rows are bound, but {len(bound)} records have one")
    for row in {*range(len(rows.page_table))} - {*bound}:
        if rows.page_table[row].any():
            seen.conflicts.append(f"row {row} belongs to no record, but maps {rows.page_table[row].tolist()}")
    seen.relations["row_free"] = {(row,) for row in rows.free_rows}


# The other pools, and what is in flight -------------------------------------------------------------------------------


def _see_halves(seen: Observation, pages: DevicePages) -> None:
    seen.relations["swa_free"] = _free_units(seen, pages.swa, "swa page")
    halves = pages.peers.tolist()
    _once(seen, [half for half in halves if half], "swa page {} is the half of {} pages")
    seen.relations["peer"] = {(page, half) for page, half in enumerate(halves) if half}


def _see_states(seen: Observation, cache: KvCache, records: Mapping[int, KvRecord]) -> None:
    states = cache.states
    seen.relations["slot_free"] = _free_units(seen, states.pool, "state slot")
    seen.relations["state"] = {(kv.id, kv.state) for kv in records.values() if kv.state is not None}
    seen.relations["snapshot"] = set(states.snapshots.items())
    used = [slot for _, slot in seen.relations["state"] | seen.relations["snapshot"]]
    _once(seen, [int(slot) for slot in used], "state slot {} is used {} times")


def _see_flights(seen: Observation, cache: KvCache, records: Mapping[int, KvRecord]) -> None:
    relations, earlier = seen.relations, list[StepLoan]()
    for step in cache.pages.flights.steps:
        for index, (record, loan) in enumerate(step.loans.items()):
            pages, halves = step.pages.ids[index].tolist(), step.halves.ids[index].tolist()
            relations["out"].add((loan,))
            if record in records:
                relations["lent"].add((loan, record))
            relations["reads"].update((loan, page) for page in pages if page)
            relations["writes"].update((loan, page) for page in pages[step.first_written[index] :] if page)
            relations["uses_swa"].update((loan, half) for half in halves if half)
            relations["behind"].update((loan, other.loans[record]) for other in earlier if record in other.loans)
            seen.functions["S"][loan] = step.starts[index]
        for name, touched in (("held", step.pages), ("swa_held", step.halves)):
            waiting = touched.waiting().tolist()
            _once(seen, waiting, "page {} was given back {} times to a step in flight")
            relations[name].update((unit,) for unit in waiting)
        earlier.append(step)


def _see_queues(seen: Observation, queues: Queues) -> None:
    for place, queue in queues.by_place.items():
        for request in queue.values():
            if request.place is not place:
                seen.conflicts.append(f"request {request.id!r} is {request.place.name} but queued as {place.name}")
    _once(seen, [request.id for request in queues.all()], "request {!r} is in {} queues")


def _see_position(seen: Observation, page: int, index: int) -> None:
    position = seen.functions["pos"].setdefault(page, index)
    if position != index:
        seen.conflicts.append(f"page {page} is at position {position} and at position {index}")


def _once(seen: Observation, items: Iterable[int | str], complaint: str) -> None:
    """Note every item that is there more than once."""
    for item, times in Counter(items).items():
        if times > 1:
            seen.conflicts.append(complaint.format(item, times))
