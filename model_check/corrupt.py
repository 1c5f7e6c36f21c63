"""Is each invariant needed? For each one, a corruption of a good state that no other invariant sees.

A corruption changes one fact, or two: a tuple that appears or vanishes, a number that changes. Z3 looks for a state
that satisfies the law and a corruption of it in which exactly one invariant fails. With that invariant switched off,
the corruption would go unseen; an invariant for which there is none would be decoration. `always` invariants are
compared with each other, since they have to hold inside operations, where the `step` invariants may be open.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import z3

from freehold.model_check.refute import CONSTANTS, SCOPE, read_state
from freehold.model_check.smt import Expr, Smt, View
from freehold.spec import concrete
from freehold.spec.compiler import symbols as mentioned
from freehold.spec.language import Law, Property
from freehold.spec.law import law as the_law


@dataclass(frozen=True, slots=True)
class Corruption:
    """Facts whose corruption only one invariant sees; empty where none was found."""

    invariant: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AblationReport:
    corruptions: tuple[Corruption, ...]
    seconds: float

    @property
    def idle(self) -> tuple[str, ...]:
        """Invariants that could be switched off unseen."""
        return tuple(c.invariant for c in self.corruptions if not c.symbols)


def ablate(
    law: Law = the_law, scope: Mapping[str, int] = SCOPE, progress: Callable[[int, int], None] | None = None
) -> AblationReport:
    """A corruption for each always and step invariant; `progress` is told (found, wanted)."""
    started = time.perf_counter()
    always = [p for p in law.invariants.values() if p.group == "always"]
    step = [p for p in law.invariants.values() if p.group == "step"]
    smt = Smt(law, CONSTANTS, scope)
    wanted = len(always) + len(step)
    found: list[Corruption] = []
    for targets, judges in ((always, always), (step, [*always, *step])):
        for corruption in _search(smt, targets, judges):
            found.append(corruption)
            if progress is not None:
                progress(len(found), wanted)
    missing = {p.name for p in (*always, *step)} - {c.invariant for c in found}
    found += [Corruption(name, ()) for name in sorted(missing)]
    return AblationReport(tuple(found), time.perf_counter() - started)


def _search(smt: Smt, targets: Sequence[Property], judges: Sequence[Property]) -> Iterator[Corruption]:
    before = smt.state("")
    good = [*smt.distinct(), *(smt.formula(p.term, {}, before) for p in judges)]
    open_targets = {p.name: p for p in targets}
    symbols_of = {p.name: mentioned(p.term) for p in targets}
    names = [*smt.law.relations, *smt.law.functions]
    for size in (1, 2):
        for symbols in itertools.combinations_with_replacement(names, size):
            concerned = [n for n, p in open_targets.items() if symbols_of[n] & set(symbols)]
            if not concerned:
                continue
            after, chosen = _corrupted(smt, before, symbols)
            verdicts = {p.name: smt.formula(p.term, {}, after) for p in judges}
            solver = z3.SolverFor("QF_UFLIA")
            solver.add(*good, *chosen)
            for name in concerned:
                solver.push()
                solver.add(*(z3.Not(v) if n == name else v for n, v in verdicts.items()))
                if solver.check() == z3.sat:
                    _replay(smt, after, solver.model(), name, judges)
                    del open_targets[name]
                    yield Corruption(name, symbols)
                solver.pop()


def _replay(smt: Smt, after: View, model: z3.ModelRef, name: str, judges: Sequence[Property]) -> None:
    state = read_state(smt, after, model)
    failing = [p.name for p in judges if not concrete.holds(p.term, {}, state)]
    if failing != [name]:
        raise AssertionError(f"the corruption that only {name} should see is seen by {failing}")


def _corrupted(smt: Smt, state: View, symbols: Sequence[str]) -> tuple[View, list[Expr]]:
    """The state with one fact changed per symbol, and what pins the changed facts to the scope."""
    relations, functions = dict(state.relations), dict(state.functions)
    chosen: list[Expr] = []
    for number, name in enumerate(symbols):
        relation = smt.law.relations.get(name)
        sorts = relation.sorts if relation is not None else (smt.law.functions[name].sort,)
        at = [z3.Const(f"at{number}_{i}", smt.sorts[s]) for i, s in enumerate(sorts)]
        chosen += [z3.Or(*(t == e for e in smt.elements[s])) for t, s in zip(at, sorts, strict=True)]
        if relation is not None:
            relations[name] = _flipped(relations[name], at)
        else:
            functions[name] = _set(functions[name], at[0], z3.Int(f"value{number}"))
    return View(relations, functions), chosen


def _flipped(old: Callable[..., Expr], at: list[Any]) -> Callable[..., Expr]:
    return lambda *xs: z3.Xor(old(*xs), z3.And(*(x == t for x, t in zip(xs, at, strict=True))))


def _set(old: Callable[..., Expr], at: Any, value: Expr) -> Callable[..., Expr]:
    return lambda x: z3.If(x == at, value, old(x))
