"""Checkers that are wrong themselves: a sum that does not add up although each unit has exactly one owner."""

from __future__ import annotations

from dataclasses import dataclass

from freehold.model_check.bugs.bug import Bug
from freehold.model_check.bugs.graph import graph
from freehold.model_check.explore import invariants
from freehold.model_check.scopes import Scope
from freehold.model_check.steps import Taken, listing
from freehold.model_check.successors import Grain
from freehold.model_check.vector import state_of
from freehold.spec import concrete
from freehold.spec.census import Census, Sheet, census
from freehold.spec.language import Law


@dataclass(frozen=True, slots=True)
class WrongSum(Bug):
    """A bug of a checker: its balance sheet. The law is as it is; `base` is the sheet that the checker should have."""

    sheet: Sheet
    base: Sheet


@dataclass(frozen=True, slots=True)
class FalseAlarm:
    """A shortest trace to a lawful state in which a sheet does not balance, and what it counts there."""

    trace: tuple[Taken, ...]
    state: concrete.State
    count: Census
    true: tuple[Census, ...]

    def __str__(self) -> str:
        owners = "; ".join(map(str, self.true))
        return f"false alarm after {len(self.trace)} steps, {self.count}, while {owners}:\n{listing(self.trace)}"


def false_alarm(law: Law, scope: Scope, sheet: Sheet) -> FalseAlarm | None:
    """The first reachable state, by distance, that keeps every rule and has each unit owned once, but not this sum."""
    states = graph(law, scope)
    batch = states.codec.unpack(states.codes)
    for number in range(states.count):
        if sheet.count(state_of(states.law, batch, number)).balanced:
            continue
        trace, state = states.replayed(states.path(number))
        rules = invariants(states.law, Grain.OPERATIONS)
        true = census(state)
        if all(c.sound for c in true) and all(concrete.holds(term, {}, state) for _, term in rules):
            return FalseAlarm(trace, state, sheet.count(state), true)
    return None
