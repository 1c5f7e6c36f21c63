"""The lines of Python that an event, a block of events and a step invariant become.

An event is its guard clauses in order, then its updates. A block of events (the same event of many records) is one loop
around the same lines, so it *is* the fold of its single events, without a call for each.

Step invariants are also compiled for given elements: a fact that changed can only have broken one for elements that
the fact mentions, so those that some update has touched are all that has to be looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from freehold.spec.compiler import Compiler, Names, flatten, generator, mentions, symbols
from freehold.spec.language import Action, Law, Property
from freehold.spec.standing import Harm, harms, standing_subject
from freehold.spec.terms import (
    And,
    Apply,
    Arith,
    Assign,
    Atom,
    Change,
    Compare,
    Element,
    Formula,
    Function,
    Int,
    LawError,
    Not,
    Or,
    Param,
    Quantified,
    Relation,
    Sort,
)

TRACKED = ("Record", "Request", "Session")
COMING_AND_GOING = (*TRACKED, "Loan")
Fact = tuple[str, str]  # a symbol, and the sort of the element that the changed fact is noted for


@dataclass(frozen=True, slots=True)
class Standing:
    """A condition that the monitor remembers to be true of some elements (see `standing`)."""

    name: str
    sort: str
    source: str
    harms: list[Harm]


@dataclass(frozen=True, slots=True)
class Check:
    """A step invariant for given elements: the function that says whether one is broken, and the facts that can."""

    name: str
    rule: str
    source: str
    facts: list[Fact]


class Writer(Compiler):
    """Compiles a law's actions, and what has to be looked at again behind them."""

    def __init__(self, law: Law, constants: Mapping[str, int]) -> None:
        super().__init__(law, constants)
        self.watched: set[Fact] = set()
        self._checks: dict[tuple[str, str, str], Check] = {}
        self.standing: dict[str, Standing] = {}
        for action in law.actions.values():
            for term in (t for clause in action.guard for t in flatten(clause.term)):
                self._stand(term, action.params)
        for prop in law.invariants.values():
            if prop.group == "step":
                self._watch(prop)

    @property
    def checks(self) -> list[Check]:
        return list(self._checks.values())

    def text(self) -> str:
        """Functions for all actions, for all invariants (`holds_…`), and for the checks."""
        holds = [f"def holds_{n}():\n    return {self.formula(p.term, {})}" for n, p in self.law.invariants.items()]
        helpers = [*(s.source for s in self.standing.values()), *(c.source for c in self.checks)]
        return "\n\n\n".join([*helpers, *map(self.action, self.law.actions.values()), *holds])

    # Actions ---------------------------------------------------------------------------------------------------------

    def action(self, action: Action) -> str:
        """`def name(params)`: the number of the first broken clause, or -1 after the updates were made."""
        names: dict[Param, str] = {p: f"{p.name}_" for p in action.params}
        lines = self._body(action, names, lambda number: f"return {number}")
        return _text([f"def {action.name}({', '.join(names.values())}):", *_indented([*lines, "return -1"])])

    def block(self, action: Action) -> str:
        """`def name_block(columns)`: the index of the first event that breaks a clause, or -1. Those before it count.

        An element that comes into being with its event is known from there on, as with single events.
        """
        names: dict[Param, str] = {p: f"{p.name}_" for p in action.params}
        comers = [(type(p).__name__, name) for p, name in names.items() if type(p).__name__ in COMING_AND_GOING]
        lines = [f"known_{sort}[{name}] = None" for sort, name in comers]
        lines += self._body(action, names, lambda _: "return n_")
        columns = ", ".join(f"{name}s" for name in names.values())
        known = dict.fromkeys(f"known_{sort} = universe[{sort!r}]" for sort, _ in comers)
        each = f"for n_, ({', '.join(names.values())},) in enumerate(zip({columns})):"
        return _text([
            f"def {action.name}_block({columns}):", *_indented([*known, each, *_indented(lines), "return -1"]),
        ])  # fmt: skip

    def _body(self, action: Action, names: Names, fail: Callable[[int], str]) -> list[str]:
        self._fresh = 0
        lines: list[str] = []
        for number, clause in enumerate(action.guard):
            for term in flatten(clause.term):
                lines += self._demand(term, action.params, names, fail(number))
        writes: list[str] = []
        listings: dict[str, str] = {}
        fresh = self._fresh
        for number, update in enumerate(action.updates):
            # Conditions of all updates read the old state, so what they list is there before any is written.
            self._fresh = (
                fresh  # equal listings get equal texts: what moves from one relation to another is listed once
            )
            reads, writing = (
                self._change(update, names, number, action) if isinstance(update, Change)
                else ([f"t{number} = {self.number(update.value, names)}"], self._assign(update, names, number))
            )  # fmt: skip
            listed = f"t{number}"
            text = re.sub(rf"\b{listed}\b", "t", "\n".join(reads))
            lines += [f"{listed} = {listings[text]}"] if text in listings else reads
            if text:
                listings.setdefault(text, listed)
            writes += writing
        return _looked_up_once([*lines, *writes], list(names.values()))

    def _demand(self, term: Formula, params: Sequence[Param], names: Names, fail: str) -> list[str]:
        """Lines that leave when a conjunct of a guard is false."""
        subject = standing_subject(term, params, TRACKED)
        if subject is not None:
            stands = self._stand(term, params)
            return [f"if {names[subject]} not in sure_{stands} and not {stands}({names[subject]}): {fail}"]
        match term:
            case Quantified("forall", bound, body):
                return self._search(bound, flatten(body, negated=True), names, fail)
            case Quantified("no", bound, body) if self.look_up(bound, body, names) is None:
                return self._search(bound, flatten(body), names, fail)
        return [f"if not {self.formula(term, names)}: {fail}"]

    def _search(self, bound: Sequence[Element], conjuncts: list[Formula], names: Names, found: str) -> list[str]:
        """Loops as statements, which cost less than an `any` of a generator."""
        lines: list[str] = []
        for parts, _ in self.loops(bound, conjuncts, names):
            lines += [f"{'    ' * depth}{part}:" for depth, part in enumerate(parts)]
            lines.append("    " * len(parts) + found)
        return lines

    def _change(self, update: Change, names: Names, number: int, action: Action) -> tuple[list[str], list[str]]:
        """What a relation gains or loses: lines that list it, and lines that write it."""
        of, args, gains = update.of, update.args, update.gains
        conjuncts = flatten(update.where) if gains else [Atom(of, args), *flatten(update.where)]
        verb, listed = ("add" if gains else "drop"), f"t{number}"
        if not update.bound:
            condition, values = self.all(conjuncts, names), [names[a] for a in args]
            lines = [self._single(of, verb, values), *self._noted(of, gains, values)]
            return ([f"{listed} = {condition}"], [f"if {listed}:", *_indented(lines)]) if condition else ([], lines)
        bound = [any(a is b for b in update.bound) for a in args]
        alone = sum(u.of is of for u in action.updates) == 1
        if alone and len(conjuncts) == 1 and not gains and sorted(bound) == [False, True]:  # a whole row goes
            return [], self._cleared(of, names[args[bound.index(False)]], bound.index(False), listed)
        ways = self.loops(update.bound, conjuncts, names)
        if bound == [True] or bound == [False, True]:  # one new place: written in one go
            reads = _listing(listed, [(parts, known[args[-1]]) for parts, known in ways])
            fixed = [names[a] for a in args[:-1]]
            write = self._written(of, verb, fixed, listed)
            return reads, [f"if {listed}:", *_indented([write, *self._noted_all(of, gains, [*fixed, listed], listed)])]
        rows = _listing(listed, [(parts, f"({', '.join(known[a] for a in args)},)") for parts, known in ways])
        places = list("xy"[: len(args)])
        lines = [self._single(of, verb, places), *self._noted(of, gains, places)]
        return rows, [f"for {', '.join(places)}, in {listed}:", *_indented(lines)]

    def _single(self, of: Relation, verb: str, values: list[str]) -> str:
        if len(values) == 1:
            return f"{of.name}.{'add' if verb == 'add' else 'discard'}({values[0]})"
        return f"{of.name}_pairs.{verb}({', '.join(values)})"

    def _written(self, of: Relation, verb: str, fixed: list[str], listed: str) -> str:
        """Writes the listed values of the last place."""
        if fixed:
            return f"{of.name}_pairs.{verb}_all({fixed[0]}, {listed})"
        return f"{of.name}.{'update' if verb == 'add' else 'difference_update'}({listed})"

    def _cleared(self, of: Relation, element: str, place: int, listed: str) -> list[str]:
        """All tuples with the element at the place go; the list is what stood beside it."""
        write = f"{of.name}_pairs.{('clear', 'forget')[place]}({element})"
        noted = self._noted_all(of, False, [element, listed] if place == 0 else [listed, element], listed)
        return [f"{listed} = {write}", f"if {listed}:", *_indented(noted)] if noted else [write]

    def _noted_all(self, of: Relation, gains: bool, values: list[str], listed: str) -> list[str]:
        """What the change of many tuples at once may concern; one of their places is listed."""
        touches = [
            self._touch(of.name, s, x, "update" if x == listed else "add")
            for s, x in zip(of.sorts, values, strict=True)
        ]  # fmt: skip
        each = self._unsure(of.name, "gain" if gains else "lose", ["y" if x == listed else x for x in values])
        return [*filter(None, touches), *([f"for y in {listed}:", *_indented(each)] if each else [])]

    def _noted(self, of: Relation, gains: bool, values: list[str]) -> list[str]:
        touches = [self._touch(of.name, s, x) for s, x in zip(of.sorts, values, strict=True)]
        return [*filter(None, touches), *self._unsure(of.name, "gain" if gains else "lose", values)]

    def _assign(self, update: Assign, names: Names, number: int) -> list[str]:
        """0 is what a function is anyway, so nothing is kept for it: a finished request leaves nothing behind."""
        name, arg = update.of.name, names[update.arg]
        lines = []
        for direction, sign in (("up", ">"), ("down", "<")):
            noted = self._unsure(name, direction, [arg])
            if noted:
                lines += [f"if t{number} {sign} {name}_fn.get({arg}, 0):", *_indented(noted)]
        lines += [f"if t{number}: {name}_fn[{arg}] = t{number}", f"else: {name}_fn.pop({arg}, None)"]
        return [*lines, *filter(None, [self._touch(name, update.of.sort, arg)])]

    def _touch(self, symbol: str, sort: Sort, element: str, verb: str = "add") -> str:
        """Note that a fact about the element changed, if a step invariant could mind."""
        wanted = (symbol, sort.__name__) in self.watched
        return f"touched_{symbol}_{sort.__name__}.{verb}({element})" if wanted else ""

    # Standing conditions ---------------------------------------------------------------------------------------------

    def _stand(self, term: Formula, params: Sequence[Param]) -> str:
        """The name of the function that evaluates a standing condition anew; "" if the term is none."""
        subject = standing_subject(term, params, TRACKED)
        if subject is None or not isinstance(term, Quantified):
            return ""
        self._fresh, fresh = 0, self._fresh
        lines = self._search(term.bound, flatten(term.body, negated=True), {subject: "x"}, "return False")
        self._fresh, key = fresh, "\n".join(lines)
        if key not in self.standing:
            name = f"stands_{len(self.standing)}"
            lines = [f"def {name}(x):", *_indented([*lines, f"sure_{name}.add(x)", "return True"])]
            self.standing[key] = Standing(name, type(subject).__name__, _text(lines), harms(term, subject))
        return self.standing[key].name

    def _unsure(self, symbol: str, direction: str, values: list[str]) -> list[str]:
        """Lines that forget for which elements a condition stands, behind a change that can make it false.

        The index may be read before or after the same event's other writes: it differs by tuples that the event adds,
        which are a harm themselves, and by tuples that it takes away, which no counterexample can use.
        """
        lines = []
        for standing in self.standing.values():
            for harm in standing.harms:
                if (harm.symbol, harm.direction) == (symbol, direction):
                    match harm.of:
                        case None:
                            lines.append(f"sure_{standing.name}.clear()")
                        case (place, tie, index):
                            others = f"{tie}_by_{index}.get({values[place]}, EMPTY)"
                            lines.append(f"sure_{standing.name}.difference_update({others})")
                        case place:
                            lines.append(f"sure_{standing.name}.discard({values[place]})")
        return list(dict.fromkeys(lines))

    # Step invariants -------------------------------------------------------------------------------------------------

    def _watch(self, prop: Property) -> None:
        """Note which facts can break a step invariant, and for which element it is then looked at again.

        A record, a request or a session stands for the facts that mention it; other facts need another variable.
        """
        for part in prop.term.parts if isinstance(prop.term, And) else (prop.term,):
            if not isinstance(part, Quantified) or part.kind != "forall":
                raise LawError(f"{prop.name} has to say something of all elements of some sorts")
            tracked = {id(v): v for v in part.bound if type(v).__name__ in TRACKED}
            for symbol in sorted(symbols(part.body)):
                for v in tracked.values():
                    self._look_again(prop, part, v, symbol)
            for symbol, fact in _loose(part.body, tracked):
                mine = [v for v in part.bound if mentions(fact, {id(v): v})]
                if not mine:
                    raise LawError(f"{prop.name} has a fact without any variable that it quantifies over")
                for v in mine:
                    self._look_again(prop, part, v, symbol)

    def _look_again(self, prop: Property, part: Quantified, v: Element, symbol: str) -> None:
        self._fresh = 0  # equal checks get equal texts
        rest = [b for b in part.bound if b is not v]
        ways = self.loops(rest, flatten(part.body, negated=True), {v: "x"})
        broken = " or ".join(f"any(True for x in xs {' '.join(parts)})" for parts, _ in ways)
        fact, key = (symbol, type(v).__name__), (type(v).__name__, prop.name, broken)
        if key not in self._checks:
            name = f"breaks_{len(self._checks)}"
            self._checks[key] = Check(name, prop.name, f"def {name}(xs):\n    return {broken or 'False'}", [])
        if fact not in self._checks[key].facts:
            self._checks[key].facts.append(fact)
        self.watched.add(fact)


def _loose(term: object, tracked: Mapping[int, Element]) -> list[tuple[str, Formula | Int]]:
    """The facts of a formula that mention none of the tracked variables."""
    match term:
        case And(parts) | Or(parts):
            return [f for p in parts for f in _loose(p, tracked)]
        case Not(body) | Quantified(_, _, body):
            return _loose(body, tracked)
        case Compare(_, left, right) | Arith(_, left, right):
            return _loose(left, tracked) + _loose(right, tracked)
        case Atom(Relation(name)) | Apply(Function(name)):
            return [] if mentions(term, tracked) else [(name, term)]
    return []


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _listing(listed: str, ways: list[tuple[list[str], str]]) -> list[str]:
    """Lines that list a value for each way through some loops: a comprehension, or loops where mostly nothing is found.

    A comprehension costs a call even where there is nothing to run over.
    """
    (parts, value), *more = ways or [([], "")]
    if parts and not more and not parts[0].startswith("if") and " & " not in parts[0]:
        only = re.fullmatch(rf"for {re.escape(value)} in (.*)", parts[0]) if len(parts) == 1 else None
        return [f"{listed} = {f'list({only[1]})' if only else f'[{value} {generator(parts)}]'}"]
    lines = [f"{listed} = []"]
    for way, found in ways:
        lines += [f"{'    ' * depth}{part}:" for depth, part in enumerate(way)]
        lines.append(f"{'    ' * len(way)}{listed}.append({found})")
    return lines


def _looked_up_once(lines: list[str], params: Sequence[str]) -> list[str]:
    """The lines behind assignments of what they look up about parameters: reads of one event all see the old state."""
    found: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return found.setdefault(match[0], f"{match[1]}_{match[2]}")

    look_up = re.compile(rf"\b(\w+_(?:by_first|by_second|fn))\.get\(({'|'.join(params)}), (?:EMPTY|0)\)")
    changed = [look_up.sub(name, line) for line in lines] if params else lines
    return [*(f"{local} = {text}" for text, local in found.items()), *changed]
