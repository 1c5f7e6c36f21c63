"""What has to be proved, as named Z3 questions: each is a set of hypotheses and one goal.

| kind | hypotheses | goal |
|---|---|---|
| initial | the initial conditions | each invariant |
| event | the always invariants and the theorems, the event's guard | each always invariant, afterwards |
| contract | the same | the event's contract |
| operation | always and step invariants, all guards along its steps | each step invariant, at its end |
| theorem | the invariants that it names | the theorem |
| quiescent | always and step invariants, every request is out | each quiescent invariant |
| lemma | the always invariants | from any value of the integer to the one below, and above the last |

An operation's always invariants need no obligation: it is made of events. Nor does an invariant that mentions nothing
that the event, or the operation, writes: what is not assigned does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import z3

from freehold.model_check.smt import Env, Expr, Smt, View
from freehold.spec.compiler import symbols
from freehold.spec.language import Action, Law, Operation, Property
from freehold.spec.terms import IntVar, Param


@dataclass(frozen=True, slots=True)
class Obligation:
    """`hypotheses` must imply `goal`. What a counterexample needs to be read stands beside it."""

    kind: str
    subject: str
    claim: str
    hypotheses: tuple[Expr, ...]
    goal: Expr
    env: Env

    @property
    def name(self) -> str:
        return f"{self.subject} keeps {self.claim}"


@dataclass(slots=True)
class Obligations:
    """All obligations of a law over one Z3 reading."""

    smt: Smt
    law: Law
    before: View
    always: tuple[Property, ...]
    step: tuple[Property, ...]
    hypotheses: tuple[Expr, ...]

    def __init__(self, smt: Smt, law: Law) -> None:
        self.smt, self.law, self.before = smt, law, smt.state("")
        groups = {g: tuple(p for p in law.invariants.values() if p.group == g) for g in Law.GROUPS}
        self.always, self.step = groups["always"], groups["step"]
        self.hypotheses = self._of(self.always + groups["theorem"])

    def _of(self, properties: Sequence[Property]) -> tuple[Expr, ...]:
        return tuple(self.smt.formula(p.term, {}, self.before) for p in properties)

    def subjects(self) -> tuple[str, ...]:
        """What the obligations are about; `of(subject)` builds those of one."""
        return (
            "initial",
            "lemma",
            "theorem",
            "quiescent",
            *self.law.actions,
            *(f"operation {o}" for o in self.law.operations),
        )

    def of(self, subject: str) -> Iterator[Obligation]:
        groups = {"initial": self.initial, "lemma": self.lemmas}
        if subject in groups:
            return groups[subject]()
        if subject in ("theorem", "quiescent"):
            return self.consequences(subject)
        if subject in self.law.actions:
            return self.of_action(self.law.actions[subject])
        return self.of_operation(self.law.operations[subject.removeprefix("operation ")])

    def initial(self) -> Iterator[Obligation]:
        start = tuple(self.smt.formula(f, {}, self.before) for f in self.law.initial)
        for p in (*self.always, *self.step):
            yield Obligation("initial", "the beginning", p.name, start, self.smt.formula(p.term, {}, self.before), {})

    def consequences(self, group: str) -> Iterator[Obligation]:
        """A theorem follows from the invariants that it names; at quiescence all help, and nothing runs."""
        idle = self.smt.formula(self.law.idle, {}, self.before)
        for p in self.law.invariants.values():
            if p.group == group:
                quiet = (*self.hypotheses, *self._of(self.step), idle)
                given = quiet if group == "quiescent" else self._of(p.uses)
                yield Obligation(group, group, p.name, given, self.smt.formula(p.term, {}, self.before), {})

    def lemmas(self) -> Iterator[Obligation]:
        """By descent: true from some value on, and true of each value whose successor has it."""
        for lemma in self.law.lemmas.values():
            env = self.smt.parameters(lemma.params)
            count = lemma.params[-1]
            here = self.smt.formula(lemma.term, env, self.before)
            above = self.smt.formula(lemma.term, {**env, count: env[count] + 1}, self.before)
            top = z3.Int("top")
            far = self.smt.formula(lemma.term, {**env, count: top}, self.before)
            limit = self.smt.constants["row_width"]
            yield Obligation("lemma", "the top", lemma.name, (*self.hypotheses, top > limit), far, env)
            yield Obligation("lemma", "the descent", lemma.name, (*self.hypotheses, above), here, env)

    def of_action(self, action: Action) -> Iterator[Obligation]:
        env = self.smt.parameters(action.params)
        given = (*self.hypotheses, *self._guard(action, env), *self._instances(action.params, env))
        after = self.smt.act(action, env, self.before)
        for p in _touched(self.always, action):
            yield Obligation("event", action.name, p.name, given, self.smt.formula(p.term, {}, after), env)
        for c in self.law.contracts.values():
            if c.group == action.name:
                meaning = dict(zip(c.params, (env[p] for p in action.params), strict=True))
                goal = self.smt.formula(c.term, meaning, self.before, after)
                yield Obligation("contract", action.name, c.name, given, goal, env)

    def of_operation(self, operation: Operation) -> Iterator[Obligation]:
        env = self.smt.parameters(operation.params)
        enabled, after = self.smt.operate(operation, env, self.before)
        given = (*self.hypotheses, *self._of(self.step), *(e.expr for e in enabled))
        for p in _touched(self.step, *(s.action for s in operation.steps)):
            yield Obligation("operation", operation.name, p.name, given, self.smt.formula(p.term, {}, after), env)

    def _guard(self, action: Action, env: Env) -> tuple[Expr, ...]:
        return tuple(e.expr for e in self.smt.guard(action, env, self.before))

    def _instances(self, params: Sequence[Param], env: Env) -> tuple[Expr, ...]:
        """The lemmas at the action's own elements and numbers, and at the lengths of its own records."""
        found: list[Expr] = []
        for lemma in self.law.lemmas.values():
            *elements, number = lemma.params
            choices: list[dict[Param, Any]] = [{}]
            for wanted in elements:
                choices = [{**c, wanted: env[p]} for c in choices for p in params if type(p) is type(wanted)]
            for choice in choices:
                numbers = [env[p] for p in params if isinstance(p, IntVar)]
                for f in self.law.functions.values():
                    numbers += [self.before.functions[f.name](v) for w, v in choice.items() if type(w) is f.sort]
                found += [self.smt.formula(lemma.term, {**choice, number: n}, self.before) for n in numbers]
        return tuple(found)


def _touched(properties: Sequence[Property], *actions: Action) -> Iterator[Property]:
    """The properties that mention something that an action writes."""
    written = {update.of.name for action in actions for update in action.updates}
    return (p for p in properties if symbols(p.term) & written)
