"""The source reading: the law compiled to straight-line Python over indexed sets, for the monitor.

Each guard clause, update and property becomes one Python expression. A binary relation is kept twice, by its first and
by its second place, so that `no(Record, lambda k: locks(k, p))` is one dictionary look-up; a quantifier ranges over
the smallest relation that binds its variables and over a whole sort only where nothing else does.

Step invariants are also compiled for one element at a time: a fact that changed can only have broken one for elements
that the fact mentions, so those that some update has touched are all that has to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from freehold.spec import concrete
from freehold.spec.language import Action, Law, Property
from freehold.spec.terms import (
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
    Function,
    Int,
    IntVar,
    LawError,
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

Names = Mapping[Param, str]
EMPTY: frozenset[Any] = frozenset()
TRACKED = ("Record", "Request", "Session")
COMING_AND_GOING = (*TRACKED, "Loan")


@dataclass(slots=True)
class Pairs:
    """A binary relation, indexed by both places."""

    by_first: dict[Any, set[Any]] = field(default_factory=dict)
    by_second: dict[Any, set[Any]] = field(default_factory=dict)

    def add(self, a: Any, b: Any) -> None:
        self.by_first.setdefault(a, set()).add(b)
        self.by_second.setdefault(b, set()).add(a)

    def drop(self, a: Any, b: Any) -> None:
        _drop(self.by_first, a, b)
        _drop(self.by_second, b, a)


def _drop(index: dict[Any, set[Any]], key: Any, value: Any) -> None:
    found = index.get(key)
    if found is not None:
        found.discard(value)
        if not found:
            del index[key]


def flatten(term: Formula, negated: bool = False) -> list[Formula]:
    """The conjuncts of a formula, or of its negation."""
    match term:
        case Not(body):
            return flatten(body, not negated)
        case And(parts) if not negated:
            return [c for p in parts for c in flatten(p)]
        case Or(parts) if negated:
            return [c for p in parts for c in flatten(p, negated=True)]
    return [Not(term) if negated else term]


class Compiler:
    """Turns terms into Python expressions; `names` gives the Python name of each variable in sight."""

    def __init__(self, law: Law, constants: Mapping[str, int]) -> None:
        self.law = law
        self.constants = constants
        self._fresh = 0
        self.watched: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for prop in law.invariants.values():
            if prop.group == "step":
                self._watch(prop)

    def number(self, term: Int, names: Names) -> str:
        match term:
            case Literal_(value):
                return str(value)
            case Constant(name):
                return str(self.constants[name])
            case IntVar():
                return names[term]
            case Apply(of, arg):
                return f"{of.name}_fn.get({names[arg]}, 0)"
            case Arith(op, left, right):
                a, b = self.number(left, names), self.number(right, names)
                return f"{op}({a}, {b})" if op in ("min", "max") else f"({a} {op} {b})"
        raise TypeError(term)

    def formula(self, term: Formula, names: Names) -> str:
        match term:
            case And(parts):
                return "(" + (" and ".join(self.formula(p, names) for p in parts) or "True") + ")"
            case Or(parts):
                return "(" + (" or ".join(self.formula(p, names) for p in parts) or "False") + ")"
            case Not(body):
                return f"(not {self.formula(body, names)})"
            case Same(left, right):
                return f"({names[left]} == {names[right]})"
            case Compare(op, left, right):
                return f"({self.number(left, names)} {op} {self.number(right, names)})"
            case Atom(SetOf() as of, (arg,)):
                return f"({names[arg]} in {names[of]})"
            case Atom(of, (arg,)):
                return f"({names[arg]} in {of.name})"
            case Atom(of, (first, second)):
                return f"({names[second]} in {of.name}_by_first.get({names[first]}, EMPTY))"
            case Quantified(kind, bound, body):
                return self._quantified(kind, bound, body, names)
        raise TypeError(term)

    def _quantified(self, kind: str, bound: tuple[Element, ...], body: Formula, names: Names) -> str:
        if kind == "forall":
            return f"(not any(True {self.loops(bound, flatten(body, negated=True), names)[0]}))"
        if kind in ("exists", "no"):
            look_up = self._look_up(bound, body, names)
            some = look_up or f"any(True {self.loops(bound, flatten(body), names)[0]})"
            return some if kind == "exists" else f"(not {some})"
        count = f"sum(1 {self.loops(bound, flatten(body), names)[0]})"
        return f"({count} {'<=' if kind == 'lone' else '=='} 1)"

    def _look_up(self, bound: tuple[Element, ...], body: Formula, names: Names) -> str | None:
        """`exists x: rel(a, x)` is an entry in an index."""
        match body:
            case Atom(of, (a, b)) if len(bound) == 1:
                if b is bound[0] and a is not b:
                    return f"({names[a]} in {of.name}_by_first)"
                if a is bound[0] and a is not b:
                    return f"({names[b]} in {of.name}_by_second)"
        return None

    def loops(self, bound: Sequence[Element], conjuncts: list[Formula], names: Names) -> tuple[str, Names]:
        """`for … if …` clauses that run over the values of `bound` for which all conjuncts hold."""
        known: dict[Param, str] = dict(names)
        open_ = {id(v): v for v in bound}
        rest = list(conjuncts)
        text: list[str] = []
        while True:
            ready = [c for c in rest if not self._mentions(c, open_)]
            text += [f"if {self.formula(c, known)}" for c in ready]
            rest = [c for c in rest if all(c is not r for r in ready)]
            if not open_:
                if bound and text[0].startswith("if"):  # a condition on nothing that is bound: a `for` comes first
                    text.insert(0, "for _ in (None,)")
                return " ".join(text), known
            text.append(self._generator(rest, open_, known))

    def _generator(self, rest: list[Formula], open_: dict[int, Element], known: dict[Param, str]) -> str:
        """A `for` that binds some open variables, and leaves the conjunct that it ranges over out of `rest`."""
        ranked = sorted((c for c in rest if isinstance(c, Atom)), key=lambda c: self._cost(c, open_))
        for atom in ranked:
            free = [a for a in atom.args if id(a) in open_]
            if not free or len({id(a) for a in free}) != len(free):
                continue
            for a in free:
                known[a] = self._name(a)
                del open_[id(a)]
            rest[:] = [c for c in rest if c is not atom]
            return self._range(atom, free, known)
        variable = next(iter(open_.values()))
        del open_[id(variable)]
        known[variable] = self._name(variable)
        return f"for {known[variable]} in universe[{type(variable).__name__!r}]"

    def _range(self, atom: Atom, free: list[Element], known: Names) -> str:
        of = atom.of
        if isinstance(of, SetOf):
            return f"for {known[free[0]]} in {known[of]}"
        if len(atom.args) == 1:
            return f"for {known[free[0]]} in {of.name}"
        first, second = atom.args
        if len(free) == 2:
            return (
                f"for {known[first]}, _{known[first]} in {of.name}_by_first.items() "
                f"for {known[second]} in _{known[first]}"
            )
        if free[0] is second:
            return f"for {known[second]} in {of.name}_by_first.get({known[first]}, EMPTY)"
        return f"for {known[first]} in {of.name}_by_second.get({known[second]}, EMPTY)"

    def _cost(self, atom: Atom, open_: Mapping[int, Element]) -> int:
        free = sum(id(a) in open_ for a in atom.args)
        return 2 * free + (0 if isinstance(atom.of, SetOf) else 1)

    def _name(self, variable: Element) -> str:
        self._fresh += 1
        return f"{variable.name}_{self._fresh}"

    def _mentions(self, term: object, open_: Mapping[int, Element]) -> bool:
        match term:
            case Element():
                return id(term) in open_
            case And(parts) | Or(parts):
                return any(self._mentions(p, open_) for p in parts)
            case Not(body) | Quantified(_, _, body):
                return self._mentions(body, open_)
            case Same(left, right) | Compare(_, left, right) | Arith(_, left, right):
                return self._mentions(left, open_) or self._mentions(right, open_)
            case Atom(_, args):
                return any(id(a) in open_ for a in args)
            case Apply(_, arg):
                return id(arg) in open_
        return False

    # Actions ---------------------------------------------------------------------------------------------------------

    def action(self, action: Action) -> str:
        """`def name(params)`: the number of the first broken clause, or -1 after the updates were made."""
        names: dict[Param, str] = {p: f"{p.name}_" for p in action.params}
        lines = [f"def {action.name}({', '.join(names.values())}):"]
        for number, clause in enumerate(action.guard):
            lines.append(f"    if not {self.formula(clause.term, names)}: return {number}")
        writes: list[str] = []
        for number, update in enumerate(action.updates):
            match update:
                case Change(of, args, bound, where, gains):
                    conjuncts = flatten(where) if gains else [Atom(of, args), *flatten(where)]
                    # Conditions of all updates read the old state, so the tuples are listed before any is written.
                    if bound:
                        loops, known = self.loops(bound, conjuncts, names)
                        lines.append(f"    t{number} = [({', '.join(known[a] for a in args)},) {loops}]")
                    else:
                        row, condition = ", ".join(names[a] for a in args), self._all(conjuncts, names)
                        lines.append(f"    t{number} = [({row},)]" + (f" if {condition} else []" if condition else ""))
                    writes.append(self._write(of, number, gains))
                case Assign(of, arg, value):
                    lines.append(f"    t{number} = {self.number(value, names)}")
                    writes += self._assign(of, names[arg], number)
        return "\n".join([*lines, *writes, "    return -1"])

    def _all(self, conjuncts: list[Formula], names: Names) -> str:
        """The conjunction; nothing for none."""
        return " and ".join(self.formula(c, names) for c in conjuncts)

    def _write(self, of: Relation, number: int, gains: bool) -> str:
        places = "xy"[: len(of.sorts)]
        if len(places) == 1:
            write = f"{of.name}.{'add' if gains else 'discard'}(x)"
        else:
            write = f"{of.name}_pairs.{'add' if gains else 'drop'}(x, y)"
        touches = [self._touch(of.name, s, p) for s, p in zip(of.sorts, places, strict=True)]
        return f"    for {', '.join(places)}, in t{number}: {'; '.join([write, *filter(None, touches)])}"

    def _assign(self, of: Function, arg: str, number: int) -> list[str]:
        """0 is what a function is anyway, so nothing is kept for it: a finished request leaves nothing behind."""
        touch = self._touch(of.name, of.sort, arg)
        return [
            f"    if t{number}: {of.name}_fn[{arg}] = t{number}",
            f"    else: {of.name}_fn.pop({arg}, None)",
            *([f"    {touch}"] if touch else []),
        ]

    def _touch(self, symbol: str, sort: Sort, element: str) -> str:
        """Note that a fact about the element changed, if a step invariant could mind."""
        wanted = (symbol, sort.__name__) in self.watched
        return f"touched_{symbol}_{sort.__name__}.add({element})" if wanted else ""

    def _watch(self, prop: Property) -> None:
        """Note which facts can break a step invariant, and for which element it is then looked at again.

        A record, a request or a session stands for the facts that mention it; other facts need another variable.
        """
        for part in prop.term.parts if isinstance(prop.term, And) else (prop.term,):
            if not isinstance(part, Quantified) or part.kind != "forall":
                raise LawError(f"{prop.name} has to say something of all elements of some sorts")
            tracked = {id(v): v for v in part.bound if type(v).__name__ in TRACKED}
            for symbol in symbols(part.body):
                for v in tracked.values():
                    self._look_again(prop, part, v, symbol)
            for symbol, fact in self._loose(part.body, tracked):
                mine = [v for v in part.bound if self._mentions(fact, {id(v): v})]
                if not mine:
                    raise LawError(f"{prop.name} has a fact without any variable that it quantifies over")
                for v in mine:
                    self._look_again(prop, part, v, symbol)

    def _look_again(self, prop: Property, part: Quantified, v: Element, symbol: str) -> None:
        rest = [b for b in part.bound if b is not v]
        conjuncts = flatten(part.body, negated=True)
        broken = f"any(True {self.loops(rest, conjuncts, {v: 'x'})[0]})" if rest else self._all(conjuncts, {v: "x"})
        self.watched.setdefault((symbol, type(v).__name__), []).append((prop.name, f"lambda x: not ({broken})"))

    def _loose(self, term: object, tracked: Mapping[int, Element]) -> list[tuple[str, Formula | Int]]:
        """The facts of a formula that mention none of the tracked variables."""
        match term:
            case And(parts) | Or(parts):
                return [f for p in parts for f in self._loose(p, tracked)]
            case Not(body) | Quantified(_, _, body):
                return self._loose(body, tracked)
            case Compare(_, left, right) | Arith(_, left, right):
                return self._loose(left, tracked) + self._loose(right, tracked)
            case Atom(Relation(name)) | Apply(Function(name)):
                return [] if self._mentions(term, tracked) else [(name, term)]
        return []


def symbols(term: object) -> set[str]:
    """The relations and functions that a formula mentions."""
    match term:
        case And(parts) | Or(parts):
            return {s for p in parts for s in symbols(p)}
        case Not(body) | Quantified(_, _, body):
            return symbols(body)
        case Compare(_, left, right) | Arith(_, left, right):
            return symbols(left) | symbols(right)
        case Atom(of) | Apply(of):
            return {of.name}
    return set()


class Compiled:
    """A law's actions and properties as functions over one mutable state."""

    def __init__(self, law: Law, constants: Mapping[str, int], universe: Mapping[str, Iterable[Any]]) -> None:
        self.law = law
        self.constants = dict(constants)
        self.universe: dict[str, dict[Any, None]] = {n: dict.fromkeys(xs) for n, xs in universe.items()}
        self.sets: dict[str, set[Any]] = {}
        self.pairs: dict[str, Pairs] = {}
        self.values: dict[str, dict[Any, int]] = {f: {} for f in law.functions}
        scope: dict[str, Any] = {"EMPTY": EMPTY, "universe": self.universe}
        for name, relation in law.relations.items():
            if len(relation.sorts) == 1:
                scope[name] = self.sets[name] = set()
            else:
                pairs = self.pairs[name] = Pairs()
                scope[f"{name}_pairs"] = pairs
                scope[f"{name}_by_first"] = pairs.by_first
                scope[f"{name}_by_second"] = pairs.by_second
        scope |= {f"{name}_fn": values for name, values in self.values.items()}
        compiler = Compiler(law, self.constants)
        self.touched: dict[tuple[str, str], set[Any]] = {fact: set() for fact in compiler.watched}
        scope |= {f"touched_{symbol}_{sort}": elements for (symbol, sort), elements in self.touched.items()}
        self.source = "\n\n\n".join(
            [compiler.action(a) for a in law.actions.values()]
            + [f"def holds_{n}():\n    return {compiler.formula(p.term, {})}" for n, p in law.invariants.items()]
        )
        exec(compile(self.source, f"<{law.name}>", "exec"), scope)
        self.actions: dict[str, Callable[..., int]] = {n: scope[n] for n in law.actions}
        self.properties: dict[str, Callable[[], bool]] = {n: scope[f"holds_{n}"] for n in law.invariants}
        self._instances: dict[tuple[str, str], list[tuple[str, Callable[[Any], bool]]]] = {
            fact: [(name, eval(text, scope)) for name, text in checks] for fact, checks in compiler.watched.items()
        }

    def settle(self) -> str | None:
        """A step invariant that an update since the last call has broken, or None; then nothing counts as touched.

        What no relation and no function speaks of any more is forgotten, so that a long log needs no more room.
        """
        for fact, elements in self.touched.items():
            for x in elements:
                for name, holds in self._instances[fact]:
                    if not holds(x):
                        return name
        for (_, sort), elements in self.touched.items():
            self._forget(sort, elements)
            elements.clear()
        self._forget("Loan", list(self.universe.get("Loan", ())))
        return None

    def _forget(self, sort: str, elements: Iterable[Any]) -> None:
        for x in elements:
            if sort in COMING_AND_GOING and not self._speaks_of(sort, x):
                self.universe[sort].pop(x, None)

    def _speaks_of(self, sort: str, x: Any) -> bool:
        for name, relation in self.law.relations.items():
            pairs = self.pairs.get(name)
            for place, s in enumerate(relation.sorts):
                if s.__name__ == sort:
                    facts = self.sets[name] if pairs is None else pairs.by_second if place else pairs.by_first
                    if x in facts:
                        return True
        return any(x in self.values[name] for name, f in self.law.functions.items() if f.sort.__name__ == sort)

    def state(self) -> concrete.State:
        """The same state for the concrete reading."""
        relations: dict[str, set[tuple[Any, ...]]] = {n: {(x,) for x in xs} for n, xs in self.sets.items()}
        for name, pairs in self.pairs.items():
            relations[name] = {(a, b) for a, bs in pairs.by_first.items() for b in bs}
        universe = {s: list(self.universe[s.__name__]) for s in self.law.sorts}
        return concrete.State(universe, self.constants, relations, {n: dict(v) for n, v in self.values.items()})

    def load(self, state: concrete.State) -> None:
        """Take over a concrete state; nothing in it counts as touched."""
        for touched in self.touched.values():
            touched.clear()
        for name, xs in self.sets.items():
            xs.clear()
            xs.update(x for (x,) in state.relations[name])
        for name, pairs in self.pairs.items():
            pairs.by_first.clear()
            pairs.by_second.clear()
            for a, b in state.relations[name]:
                pairs.add(a, b)
        for name, values in self.values.items():
            values.clear()
            values.update({x: value for x, value in state.functions[name].items() if value})
        for sort, elements in state.universe.items():
            self.universe[sort.__name__].clear()
            self.universe[sort.__name__].update(dict.fromkeys(elements))
