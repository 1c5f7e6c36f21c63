"""Terms: the syntax tree of the law, and the operators that build it.

Every reading folds over these few node types: variables and integer terms, atoms, comparisons, connectives, quantifiers
and multiplicities, and the two forms of an update.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

Kind = Literal["forall", "exists", "lone", "one", "no"]


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
    """A typed relation of one or two places; `rel[x]` fixes the first place of a binary one for an update.

    ghost: the law alone keeps it, to say what is right; no engine has a structure that could show it.
    """

    name: str
    sorts: tuple[Sort, ...]
    doc: str = ""
    ghost: bool = False

    def __call__(self, *args: Element) -> Formula:
        for sort, arg in zip(self.sorts, args, strict=True):
            if not isinstance(arg, sort):
                raise LawError(f"{self.name} wants a {sort.__name__}, got {type(arg).__name__} {arg.name}")
        return Atom(self, args)

    def __getitem__(self, first: Element) -> Row:
        return Row(self, (first,))

    def add(self, *args: Element, when: Formula = TRUE) -> Change:
        return Change(self, args, (), when, gains=True)

    def drop(self, *args: Element, when: Formula = TRUE) -> Change:
        return Change(self, args, (), when, gains=False)

    def forget(self, last: Element) -> Change:
        """No tuple of a binary relation ends in `last` any more."""
        first = self.sorts[0]("x")
        return Change(self, (first, last), (first,), TRUE, gains=False)

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
