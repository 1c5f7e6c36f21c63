"""Free pages, free rows, and the sizes that make sense."""

import numpy as np
import pytest

from freehold.impl.memory.arrays import as_tokens
from freehold.impl.memory.geometry import CacheGeometry
from freehold.impl.memory.pool import OutOfPages, PagePool
from freehold.impl.memory.rows import OutOfRows, RowPool
from freehold.spec.errors import InvalidInput, RuleBroken


def test_pages_come_lowest_first_and_come_back() -> None:
    pool = PagePool(5)
    assert pool.alloc(2).tolist() == [1, 2]
    rest = pool.alloc(3)
    assert rest.tolist() == [3, 4, 5]
    pool.free(rest)
    assert pool.alloc(3).tolist() == [3, 4, 5]


def test_an_allocation_that_cannot_be_had_takes_nothing() -> None:
    pool = PagePool(3)
    pool.alloc(2)
    before = pool.stack[: pool.free_pages].tolist()
    with pytest.raises(OutOfPages, match="2 pages were asked for and 1 of 3"):
        pool.alloc(2)
    assert pool.stack[: pool.free_pages].tolist() == before


def test_allocated_pages_are_the_callers_own_array() -> None:
    pool = PagePool(4)
    mine = pool.alloc(2)
    pool.free(np.array([9, 9], np.int32))
    assert mine.tolist() == [1, 2]


def test_more_pages_than_exist_cannot_come_back() -> None:
    pool = PagePool(2)
    pages = pool.alloc(1)
    pool.free(pages)
    with pytest.raises(RuleBroken, match="freed twice"):
        pool.free(pages)


def test_rows_run_out_and_map_what_was_written() -> None:
    rows = RowPool(num_rows=2, row_pages=3)
    records = [rows.bind(record_id) for record_id in (7, 8)]
    assert [(kv.id, kv.row) for kv in records] == [(7, 1), (8, 2)]
    with pytest.raises(OutOfRows):
        rows.bind(9)
    rows.write(2, 1, np.array([7, 8], np.int32))
    assert rows.page_table.tolist() == [[0, 0, 0], [0, 0, 0], [0, 7, 8]]
    assert rows.clear(2, 2, 3).tolist() == [8]
    assert rows.entries(2, 0, 3).tolist() == [0, 7, 0]
    assert rows.snapshot([2, 0, 1], 2).tolist() == [[0, 7], [0, 0], [0, 0]]
    assert list(rows.bound.values()) == records
    rows.unbind(records[0])
    assert rows.bind(9).row == 1
    assert [kv.id for kv in rows.bound.values()] == [8, 9]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"page_size": 3}, "power of two"),
        ({"page_size": 0}, "power of two"),
        ({"num_rows": 0}, "num_rows"),
        ({"max_context_tokens": 1}, "max_context_tokens"),
        ({"num_pages": 3}, "give at least 4 pages of 4"),
    ],
)
def test_impossible_sizes_are_refused_with_the_way_out(wrong: dict[str, int], says: str) -> None:
    sizes = {"page_size": 4, "num_pages": 4, "num_rows": 1, "max_context_tokens": 16}
    assert CacheGeometry(**sizes).row_pages == 4
    with pytest.raises(InvalidInput, match=says):
        CacheGeometry(**sizes | wrong)


@pytest.mark.parametrize("ids", [[-1], [2**31], [1.5], [[1, 2]], [[1], [2, 3]], ["a"]])
def test_what_is_no_token_id_is_refused(ids: list[object]) -> None:
    with pytest.raises(InvalidInput):
        as_tokens(ids)  # type: ignore[arg-type]


def test_tokens_are_copied() -> None:
    given = np.array([1, 2], np.int32)
    taken = as_tokens(given)
    given[0] = 9
    assert taken.tolist() == [1, 2]
