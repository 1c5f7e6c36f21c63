"""Unbounded inductive proof: every obligation, for any number of pages, rows, records, requests and sessions.

Z3 is limited by `rlimit`, which counts its work and not the time, so that a verdict does not depend on the machine.
`unknown` is a failure. Each obligation is asked under several seeds: a proof that hangs on luck is not kept.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

import z3

from freehold.model_check.obligations import Obligation, Obligations
from freehold.model_check.smt import Expr, Smt
from freehold.spec.language import Law
from freehold.spec.law import law as the_law

RLIMIT = 3_000_000
SEEDS = (0, 1, 2, 3, 4)
SEEDS_BY_PAGE_SIZE: Mapping[int, Sequence[int]] = {1: SEEDS, 16: SEEDS}
SHARES = 16


@dataclass(frozen=True, slots=True)
class Proved:
    """One obligation's verdicts, a seed each."""

    kind: str
    subject: str
    name: str
    page_size: int
    verdicts: tuple[str, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        return set(self.verdicts) == {"unsat"}


@dataclass(frozen=True, slots=True)
class ProofReport:
    results: tuple[Proved, ...]
    seconds: float

    @property
    def failures(self) -> tuple[Proved, ...]:
        return tuple(r for r in self.results if not r.holds)

    def count(self) -> Counter[str]:
        return Counter(r.kind for r in self.results)


def ask(obligation: Obligation, seed: int, rlimit: int = RLIMIT) -> str:
    """`unsat` when the hypotheses imply the goal.

    Where Z3 gives up, it is asked again: without a search for models of quantifiers, and in other orders. An `unsat` by
    any of these ways is a proof.
    """
    verdict = "unknown"
    for options in ({}, {"mbqi": False}, {"random_seed": seed + 101}, {"random_seed": seed + 202}):
        solver = _solver(seed, rlimit)
        for name, value in options.items():
            solver.set(name, value)
        solver.add(*(_moved(f, solver) for f in (*obligation.hypotheses, z3.Not(obligation.goal))))
        verdict = str(solver.check())
        if verdict != "unknown":
            break
    return verdict


def _solver(seed: int, rlimit: int) -> z3.Solver:
    """A solver in a context of its own: what Z3 does depends on the terms that its context has seen before."""
    solver = z3.Solver(ctx=z3.Context())
    solver.set("rlimit", rlimit)
    solver.set("random_seed", seed)
    return solver


def _moved(formula: Expr, solver: z3.Solver) -> Expr:
    return formula.translate(solver.ctx)


@dataclass(slots=True)
class Asker:
    """Asks one obligation after another under one seed; what several of them assume is said once.

    A solver that has seen other questions may give up where a new one does not: then a new one is asked.
    """

    seed: int
    _hypotheses: tuple[Expr, ...] | None = None
    _solver: z3.Solver | None = None

    def ask(self, obligation: Obligation) -> str:
        if self._solver is None or self._hypotheses is not obligation.hypotheses:
            self._hypotheses, self._solver = obligation.hypotheses, _solver(self.seed, RLIMIT)
            self._solver.add(*(_moved(h, self._solver) for h in obligation.hypotheses))
        self._solver.push()
        self._solver.add(_moved(z3.Not(obligation.goal), self._solver))
        verdict = str(self._solver.check())
        self._solver.pop()
        return verdict if verdict == "unsat" else ask(obligation, self.seed)


def reading(page_size: int, law: Law = the_law) -> Smt:
    """The unbounded reading: a literal page size, any other constants that the initial conditions allow."""
    rest = {name: z3.Int(name) for name in ("row_width", "window", "namespaces")}
    return Smt(law, {"page_size": page_size, **rest})


def discharge(page_size: int, seeds: Sequence[int], subjects: Sequence[str]) -> list[Proved]:
    """The obligations of some subjects at one page size."""
    found = []
    obligations = Obligations(reading(page_size), the_law)
    askers = [Asker(seed) for seed in seeds]
    for subject, obligation in ((s, o) for s in subjects for o in obligations.of(s)):
        started = time.perf_counter()
        verdicts = tuple(asker.ask(obligation) for asker in askers)
        spent = time.perf_counter() - started
        found.append(Proved(obligation.kind, subject, obligation.name, page_size, verdicts, spent))
    return found


def prove(
    seeds: Mapping[int, Sequence[int]] = SEEDS_BY_PAGE_SIZE,
    workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> ProofReport:
    """Discharge all obligations for each page size and its seeds; `progress` is told (shares done, shares in all)."""
    started = time.perf_counter()
    subjects = Obligations(reading(1), the_law).subjects()
    tasks = [(size, subjects[i::SHARES]) for size in seeds for i in range(SHARES)]
    results: list[Proved] = []
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(discharge, size, tuple(seeds[size]), share) for size, share in tasks]
        for done, future in enumerate(as_completed(futures), start=1):
            results += future.result()
            if progress is not None:
                progress(done, len(futures))
    results.sort(key=lambda r: (r.page_size, r.kind, r.name))
    return ProofReport(tuple(results), time.perf_counter() - started)
