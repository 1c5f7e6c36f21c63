"""What a waiver costs: the invariants that are not kept any more once it is in force, each with a counterexample.

Every obligation of the waived law is asked for any size. What Z3 does not prove is then looked for in a small scope,
and a counterexample is replayed before it counts; what is neither proved nor refuted is listed as open.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from freehold.model_check.obligations import Obligations
from freehold.model_check.prove import ask, reading
from freehold.model_check.refute import Counterexample, Refuter
from freehold.spec.language import Law
from freehold.spec.law import law as the_law
from freehold.spec.waivers import WAIVERS, waive

RLIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class WaiverReport:
    """relaxed: what it gives up or opens by itself. broken: what else fails. open: neither proved nor refuted."""

    name: str
    what: str
    relaxed: tuple[str, ...]
    broken: tuple[Counterexample, ...]
    open: tuple[str, ...]
    seconds: float


def judge(name: str, law: Law = the_law) -> WaiverReport:
    """What the law loses under one waiver."""
    started = time.perf_counter()
    waived = waive(law, [name])
    obligations = Obligations(reading(16, waived), waived)
    doubtful: dict[str, set[str]] = {}
    for subject in _concerned(law, waived, obligations.subjects()):
        for obligation in obligations.of(subject):
            if ask(obligation, 0, RLIMIT) != "unsat":
                doubtful.setdefault(subject, set()).add(obligation.name)
    refuter = Refuter(waived)
    broken: list[Counterexample] = []
    undecided: list[str] = []
    for subject, names in doubtful.items():
        for question in refuter.obligations.of(subject):
            if question.name in names:
                found = refuter.refute(question)
                broken += [found] if found is not None else []
                undecided += [question.name] if found is None else []
    relaxed = tuple(WAIVERS[name].relaxes)
    return WaiverReport(
        name, WAIVERS[name].what, relaxed, tuple(broken), tuple(undecided), time.perf_counter() - started
    )


def _concerned(law: Law, waived: Law, subjects: Iterable[str]) -> list[str]:
    """All subjects where an invariant was relaxed; else only those whose text changed."""
    if len(law.invariants) != len(waived.invariants) or any(
        waived.invariants[n].group != p.group for n, p in law.invariants.items() if n in waived.invariants
    ):
        return list(subjects)
    changed = {n for n, a in waived.actions.items() if a is not law.actions.get(n)}
    taking = {
        f"operation {n}" for n, o in waived.operations.items() if any(t.action.name in changed for t in o.steps)
    }  # fmt: skip
    return [s for s in subjects if s in changed | taking]
