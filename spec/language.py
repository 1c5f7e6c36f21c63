"""The law's language: plain Python over proxies, traced once into a small syntax tree.

A *sort* is a subclass of `Element`, and its instances are variables. A *relation* over sorts and an integer *function*
of one element are called to build terms; an *action* is a generator that yields named guard clauses and simultaneous
updates; an *operation* yields actions. Running the generator once with fresh variables gives a tree that every reading
folds over: `concrete`, `source`, `text` here, `smt` and `vector` among the instruments. Nothing is ever transcribed.

    @law.action
    def release(k: Record, pages: SetOf[Page]) -> Body:
        yield forall(Page, lambda p: pages(p) >> owns(k, p)), "the record owns each page"
        yield free.gains(pages)
        yield owns[k].loses(pages)

Updates read the old state and happen together; what is not assigned does not change. All choice is in the parameters.
A term has no truth value: `and`, `or`, `if` over terms raise at once instead of silently meaning something else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NoReturn, TypeVar, overload

Kind = Literal["forall", "exists", "lone", "one", "no"]
Group = Literal["always", "step", "theorem", "quiescent"]


class LawError(TypeError):
    """The text of the law is not well formed; raised when it is written, never when it is used."""


class Term:
    """Anything the law can say. Terms build terms; they have no truth value of their own."""

    def __bool__(self) -> NoReturn:
        raise LawError("a term has no truth value: write `&`, `|`, `~`, `>>` instead of `and`, `or`, `not`, `if`")

    __hash__ = object.__hash__


class Formula(Term):
    """A term that is true or false in a state."""

    def __and__(self, other: Formula) -> Formula:
        return And((self, other))

    def __or__(self, other: Formula) -> Formula:
        return Or((self, other))

    def __invert__(self) -> Formula:
        return Not(self)

    def __rshift__(self, other: Formula) -> Formula:
        """Implication: `a >> b`."""
        return Or((Not(self), other))

    def iff(self, other: Formula) -> Formula:
        return (self >> other) & (other >> self)


class Int(Term):
    """An integer term: linear, with the page size a literal of the scope that reads it."""

    def __add__(self, other: Int | int) -> Int:
        return Arith("+", self, lift(other))

    def __sub__(self, other: Int | int) -> Int:
        return Arith("-", self, lift(other))

    def __mul__(self, other: Int | int) -> Int:
        return Arith("*", self, lift(other))

    def __floordiv__(self, other: Int | int) -> Int:
        return Arith("//", self, lift(other))

    def __lt__(self, other: Int | int) -> Formula:
        return Compare("<", self, lift(other))

    def __le__(self, other: Int | int) -> Formula:
        return Compare("<=", self, lift(other))

    def __gt__(self, other: Int | int) -> Formula:
        return Compare("<", lift(other), self)

    def __ge__(self, other: Int | int) -> Formula:
        return Compare("<=", lift(other), self)

    def __eq__(self, other: object) -> Formula:  # type: ignore[override]
        return Compare("==", self, lift(other))

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True, eq=False)
class Element(Term):
    """A variable of a sort; the sort is the class. Subclass it to declare a sort."""

    name: str

    def __eq__(self, other: object) -> Formula:  # type: ignore[override]
        if not isinstance(other, Element):
            raise LawError(f"{self.name} can only be compared with an element, not {other!r}")
        return Same(self, other)

    def __ne__(self, other: object) -> Formula:  # type: ignore[override]
        return Not(self == other)

    __hash__ = object.__hash__


Sort = type[Element]
T = TypeVar("T", bound=Element)


@dataclass(frozen=True, slots=True, eq=False)
class IntVar(Int):
    """An integer parameter of an action."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Literal_(Int):
    value: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Int):
    """A number fixed by the configuration: a literal in every reading (page size), or any value (row width)."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Arith(Int):
    op: Literal["+", "-", "*", "//", "min", "max"]
    left: Int
    right: Int


@dataclass(frozen=True, slots=True, eq=False)
class Compare(Formula):
    op: Literal["<", "<=", "=="]
    left: Int
    right: Int


@dataclass(frozen=True, slots=True, eq=False)
class Same(Formula):
    left: Element
    right: Element


@dataclass(frozen=True, slots=True, eq=False)
class Not(Formula):
    body: Formula


@dataclass(frozen=True, slots=True, eq=False)
class And(Formula):
    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Or(Formula):
    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Quantified(Formula):
    """`forall`, `exists`, and the multiplicities `lone` (at most one), `one`, `no`."""

    kind: Kind
    bound: tuple[Element, ...]
    body: Formula


TRUE, FALSE = And(()), Or(())


def minimum(left: Int, right: Int) -> Int:
    return Arith("min", left, right)


def maximum(left: Int, right: Int) -> Int:
    return Arith("max", left, right)


def lift(value: object) -> Int:
    if isinstance(value, Int):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Literal_(value)
    raise LawError(f"{value!r} is not an integer term")


def bind(sorts: tuple[Sort, ...], body: Callable[..., Formula]) -> tuple[tuple[Element, ...], Formula]:
    """Fresh variables named after the lambda's parameters, and the body traced over them."""
    names = list(inspect.signature(body).parameters)
    if len(names) != len(sorts):
        raise LawError(f"the body takes {len(names)} variables for {len(sorts)} sorts")
    bound = tuple(sort(name) for sort, name in zip(sorts, names, strict=True))
    return bound, body(*bound)


def _quantifier(kind: Kind) -> Callable[..., Formula]:
    def build(*of: Any) -> Formula:
        return Quantified(kind, *bind(of[:-1], of[-1]))

    build.__doc__ = f"`{kind}(Sort, …, lambda x, …: formula)`."
    return build


forall, exists, lone, one, no = (_quantifier(kind) for kind in ("forall", "exists", "lone", "one", "no"))


@dataclass(frozen=True, slots=True, eq=False)
class Atom(Formula):
    """A relation (or a set parameter) applied to elements; `primed` speaks of the state after the action."""

    of: Relation | SetOf[Any]
    args: tuple[Element, ...]
    primed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Apply(Int):
    of: Function
    arg: Element
    primed: bool = False


@overload
def next_(term: Formula) -> Formula: ...
@overload
def next_(term: Int) -> Int: ...
def next_(term: Any) -> Any:
    """The same term in the state after the action (contracts only)."""
    match term:
        case Atom(Relation() as of, args):
            return Atom(of, args, primed=True)
        case Apply(of, arg):
            return Apply(of, arg, primed=True)
        case Arith(op, left, right):
            return Arith(op, next_(left), next_(right))
        case Literal_() | Constant() | IntVar():
            return term
    raise LawError("next_ takes a relation or a function applied to its arguments, or arithmetic over them")


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Tuples that a relation gains or loses: for all `bound` with `where`, the tuple `args`."""

    of: Relation
    args: tuple[Element, ...]
    bound: tuple[Element, ...]
    where: Formula
    gains: bool


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    of: Function
    arg: Element
    value: Int


Update = Change | Assign


@dataclass(frozen=True, slots=True, eq=False)
class SetOf(Generic[T]):
    """A parameter that is a set of elements; an event with a set means the fold of its single events."""

    name: str
    sort: Sort

    def __call__(self, element: T) -> Formula:
        return Atom(self, (element,))


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """A typed relation of one or two places; `rel[x]` fixes the first place of a binary one for an update."""

    name: str
    sorts: tuple[Sort, ...]
    doc: str = ""

    def __call__(self, *args: Element) -> Formula:
        for sort, arg in zip(self.sorts, args, strict=True):
            if not isinstance(arg, sort):
                raise LawError(f"{self.name} wants a {sort.__name__}, got {type(arg).__name__} {arg.name}")
        return Atom(self, args)

    def __getitem__(self, first: Element) -> Row:
        return Row(self, (first,))

    def add(self, *args: Element) -> Change:
        return Row(self, ()).add(*args)

    def drop(self, *args: Element) -> Change:
        return Row(self, ()).drop(*args)

    def gains(self, where: Callable[..., Formula]) -> Change:
        return Row(self, ()).gains(where)

    def loses(self, where: Callable[..., Formula]) -> Change:
        return Row(self, ()).loses(where)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A relation with its first places fixed: what an update writes to."""

    of: Relation
    fixed: tuple[Element, ...]

    def _change(self, where: Callable[..., Formula], gains: bool) -> Change:
        if isinstance(where, SetOf):
            element = where.sort("x")
            return Change(self.of, (*self.fixed, element), (element,), where(element), gains)
        bound, body = bind(self.of.sorts[len(self.fixed) :], where)
        return Change(self.of, (*self.fixed, *bound), bound, body, gains)

    def gains(self, where: Callable[..., Formula]) -> Change:
        return self._change(where, gains=True)

    def loses(self, where: Callable[..., Formula]) -> Change:
        return self._change(where, gains=False)

    def clear(self) -> Change:
        rest = tuple(sort(f"x{i}") for i, sort in enumerate(self.of.sorts[len(self.fixed) :]))
        return Change(self.of, (*self.fixed, *rest), rest, TRUE, gains=False)

    def add(self, *rest: Element) -> Change:
        return Change(self.of, (*self.fixed, *rest), (), TRUE, gains=True)

    def drop(self, *rest: Element) -> Change:
        return Change(self.of, (*self.fixed, *rest), (), TRUE, gains=False)


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """An integer function of one element, 0 where nothing was assigned."""

    name: str
    sort: Sort
    doc: str = ""

    def __call__(self, arg: Element) -> Int:
        if not isinstance(arg, self.sort):
            raise LawError(f"{self.name} wants a {self.sort.__name__}, got {type(arg).__name__}")
        return Apply(self, arg)

    def becomes(self, arg: Element, value: Int | int) -> Assign:
        return Assign(self, arg, lift(value))


Param = Element | IntVar | SetOf[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Clause:
    """One guard condition and the words a verdict uses for it."""

    text: str
    term: Formula


Body = Iterator[tuple[Formula, str] | Update]


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """An atomic event: enabled when every clause holds, then all updates at once."""

    name: str
    params: tuple[Param, ...]
    guard: tuple[Clause, ...]
    updates: tuple[Update, ...]
    doc: str

    def __call__(self, *args: Any) -> Step:
        if len(args) != len(self.params):
            raise LawError(f"{self.name} takes {len(self.params)} arguments, got {len(args)}")
        return Step(self, tuple(_argument(p, a) for p, a in zip(self.params, args, strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class Comprehension:
    """A set argument given by a condition, read in the state just before its step."""

    bound: Element
    where: Formula


Argument = Element | Int | SetOf[Any] | Comprehension


def _argument(param: Param, value: Any) -> Argument:
    if isinstance(param, SetOf):
        if isinstance(value, param.sort):
            wanted = value
            return Comprehension(*_single(param.sort, lambda x: x == wanted))
        return value if isinstance(value, SetOf) else Comprehension(*_single(param.sort, value))
    return lift(value) if isinstance(param, IntVar) else value


def _single(sort: Sort, body: Callable[..., Formula]) -> tuple[Element, Formula]:
    (bound,), term = bind((sort,), body)
    return bound, term


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    action: Action
    args: tuple[Argument, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """What a scheduler does as one piece: preconditions, then actions in order."""

    name: str
    params: tuple[Param, ...]
    guard: tuple[Clause, ...]
    steps: tuple[Step, ...]
    doc: str


@dataclass(frozen=True, slots=True, eq=False)
class Property:
    """A named formula: an invariant of a group, an action's contract, or a witness that must be reachable."""

    name: str
    term: Formula
    doc: str
    group: str
    params: tuple[Param, ...] = ()


@dataclass(slots=True)
class Law:
    """One law: its symbols, its actions and operations, and the four lists that instruments report on."""

    name: str
    sorts: list[Sort] = field(default_factory=list)
    relations: dict[str, Relation] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    actions: dict[str, Action] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    invariants: dict[str, Property] = field(default_factory=dict)
    contracts: dict[str, Property] = field(default_factory=dict)
    witnesses: dict[str, Property] = field(default_factory=dict)
    lemmas: dict[str, Property] = field(default_factory=dict)
    initial: list[Formula] = field(default_factory=list)

    GROUPS: ClassVar[tuple[Group, ...]] = ("always", "step", "theorem", "quiescent")

    def sort(self, *sorts: Sort) -> None:
        self.sorts.extend(sorts)

    def relation(self, name: str, *sorts: Sort, doc: str) -> Relation:
        return _register(self.relations, Relation(name, sorts, doc))

    def function(self, name: str, sort: Sort, doc: str) -> Function:
        return _register(self.functions, Function(name, sort, doc))

    def action(self, write: Callable[..., Body]) -> Action:
        params, parts = _trace(write)
        guard = tuple(Clause(p[1], p[0]) for p in parts if isinstance(p, tuple))
        updates = tuple(p for p in parts if not isinstance(p, tuple))
        assigned = [(u.of, u.arg) for u in updates if isinstance(u, Assign)]
        if len(set(assigned)) != len(assigned):
            raise LawError(f"{write.__name__} assigns the same value twice")
        return _register(self.actions, Action(_name(write), params, guard, updates, _doc(write)))

    def operation(self, write: Callable[..., Any]) -> Operation:
        params, parts = _trace(write)
        guard = tuple(Clause(p[1], p[0]) for p in parts if isinstance(p, tuple))
        steps = tuple(p for p in parts if isinstance(p, Step))
        return _register(self.operations, Operation(_name(write), params, guard, steps, _doc(write)))

    def invariant(self, group: Group) -> Callable[[Callable[[], Formula]], Property]:
        return lambda write: _register(self.invariants, Property(_name(write), write(), _doc(write), group))

    def contract(self, action: Action) -> Callable[[Callable[..., Formula]], Property]:
        def record(write: Callable[..., Formula]) -> Property:
            name = f"{action.name}: {_name(write).strip('_').replace('_', ' ')}"
            prop = Property(name, write(*action.params), _doc(write), action.name, action.params)
            return _register(self.contracts, prop)

        return record

    def lemma(self, write: Callable[..., Formula]) -> Property:
        """A consequence for all values of its last parameter, an integer: proved by descent from above."""
        params = _parameters(write)
        return _register(self.lemmas, Property(_name(write), write(*params), _doc(write), "lemma", params))

    def witness(self, of: Property) -> Callable[[Callable[[], Formula]], Property]:
        return lambda write: _register(self.witnesses, Property(_name(write), write(), _doc(write), of.name))


R = TypeVar("R", Relation, Function, Action, Operation, Property)


def _register(table: dict[str, R], item: R) -> R:
    if item.name in table:
        raise LawError(f"{item.name} is defined twice")
    table[item.name] = item
    return item


def _name(write: Callable[..., Any]) -> str:
    return write.__name__.rstrip("_")


def _doc(write: Callable[..., Any]) -> str:
    return inspect.getdoc(write) or ""


def _parameters(write: Callable[..., Any]) -> tuple[Param, ...]:
    """Fresh parameters, made after the annotations."""
    hints = inspect.get_annotations(write, eval_str=True)
    params: list[Param] = []
    for name in inspect.signature(write).parameters:
        hint = hints[name]
        if hint is Int:
            params.append(IntVar(name))
        elif getattr(hint, "__origin__", None) is SetOf:
            params.append(SetOf(name, hint.__args__[0]))
        else:
            params.append(hint(name))
    return tuple(params)


def _trace(write: Callable[..., Any]) -> tuple[tuple[Param, ...], list[Any]]:
    """Run a generator once over its parameters."""
    params = _parameters(write)
    return params, list(write(*params))
