"""The TLA+ reading: the law in one scope as a module and a configuration for TLC.

A state is one record: a set of elements or pairs for each relation, a function for each function. An event is a guard
and an effect, two operators over such a record. An operation takes all its events in one step of `Next`, through a
chain of LET definitions, which TLC evaluates only as far as the guards before them hold. So TLC counts the states that
a search by operations counts. A parameter that is a set stands for each one-element set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from freehold.spec.language import Action, Argument, Clause, Comprehension, Law, Operation
from freehold.spec.terms import (
    TRUE,
    And,
    Apply,
    Arith,
    Assign,
    Atom,
    Change,
    Compare,
    Constant,
    Element,
    Formula,
    Int,
    IntVar,
    Literal_,
    Not,
    Or,
    Param,
    Quantified,
    Relation,
    Same,
    SetOf,
    Sort,
)

_COMPARE = {"<": "<", "<=": "<=", "==": "="}
_ARITH = {"+": "+", "-": "-", "*": "*", "//": "\\div"}
_RULE = "-" * 100


@dataclass(frozen=True, slots=True)
class Tla:
    """A module and its configuration, as the texts of two files."""

    name: str
    module: str
    config: str


@dataclass(frozen=True, slots=True)
class _Names:
    """What the variables in sight are called; TLA+ allows no name twice in one scope."""

    known: Mapping[Param, str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()

    def with_(self, *params: Param) -> _Names:
        """These variables, too, each by a name that is not taken."""
        known, taken = dict(self.known), set(self.taken)
        for param in params:
            name, number = param.name, 0
            while name in taken:
                number += 1
                name = f"{param.name}_{number}"
            known[param] = name
            taken.add(name)
        return _Names(known, frozenset(taken))

    def __getitem__(self, param: Param) -> str:
        return self.known[param]


def export(law: Law, name: str, sizes: Mapping[str, int], constants: Mapping[str, int], numbers: range) -> Tla:
    """The law where each sort has `sizes[sort]` elements and an integer parameter is one of `numbers`."""
    writer = _Writer(law, numbers)
    module = "\n".join(writer.module(name))
    lines = ["\\* How many elements there are, and what a search must find true.", "SPECIFICATION Spec", "CONSTANTS"]
    for sort in law.sorts:
        elements = (f"{sort.__name__.lower()}{i}" for i in range(sizes[sort.__name__]))
        lines.append(f"    {sort.__name__} = {{{', '.join(elements)}}}")
    lines += [f"    {constant} = {value}" for constant, value in constants.items() if constant in _constants(law)]
    lines += ["INVARIANTS", *(f"    {n}" for n, _, _ in writer.invariants()), "CHECK_DEADLOCK FALSE", ""]
    return Tla(name, module, "\n".join(lines))


class _Writer:
    def __init__(self, law: Law, numbers: range) -> None:
        self.law, self.numbers = law, numbers
        reserved = {"state", "st", "Init", "Next", "Spec", "Number", "Min", "Max"}
        reserved |= {s.__name__ for s in law.sorts} | {n for n, _, _ in self.invariants()}
        reserved |= {f"st{i}" for i in range(1 + max((len(o.steps) for o in law.operations.values()), default=0))}
        self.free = _Names(taken=frozenset(reserved | _constants(law)))

    def module(self, name: str) -> Iterator[str]:
        """The lines of the module."""
        law = self.law
        yield from (f"{_RULE[: 48 - len(name) // 2]} MODULE {name} {_RULE[: 48 - len(name) // 2]}", "")
        yield f"(* {law.name}; written by `freehold law --tla` *)"
        yield from ("", "EXTENDS Integers, FiniteSets", "")
        yield f"CONSTANTS {', '.join([*(s.__name__ for s in law.sorts), *sorted(_constants(law))])}"
        yield from ("", "VARIABLE state", "")
        yield f"Number == {self.numbers.start}..{self.numbers.stop - 1}"
        yield from ("Min(a, b) == IF a <= b THEN a ELSE b", "Max(a, b) == IF a >= b THEN a ELSE b", "")
        yield from self._initial()
        yield from (f"\\* Events {_RULE[:90]}", "")
        for action in law.actions.values():
            yield from self._event(action)
        yield from (f"\\* Operations {_RULE[:86]}", "")
        for operation in law.operations.values():
            yield from self._operation(operation)
        yield from self._next()
        yield from (f"\\* Invariants {_RULE[:86]}", "")
        for rule, words, term in self.invariants():
            yield from (f"\\* {words}", f"{rule} ==", f"    {self.formula(term, self.free, 'state')}", "")
        yield from ("=" * 100, "")

    def invariants(self) -> Iterator[tuple[str, str, Formula]]:
        """The name, the words and the formula of everything that is true in each state between operations."""
        for p in self.law.invariants.values():
            term = self.law.idle >> p.term if p.group == "quiescent" else p.term
            yield f"Inv_{p.name}", " ".join(p.doc.split()), term

    # States ----------------------------------------------------------------------------------------------------------

    def _initial(self) -> Iterator[str]:
        everything = {of.name for f in self.law.initial if (of := _full(f)) is not None}
        fields = []
        for r in self.law.relations.values():
            fields.append(f"{r.name} |-> {_product(r.sorts) if r.name in everything else '{}'}")
        fields += [f"{f.name} |-> [x \\in {f.sort.__name__} |-> 0]" for f in self.law.functions.values()]
        yield "Init =="
        yield "    /\\ state = [" + ",\n                ".join(fields) + "]"
        yield from (f"    /\\ {self.formula(f, self.free, 'state')}" for f in self.law.initial)
        yield ""

    def _next(self) -> Iterator[str]:
        yield "Next =="
        for operation in self.law.operations.values():
            names = self.free.with_(*operation.params)
            bound = ", ".join(f"{names[p]} \\in {self._range(p)}" for p in operation.params)
            args = ", ".join(f"{{{names[p]}}}" if isinstance(p, SetOf) else names[p] for p in operation.params)
            yield f"    \\/ (\\E {bound} : Op_{operation.name}({args}))" if args else f"    \\/ Op_{operation.name}"
        yield from ("", "Spec == Init /\\ [][Next]_state", "")

    def _range(self, param: Param) -> str:
        if isinstance(param, IntVar):
            return "Number"
        return (param.sort if isinstance(param, SetOf) else type(param)).__name__

    # Events and operations -------------------------------------------------------------------------------------------

    def _event(self, action: Action) -> Iterator[str]:
        names = self.free.with_(*action.params)
        head = ", ".join(["st", *(names[p] for p in action.params)])
        yield f"\\* {' '.join(action.doc.split())}"
        yield f"Can_{action.name}({head}) =="
        yield from self._clauses(action.guard, names, "st")
        yield f"Then_{action.name}({head}) =="
        fields = self._effects(action, names)
        if fields:
            yield "    [st EXCEPT " + ",\n               ".join(f"!.{n} = {value}" for n, value in fields.items()) + "]"
        else:
            yield "    st"
        yield ""

    def _clauses(self, guard: Sequence[Clause], names: _Names, state: str) -> Iterator[str]:
        for clause in guard:
            yield f"    /\\ {self.formula(clause.term, names, state)} \\* {' '.join(clause.text.split())}"
        if not guard:
            yield "    TRUE"

    def _effects(self, action: Action, names: _Names) -> dict[str, str]:
        values: dict[str, str] = {}
        for update in action.updates:
            name = update.of.name
            old = values.get(name, f"st.{name}")
            if isinstance(update, Assign):
                value = self.number(update.value, names, "st")
                values[name] = f"[{old} EXCEPT ![{names[update.arg]}] = {value}]"
            else:
                sign = "\\cup" if update.gains else "\\"
                values[name] = f"({old} {sign} {self._tuples(update, names)})"
        return values

    def _tuples(self, change: Change, names: _Names) -> str:
        """The set of elements or pairs that a change is about."""
        match change:
            case Change(args=(x,), bound=(y,), where=Atom(SetOf() as given, (z,))) if x is y and y is z:
                return names[given]
        inner = names.with_(*change.bound)
        row = _tuple([inner[a] for a in change.args])
        if not change.bound:
            if change.where is TRUE:
                return f"{{{row}}}"
            return f"(IF {self.formula(change.where, names, 'st')} THEN {{{row}}} ELSE {{}})"
        chosen = _tuple([inner[v] for v in change.bound])
        among = _product([type(v) for v in change.bound])
        where = "" if change.where is TRUE else self.formula(change.where, inner, "st")
        if row == chosen:
            return f"{{{row} \\in {among} : {where}}}" if where else f"({among})"
        if not where:
            return f"{{{row} : {chosen} \\in {among}}}"
        held = names.with_(*change.bound, *change.bound)
        picked = _tuple([held[v] for v in change.bound])
        return f"{{{row} : {chosen} \\in {{{picked} \\in {among} : {self.formula(change.where, held, 'st')}}}}}"

    def _operation(self, operation: Operation) -> Iterator[str]:
        names = self.free.with_(*operation.params)
        head = f"({', '.join(names[p] for p in operation.params)})" if operation.params else ""
        yield from (f"\\* {' '.join(operation.doc.split())}", f"Op_{operation.name}{head} ==")
        states, tests = ["state"], [f"/\\ {self.formula(c.term, names, 'state')}" for c in operation.guard]
        chain = []
        for number, step in enumerate(operation.steps, start=1):
            call = ", ".join([states[-1], *(self.argument(a, names, states[-1]) for a in step.args)])
            tests.append(f"/\\ Can_{step.action.name}({call})")
            states.append(f"st{number}")
            chain.append(f"{states[-1]} == Then_{step.action.name}({call})")
        if chain:
            yield "    LET " + "\n        ".join(chain)
            yield "    IN  " + "\n        ".join([*tests, f"/\\ state' = {states[-1]}"])
        else:
            yield from (f"    {test}" for test in [*tests, "/\\ UNCHANGED state"])
        yield ""

    def argument(self, value: Argument, names: _Names, state: str) -> str:
        match value:
            case Comprehension(bound, Same(left, right)) if (left is bound) != (right is bound):
                return f"{{{names[right if left is bound else left]}}}"
            case Comprehension(bound, where):
                inner = names.with_(bound)
                return f"{{{inner[bound]} \\in {type(bound).__name__} : {self.formula(where, inner, state)}}}"
            case Int():
                return self.number(value, names, state)
        return names[value]

    # Terms -----------------------------------------------------------------------------------------------------------

    def formula(self, term: Formula, names: _Names, state: str) -> str:
        """A formula, in brackets where it is more than an atom."""
        match term:
            case Or((Not(premise), conclusion)):
                return f"({self.formula(premise, names, state)} => {self.formula(conclusion, names, state)})"
            case And(parts) | Or(parts):
                sign, empty = ("/\\", "TRUE") if isinstance(term, And) else ("\\/", "FALSE")
                inner = [self.formula(p, names, state) for p in parts]
                return f"({f' {sign} '.join(inner)})" if len(inner) > 1 else inner[0] if inner else empty
            case Not(Same(left, right)):
                return f"({names[left]} # {names[right]})"
            case Not(body):
                return f"~{self.formula(body, names, state)}"
            case Same(left, right):
                return f"({names[left]} = {names[right]})"
            case Compare(op, left, right):
                return f"({self.number(left, names, state)} {_COMPARE[op]} {self.number(right, names, state)})"
            case Atom(SetOf() as of, (arg,)):
                return f"({names[arg]} \\in {names[of]})"
            case Atom(of, args, False):
                return f"({_tuple([names[a] for a in args])} \\in {state}.{of.name})"
            case Quantified(kind, bound, body):
                return self._quantified(kind, bound, body, names, state)
        raise TypeError(term)

    def _quantified(self, kind: str, bound: tuple[Element, ...], body: Formula, names: _Names, state: str) -> str:
        inner = names.with_(*bound)
        holds = self.formula(body, inner, state)
        if kind in ("lone", "one"):
            among = _product([type(v) for v in bound])
            count = f"Cardinality({{{_tuple([inner[v] for v in bound])} \\in {among} : {holds}}})"
            return f"({count} {'<=' if kind == 'lone' else '='} 1)"
        variables = ", ".join(f"{inner[v]} \\in {type(v).__name__}" for v in bound)
        found = f"(\\{'A' if kind == 'forall' else 'E'} {variables} : {holds})"
        return f"~{found}" if kind == "no" else found

    def number(self, term: Int, names: _Names, state: str) -> str:
        """An integer, in brackets where it is more than one word."""
        match term:
            case Literal_(value):
                return str(int(value))
            case Constant(name):
                return name
            case IntVar():
                return names[term]
            case Apply(of, arg, False):
                return f"{state}.{of.name}[{names[arg]}]"
            case Arith(op, left, right):
                a, b = self.number(left, names, state), self.number(right, names, state)
                return f"{op.capitalize()}({a}, {b})" if op in ("min", "max") else f"({a} {_ARITH[op]} {b})"
        raise TypeError(term)


def _full(condition: Formula) -> Relation | None:
    """The relation of which an initial condition says that everything is in it."""
    match condition:
        case Quantified("forall", (x,), Atom(Relation() as of, (y,))) if x is y:
            return of
    return None


def _tuple(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"<<{', '.join(names)}>>"


def _product(sorts: Sequence[Sort]) -> str:
    return " \\X ".join(s.__name__ for s in sorts)


def _constants(law: Law) -> frozenset[str]:
    """The constants that the law mentions."""
    found: set[str] = set()

    def look(term: Any) -> None:
        match term:
            case Constant(name):
                found.add(name)
            case And(parts) | Or(parts):
                for part in parts:
                    look(part)
            case Not(body) | Quantified(body=body):
                look(body)
            case Compare(_, left, right) | Arith(_, left, right):
                look(left)
                look(right)
            case Change(where=where) | Comprehension(where=where):
                look(where)
            case Assign(value=value):
                look(value)

    owners: list[Action | Operation] = [*law.actions.values(), *law.operations.values()]
    for owner in owners:
        for clause in owner.guard:
            look(clause.term)
        for part in owner.updates if isinstance(owner, Action) else (a for s in owner.steps for a in s.args):
            look(part)
    for term in (*(p.term for p in law.invariants.values()), *law.initial):
        look(term)
    return frozenset(found)
