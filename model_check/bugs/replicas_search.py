"""Replicas: ranks that hold a copy of the law's state each, take the same decisions, and must not come apart.

A rank sees some facts by itself and in its own time: that a copy has arrived, or that its allocator cannot serve a
unit just now. Such a fact changes nothing but itself. What may be decided on is the *agreed* fact, which every rank
learns at once, after all of them have it. Everything else is a decision: an operation that all ranks take, with the
same arguments. The search walks pairs of states and looks for a decision that one rank can take and the other cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from freehold.model_check.codes import Codec
from freehold.model_check.scopes import Scope
from freehold.model_check.successors import Expander
from freehold.model_check.vector import batch_of
from freehold.spec import concrete
from freehold.spec.errors import Unsupported
from freehold.spec.events import acquire
from freehold.spec.flight import loan_close
from freehold.spec.language import Action, Body, Clause, Law, Operation
from freehold.spec.operations import Steps
from freehold.spec.pools import copy_in, copy_out
from freehold.spec.state import HostPage, Loan, Page, Record, free, host_free, out
from freehold.spec.terms import Formula, Relation, SetOf, forall
from freehold.spec.variant import edit, variant

arrived = Relation("arrived", (Loan,), "this rank has seen the end of what is in flight")
agreed = Relation("agreed", (Loan,), "every rank has seen the end of what is in flight")
short = Relation("short", (Page,), "this rank's allocator cannot serve the page just now")
agreed_short = Relation("agreed_short", (Page,), "no rank's allocator can serve the page just now")
host_short = Relation("host_short", (HostPage,), "this rank's allocator cannot serve the host page just now")
agreed_host_short = Relation("agreed_host_short", (HostPage,), "no rank's allocator can serve the host page just now")

LOCAL: Final = ("arrives", "runs_short", "runs_short_on_host")
"""What a rank learns by itself."""
AGREED: Final = ("agree", "agree_on_short", "agree_on_host_short")
"""What all ranks learn at once, when each can."""


def replicated(law: Law) -> Law:
    """The law with the facts of a rank, and decisions that look only at what is agreed."""
    if arrived.name in law.relations:
        return law
    law = variant(
        law,
        edit(loan_close.name, do=lambda o, how: [arrived.drop(o), agreed.drop(o)]),
        edit(copy_out.name, add={"all ranks can serve the host page": lambda o, p, h: ~agreed_host_short(h)}),
        edit(copy_in.name, add={"all ranks can serve the page": lambda o, h, p: ~agreed_short(p)}),
        edit(acquire.name, add={"all ranks can serve the pages": _all_served}),
        extra=_facts,
    )
    return replace(law, operations={n: _waits(o) for n, o in law.operations.items()})


def _all_served(k: Record, pages: SetOf[Page]) -> Formula:
    return forall(Page, lambda p: pages(p) >> ~agreed_short(p))


def _waits(operation: Operation) -> Operation:
    """An operation that ends a loan waits until every rank has seen that end."""
    loans = {s.args[0] for s in operation.steps if s.action.name == loan_close.name}
    clauses = tuple(Clause("every rank has seen its end", agreed(o)) for o in loans if isinstance(o, Loan))
    return replace(operation, guard=(*operation.guard, *clauses))


def _facts(law: Law) -> None:
    for relation in (arrived, agreed, short, agreed_short, host_short, agreed_host_short):
        law.relations[relation.name] = relation
    _fact_of_loans(law)
    _fact_of_units(law, "runs_short", "agree_on_short", short, agreed_short, free)
    _fact_of_units(law, "runs_short_on_host", "agree_on_host_short", host_short, agreed_host_short, host_free)


def _fact_of_loans(law: Law) -> None:
    @law.action
    def see(o: Loan) -> Body:
        """This rank sees that what was in flight has ended."""
        yield out(o) & ~arrived(o), "the loan is open, and its end not seen"
        yield arrived.add(o)

    @law.action
    def see_all(o: Loan) -> Body:
        """Every rank has seen it."""
        yield arrived(o) & ~agreed(o), "its end is seen, and not agreed"
        yield agreed.add(o)

    @law.operation
    def arrives(o: Loan) -> Steps:
        """This rank sees that what was in flight has ended."""
        yield see(o)

    @law.operation
    def agree(o: Loan) -> Steps:
        """Every rank has seen it."""
        yield see_all(o)


def _fact_of_units(law: Law, here: str, there: str, local: Relation, common: Relation, pool: Relation) -> None:
    """A unit that is free is refused by this rank's allocator: an event and an operation, and the same once agreed."""
    x = local.sorts[0]("x")
    for name, new, gains in ((here, pool(x) & ~local(x), local), (there, local(x) & ~common(x), common)):
        event = Action(f"{name}_event", (x,), (Clause("this is new", new),), (gains.add(x),), gains.doc)
        law.actions[event.name] = event
        law.operations[name] = Operation(name, (x,), (), (event(x),), gains.doc)


# The search ----------------------------------------------------------------------------------------------------------

Decision = tuple[str, tuple[int, ...]]
Codes = tuple[int, ...]
Pair = tuple[Codes, Codes]


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a pair: an operation, its arguments by name, and the rank that takes it, None for both."""

    operation: str
    arguments: dict[str, int]
    rank: int | None

    def __str__(self) -> str:
        who = "all ranks" if self.rank is None else f"rank {self.rank}"
        return f"{who}: {self.operation}({', '.join(f'{n}={v}' for n, v in self.arguments.items())})"


@dataclass(frozen=True, slots=True)
class Divergence:
    """A shortest trace of a pair to a decision that one rank can take and the other cannot.

    The trace ends with that decision, by the rank that can.
    """

    trace: tuple[Move, ...]
    pairs: int

    def __str__(self) -> str:
        *before, last = self.trace
        lines = "\n".join(f"  {i}. {m}" for i, m in enumerate(before, start=1))
        return f"after {len(before)} steps\n{lines}\n  {len(self.trace)}. {last}, and the other rank cannot"


@dataclass(slots=True)
class _Pairs:
    law: Law
    scope: Scope
    budget: int
    codec: Codec = field(init=False)
    expand: Expander = field(init=False)
    steps: dict[Codes, dict[Decision, Codes]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.codec = Codec(self.law, self.scope)
        self.expand = Expander(self.codec, self.law.operations.values())

    def search(self) -> Divergence | None:
        start = concrete.initial(self.law, self.scope.sizes, self.scope.constants)
        code = tuple(self.codec.pack(batch_of(self.law, [start])).view(-1).tolist())
        level: list[Pair] = [(code, code)]
        before: dict[Pair, tuple[Pair, Decision, int | None] | None] = {level[0]: None}
        while level:
            self._look({c for pair in level for c in pair if c not in self.steps})
            reached: list[Pair] = []
            for pair in level:
                odd = self._odd(pair)
                if odd is not None:
                    return self._divergence(before, pair, odd)
                for decision, rank, after in self._moves(pair):
                    if after not in before:
                        before[after] = (pair, decision, rank)
                        reached.append(after)
            if len(before) > self.budget:
                raise Unsupported(f"{self.scope.name} has more than {self.budget} pairs: choose a smaller scope")
            level = reached
        self.budget = len(before)
        return None

    def _odd(self, pair: Pair) -> tuple[Decision, int] | None:
        left, right = (self.steps[c] for c in pair)
        private = (*LOCAL, *AGREED)
        for rank, one, other in ((0, left, right), (1, right, left)):
            for decision in one:
                if decision not in other and decision[0] not in private:
                    return decision, rank
        return None

    def _moves(self, pair: Pair) -> Iterator[tuple[Decision, int | None, Pair]]:
        left, right = (self.steps[c] for c in pair)
        for decision, after in left.items():
            if decision[0] in LOCAL:
                yield decision, 0, (after, pair[1])
            elif decision in right:
                yield decision, None, (after, right[decision])
        for decision, after in right.items():
            if decision[0] in LOCAL:
                yield decision, 1, (pair[0], after)

    def _look(self, codes: set[Codes]) -> None:
        """What each of some states can do, and where it leads."""
        if not codes:
            return
        known = list(codes)
        root = torch.tensor(known, dtype=torch.int64).t().contiguous()
        for code in known:
            self.steps[code] = {}

        found = self.expand(root)
        for row, number, code in zip(found.rows.tolist(), found.ways.tolist(), found.codes.t().tolist(), strict=True):
            way = self.expand.ways[number]
            decision = way.operation.name, tuple(way.values[p] for p in way.operation.params)
            self.steps[known[row]][decision] = tuple(code)

    def _divergence(
        self, before: dict[Pair, tuple[Pair, Decision, int | None] | None], pair: Pair, odd: tuple[Decision, int]
    ) -> Divergence:
        moves = [self._move(*odd)]
        link = before[pair]
        while link is not None:
            moves.append(self._move(link[1], link[2]))
            link = before[link[0]]
        return Divergence(tuple(moves[::-1]), len(before))

    def _move(self, decision: Decision, rank: int | None) -> Move:
        params = self.law.operations[decision[0]].params
        return Move(decision[0], {p.name: v for p, v in zip(params, decision[1], strict=True)}, rank)


def divergence(law: Law, scope: Scope, budget: int = 200_000) -> Divergence | None:
    """How two ranks come apart within a scope; None when no pair of states lets them. `Unsupported` beyond `budget`."""
    return _Pairs(scope.law(replicated(law)), scope, budget).search()
