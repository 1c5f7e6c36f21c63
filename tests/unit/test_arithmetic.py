"""Page arithmetic on numbers: the contracts by example, and what CrossHair would say of a wrong function."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freehold.model_check import contracts
from freehold.spec import arithmetic

tokens = st.integers(0, 1 << 40)
page_sizes = st.sampled_from([1, 2, 4, 16, 64, 128])


@given(tokens, page_sizes)
def test_rounding_brackets_the_length(length: int, size: int) -> None:
    low, high = arithmetic.floor_to_page(length, size), arithmetic.ceil_to_page(length, size)
    assert low <= length <= high
    assert high - low == (0 if arithmetic.is_aligned(length, size) else size)
    assert arithmetic.ceil_pages(length, size) * size == high


@given(tokens, tokens, page_sizes)
def test_new_pages_are_what_is_missing(a: int, b: int, size: int) -> None:
    small, large = sorted((a, b))
    missing = arithmetic.new_pages(small, large, size)
    assert missing >= 0
    assert arithmetic.ceil_to_page(small, size) + missing * size == arithmetic.ceil_to_page(large, size)


@given(st.integers(1, 1 << 30), tokens, page_sizes)
def test_a_slot_names_its_page_and_offset(page: int, position: int, size: int) -> None:
    slot = arithmetic.slot_of(page, position, size)
    assert divmod(slot, size) == (page, position % size)


@given(tokens, tokens)
def test_room_and_allocated_fill_the_row(allocated: int, more: int) -> None:
    assert arithmetic.room_tokens(allocated, allocated + more) == more


def test_every_function_has_contracts_and_crosshair_confirms_them() -> None:
    found = contracts.check()
    assert found.conditions >= 13
    assert found.confirmed == found.conditions, found.problems
    assert found.problems == ()


def test_crosshair_refutes_a_wrong_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_arithmetic.py").write_text(
        textwrap.dedent('''
            def ceil_pages(tokens: int, page_size: int) -> int:
                """Rounds down.

                pre: tokens >= 0
                pre: page_size >= 1
                post: tokens <= __return__ * page_size
                """
                return tokens // page_size
        ''')
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    module = __import__("wrong_arithmetic")
    found = contracts.check(module)
    assert found.confirmed < found.conditions == 1
    assert any("false when calling" in p for p in found.problems), found.problems
