"""The law's language: plain Python over proxies, traced once into a small syntax tree.

A *sort* is a subclass of `Element`, and its instances are variables. A *relation* over sorts and an integer *function*
of one element are called to build terms; an *action* is a generator that yields named guard clauses and simultaneous
updates; an *operation* yields actions. Running the generator once with fresh variables gives a tree that every reading
folds over: `concrete`, `source`, `text` here, `smt` and `ground` among the instruments. Nothing is ever transcribed.

    @law.action
    def release(k: Record, pages: SetOf[Page]) -> Body:
        yield forall(Page, lambda p: pages(p) >> owns(k, p)), "the record owns each page"
        yield free.gains(pages)
        yield owns[k].loses(pages)

Updates read the old state and happen together; what is not assigned does not change. All choice is in the parameters.
A term has no truth value: `and`, `or`, `if` over terms raise at once instead of silently meaning something else.
A docstring may end in a line `Source: …` that says where the item comes from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

from freehold.spec.terms import (
    TRUE,
    Assign,
    Element,
    Formula,
    Function,
    Int,
    IntVar,
    LawError,
    Param,
    Relation,
    SetOf,
    Sort,
    Update,
    bind,
    lift,
)

Group = Literal["always", "step", "theorem", "quiescent"]


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
    source: str = ""

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
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Property:
    """A named formula: an invariant of a group, an action's contract, or a witness that must be reachable."""

    name: str
    term: Formula
    doc: str
    group: str
    params: tuple[Param, ...] = ()
    uses: tuple[Property, ...] = ()
    source: str = ""


@dataclass(slots=True, eq=False)
class Law:
    """One law: its symbols, its actions and operations, and the four lists that instruments report on.

    A law is equal to itself alone, so that what is made from it can be remembered.
    """

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
    idle: Formula = TRUE  # when the quiescent invariants hold

    GROUPS: ClassVar[tuple[Group, ...]] = ("always", "step", "theorem", "quiescent")

    def sort(self, *sorts: Sort) -> None:
        self.sorts.extend(sorts)

    def relation(self, name: str, *sorts: Sort, doc: str, ghost: bool = False) -> Relation:
        return _register(self.relations, Relation(name, sorts, doc, ghost))

    def function(self, name: str, sort: Sort, doc: str) -> Function:
        return _register(self.functions, Function(name, sort, doc))

    def action(self, write: Callable[..., Body]) -> Action:
        params, parts = _trace(write)
        guard = tuple(Clause(p[1], p[0]) for p in parts if isinstance(p, tuple))
        updates = tuple(p for p in parts if not isinstance(p, tuple))
        assigned = [(u.of, u.arg) for u in updates if isinstance(u, Assign)]
        if len(set(assigned)) != len(assigned):
            raise LawError(f"{write.__name__} assigns the same value twice")
        return _register(self.actions, Action(_name(write), params, guard, updates, *_doc(write)))

    def operation(self, write: Callable[..., Any]) -> Operation:
        params, parts = _trace(write)
        guard = tuple(Clause(p[1], p[0]) for p in parts if isinstance(p, tuple))
        steps = tuple(p for p in parts if isinstance(p, Step))
        return _register(self.operations, Operation(_name(write), params, guard, steps, *_doc(write)))

    def invariant(self, group: Group) -> Callable[[Callable[[], Formula]], Property]:
        return lambda write: _register(self.invariants, _property(write, (), group))

    def theorem(self, *uses: Property) -> Callable[[Callable[[], Formula]], Property]:
        """An invariant that follows from the named ones alone; saying which keeps its proof short and stable."""
        return lambda write: _register(self.invariants, replace(_property(write, (), "theorem"), uses=uses))

    def contract(self, action: Action) -> Callable[[Callable[..., Formula]], Property]:
        def record(write: Callable[..., Formula]) -> Property:
            name = f"{action.name}: {_name(write).strip('_').replace('_', ' ')}"
            return _register(self.contracts, replace(_property(write, action.params, action.name), name=name))

        return record

    def lemma(self, write: Callable[..., Formula]) -> Property:
        """A consequence for all values of its last parameter, an integer: proved by descent from above."""
        return _register(self.lemmas, _property(write, _parameters(write), "lemma"))

    def witness(self, of: Property) -> Callable[[Callable[[], Formula]], Property]:
        return lambda write: _register(self.witnesses, _property(write, (), of.name))


R = TypeVar("R", Relation, Function, Action, Operation, Property)


def _register(table: dict[str, R], item: R) -> R:
    if item.name in table:
        raise LawError(f"{item.name} is defined twice")
    table[item.name] = item
    return item


def _name(write: Callable[..., Any]) -> str:
    return write.__name__.rstrip("_")


def _doc(write: Callable[..., Any]) -> tuple[str, str]:
    """What an item says, and where it comes from: the text behind `Source:` at the start of a line."""
    words, _, source = f"\n{inspect.getdoc(write) or ''}".partition("\nSource:")
    return words.strip(), " ".join(source.split())


def _property(write: Callable[..., Formula], params: tuple[Param, ...], group: str) -> Property:
    words, source = _doc(write)
    return Property(_name(write), write(*params), words, group, params, source=source)


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
