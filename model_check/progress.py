"""The progress proof of a scheduling policy, for any number of pages, rows, records, requests and sessions.

| kind | hypotheses | goal |
|---|---|---|
| view | the step invariants, an operation's guards | what the view keeps true, at its end |
| rank | a cast too; no component before this one falls | the component does not grow, or the oldest is out |
| past | the step invariants, an operation's guards | nobody becomes older than one who was live before |
| stays | a cast too; no component falls that is not about the lead | the same cast, or the oldest is out |
| stays | a cast too; no component falls | the same helping group, or the oldest is out |
| falls | the helping group takes an operation (for the lead, where it is owed to requests) | some component falls |
| helper | a cast, a helping group, the assumptions | one of its helps applies |
| enabled | a cast, a help that applies | its operation is possible |
| bounded | a cast | a number of the rank is natural |
| left | the step invariants | who is parked, kept or closing belongs to somebody who will end |

What an operation does not write stays as it is and needs no obligation. Together they are the rule of well-founded
descent under weak fairness; see `spec/progress.py` for the rank. An operation that several policies use in the same way
is proved once for all of them.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import z3

from freehold.model_check.obligations import Obligation
from freehold.model_check.prove import SEEDS, SHARES, Proved, ask
from freehold.model_check.smt import Expr, Smt, View
from freehold.model_check.successors import mentioned
from freehold.spec.language import Operation, Property
from freehold.spec.progress import (
    ASSUMPTIONS,
    FITS,
    HELPS,
    INVARIANTS,
    LEAD,
    LEFT,
    NOBODY_ELSE,
    OLDEST,
    PHASES,
    RANK,
    RECORD,
    Component,
    Help,
    cast,
)
from freehold.spec.scheduling import ROLES, Group, Policy, Role, live, lost, older, schedule
from freehold.spec.state import Request
from freehold.spec.terms import TRUE, Element, Formula, Param, forall

CAST = (OLDEST, LEAD, RECORD)
SEEDS_BY_PAGE_SIZE: Mapping[int, Sequence[int]] = {1: SEEDS, 16: SEEDS}
NOTHING_LOST = Property(
    "no_completion_is_lost", forall(Request, lambda r: ~lost(r)), "Nothing is lost where no fault can happen.", "step"
)


@dataclass(frozen=True, slots=True)
class ProgressProof:
    """The obligations of one policy and their verdicts."""

    policy: Policy
    results: tuple[Proved, ...]

    @property
    def failures(self) -> tuple[Proved, ...]:
        return tuple(r for r in self.results if not r.holds)

    @property
    def holds(self) -> bool:
        return bool(self.results) and not self.failures


class Descent:
    """The obligations of one policy over one Z3 reading."""

    def __init__(self, policy: Policy, page_size: int, scope: Mapping[str, int] | None = None) -> None:
        """`scope`: grounded over so many elements a sort, for a counterexample one can read; unbounded without."""
        self.schedule = schedule(policy, invariants_of(policy))
        self.law = self.schedule.law
        pool = page_size * scope["Page"] if scope else z3.Int("pool")
        self.smt = Smt(self.law, {"page_size": page_size, "row_width": z3.Int("row_width"), "pool": pool}, scope or {})
        self.before = self.smt.state("")
        kept = [p for p in self.law.invariants.values() if p.group in ("always", "step") and p is not NOTHING_LOST]
        self.kept = tuple(self._now(p.term) for p in kept)
        self.cast = self.smt.parameters(CAST, "!")
        self.casting = self._now(cast(*CAST), self.cast)

    def subjects(self) -> tuple[str, ...]:
        return ("initial", "helper", "bounded", "left", *self.law.operations)

    def of(self, subject: str) -> Iterator[Obligation]:
        """The obligations about one operation, or of one kind."""
        if subject in self.law.operations:
            return self.of_operation(self.law.operations[subject])
        kinds = {"initial": self.initial, "helper": self.helpers, "bounded": self.bounded, "left": self.left}
        return kinds[subject]()

    def _now(self, term: Formula, env: Mapping[Param, Any] | None = None) -> Expr:
        return self.smt.formula(term, env or {}, self.before)

    # One operation ---------------------------------------------------------------------------------------------------

    def of_operation(self, operation: Operation) -> Iterator[Obligation]:
        name = operation.name
        env = self.smt.parameters(operation.params)
        enabled, after = self.smt.operate(operation, env, self.before)
        written = frozenset(u.of for s in operation.steps for u in s.action.updates)
        given = (*self.kept, *(e.expr for e in enabled))
        for p in self._view_invariants():
            if written & mentioned(p.term):
                yield Obligation(
                    "view", name, p.name, (*given, self._now(p.term)), self.smt.formula(p.term, {}, after), env
                )
        if older in written:
            yield Obligation("past", name, "who is older than whom", given, self._no_new_past(after), env)
        given, env = (*given, self.casting), {**env, **self.cast}
        out = z3.Not(self.smt.formula(live(OLDEST), self.cast, after))
        still: list[Expr] = []
        shared: list[Expr] = []
        for component in RANK:
            if written & _symbols(component):
                grows_not = self._at_most(component, after, self.before)
                yield Obligation("rank", name, component.name, (*given, *still), z3.Or(out, grows_not), env)
                still.append(self._at_most(component, self.before, after))
                if not mentioned(component.term(*CAST, *_element(component))) & {LEAD, RECORD}:
                    shared.append(still[-1])
        stays = {"the cast": (cast, shared)} | {f"that {g} helps": (phase, still) for g, phase in PHASES.items()}
        for claim, (about, none_falls) in stays.items():
            term = about(*CAST)
            if written & mentioned(term):
                before, then = self._now(term, self.cast), self.smt.formula(term, self.cast, after)
                yield Obligation("stays", name, claim, (*given, *none_falls, before), z3.Or(out, then), env)
        yield from self._falls(operation, given, still, out, env)

    def _no_new_past(self, after: View) -> Expr:
        """Nobody becomes older than one who was live before."""
        x, y = Request("x"), Request("y")
        return self.smt.quantified(
            "forall",
            (x, y),
            lambda e: z3.Implies(
                z3.And(self._now(live(y), e), self.smt.formula(older(x, y), e, after)), self._now(older(x, y), e)
            ),
        )

    def _falls(
        self, operation: Operation, given: tuple[Expr, ...], still: list[Expr], out: Expr, env: dict[Param, Any]
    ) -> Iterator[Obligation]:
        group = self.schedule.groups[operation.name]
        if group not in PHASES:
            return
        helping = [self._now(PHASES[group](*CAST), self.cast)]
        if group.of_request:
            helping += [env[p] == self.cast[LEAD] for p in operation.params if p.name == "r"]
        yield Obligation("falls", operation.name, "some component", (*given, *helping, *still), out, env)

    def _at_most(self, component: Component, now: View, then: View) -> Expr:
        """The component's value in `now` is at most that in `then`."""
        if component.of == "flag":
            return z3.Implies(self._read(component, now), self._read(component, then))
        if component.of == "number":
            return self._read(component, now) <= self._read(component, then)
        x = component.of("x")
        read = [lambda e, v=v: self.smt.formula(component.term(*CAST, x), {**self.cast, **e}, v) for v in (now, then)]
        return self.smt.quantified("forall", (x,), lambda e: z3.Implies(read[0](e), read[1](e)))

    def _read(self, component: Component, view: View) -> Expr:
        term = component.term(*CAST)
        if component.of == "flag":
            return self.smt.formula(term, self.cast, view)
        number = self.smt.integer(term, self.cast, view)
        if component.when is None:
            return number
        return z3.If(self.smt.formula(component.when(*CAST), self.cast, view), number, 0)

    # Whatever happens ------------------------------------------------------------------------------------------------

    def _view_invariants(self) -> list[Property]:
        return list(invariants_of(self.schedule.policy).values())

    def initial(self) -> Iterator[Obligation]:
        start = tuple(self._now(f) for f in self.law.initial)
        for p in self._view_invariants():
            yield Obligation("view", "the beginning", p.name, start, self._now(p.term), {})

    def bounded(self) -> Iterator[Obligation]:
        for component in RANK:
            if component.of == "number":
                given = (*self.kept, self.casting)
                yield Obligation(
                    "bounded", "the rank", component.name, given, self._read(component, self.before) >= 0, self.cast
                )

    def left(self) -> Iterator[Obligation]:
        for name, term in LEFT.items():
            yield Obligation("left", "whoever ends", name, self.kept, self._now(term), {})

    def helpers(self) -> Iterator[Obligation]:
        """Some help applies in each phase, and a help that applies is possible."""
        assumed = [self._now(a.term) for a in ASSUMPTIONS if a.term is not None]
        for group, phase in PHASES.items():
            given = (*self.kept, self.casting, self._now(phase(*CAST), self.cast))
            safe = [self._now(NOTHING_LOST.term)] if NOTHING_LOST.name in self.law.invariants else []
            known_helps = [h for h in HELPS if h.phase is group and h.operation in self.law.operations]
            none_applies = [z3.Not(self._offered(h)) for h in known_helps]
            claim = f"somebody to help when it is {group}'s turn"
            why = (*self._reasons(NOBODY_ELSE.get(group)), *given[len(self.kept) :], *safe, *assumed)
            yield Obligation(
                "helper", "a cast", claim, (*why, *safe, *assumed, *none_applies), z3.BoolVal(False), self.cast
            )
            for h in known_helps:
                yield self._enabled(h, given)
                if h.offered is not None:
                    claim = f"that {h.operation} applies when it is offered"
                    why = self._reasons(h.because) + given[len(self.kept) :]
                    offer = (*why, *assumed, self._now(h.offered, self.cast))
                    yield Obligation("helper", "a cast", claim, offer, self._applies(h), self.cast)

    def _reasons(self, because: Sequence[Property] | None) -> tuple[Expr, ...]:
        if because is None:
            return self.kept
        reduced = self.law.invariants  # as the view's law has them; what is missing there is true of itself
        return tuple(self._now(reduced[p.name].term) for p in because if p.name in reduced)

    def _offered(self, help_: Help) -> Expr:
        return self._applies(help_) if help_.offered is None else self._now(help_.offered, self.cast)

    def _applies(self, help_: Help) -> Expr:
        if not help_.more:
            return self._now(help_.when, self.cast)
        return self.smt.quantified("exists", help_.more, lambda e: self._now(help_.when, {**self.cast, **e}))

    def _enabled(self, help_: Help, given: tuple[Expr, ...]) -> Obligation:
        operation = self.law.operations[help_.operation]
        env = {**self.cast, **self.smt.parameters(help_.more, "!")}
        values: dict[Param, Any] = {}
        for p in operation.params:
            value = help_.values[p.name]
            values[p] = env[value] if isinstance(value, Element) else self._number(value, env)
        enabled, _ = self.smt.operate(operation, values, self.before)
        goal = z3.And(*(e.expr for e in enabled))
        applies = self._now(help_.when, env)
        return Obligation("enabled", "a cast", f"{help_.operation} possible", (*given, applies), goal, env)

    def _number(self, value: Any, env: Mapping[Param, Any]) -> Expr:
        return self.smt.integer(value, env, self.before)


def _symbols(component: Component) -> frozenset[Any]:
    """The relations and functions that a component reads."""
    when = component.when(*CAST) if component.when is not None else TRUE
    return mentioned((component.term(*CAST, *_element(component)), when))


def _element(component: Component) -> tuple[Element, ...]:
    """The variable that a set component is over."""
    return () if component.of in ("flag", "number") else (component.of("x"),)  # type: ignore[operator]


def invariants_of(policy: Policy) -> Mapping[str, Property]:
    """What the view of a policy keeps true."""
    more = [FITS] if _can_lose(policy) else [FITS, NOTHING_LOST]
    return {**INVARIANTS, **{p.name: p for p in more}}


def _can_lose(policy: Policy) -> bool:
    return any(_loses(r) for r in policy.roles)


def _loses(role: Role) -> bool:
    """Whether a role loses completions: it is a fault."""
    return role.group is Group.FAULT


def prove_progress(
    policies: Sequence[Policy],
    seeds: Mapping[int, Sequence[int]] = SEEDS_BY_PAGE_SIZE,
    workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> list[ProgressProof]:
    """Discharge all obligations of some policies, for each page size and its seeds.

    `progress` is told (shares done, shares in all). With one worker everything happens in this process.
    """
    subjects = {(p.name, s): same for p in policies for s, same in _alike(p).items()}
    first = {same: key for key, same in reversed(subjects.items())}
    wanted = {
        p.name: [s for s in _subjects_of(subjects, p) if first[subjects[p.name, s]] == (p.name, s)] for p in policies
    }
    tasks = [
        (p, size, tuple(chosen), tuple(wanted[p.name][i::SHARES]))
        for p in policies for size, chosen in seeds.items() for i in range(SHARES) if wanted[p.name][i::SHARES]
    ]  # fmt: skip
    found: dict[Any, list[Proved]] = {}
    for done, (policy, results) in enumerate(_discharged(tasks, workers), start=1):
        for result in results:
            found.setdefault(subjects[policy, result.subject], []).append(result)
        if progress is not None:
            progress(done, len(tasks))
    return [
        ProgressProof(p, tuple(r for s in _subjects_of(subjects, p) for r in found.get(subjects[p.name, s], ())))
        for p in policies
    ]


def _subjects_of(subjects: Mapping[tuple[str, str], Any], policy: Policy) -> list[str]:
    return [subject for name, subject in subjects if name == policy.name]


def _alike(policy: Policy) -> dict[str, tuple[Any, ...]]:
    """For each subject a key that is equal for policies whose obligations about it are the same."""
    descent, faults = Descent(policy, 1), _can_lose(policy)
    roles = {r.name: r for r in (*ROLES, *policy.roles)}
    keys: dict[str, tuple[Any, ...]] = {}
    for subject in descent.subjects():
        keys[subject] = (subject, policy.name) if subject in ("helper", "initial") else (subject,)
        if subject in roles:
            role, steps = roles[subject], descent.law.operations[subject].steps
            safe = not faults and any(u.of is lost for s in steps for u in s.action.updates)
            keys[subject] = subject, role.write, tuple(policy.decisions(role)), safe
    return keys


Task = tuple[Policy, int, tuple[int, ...], tuple[str, ...]]


def _discharged(tasks: Sequence[Task], workers: int) -> Iterator[tuple[str, list[Proved]]]:
    if workers == 1:
        yield from (discharge(*task) for task in tasks)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(discharge, *task) for task in tasks]):
            yield future.result()


def discharge(
    policy: Policy, page_size: int, seeds: Sequence[int], subjects: Sequence[str]
) -> tuple[str, list[Proved]]:
    """The obligations of some subjects of a policy at one page size."""
    descent = Descent(policy, page_size)
    results: list[Proved] = []
    for subject, obligation in ((s, o) for s in subjects for o in descent.of(s)):
        began = time.perf_counter()
        verdicts = tuple(ask(obligation, seed) for seed in seeds)
        spent = time.perf_counter() - began
        results.append(Proved(obligation.kind, subject, obligation.name, page_size, verdicts, spent))
    return policy.name, results
