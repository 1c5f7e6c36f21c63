"""The census: each unit once in every state that keeps the rules, and named where it is not."""

from __future__ import annotations

from dataclasses import replace

from freehold.model_check.explore import explore, reachable
from freehold.model_check.scopes import scope
from freehold.model_check.vector import state_of
from freehold.spec.census import SHEETS, census
from freehold.spec.language import Law
from freehold.spec.law import law
from freehold.spec.state import POOLS
from freehold.spec.variant import edit, variant

SMALL = scope(
    "small",
    pages=1,
    rows=1,
    records=1,
    requests=1,
    sessions=1,
    page_size=1,
    row_width=1,
    HostPage=1,
    Loan=1,
    StateSlot=1,
)


def test_each_pool_has_a_sheet_with_all_its_owners() -> None:
    assert [s.name for s in SHEETS] == [*(p.name for p in POOLS), "row"]
    for pool, sheet in zip(POOLS, SHEETS, strict=False):
        assert [e.name for e in sheet.entries] == [r.name for r in (pool.free, pool.held, *pool.owners)]


def test_census_is_sound_in_every_state_of_the_law() -> None:
    batch, within = reachable(law, SMALL, budget=600), SMALL.law(law)
    for number in range(0, batch.count, 7):
        for counted in census(state_of(within, batch, number)):
            assert counted.balanced, str(counted)
            assert counted.sound, str(counted)


def test_census_tells_a_leak_from_a_double_owner() -> None:
    leaking: Law = variant(law, edit("release", undo=("free gains", "held gains")))
    found = explore(leaking, SMALL).violation
    assert found is not None
    pages = census(found.state)[0]
    assert pages.lost == (0,)
    assert pages.doubled == ()
    assert not pages.balanced
    assert str(pages).startswith("full: nothing ≠ 1; lost: 0")
    twice = replace(found.state, relations={**found.state.relations, "free": {(0,)}, "in_tree": {(0,)}})
    pages = census(twice)[0]
    assert pages.doubled == (0,)
    assert pages.counts["free"] == pages.counts["in_tree"] == 1
