"""Exhaustive search: breadth first over everything that can happen within a scope, many states at a time.

Each level is expanded in chunks by the vector reading, its states are put into an exact set of codes, and the law's
invariants and witnesses are evaluated on the new ones. The search ends when nothing new comes, at the first level
with a broken invariant, or at a budget of states; the result says which. A broken invariant comes with a shortest
trace, which the concrete reading has replayed before anybody sees it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import torch

from freehold.model_check.codes import Codec, CodeSet
from freehold.model_check.counterexample import Violation, confirmed, retrace
from freehold.model_check.scopes import Scope, scope_named
from freehold.model_check.successors import Grain, Instance, Plan, operations, plan, walk
from freehold.model_check.symmetry import canonical, check_supported
from freehold.model_check.vector import Batch, Tensor, batch_of, every, everywhere, holds, some
from freehold.spec import concrete
from freehold.spec.errors import InvalidInput, Unsupported
from freehold.spec.language import Law, Operation, Property
from freehold.spec.terms import Formula


class Symmetry(StrEnum):
    """Whether states that differ by the names of pages, rows and records are kept apart or searched once."""

    NONE = "none"
    SORTED = "sorted"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands after a level."""

    depth: int
    frontier: int
    distinct: int
    generated: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """What a search found.

    `distinct` counts states (orbits, with symmetry) and `orbits_total` the states that they stand for; `generated`
    counts steps, `per_operation` by name; `depth` is the last level with a new state; `witnesses` gives the first
    level of each, or None. `closed` means that every reachable state was seen.
    """

    name: str
    grain: Grain
    symmetry: Symmetry
    distinct: int
    generated: int
    depth: int
    closed: bool
    seconds: float
    orbits_total: int
    per_operation: Mapping[str, int]
    witnesses: Mapping[str, int | None]
    violation: Violation | None

    @property
    def states_per_second(self) -> float:
        return self.distinct / max(self.seconds, 1e-9)


def explore(
    law: Law,
    scope: Scope | str,
    *,
    grain: Grain = Grain.OPERATIONS,
    symmetry: Symmetry = Symmetry.NONE,
    budget: int = 20_000_000,
    progress: Callable[[Progress], None] = lambda _: None,
    device: str = "cpu",
    chunk_states: int = 1 << 17,
) -> Result:
    """Search a scope (or the scope of that name) until it is closed, `budget` states are found, or a rule is broken.

    `InvalidInput` when no scope has the name; `Unsupported` when the law's states don't fit the codes or the
    symmetry. Memory grows by 8 K + 12 bytes a state (K words a code) and, for a while, with what a chunk leads to.
    """
    within = scope_named(scope) if isinstance(scope, str) else scope
    if budget < 1 or chunk_states < 1:
        raise InvalidInput(f"a search needs a positive budget and chunk, not {budget} and {chunk_states}")
    return _Search(within.law(law), within, grain, symmetry, budget, progress, torch.device(device), chunk_states).run()


def reachable(law: Law, scope: Scope, *, grain: Grain = Grain.OPERATIONS, budget: int = 100_000) -> Batch:
    """The states that a search finds first, in the order in which it finds them, until it has at least `budget`."""
    search = _Search(scope.law(law), scope, grain, Symmetry.NONE, budget, lambda _: None, torch.device("cpu"), 1 << 10)
    search.run()
    return search.codec.unpack(search.known.codes(0, search.known.count))


def invariants(law: Law, grain: Grain) -> list[tuple[Property, Formula]]:
    """What must hold in each state that a search of this grain sees; quiescent rules where nothing runs."""
    groups = ("always",) if grain is Grain.EVENTS else ("always", "step", "quiescent")
    found = [p for p in law.invariants.values() if p.group in groups]
    return [(p, law.idle >> p.term if p.group == "quiescent" else p.term) for p in found]


@dataclass(slots=True)
class _Search:
    law: Law
    scope: Scope
    grain: Grain
    symmetry: Symmetry
    budget: int
    progress: Callable[[Progress], None]
    device: torch.device
    chunk: int
    codec: Codec = field(init=False)
    plans: list[Plan] = field(init=False)
    known: CodeSet = field(init=False)
    parents: list[Tensor] = field(init=False, default_factory=list)
    orbits_total: int = field(init=False, default=0)
    irregular: int = field(init=False, default=0)
    steps: Counter[str] = field(init=False, default_factory=Counter)
    witnesses: dict[str, int | None] = field(init=False)

    def __post_init__(self) -> None:
        if self.symmetry is Symmetry.SORTED:
            check_supported(self.law)
        self.codec = Codec(self.law, self.scope)
        self.plans = [plan(o) for o in operations(self.law, self.grain)]
        self.known = CodeSet(self.codec.words, self.device)
        self.steps.update(dict.fromkeys((p.operation.name for p in self.plans), 0))
        self.witnesses = dict.fromkeys(self.law.witnesses)

    def run(self) -> Result:
        started = time.perf_counter()
        beginning = concrete.initial(self.law, self.scope.sizes, self.scope.constants)
        codes = self.codec.pack(batch_of(self.law, [beginning], self.device))
        self._put(codes, torch.full((1,), -1, dtype=torch.int32, device=self.device))
        low, high, depth = 0, 1, 0
        broken, whole = self._look(0, 1, depth), True
        while broken is None and whole and low < high:
            whole = self._expand(low, high)
            low, high = high, self.known.count
            depth += low < high
            broken = self._look(low, high, depth)
            elapsed = time.perf_counter() - started
            self.progress(Progress(depth, high - low, high, self.steps.total(), elapsed))
        violation = None if broken is None else self._violation(*broken)
        if violation is None and self.irregular:
            raise Unsupported(f"{self.irregular} states lack the shape that symmetry needs; search without symmetry")
        return Result(
            self.scope.name, self.grain, self.symmetry, high, self.steps.total(), depth,
            violation is None and whole, time.perf_counter() - started, self.orbits_total,
            dict(self.steps), self.witnesses, violation,
        )  # fmt: skip

    # One level -------------------------------------------------------------------------------------------------------

    def _expand(self, low: int, high: int) -> bool:
        """Put all successors of the states in `[low, high)` into the set; False when the budget ends it before."""
        for start in range(low, high, self.chunk):
            if self.known.count >= self.budget:
                return False
            codes, origins = self._successors(start, min(high, start + self.chunk))
            self._put(codes, origins)
        return True

    def _successors(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """What the states in `[start, stop)` lead to: codes `[K, M]`, and the state that each comes from, `[M]`."""
        root = self.known.codes(start, stop)
        numbers = torch.arange(start, stop, dtype=torch.int32, device=self.device)
        codes, origins = [root[:, :0]], [numbers[:0]]

        def note(operation: Operation, _: Instance, after: Batch) -> None:
            self.steps[operation.name] += after.count
            codes.append(self.codec.repack(root, after))
            origins.append(numbers if after.rows is None else numbers.index_select(0, after.rows))

        batch = self.codec.unpack(root)
        for each in self.plans:
            walk(each, batch, self.scope, note)
        return torch.cat(codes, 1), torch.cat(origins)

    def _put(self, codes: Tensor, origins: Tensor) -> None:
        if self.symmetry is Symmetry.NONE:
            new = self.known.add(codes)
            self.parents.append(origins.index_select(0, new))
            self.orbits_total += new.numel()
            return
        once = CodeSet(self.codec.words, self.device)  # equal successors need a canonical state only once
        origins = origins.index_select(0, once.add(codes))
        for start in range(0, once.count, self.chunk):
            stop = min(once.count, start + self.chunk)
            shape = canonical(self.law, self.codec.unpack(once.codes(start, stop)))
            new = self.known.add(self.codec.pack(shape.batch))
            self.parents.append(origins[start:stop].index_select(0, new))
            self.orbits_total += int(shape.orbits.index_select(0, new).sum())
            self.irregular += int((~shape.regular).sum())

    def _look(self, low: int, high: int, depth: int) -> tuple[Property, Formula, int] | None:
        """Note witnesses among the states in `[low, high)`; the first broken invariant and the first state with it."""
        rules = invariants(self.law, self.grain)
        for start in range(low, high, self.chunk):
            batch = self.codec.unpack(self.known.codes(start, min(high, start + self.chunk)))
            for name, witness in self.law.witnesses.items():
                if self.witnesses[name] is None and bool(some(everywhere(holds(witness.term, {}, batch), batch), 0)):
                    self.witnesses[name] = depth
            for rule, term in rules:
                intact = everywhere(holds(term, {}, batch), batch)
                if not bool(every(intact, 0)):
                    return rule, term, start + int((~intact).nonzero()[0])
        return None

    # A broken rule ---------------------------------------------------------------------------------------------------

    def _violation(self, rule: Property, term: Formula, number: int) -> Violation:
        parents, path = torch.cat(self.parents), list[Tensor]()
        while number >= 0:
            path.append(self.known.codes(number, number + 1))
            number = int(parents[number])
        steps = retrace(self.codec, self.plans, path[::-1], self._same)
        return confirmed(self.law, self.codec, self.grain, (rule, term), steps)

    def _same(self, codes: Tensor) -> Tensor:
        if self.symmetry is Symmetry.NONE:
            return codes
        return self.codec.pack(canonical(self.law, self.codec.unpack(codes)).batch)
