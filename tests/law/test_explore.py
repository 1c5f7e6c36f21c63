"""Searches: exact counts by two readings, symmetry against brute force, faults found with shortest traces."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from freehold.model_check import explore as explore_module
from freehold.model_check.codes import Codec
from freehold.model_check.counterexample import confirmed, replay, retrace
from freehold.model_check.explore import Progress, Result, Symmetry, explore, reachable
from freehold.model_check.explore_concrete import explore_concrete
from freehold.model_check.scopes import SCOPES, Scope, scope
from freehold.model_check.steps import ReadingsDisagree, Taken
from freehold.model_check.successors import Expander, Grain, operations
from freehold.model_check.symmetry import canonical, check_supported
from freehold.model_check.vector import Batch, Tensor, batch_of, state_of
from freehold.spec import concrete
from freehold.spec.errors import InvalidInput, Unsupported
from freehold.spec.language import Clause, Law, Operation, Property
from freehold.spec.law import law as whole
from freehold.spec.state import Page, Place, Record, Request, Row, owns, place
from freehold.spec.terms import Formula, Param, Relation, SetOf, Sort, exists, lone

law = SCOPES["tiny"].law(whole)


def of(
    pages: int, rows: int, records: int, requests: int, sessions: int, page_size: int = 1, row_width: int = 1
) -> Scope:
    return scope(
        f"{pages}{rows}{records}{requests}{sessions}-{page_size}/{row_width}", pages=pages, rows=rows, records=records,
        requests=requests, sessions=sessions, page_size=page_size, row_width=row_width,
    )  # fmt: skip


# Counts --------------------------------------------------------------------------------------------------------------

LITTLE = of(2, 1, 1, 1, 1)
BY_OPERATIONS = [of(1, 1, 1, 2, 1), of(1, 1, 1, 1, 1, 2, 2), of(1, 1, 2, 1, 1), of(2, 1, 1, 1, 1, 1, 2)]
BY_EVENTS = [of(1, 1, 1, 1, 1), of(1, 1, 1, 1, 1, 2, 2), of(1, 2, 1, 1, 1)]
BOTH = [(s, Grain.OPERATIONS) for s in BY_OPERATIONS] + [(s, Grain.EVENTS) for s in BY_EVENTS]


@pytest.mark.parametrize(("within", "grain"), BOTH, ids=str)
def test_two_readings_count_the_same(within: Scope, grain: Grain) -> None:
    fast = explore(law, within, grain=grain)
    slow = explore_concrete(law, within, grain=grain)
    assert fast.closed
    assert fast.violation is None
    assert (fast.distinct, fast.generated, fast.depth) == (slow.distinct, slow.generated, slow.depth)
    assert fast.per_operation == slow.per_operation
    assert fast.distinct > 80


def test_chunks_change_nothing() -> None:
    whole, parts = (explore(law, LITTLE, chunk_states=n) for n in (1 << 17, 17))
    assert dataclasses.replace(whole, seconds=0) == dataclasses.replace(parts, seconds=0)
    assert whole.closed


def test_threads_change_nothing() -> None:
    one, *more = (explore(law, LITTLE, workers=n, chunk_states=16) for n in (1, 2, 3))
    for result in more:
        assert dataclasses.replace(result, seconds=0, state_bytes=0) == dataclasses.replace(
            one, seconds=0, state_bytes=0
        )
    faulty = without(law, "evict", "no record locks the page")
    found = [explore(faulty, TWO_TOKENS, workers=n, chunk_states=16).violation for n in (1, 2)]
    assert all(v is not None for v in found)
    assert len({len(v.trace) for v in found if v is not None}) == 1


def test_states_come_in_the_order_of_the_search() -> None:
    batch = reachable(law, LITTLE)
    assert batch.count == explore(law, LITTLE).distinct
    assert state_of(law, batch, 0).key() == concrete.initial(law, batch_sizes(batch), batch.constants).key()


def batch_sizes(batch: Batch) -> dict[str, int]:
    return {sort.__name__: size for sort, size in batch.sizes.items()}


def test_budget_ends_a_search_openly() -> None:
    result = explore(law, "ci", budget=2_000, chunk_states=64)
    assert not result.closed
    assert 2_000 <= result.distinct < 3_000
    assert result.violation is None
    with pytest.raises(InvalidInput, match="budget"):
        explore(law, LITTLE, budget=0)


def test_memory_ends_a_search_openly() -> None:
    seen: list[Progress] = []
    few, more = (
        explore(law, "ci", memory_bytes=n, chunk_states=4096, progress=seen.append) for n in (20_000_000, 40_000_000)
    )
    for result in (few, more):
        assert not result.closed
        assert result.violation is None
    assert 5_000 < few.distinct < more.distinct < 600_000
    assert max(p.bytes for p in seen) < 40_000_000


@pytest.mark.parametrize("symmetry", Symmetry, ids=str)
def test_a_resumed_search_counts_the_same(symmetry: Symmetry, tmp_path: Path) -> None:
    def search(budget: int, directory: Path | None, resume: bool) -> Result:
        return explore(
            law, "tiny", symmetry=symmetry, budget=budget, directory=directory, resume=resume, chunk_states=64
        )

    whole = search(20_000, None, resume=False)
    limits = (whole.distinct // 5, whole.distinct // 2, 20_000, 20_000)
    parts = [search(n, tmp_path, resume=i > 0) for i, n in enumerate(limits)]
    assert [r.closed for r in parts] == [False, False, True, True]
    assert parts[0].distinct < parts[1].distinct < whole.distinct
    for result in parts[2:]:
        assert dataclasses.replace(result, seconds=0) == dataclasses.replace(whole, seconds=0)


def test_a_resumed_search_finds_the_same_fault(tmp_path: Path) -> None:
    faulty = without(law, "truncate", "the published prefix stays")
    whole = explore(faulty, TWO_TOKENS)
    assert explore(faulty, TWO_TOKENS, budget=30, directory=tmp_path).violation is None
    resumed = explore(faulty, TWO_TOKENS, directory=tmp_path, resume=True)
    assert resumed.violation is not None
    assert whole.violation is not None
    assert len(resumed.violation.trace) == len(whole.violation.trace)
    assert resumed.distinct == whole.distinct


def test_checkpoints_do_not_mix(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no checkpoint"):
        explore(law, LITTLE, directory=tmp_path, resume=True)
    with pytest.raises(InvalidInput, match="name the directory"):
        explore(law, LITTLE, resume=True)
    explore(law, LITTLE, directory=tmp_path, budget=50, chunk_states=16)
    with pytest.raises(InvalidInput, match="resume it"):
        explore(law, LITTLE, directory=tmp_path)
    for other, within in ((law, SCOPES["tiny"]), (without(law, "acquire", "each page is free"), LITTLE)):
        with pytest.raises(InvalidInput, match="another search"):
            explore(other, within, directory=tmp_path, resume=True)


def test_progress_is_reported_level_by_level() -> None:
    seen: list[Progress] = []
    result = explore(law, LITTLE, progress=seen.append)
    assert [p.depth for p in seen] == [*range(1, result.depth + 1), result.depth]
    assert 1 + sum(p.frontier for p in seen) == seen[-1].distinct == result.distinct
    assert seen[-1].generated == result.generated == sum(result.per_operation.values())


def test_witnesses_are_seen_at_their_first_level() -> None:
    def somewhere(name: str, at: int) -> Property:
        return Property(name, exists(Request, lambda r: place(r) == at), "", "test")

    wanted = [somewhere(p.name, p) for p in (Place.OUT, Place.WAITING, Place.PREFILL, Place.RUNNING)]
    wanted += [
        somewhere("nowhere", 7),
        Property("two own a page", exists(Page, lambda p: ~lone_owner(p)), "", "test"),
    ]
    result = explore(dataclasses.replace(law, witnesses={w.name: w for w in wanted}), LITTLE)
    assert result.witnesses == {
        "OUT": 0, "WAITING": 1, "PREFILL": 2, "RUNNING": 3, "nowhere": None, "two own a page": None
    }  # fmt: skip


def lone_owner(p: Page) -> Formula:
    return lone(Record, lambda k: owns(k, p))


def test_the_laws_witnesses_are_reported() -> None:
    assert set(explore(law, LITTLE).witnesses) == set(law.witnesses)


def test_unknown_scopes_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=", ".join(SCOPES)):
        explore(law, "huge")


# Symmetry ------------------------------------------------------------------------------------------------------------

REDUCED = [
    (SCOPES["tiny"], Grain.OPERATIONS),
    (of(3, 1, 1, 1, 1, 1, 2), Grain.OPERATIONS),
    (of(3, 1, 1, 1, 1, 1, 3), Grain.OPERATIONS),
    (of(1, 2, 2, 2, 1), Grain.OPERATIONS),
    (of(1, 1, 2, 1, 1), Grain.EVENTS),
    (of(2, 1, 1, 1, 1), Grain.EVENTS),
]


@pytest.mark.parametrize(("within", "grain"), REDUCED, ids=str)
def test_orbits_sum_up_to_the_full_search(within: Scope, grain: Grain) -> None:
    full = explore(law, within, grain=grain)
    reduced = explore(law, within, grain=grain, symmetry=Symmetry.SORTED)
    assert full.closed
    assert reduced.closed
    assert reduced.orbits_total == full.distinct == full.orbits_total
    assert full.distinct > reduced.distinct * 3 // 2
    assert (reduced.depth, reduced.witnesses) == (full.depth, full.witnesses)


def renamed(batch: Batch, old: dict[Sort, tuple[int, ...]]) -> Batch:
    columns = {}
    for name in batch.columns:
        column = batch.column(name)
        sorts = law.relations[name].sorts if name in law.relations else (law.functions[name].sort,)
        for dim, sort in enumerate(sorts):
            column = column.index_select(dim, torch.tensor(old.get(sort, tuple(range(column.shape[dim])))))
        columns[name] = column
    return Batch(batch.sizes, batch.constants, columns, batch.count)


def rows_of(codes: Tensor) -> list[tuple[int, ...]]:
    return [tuple(c) for c in codes.t().tolist()]


def forests(within: Scope, count: int) -> Batch:
    """Random states of the shape that symmetry needs, reachable or not, with few labels and so with many twins."""
    rng, states = random.Random(within.name), []
    for _ in range(count):
        state = concrete.initial(law, within.sizes, within.constants)
        pages = rng.sample(state.universe[Page], len(state.universe[Page]))
        tree = {(p, rng.choice(pages[:i])) for i, p in enumerate(pages) if i and rng.random() < 0.7}
        holders = rng.sample([("kv", r) for r in state.universe[Request]] + [("slot_kv", 0)], rng.randint(1, 2))
        state.relations["parent"] = tree
        for record, (name, holder) in zip(state.universe[Record], holders, strict=False):
            state.relations[name] |= {(holder, record)}
            for relation, elements in (("locks", pages), ("owns", pages), ("row_of", state.universe[Row])):
                state.relations[relation] |= {(record, x) for x in elements if rng.random() < 0.1}
        state.functions["A"] = {k: rng.randint(0, 1) for k in state.universe[Record]}
        state.functions["pos"] = {p: int(rng.random() < 0.1) for p in pages}
        states.append(state)
    return batch_of(law, states)


def found(within: Scope, count: int) -> Batch:
    everything = reachable(law, within, budget=20_000)
    return everything.select(torch.randperm(everything.count, generator=torch.Generator().manual_seed(5))[:count])


def check_renamings(batch: Batch, codec: Codec) -> None:
    """The canonical state is in the orbit, is the same for the whole orbit, and the orbit has the size that is said."""
    shape = canonical(law, batch)
    codes, images = rows_of(codec.pack(shape.batch)), [set[tuple[int, ...]]() for _ in range(batch.count)]
    assert bool(shape.regular.all())
    choices = [itertools.permutations(range(batch.sizes[s])) for s in (Page, Row, Record)]
    for pages, rows, records in itertools.product(*choices):
        image = renamed(batch, {Page: pages, Row: rows, Record: records})
        assert rows_of(codec.pack(canonical(law, image).batch)) == codes
        for seen, code in zip(images, rows_of(codec.pack(image)), strict=True):
            seen.add(code)
    assert [len(seen) for seen in images] == shape.orbits.tolist()
    assert all(code in seen for seen, code in zip(images, codes, strict=True))
    assert len({len(seen) for seen in images}) >= 4


@pytest.mark.parametrize("within", [of(4, 2, 2, 2, 1, 1, 3), of(3, 2, 3, 2, 1, 2, 4)], ids=str)
def test_canonical_reachable_states_against_every_renaming(within: Scope) -> None:
    check_renamings(found(within, 1000), Codec(law, within))


@pytest.mark.parametrize("within", [of(5, 2, 2, 2, 1), of(6, 1, 1, 2, 1), of(3, 2, 3, 2, 1)], ids=str)
def test_canonical_forests_against_every_renaming(within: Scope) -> None:
    check_renamings(forests(within, 150), Codec(law, within))


def test_lost_shapes_stay_as_they_are() -> None:
    states = [concrete.initial(law, SCOPES["ci"].sizes, SCOPES["ci"].constants) for _ in range(6)]
    states[1].relations["parent"] |= {(2, 0), (2, 1)}
    states[2].relations["parent"] |= {(2, 1), (1, 0), (0, 2)}
    states[3].relations["kv"] |= {(0, 1), (1, 1)}
    states[4].relations["kv"] |= {(0, 0), (0, 1)}
    states[5].relations["owns"] |= {(1, 2)}
    batch = batch_of(law, states)
    shape = canonical(law, batch)
    assert shape.regular.tolist() == [True] + [False] * 5
    assert shape.orbits.tolist() == [1] * 6
    assert [state_of(law, shape.batch, i).key() for i in range(6)] == [s.key() for s in states]


def test_symmetry_refuses_what_it_does_not_know() -> None:
    tag = Relation("tag", (Page, Page))
    wider = dataclasses.replace(law, relations={**law.relations, "tag": tag})
    with pytest.raises(Unsupported, match="tag"):
        check_supported(wider)
    shared = dataclasses.replace(without(law, "bind_row", "the record is new: no request holds it"), invariants={})
    with pytest.raises(Unsupported, match="shape"):
        explore(shared, of(1, 2, 1, 2, 1), symmetry=Symmetry.SORTED, budget=300)


# Faults --------------------------------------------------------------------------------------------------------------


def without(whole: Law, action: str, text: str) -> Law:
    """The law with an action, or an operation, that lacks the guard clause of these words."""
    table = whole.actions if action in whole.actions else whole.operations
    old: Any = table[action]
    kept = tuple(c for c in old.guard if c.text != text)
    assert len(kept) == len(old.guard) - 1, f"{action} has no such clause"
    new = dataclasses.replace(old, guard=kept)

    def patched(operation: Operation) -> Operation:
        steps = tuple(dataclasses.replace(s, action=new) if s.action is old else s for s in operation.steps)
        return new if operation is old else dataclasses.replace(operation, steps=steps)

    actions = {n: new if a is old else a for n, a in whole.actions.items()}
    return dataclasses.replace(whole, actions=actions, operations={n: patched(o) for n, o in whole.operations.items()})


def concrete_depth(faulty: Law, within: Scope, grain: Grain) -> int:
    """The first level with a broken invariant, by the concrete reading."""
    rules = [term for _, term in explore_module.invariants(faulty, grain)]
    level, depth = [concrete.initial(faulty, within.sizes, within.constants)], 0
    known = {level[0].key()}
    while all(concrete.holds(term, {}, state) for state in level for term in rules):
        reached = {}
        for state, operation in itertools.product(level, operations(faulty, grain)):
            for values in itertools.product(*(within.values(p) for p in operation.params)):
                env: dict[Param, Any] = dict(zip(operation.params, values, strict=True))
                env |= {p: frozenset((v,)) for p, v in env.items() if isinstance(p, SetOf)}
                outcome = concrete.operate(operation, env, state)
                if not isinstance(outcome, Clause):
                    reached[outcome[1].key()] = outcome[1]
        level, depth = [s for key, s in reached.items() if key not in known], depth + 1
        known |= reached.keys()
        assert level, "the concrete search closes without a broken invariant"
    return depth


ONE, TWO_TOKENS, TWO_ROWS = of(1, 1, 1, 1, 1), of(1, 1, 1, 1, 1, 2, 2), of(1, 2, 2, 1, 1)
FAULTS = [
    ("evict", "no record locks the page", ONE, Grain.OPERATIONS),
    ("evict", "no record locks the page", ONE, Grain.EVENTS),
    ("acquire", "each page is free", ONE, Grain.OPERATIONS),
    ("acquire", "each page is free", ONE, Grain.EVENTS),
    ("bind_row", "the row is free", TWO_ROWS, Grain.EVENTS),
    ("release", "no row entry keeps any of the pages", ONE, Grain.EVENTS),
    ("truncate", "the published prefix stays", TWO_TOKENS, Grain.OPERATIONS),
    ("save", "only written tokens are kept", TWO_TOKENS, Grain.OPERATIONS),
]


@pytest.mark.parametrize(("name", "text", "within", "grain"), FAULTS, ids=str)
def test_faults_are_found_with_a_shortest_trace(name: str, text: str, within: Scope, grain: Grain) -> None:
    faulty, lengths = without(law, name, text), []
    for symmetry in Symmetry:
        result = explore(faulty, within, grain=grain, symmetry=symmetry)
        found = result.violation
        assert found is not None
        assert not result.closed
        _, state = replay(faulty, Codec(faulty, within), grain, found.trace)
        assert state.key() == found.state.key()
        assert not concrete.holds(found.invariant.term, {}, state)
        lengths.append(len(found.trace))
    assert lengths == [concrete_depth(faulty, within, grain)] * 2


def test_a_trace_reads_like_the_law() -> None:
    found = explore(without(law, "evict", "no record locks the page"), TWO_TOKENS, grain=Grain.EVENTS).violation
    assert found is not None
    assert found.invariant.name == "locked_page_is_in_tree"
    assert [t.operation for t in found.trace] == [
        "bind_row",
        "acquire",
        "extend",
        "commit",
        "publish",
        "evict",
    ]
    assert str(found.trace[2]) == "extend(k=0, p=0, a=2)"


def test_a_trace_is_printed_as_steps_with_owners_before_and_after() -> None:
    faulty = without(law, "acquire", "each page is free")
    for name in ("profile", "publish_pages"):  # which show the fault in another way
        del faulty.operations[name]
    found = explore(faulty, of(1, 2, 2, 2, 1), workers=1).violation
    assert found is not None
    lines = str(found).splitlines()
    assert lines[0].startswith(f"{found.invariant.name} is broken after {len(found.trace)} steps: ")
    moved = [" ".join(line.split()) for line in lines if "page 0" in line]
    assert moved[0].startswith("page 0 free -> record ")
    assert " and record " in moved[-2]
    assert moved[-1].startswith("page 0 has 2 owners: ")
    arrows = {line.index("->") for line in lines if "->" in line}
    assert len(arrows) == 1, "the columns are aligned"
    handed = [h["unit"] for step in found.trace for h in step.as_dict()["owners"]]
    assert handed.count("page 0") == len(moved) - 1


def test_traces_that_the_concrete_reading_forbids_are_errors() -> None:
    within = SCOPES["tiny"]
    with pytest.raises(ReadingsDisagree, match="forbids admit"):
        replay(law, Codec(law, within), Grain.OPERATIONS, [Taken("admit", {"r": 0, "k": 0, "w": 0})])
    free_page = law.invariants["free_page_has_no_record"]
    with pytest.raises(ReadingsDisagree, match="intact"):
        confirmed(
            law,
            Codec(law, within),
            Grain.OPERATIONS,
            (free_page, free_page.term),
            [Taken("arrive", {"r": 0})],
        )
    codec = Codec(law, within)
    start = codec.pack(batch_of(law, [concrete.initial(law, within.sizes, within.constants)]))
    with pytest.raises(ReadingsDisagree, match="no step leads"):
        retrace(
            Expander(codec, operations(codec.law, Grain.OPERATIONS), start.device),
            [start, torch.zeros_like(start)],
            lambda codes: codes,
        )
