"""Random states and parameters over a small scope, reachable or not: what the readings are compared on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

from freehold.spec import concrete
from freehold.spec.language import Action, Law, Operation
from freehold.spec.terms import IntVar, Param, SetOf

SCOPE = {"Page": 3, "Row": 2, "Record": 2, "Request": 2, "Session": 1}
CONSTANTS = {"page_size": 2, "row_width": 5}


def random_state(law: Law, rng: random.Random) -> concrete.State:
    state = concrete.initial(law, SCOPE, CONSTANTS).copy()
    density = rng.random()
    for name, relation in law.relations.items():
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
