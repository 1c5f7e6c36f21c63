"""How a trace over the law is written down: operations by name, their arguments, and the events that they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from freehold.spec import concrete
from freehold.spec.language import Action, Operation
from freehold.spec.owners import Handed
from freehold.spec.terms import Param


class ReadingsDisagree(AssertionError):
    """Two readings of one text gave different answers: an error in a reading, never in the law."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One step of a trace: an operation (or event), its arguments by parameter name, the events that it takes, and
    the units that it gives another owner."""

    operation: str
    arguments: Mapping[str, Any]
    events: tuple[str, ...] = ()
    handed: tuple[Handed, ...] = ()

    def __str__(self) -> str:
        return call(self.operation, self.arguments)

    def as_dict(self) -> dict[str, Any]:
        """The step for JSON; a set is a list."""
        plain = {n: sorted(v) if isinstance(v, frozenset) else v for n, v in self.arguments.items()}
        return {
            "operation": self.operation, "arguments": plain, "events": list(self.events),
            "owners": [{"unit": h.unit, "before": h.before, "after": h.after} for h in self.handed],
        }  # fmt: skip


def taken(
    operation: Operation, env: Mapping[Param, Any], events: Iterable[tuple[Action, concrete.Env]] = (),
    handed: tuple[Handed, ...] = (),
) -> Taken:  # fmt: skip
    """An operation as it was taken."""
    calls = tuple(call(a.name, {p.name: v for p, v in e.items()}) for a, e in events)
    return Taken(operation.name, {p.name: v for p, v in env.items()}, calls, handed)


def listing(trace: Sequence[Taken]) -> str:
    """A table of steps: each one numbered, its events below it, and the owners before and after."""
    widths = _widths([h for step in trace for h in step.handed])
    lines: list[str] = []
    for number, step in enumerate(trace, start=1):
        lines += [f"{number:3}. {step}", f"       {' · '.join(step.events)}"]
        lines += [f"         {line}" for line in changes(step.handed, widths)]
    return "\n".join(line for line in lines if line.strip())


def changes(handed: Sequence[Handed], widths: tuple[int, int] | None = None) -> list[str]:
    """`page 2    free  ->  record 0 (request 1)`, a line a unit, in columns."""
    unit, before = widths or _widths(handed)
    return [f"{h.unit:{unit}}  {h.before:{before}}  ->  {h.after}" for h in handed]


def _widths(handed: Sequence[Handed]) -> tuple[int, int]:
    return max((len(h.unit) for h in handed), default=0), max((len(h.before) for h in handed), default=0)


def call(name: str, arguments: Mapping[str, Any]) -> str:
    """`name(k=0, pages={1,2})`."""
    return f"{name}({', '.join(f'{n}={_show(v)}' for n, v in arguments.items())})"


def _show(value: Any) -> str:
    return "{" + ",".join(map(str, sorted(value))) + "}" if isinstance(value, frozenset) else str(value)
