"""The adequacy run: does some instrument see each small change of the law?

Every mutant is put before the instruments in this order, and the first that sees it is named:

1. rules: a step of it from a good state breaks an invariant, a contract, or a step invariant of an operation (Z3,
   replayed by the concrete reading);
2. a lost operation: one that the law allows somewhere is not possible any more in any good state (Z3);
3. examples: a lawful step that it refuses or takes elsewhere (replay), or a near miss that it takes (refusals).

What is left is proved equivalent for any size, or it is a survivor. A mutant that only the examples see is killed, too,
but by nothing that could be read as a rule; it is counted apart, as weaker, stronger or different.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from freehold.model_check.killers import STRONGER, WEAKER, Judge, equivalent
from freehold.model_check.lawful import SETTINGS, Corpus
from freehold.model_check.mutators import Mutant, mutants, sample
from freehold.model_check.refute import CONSTANTS, SCOPE
from freehold.model_check.successors import Grain
from freehold.spec.errors import InvalidInput
from freehold.spec.language import Law
from freehold.spec.law import law as the_law

LOST, REPLAY, REFUSALS = "lost operation", "replay of lawful steps", "refusals"
EQUIVALENT, SURVIVOR = "equivalent", "survivor"
_NOT_KILLED = (EQUIVALENT, SURVIVOR)
EXAMPLES = (REPLAY, REFUSALS)
SHARE = 8  # mutants a worker takes at a time
# A row that ends inside a large page, and one that ends with a page: what the small scope can't show.
WIDE: tuple[Mapping[str, int], ...] = ({"page_size": 4, "row_width": 14}, {"page_size": 2, "row_width": 6})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant. `by` names the rules or the operation; `shown` says how it differs, if that was asked.

    killer: invariant, step invariant, contract, lost operation, replay of lawful steps, refusals; or equivalent, or
    survivor, with the reason in `by`.
    """

    mutant: str
    killer: str
    by: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    dropped: bool = False

    @property
    def killed(self) -> bool:
        return self.killer not in _NOT_KILLED


@dataclass(frozen=True, slots=True)
class MutationReport:
    """Verdicts in the order of the law; `total` mutants exist, of which these were asked."""

    verdicts: tuple[Verdict, ...]
    total: int
    seconds: float

    @property
    def survivors(self) -> tuple[Verdict, ...]:
        return tuple(v for v in self.verdicts if v.killer == SURVIVOR)

    @property
    def equivalents(self) -> tuple[Verdict, ...]:
        return tuple(v for v in self.verdicts if v.killer == EQUIVALENT)

    @property
    def by_example(self) -> tuple[Verdict, ...]:
        """Killed, but only by examples: no rule and no lost operation speaks against them."""
        return tuple(v for v in self.verdicts if v.killer in EXAMPLES)

    def counts(self) -> Counter[str]:
        """Mutants by killer."""
        return Counter(v.killer for v in self.verdicts)

    def sorts(self) -> Counter[str]:
        """What only the examples see, by sort; the one that is seen first where a mutant is of several."""
        return Counter(v.shown[0] for v in self.by_example)

    def summary(self) -> str:
        """One line: how many of how many, and by whom."""
        killed, same = sum(v.killed for v in self.verdicts), len(self.equivalents)
        sorts = ", ".join(f"{n} {sort}" for sort, n in self.sorts().most_common())
        by = ", ".join(f"{n} {killer}" for killer, n in self.counts().most_common() if killer not in _NOT_KILLED)
        return (
            f"{len(self.verdicts)} of {self.total} mutants: {killed} killed ({by}), {same} proved equivalent, "
            f"{len(self.survivors)} left; {len(self.by_example)} seen by examples only ({sorts or 'none'})"
        )

    def sole_witness(self) -> dict[str, list[str]]:
        """For each rule, the mutants that it alone sees. Only plain faults are put before all rules."""
        found: dict[str, list[str]] = {}
        for verdict in self.verdicts:
            if verdict.dropped and len(verdict.by) == 1:
                found.setdefault(verdict.by[0], []).append(verdict.mutant)
        return found


Place = tuple[Grain, int]  # a grain, and the number of a setting
PLACES: tuple[Place, ...] = tuple((grain, number) for grain in Grain for number in range(len(SETTINGS)))


@dataclass(slots=True)
class Court:
    """All instruments over one law, each built when it is first needed.

    The wide judges have one more of everything, and other rows.
    """

    law: Law
    seed: int = 0
    codes: Mapping[Place, torch.Tensor] = field(default_factory=dict)
    judge: Judge = field(init=False)
    wide: list[Judge] = field(init=False, default_factory=list)
    corpora: dict[Place, Corpus] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.judge = Judge(self.law)

    def verdict(self, mutant: Mutant) -> Verdict:
        """Who sees the mutant, or that nobody can, or that nobody does."""
        return self._by_rules(mutant, self.judge) or self._by_loss(mutant) or self._left(mutant)

    def _by_rules(self, mutant: Mutant, judge: Judge) -> Verdict | None:
        """A plain fault is put before every rule, so that the report can say which is the only one to see it."""
        ask = judge.all_broken if mutant.dropped else judge.breaks
        for item in (mutant.item, *(mutant.operations() if mutant.of_action else ())):
            broken = ask(item)
            if broken:
                return self._say(mutant, broken[0][0].kind, (rule.prop.name for rule, _ in broken))
        return None

    def _by_loss(self, mutant: Mutant) -> Verdict | None:
        lost = self.judge.loses(mutant)
        return None if lost is None else self._say(mutant, LOST, (lost,), (STRONGER,))

    def _by_example(self, mutant: Mutant) -> Verdict | None:
        for grain, number in PLACES:
            if mutant.of_action or grain is Grain.OPERATIONS:
                shown = self.corpus(grain, number).compare(mutant)
                if shown:
                    by = f"by {grain}, {SETTINGS[number].name}"
                    return self._say(mutant, REFUSALS if shown == (WEAKER,) else REPLAY, (by,), shown)
        return None

    def _left(self, mutant: Mutant) -> Verdict:
        """Seen by no rule in the small scope: seen in a wide one or by example, proved equivalent, or a survivor."""
        if not self.wide:
            sizes = {sort: size + 1 for sort, size in SCOPE.items()}
            self.wide += [Judge(self.law, sizes, {**CONSTANTS, **numbers}) for numbers in WIDE]
        shown: tuple[str, ...] = ()
        for judge in (self.judge, *self.wide):
            shown = shown or judge.differs(mutant)
        if shown:
            broken = (self._by_rules(mutant, judge) for judge in self.wide)
            found = next(filter(None, broken), None) or self._by_example(mutant)
            return found or self._say(mutant, SURVIVOR, ("differs only in good states that no example has",), shown)
        proof = equivalent(mutant)
        if proof == "unsat":
            return self._say(mutant, EQUIVALENT, ("same guard and same effect in every good state of any size",))
        unproved = f"equal in all scopes, not proved equivalent: {proof}"
        return self._by_example(mutant) or self._say(mutant, SURVIVOR, (unproved,))

    def _say(self, mutant: Mutant, killer: str, by: Iterable[str], shown: tuple[str, ...] = ()) -> Verdict:
        return Verdict(mutant.name, killer, tuple(by), shown, mutant.dropped)

    def corpus(self, grain: Grain, number: int) -> Corpus:
        """The examples of a setting."""
        at = (grain, number)
        if at not in self.corpora:
            self.corpora[at] = Corpus(self.law, grain, SETTINGS[number], self.seed, self.codes.get(at))
        return self.corpora[at]


# All of them ---------------------------------------------------------------------------------------------------------


def choose(law: Law, size: int | None = None, seed: int = 0, only: str = "", plain: bool = False) -> tuple[Mutant, ...]:
    """The mutants with `only` in their name: all of them, or a sample of `size`; with `plain`, all plain faults too.

    `InvalidInput` when there is none.
    """
    found = tuple(m for m in mutants(law) if only in m.name)
    if not found:
        raise InvalidInput(f"no mutant has {only!r} in its name; names begin like this: {mutants(law)[0].name}")
    if size is None or size >= len(found):
        return found
    drawn = {m.name for m in sample([m for m in found if not (plain and m.dropped)], size, seed)}
    return tuple(m for m in found if m.name in drawn or (plain and m.dropped))


_court: Court | None = None
_mutants: dict[str, Mutant] = {}


def _open(codes: Mapping[Place, np.ndarray[Any, Any]]) -> None:
    """Once a worker: one thread each, as there are as many workers as there is to share."""
    global _court
    torch.set_num_threads(1)
    _mutants.update({m.name: m for m in mutants(the_law)})
    _court = Court(the_law, codes={at: torch.from_numpy(c.copy()) for at, c in codes.items()})


def _gather(at: Place) -> tuple[Place, np.ndarray[Any, Any]]:
    torch.set_num_threads(1)
    codes = Corpus(the_law, at[0], SETTINGS[at[1]]).codes
    if codes is None:
        raise AssertionError("a corpus has codes")
    return at, codes.numpy()


def _try(names: Sequence[str]) -> list[Verdict]:
    if _court is None:
        raise AssertionError("the worker was not opened")
    return [_court.verdict(_mutants[name]) for name in names]


def mutate(
    size: int | None = None,
    seed: int = 0,
    only: str = "",
    plain: bool = False,
    workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> MutationReport:
    """Try the mutants of the law that `choose` gives; `progress` is told (done, all)."""
    started = time.perf_counter()
    chosen = choose(the_law, size, seed, only, plain)
    shares = [[m.name for m in chosen[i : i + SHARE]] for i in range(0, len(chosen), SHARE)]
    verdicts: list[Verdict] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn) as pool:  # the examples are gathered once, and not by each worker
        codes = dict(pool.map(_gather, PLACES))
    with ProcessPoolExecutor(min(workers, len(shares)), spawn, _open, (codes,)) as pool:
        for future in as_completed([pool.submit(_try, share) for share in shares]):
            verdicts += future.result()
            if progress is not None:
                progress(len(verdicts), len(chosen))
    order = {m.name: i for i, m in enumerate(chosen)}
    verdicts.sort(key=lambda v: order[v.mutant])
    return MutationReport(tuple(verdicts), len(mutants(the_law)), time.perf_counter() - started)
