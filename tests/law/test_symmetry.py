"""Symmetry knows the symbols of pages, rows and records, and says so where a law has others."""

from __future__ import annotations

import pytest
from law.random_states import BARE

from freehold.model_check.scopes import Scope
from freehold.model_check.symmetry import canonical, check_supported
from freehold.model_check.vector import batch_of, state_of
from freehold.spec import concrete
from freehold.spec.errors import Unsupported
from freehold.spec.law import law

REDUCED = BARE.law(law)


def test_pages_rows_and_records_are_known() -> None:
    check_supported(REDUCED)


@pytest.mark.parametrize(
    ("sizes", "constants", "stranger"),
    [
        ({"SwaPage": 1}, {"window": 1}, "peer"),
        ({"StateSlot": 1}, {}, "snapshot"),
        ({"HostPage": 1, "Loan": 1}, {}, "mirror"),
        ({"Loan": 1}, {}, "writes"),
        ({}, {"namespaces": 2}, "label"),
    ],
)
def test_what_other_sorts_say_of_a_page_is_refused_by_name(
    sizes: dict[str, int], constants: dict[str, int], stranger: str
) -> None:
    within = Scope("wider", BARE.sizes | sizes, BARE.constants | constants)
    with pytest.raises(Unsupported, match=rf"no place for .*\b{stranger}\b.*search without symmetry"):
        check_supported(within.law(law))


def test_a_written_page_is_told_from_one_that_is_not() -> None:
    """Of three cached pages one is written: wherever it is, that is one orbit, of three states."""
    states = []
    for page in range(3):
        state = concrete.initial(REDUCED, BARE.sizes, BARE.constants)
        state.relations["in_tree"], state.relations["free"] = {(p,) for p in range(3)}, set()
        state.relations["written"] = {(page,)}
        states.append(state)
    shape = canonical(REDUCED, batch_of(REDUCED, states))
    first, *others = (state_of(REDUCED, shape.batch, i).key() for i in range(3))
    assert all(other == first for other in others)
    assert shape.orbits.tolist() == [3] * 3
