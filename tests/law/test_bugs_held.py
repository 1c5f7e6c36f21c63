"""Class E: what is held for ever is found, and the graph that finds it is the explorer's."""

from __future__ import annotations

from collections import Counter

import pytest
from law.bug_checks import clean_without, found_within_budget, named, one_a_scope

from freehold.model_check.bugs import held_for_ever
from freehold.model_check.bugs.bug import Bug
from freehold.model_check.bugs.graph import graph
from freehold.model_check.bugs.small import small
from freehold.model_check.explore import explore
from freehold.spec.errors import Unsupported
from freehold.spec.law import law

BUGS = held_for_ever.BUGS


@pytest.mark.parametrize("bug", BUGS, ids=named)
def test_bug_is_found_within_its_budget(bug: Bug) -> None:
    found_within_budget(bug)


@pytest.mark.parametrize("bug", one_a_scope(BUGS), ids=named)
def test_law_as_it_is_shows_nothing(bug: Bug) -> None:
    clean_without(bug)


def test_a_search_needs_all_states() -> None:
    with pytest.raises(Unsupported, match="more than 10 states"):
        graph(law, small(Page=1), budget=10)


def test_graph_has_the_states_and_steps_of_the_explorer() -> None:
    states, searched = graph(law, small(Page=2, row_width=2)), explore(law, small(Page=2, row_width=2))
    assert states.count == searched.distinct
    taken = [states.expand.ways[n].operation.name for n in states.edges[2].tolist()]
    assert Counter(taken) == Counter(searched.per_operation)
