"""`observe` believes the structures only, and names each contradiction between them."""

import pytest

from freehold.impl.engine import Engine, EngineConfig
from freehold.model_check.content import ContentExecutor
from freehold.spec.state import Place


@pytest.fixture
def engine() -> Engine:
    """Two running requests that share the tree pages 1 and 2, and a saved session."""
    config = EngineConfig(page_size=4, num_pages=16, max_context_tokens=32, max_running=3, chunk_tokens=64)
    engine = Engine(config, lambda tables: ContentExecutor(tables, page_size=4))
    engine.open_session("s")
    engine.submit([5] * 3, session_id="s", max_new_tokens=2)
    engine.run_until_idle()
    engine.submit([1] * 9, request_id="a")
    engine.step()
    engine.submit([1] * 9, request_id="b")
    engine.step()
    assert engine.observe().conflicts == []
    return engine


def test_it_reads_who_holds_what(engine: Engine) -> None:
    seen = engine.observe()
    assert seen.relations["kv"] == {("a", 2), ("b", 3)}
    assert seen.relations["slot_kv"] == {("s", 1)}
    assert seen.relations["in_tree"] == {(2,), (3,)}
    assert seen.relations["parent"] == {(3, 2)}
    assert seen.relations["locks"] == {(2, 2), (2, 3), (3, 2), (3, 3)}
    assert seen.relations["owns"] == {(1, 1), (2, 4), (3, 5)}
    assert seen.relations["maps"] == {(1, 1), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (3, 5)}
    assert seen.relations["free"] == {(page,) for page in range(6, 17)}
    assert seen.relations["row_of"] == {(1, 1), (2, 2), (3, 3)}
    assert seen.functions["P"] == {1: 0, 2: 8, 3: 8}
    assert seen.functions["C"] == {1: 4, 2: 10, 3: 9}
    assert seen.functions["pos"] == {1: 0, 2: 0, 3: 1, 4: 2, 5: 2}
    assert seen.functions["place"] == {"a": Place.RUNNING, "b": Place.RUNNING}


def test_a_request_that_left_with_its_record_is_seen(engine: Engine) -> None:
    request = engine.scheduler.queues.running["a"]
    kv = request.kv
    engine.abort("a")
    engine.step()
    request.kv = kv
    assert ("a", 2) in engine.observe().relations["kv"]


def page_freed_twice(engine: Engine) -> None:
    engine.cache.pages.full.stack[0] = 10


def page_of_nobody(engine: Engine) -> None:
    engine.cache.pages.full.stack[0] = 99


def page_in_two_nodes(engine: Engine) -> None:
    node = next(iter(engine.cache.tree.root.children.values()))
    node.pages[1] = node.pages[0]


def lock_count_that_no_receipt_explains(engine: Engine) -> None:
    next(iter(engine.cache.tree.root.children.values())).locks += 1


def unlocked_pages_miscounted(engine: Engine) -> None:
    engine.cache.tree.unlocked_pages += 1


def hole_in_a_row(engine: Engine) -> None:
    engine.cache.rows.page_table[2, 2] = 0


def page_at_two_positions(engine: Engine) -> None:
    engine.cache.rows.page_table[2, 3] = 5


def row_freed_twice(engine: Engine) -> None:
    engine.cache.rows.free_rows.append(engine.cache.rows.free_rows[0])


def free_row_that_maps(engine: Engine) -> None:
    engine.cache.rows.page_table[4, 0] = 7


def place_and_queue_that_differ(engine: Engine) -> None:
    engine.scheduler.queues.running["a"].place = Place.PARKED


def two_records_in_one_row(engine: Engine) -> None:
    kv = engine.scheduler.queues.running["a"].kv
    assert kv
    kv.row = 3


@pytest.mark.parametrize(
    ("corrupt", "says"),
    [
        (page_freed_twice, "page 10 is on the free stack 2 times"),
        (page_of_nobody, "page 99 on the free stack is no page of the pool"),
        (page_in_two_nodes, "page 2 is in the tree 2 times"),
        (lock_count_that_no_receipt_explains, "counts 3 locks, but 2 receipts cover it"),
        (unlocked_pages_miscounted, "the tree counts 1 unlocked pages, but has 0"),
        (hole_in_a_row, "record 2 has a hole in its row at page 2 of 3"),
        (page_at_two_positions, "page 5 is at position 3 and at position 2"),
        (row_freed_twice, "row 6 is free 2 times"),
        (free_row_that_maps, "row 4 belongs to no record, but maps"),
        (place_and_queue_that_differ, "request 'a' is PARKED but queued as RUNNING"),
        (two_records_in_one_row, "row 3 is bound to 2 records"),
    ],
)
def test_each_contradiction_is_named(engine: Engine, corrupt: object, says: str) -> None:
    corrupt(engine)  # type: ignore[operator]
    assert any(says in conflict for conflict in engine.observe().conflicts), engine.observe().conflicts
