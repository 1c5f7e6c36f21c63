"""Bounded search: the shortest sequence of operations that breaks an invariant, or reaches a state asked for.

The law is unrolled over a small scope, one operation a step, and a SAT solver picks operations and parameters at once.
One step is read into a circuit once (`finite`) and copied for each depth. Invariants that hold up to a depth are
asserted when the search goes deeper: they cut the states that can't be. What is found is replayed by the concrete
reading and comes back as named operations, the events that they take and the owners that they change.

Elements that no operation has named yet differ in nothing but their numbers, as the law names none itself. So a step
may name a new one only when all lower numbers have been named. Every trace is one of these but for names: this
restriction loses nothing.

From some depth on only the last operation is looked at first: which of them lead, from *any* state with the invariants,
to one without? A search for a violation then ends its traces with one of these. When there is none, no depth has a
violation, and the rest of the search is settled at once; a law whose proof holds gets there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import z3

from freehold.model_check.circuit import FALSE, Bit, Circuit
from freehold.model_check.finite import Finite, Frame, Number
from freehold.model_check.scopes import Scope
from freehold.model_check.steps import ReadingsDisagree, Taken, listing, taken
from freehold.spec import concrete
from freehold.spec.errors import Unsupported
from freehold.spec.language import Clause, Law, Operation
from freehold.spec.owners import Owners
from freehold.spec.state import Place
from freehold.spec.terms import Formula, IntVar, Param, SetOf, Sort

LOOK_BACK = 4  # traces shorter than this are searched sooner than the last operation is looked at
SCOPE: Mapping[str, int] = {"Page": 3, "Row": 2, "Record": 2, "Request": 2, "Session": 1}
CONSTANTS: Mapping[str, int] = {"page_size": 2, "row_width": 5, "window": 0, "namespaces": 1}


@dataclass(frozen=True, slots=True)
class Found:
    """The shortest trace to a state in which `property` is as was asked for."""

    property: str
    trace: tuple[Taken, ...]
    state: concrete.State
    seconds: float

    def __str__(self) -> str:
        return f"{self.property} after {len(self.trace)} operations:\n{listing(self.trace)}"


@dataclass(frozen=True, slots=True)
class Nothing:
    """No trace of up to `depth` operations reaches what was asked for.

    `settled` is the number of operations after which the last one alone settled the question, for every depth; None
    when each depth was searched.
    """

    depth: int
    seconds: float
    settled: int | None = None


@dataclass(slots=True)
class _Step:
    """One step as a circuit over two states.

    `picked` has a bit for each operation, `slots` one for each value of a parameter; operations share the slots.
    `beyond` is true when the step leads to a number that `after` can't say.
    """

    law: Law
    scope: Mapping[str, int]
    constants: Mapping[str, int]
    circuit: Circuit = field(init=False, default_factory=Circuit)
    names: dict[Bit, tuple[str, int]] = field(init=False, default_factory=dict)
    rules: list[Bit] = field(init=False, default_factory=list)
    reading: Finite = field(init=False)
    now: Frame = field(init=False)
    after: Frame = field(init=False)
    picked: list[Bit] = field(init=False)
    slots: dict[str, dict[int, Bit]] = field(init=False, default_factory=dict)
    beyond: Bit = field(init=False)

    def __post_init__(self) -> None:
        self.reading = Finite(self.law, self.circuit, self.scope, self.constants)
        self.now, self.after = self._frame(0), self._frame(1)
        operations = list(self.law.operations.values())
        self.picked = [self._input(f"take {o.name}", 0) for o in operations]
        self.rules += [self.circuit.disj(self.picked), self.circuit.at_most_one(self.picked)]
        self._slots(operations)
        ends = [self._taken(o, bit) for o, bit in zip(operations, self.picked, strict=True)]
        self._join(ends)
        self._name_in_order(operations)

    def _input(self, name: str, offset: int) -> Bit:
        bit = self.circuit.input()
        self.names[bit] = (name, offset)
        return bit

    def _frame(self, offset: int) -> Frame:
        relations = {
            name: {index: self._input(f"{name}{index}", offset) for index in self.reading.tuples(r.sorts)}
            for name, r in self.law.relations.items()
        }
        functions = {
            name: tuple(
                {v: self._input(f"{name}({i})={v}", offset) for v in self.domain}
                for i in range(self.reading.sizes[f.sort])
            )
            for name, f in self.law.functions.items()
        }
        return Frame(relations, functions)

    @property
    def _numbers(self) -> range:
        return range(max(self.constants["row_width"], *Place) + 1)

    @property
    def domain(self) -> range:
        """What a function can be: a page more or less than what is right, so that an error of one page shows."""
        margin = self.constants["page_size"]
        return range(-margin, self._numbers.stop + margin)

    # Operations ------------------------------------------------------------------------------------------------------

    def slot_names(self, operation: Operation) -> Iterator[tuple[Param, str]]:
        """The slot of each parameter: the second page of an operation has the second slot for pages."""
        counts: dict[str, int] = {}
        for p in operation.params:
            kind = type(p).__name__ if not isinstance(p, SetOf) else f"set of {p.sort.__name__}"
            counts[kind] = counts.get(kind, 0) + 1
            yield p, f"{kind}{counts[kind]}"

    def _slots(self, operations: list[Operation]) -> None:
        """A slot has at most one value, and one exactly when an operation that has it is taken; a set has any."""
        users: dict[str, list[Bit]] = {}
        kinds: dict[str, Param] = {}
        for operation, bit in zip(operations, self.picked, strict=True):
            for param, name in self.slot_names(operation):
                users.setdefault(name, []).append(bit)
                kinds[name] = param
        for name, param in kinds.items():
            values = self.slots[name] = {v: self._input(f"{name}={v}", 0) for v in self._values(param)}
            if not isinstance(param, SetOf):
                used = self.circuit.disj(users[name])
                bits = list(values.values())
                self.rules += [self.circuit.at_most_one(bits), self.circuit.same(self.circuit.disj(bits), used)]

    def _values(self, param: Param) -> range:
        if isinstance(param, IntVar):
            return self._numbers
        return range(self.reading.sizes[param.sort if isinstance(param, SetOf) else type(param)])

    def _taken(self, operation: Operation, bit: Bit) -> Frame:
        env: dict[Param, Any] = {}
        for param, name in self.slot_names(operation):
            values = self.slots[name]
            env[param] = values if isinstance(param, IntVar) else tuple(values.values())
        guards, then = self.reading.operate(operation, env, self.now)
        self.rules += [self.circuit.disj((bit ^ 1, g)) for g in guards]
        return then

    def _join(self, ends: list[Frame]) -> None:
        """`after` is the end of the operation that is taken."""
        for name, bits in self.after.relations.items():
            for index, bit in bits.items():
                self.rules.append(self.circuit.same(bit, self._chosen([e.relations[name][index] for e in ends])))
        beyond: list[Bit] = []
        for name, numbers in self.after.functions.items():
            for i, number in enumerate(numbers):
                results: list[Number] = [e.functions[name][i] for e in ends]
                for value, bit in number.items():
                    self.rules.append(self.circuit.same(bit, self._chosen([r.get(value, FALSE) for r in results])))
                for took, result in zip(self.picked, results, strict=True):
                    beyond += [self.circuit.conj((took, b)) for v, b in result.items() if v not in number]
        self.beyond = self.circuit.disj(beyond)

    def _chosen(self, ends: list[Bit]) -> Bit:
        """The bit at the end of the operation that is taken; most operations agree on it."""
        groups: dict[Bit, list[Bit]] = {}
        for took, end in zip(self.picked, ends, strict=True):
            groups.setdefault(end, []).append(took)
        return self.circuit.disj(self.circuit.conj((end, self.circuit.disj(t))) for end, t in groups.items())

    # Names -----------------------------------------------------------------------------------------------------------

    def _name_in_order(self, operations: list[Operation]) -> None:
        """New elements are named by the lowest number; a sort of which an operation takes a set is left alone."""
        sets = {p.sort for o in operations for p in o.params if isinstance(p, SetOf)}
        for sort, size in self.reading.sizes.items():
            if sort not in sets:
                self._order(sort, size, [s for s in self.slots if s.rstrip("0123456789") == sort.__name__])

    def _order(self, sort: Sort, size: int, slots: list[str]) -> None:
        named = [self._input(f"named {sort.__name__} {i}", 0) for i in range(size)]
        later = [self._input(f"named {sort.__name__} {i}", 1) for i in range(size)]
        for slot in sorted(slots, key=lambda s: (len(s), s)):
            values = self.slots[slot]
            self.rules += [self.circuit.disj((values[i] ^ 1, named[i - 1])) for i in range(1, size)]
            named = [self.circuit.disj((n, values[i])) for i, n in enumerate(named)]
        self.rules += [self.circuit.same(after, n) for after, n in zip(later, named, strict=True)]


class Search:
    """Unrolled operations of a law over a scope: elements by sort, none of a sort that it does not name."""

    def __init__(self, law: Law, scope: Mapping[str, int] = SCOPE, constants: Mapping[str, int] = CONSTANTS) -> None:
        self.law = Scope("search", scope, constants).law(law)
        self.scope, self.constants = scope, constants
        self._step = _Step(self.law, scope, constants)
        self._variables = {bit: z3.Bool(name + "'" * offset) for bit, (name, offset) in self._step.names.items()}
        (self._rule,) = self._expressions([self._step.circuit.conj(self._step.rules)])
        self._copies: list[dict[str, Any]] = []
        self.solver = z3.SolverFor("QF_FD")
        self._depth = 0
        self._begin()

    def _expressions(self, roots: list[Bit]) -> list[Any]:
        return self._step.circuit.expressions(roots, self._variables)

    def _begin(self) -> None:
        """The state at depth 0 is the initial one, in which no element has been named."""
        start = concrete.initial(self.law, self.scope, self.constants)
        step = self._step
        bits = {b: index in start.relations[n] for n, xs in step.now.relations.items() for index, b in xs.items()}
        for name, numbers in step.now.functions.items():
            for i, number in enumerate(numbers):
                bits |= {b: start.functions[name].get(i, 0) == v for v, b in number.items()}
        bits |= {b: False for b, (name, offset) in step.names.items() if name.startswith("named ") and not offset}
        for bit, value in bits.items():
            variable = self._at(0, bit)
            self.solver.add(variable if value else z3.Not(variable))

    def _at(self, depth: int, bit: Bit) -> Any:
        """A bit of the step that begins at a depth."""
        name, offset = self._step.names[bit]
        return self._named(depth + offset, name)

    def _named(self, depth: int, name: str) -> Any:
        while depth >= len(self._copies):
            self._copies.append({})
        known = self._copies[depth]
        if name not in known:
            known[name] = z3.Bool(f"{name}@{depth}")
        return known[name]

    def _copy(self, expression: Any, depth: int) -> Any:
        """An expression over the step's variables for the step that begins at a depth."""
        return z3.substitute(expression, *((v, self._at(depth, bit)) for bit, v in self._variables.items()))

    def violation(self, depth: int, progress: Callable[[int], None] | None = None) -> Found | Nothing:
        """The shortest trace to a state where an always or step invariant fails."""
        checked = {p.name: p.term for p in self.law.invariants.values() if p.group in ("always", "step")}
        return self._search(checked, depth, negated=True, progress=progress)

    def witness(
        self, name: str, term: Formula, depth: int, progress: Callable[[int], None] | None = None
    ) -> Found | Nothing:
        """The shortest trace to a state where a formula holds."""
        return self._search({name: term}, depth, negated=False, progress=progress)

    def _search(
        self, terms: Mapping[str, Formula], depth: int, negated: bool, progress: Callable[[int], None] | None
    ) -> Found | Nothing:
        started = time.perf_counter()
        meanings = self._meanings(terms)
        wanted = z3.Or([z3.Not(m) if negated else m for m in meanings])
        (beyond,) = self._expressions([self._step.beyond])
        last: list[Any] | None = None
        for length in range(depth + 1):
            if negated and length >= LOOK_BACK and last is None:
                last = self._suspects(list(terms.values()))
                if not last:
                    self._assert_up_to(depth, z3.Not(wanted))
                    return Nothing(depth, time.perf_counter() - started, settled=length - 1)
            self._unroll_to(length)
            goal = self._copy(wanted, length)
            if length:
                goal = z3.Or(goal, self._copy(beyond, length - 1))
            if last is not None:
                goal = z3.And(goal, self._copy(z3.Or(last), length - 1))
            model = self._ask(goal)
            if model is not None:
                trace, state = self._replay(model, length)
                name = next((n for n, t in terms.items() if concrete.holds(t, {}, state) != negated), None)
                if name is None:
                    raise self._beyond(trace, state)
                return Found(name, trace, state, time.perf_counter() - started)
            if progress is not None:
                progress(length)
        return Nothing(depth, time.perf_counter() - started)

    def _meanings(self, terms: Mapping[str, Formula]) -> list[Any]:
        return self._expressions([self._step.reading.formula(t, {}, self._step.now) for t in terms.values()])

    def _unroll_to(self, length: int) -> None:
        """Traces of so many operations."""
        while self._depth < length:
            self.solver.add(self._copy(self._rule, self._depth))
            self._depth += 1

    def _assert_up_to(self, depth: int, fact: Any) -> None:
        """What is known to hold in every state of a trace helps later questions."""
        self._unroll_to(depth)
        for length in range(depth + 1):
            self.solver.add(self._copy(fact, length))

    def _ask(self, goal: Any) -> z3.ModelRef | None:
        """A model in which the goal is true; without one, that it is false is kept as a fact."""
        asked = z3.FreshBool("asked")
        self.solver.add(z3.Implies(asked, goal))
        verdict = self.solver.check(asked)
        if verdict == z3.sat:
            return self.solver.model()
        if verdict != z3.unsat:
            raise ReadingsDisagree(f"a bounded question was not decided: {verdict}")
        self.solver.add(z3.Not(asked), z3.Not(goal))
        return None

    def _suspects(self, terms: list[Formula]) -> list[Any]:
        """The operations that lead from some state with all invariants, reachable or not, to one without."""
        step, circuit = self._step, self._step.circuit
        given = [step.reading.formula(t, {}, step.now) for t in terms]
        for numbers in step.now.functions.values():
            for number in numbers:
                given += [circuit.disj(number.values()), circuit.at_most_one(list(number.values()))]
        broken = circuit.disj([step.beyond, *(step.reading.formula(t, {}, step.after) ^ 1 for t in terms)])
        before, after, *picked = self._expressions([circuit.conj(given), broken, *step.picked])
        solver = z3.SolverFor("QF_FD")
        solver.add(self._rule, before, after)
        return [took for took in picked if solver.check(took) != z3.unsat]

    def _beyond(self, trace: tuple[Taken, ...], state: concrete.State) -> Exception:
        """Why a trace is not to what was asked for: a number that is beyond those of the search, or an error."""
        numbers = {v for values in state.functions.values() for v in values.values()}
        low, high = self._step.domain.start, self._step.domain.stop - 1
        if all(low <= v <= high for v in numbers):
            return ReadingsDisagree("the trace of the solver replays, but not to the state that it promised")
        return Unsupported(
            f"after {len(trace)} operations ({', '.join(map(str, trace))}) a number is outside {low} to {high}, "
            "which the search can't follow: search with larger constants"
        )

    def _replay(self, model: z3.ModelRef, length: int) -> tuple[tuple[Taken, ...], concrete.State]:
        state = concrete.initial(self.law, self.scope, self.constants)
        owners, trace = Owners(self.law), list[Taken]()
        for depth in range(length):
            operation, env = self._read(model, depth)
            outcome = concrete.operate(operation, env, state)
            if isinstance(outcome, Clause):
                raise ReadingsDisagree(f"the solver takes {operation.name}, which is not enabled: {outcome.text}")
            events, after = outcome
            trace.append(taken(operation, env, events, owners.changed(state, after)))
            state = after
        return tuple(trace), state

    def _read(self, model: z3.ModelRef, depth: int) -> tuple[Operation, dict[Param, Any]]:
        """The operation that the model takes at a depth, and its parameters."""

        def true(bit: Bit) -> bool:
            return bool(z3.is_true(model.eval(self._at(depth, bit), model_completion=True)))

        operations = list(self.law.operations.values())
        operation = next(o for o, bit in zip(operations, self._step.picked, strict=True) if true(bit))
        env: dict[Param, Any] = {}
        for param, name in self._step.slot_names(operation):
            values = [v for v, bit in self._step.slots[name].items() if true(bit)]
            env[param] = frozenset(values) if isinstance(param, SetOf) else values[0]
        return operation, env
