"""The same search by the concrete reading: one state at a time, in plain Python, with nothing clever.

It shares no code with the ground reading, so equal counts on the scopes that both can reach speak for both.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from freehold.model_check.scopes import Scope
from freehold.model_check.successors import Grain, operations
from freehold.spec import concrete
from freehold.spec.language import Clause, Law
from freehold.spec.terms import Param, SetOf


@dataclass(frozen=True, slots=True)
class Counts:
    """Distinct states, steps (also by operation), the last level with a new state, and whether nothing lies beyond."""

    distinct: int
    generated: int
    depth: int
    closed: bool
    per_operation: Mapping[str, int]


def explore_concrete(law: Law, scope: Scope, *, grain: Grain = Grain.OPERATIONS, budget: int = 100_000) -> Counts:
    """Count what a scope reaches, to the end or to a budget of states (looked at before each state)."""
    law = scope.law(law)
    level, depth = [concrete.initial(law, scope.sizes, scope.constants)], 0
    known, steps = {level[0].key()}, Counter({o.name: 0 for o in operations(law, grain)})
    while True:
        reached: list[concrete.State] = []
        for state in level:
            if len(known) >= budget:
                return Counts(len(known), steps.total(), depth + bool(reached), False, dict(steps))
            for operation in operations(law, grain):
                for values in itertools.product(*(_values(p, scope) for p in operation.params)):
                    outcome = concrete.operate(operation, dict(zip(operation.params, values, strict=True)), state)
                    if isinstance(outcome, Clause):
                        continue
                    steps[operation.name] += 1
                    if outcome[1].key() not in known:
                        known.add(outcome[1].key())
                        reached.append(outcome[1])
        if not reached:
            return Counts(len(known), steps.total(), depth, True, dict(steps))
        level, depth = reached, depth + 1


def _values(param: Param, scope: Scope) -> list[Any]:
    return [frozenset((v,)) if isinstance(param, SetOf) else v for v in scope.values(param)]
