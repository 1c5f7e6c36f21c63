"""Random states and parameters over a small scope, reachable or not: what the readings are compared on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

from freehold.model_check.scopes import Scope, scope
from freehold.spec import concrete
from freehold.spec.language import Action, Law, Operation
from freehold.spec.law import law
from freehold.spec.terms import IntVar, Param, SetOf

# Every sort, and what goes with it.
FULL = scope(
    "full", pages=3, rows=2, records=2, requests=2, sessions=1, page_size=2, row_width=5, window=2, namespaces=2,
    SwaPage=2, StateSlot=2, HostPage=2, Loan=2,
)  # fmt: skip
# Pages and rows alone.
BARE = scope("bare", pages=3, rows=2, records=2, requests=2, sessions=1, page_size=2, row_width=5)
# The law as it stands, over every sort; and what is left of it for pages and rows.
LAWS = {"full": (law, FULL), "bare": (BARE.law(law), BARE)}


def random_state(law: Law, within: Scope, rng: random.Random) -> concrete.State:
    """Any tuples and any numbers from 0 to 5; relations differ in how full they are."""
    state = concrete.initial(law, within.sizes, within.constants).copy()
    for name, relation in law.relations.items():
        density = rng.random()
        tuples = itertools.product(*(state.universe[s] for s in relation.sorts))
        state.relations[name] = {t for t in tuples if rng.random() < density}
    for name, function in law.functions.items():
        state.functions[name] = {x: rng.randrange(6) for x in state.universe[function.sort]}
    return state


def random_values(of: Action | Operation, state: concrete.State, rng: random.Random) -> Mapping[Param, Any]:
    def value(param: Param) -> Any:
        if isinstance(param, IntVar):
            return rng.randrange(6)
        if isinstance(param, SetOf):
            return frozenset(x for x in state.universe[param.sort] if rng.random() < 0.4)
        return rng.choice(state.universe[type(param)])

    return {p: value(p) for p in of.params}
