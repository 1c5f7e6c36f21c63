"""Traces of a search: steps by name, found again from codes, and replayed by the concrete reading.

A search keeps only codes. Which state of one level leads to a given state of the next is found by expanding the level
again, and the steps by looking which way leads from one state to the next; under symmetry, which leads to a state that
is the next one but for names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from freehold.model_check.codes import Codec
from freehold.model_check.steps import ReadingsDisagree, Taken, listing, taken
from freehold.model_check.successors import Expander, Grain, operations
from freehold.model_check.vector import Tensor
from freehold.spec import concrete
from freehold.spec.language import Clause, Law, Property
from freehold.spec.owners import Owners
from freehold.spec.terms import Formula, SetOf


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant, a shortest trace to it, and the state at its end; the concrete reading agrees.

    `odd` names the units that have two owners there, or none.
    """

    invariant: Property
    trace: tuple[Taken, ...]
    state: concrete.State
    odd: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{self.invariant.name} is broken after {len(self.trace)} steps: {self.invariant.doc}"
        return "\n".join([head, listing(self.trace), *(f"  {words}" for words in self.odd)])


def retrace(expand: Expander, path: Sequence[Tensor], same: Callable[[Tensor], Tensor]) -> list[Taken]:
    """The steps along codes `[K, 1]`; `same` maps codes `[K, N]` to what the search put in their place."""
    here, steps = path[0], list[Taken]()
    for wanted in path[1:]:
        found = expand(here)
        fitting = (same(found.codes) == wanted).all(0).nonzero().view(-1)
        if fitting.numel() == 0:
            raise ReadingsDisagree(f"no step leads from state {here.tolist()} to its successor {wanted.tolist()}")
        way = expand.ways[int(found.ways[fitting[0]])]
        steps.append(Taken(way.operation.name, {p.name: way.values[p] for p in way.operation.params}))
        here = found.codes[:, fitting[:1]]
    return steps


def replay(law: Law, codec: Codec, grain: Grain, trace: Sequence[Taken]) -> tuple[tuple[Taken, ...], concrete.State]:
    """The trace with its events, and the state at its end, by the concrete reading.

    Raises ReadingsDisagree when that forbids a step.
    """
    state = concrete.initial(law, codec.scope.sizes, codec.scope.constants)
    by_name, owners = {o.name: o for o in operations(law, grain)}, Owners(law)
    steps: list[Taken] = []
    for step in trace:
        operation = by_name[step.operation]
        env = {p: _value(p, step.arguments[p.name]) for p in operation.params}
        outcome = concrete.operate(operation, env, state)
        if isinstance(outcome, Clause):
            raise ReadingsDisagree(f"the concrete reading forbids {step}: {outcome.text}")
        events, after = outcome
        arguments = {p: step.arguments[p.name] for p in operation.params}
        steps.append(taken(operation, arguments, events, owners.changed(state, after)))
        state = after
    return tuple(steps), state


def confirmed(
    law: Law, codec: Codec, grain: Grain, broken: tuple[Property, Formula], trace: Sequence[Taken]
) -> Violation:
    """The violation at the end of a trace, after the concrete reading has seen it too."""
    invariant, term = broken
    steps, state = replay(law, codec, grain, trace)
    if concrete.holds(term, {}, state):
        raise ReadingsDisagree(f"the concrete reading finds {invariant.name} intact after {[str(t) for t in trace]}")
    return Violation(invariant, steps, state, Owners(law).odd(state))


def _value(param: Any, number: int) -> Any:
    return frozenset((number,)) if isinstance(param, SetOf) else number
