"""How a trace over the law is written down: operations by name, their arguments, and the events that they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from freehold.spec import concrete
from freehold.spec.language import Action, Operation
from freehold.spec.terms import Param


class ReadingsDisagree(AssertionError):
    """Two readings of one text gave different answers: an error in a reading, never in the law."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One step of a trace: an operation (or event), its arguments by parameter name, and the events that it takes."""

    operation: str
    arguments: Mapping[str, Any]
    events: tuple[str, ...] = ()

    def __str__(self) -> str:
        return call(self.operation, self.arguments)


def taken(operation: Operation, env: Mapping[Param, Any], events: Iterable[tuple[Action, concrete.Env]] = ()) -> Taken:
    """An operation as it was taken."""
    calls = tuple(call(a.name, {p.name: v for p, v in e.items()}) for a, e in events)
    return Taken(operation.name, {p.name: v for p, v in env.items()}, calls)


def listing(trace: Iterable[Taken]) -> str:
    """A numbered line a step, its events behind it."""
    return "\n".join(f"  {i}. {step}\n       {' · '.join(step.events)}" for i, step in enumerate(trace, start=1))


def call(name: str, arguments: Mapping[str, Any]) -> str:
    """`name(k=0, pages={1,2})`."""
    return f"{name}({', '.join(f'{n}={_show(v)}' for n, v in arguments.items())})"


def _show(value: Any) -> str:
    return "{" + ",".join(map(str, sorted(value))) + "}" if isinstance(value, frozenset) else str(value)
