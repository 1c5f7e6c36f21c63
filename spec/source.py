"""The source reading: the law compiled to straight-line Python over indexed sets, for the monitor.

What the lines say is in `writer` and `compiler`; here they get a state to run over. Monitors of the same law share the
compiled text, and each has its own state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

from freehold.spec import concrete
from freehold.spec.compiler import EMPTY
from freehold.spec.language import Law
from freehold.spec.writer import COMING_AND_GOING, Writer


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

    def add_all(self, a: Any, bs: Iterable[Any]) -> None:
        """The tuples of `a` with each of `bs`."""
        mine, by_second = self.by_first.get(a), self.by_second
        if mine is None:
            mine = set(bs)
            if mine:
                self.by_first[a] = mine
        else:
            mine.update(bs)
        for b in bs:
            others = by_second.get(b)
            if others is None:
                by_second[b] = {a}
            else:
                others.add(a)

    def drop_all(self, a: Any, bs: Iterable[Any]) -> None:
        """No tuple of `a` with any of `bs` is left."""
        mine, by_second = self.by_first.get(a), self.by_second
        if mine is None:
            return
        mine.difference_update(bs)
        if not mine:
            del self.by_first[a]
        for b in bs:
            others = by_second.get(b)
            if others is not None:
                others.discard(a)
                if not others:
                    del by_second[b]

    def clear(self, a: Any) -> Collection[Any]:
        """No tuple begins with `a` any more; what stood beside it."""
        return _clear(self.by_first, self.by_second, a)

    def forget(self, b: Any) -> Collection[Any]:
        """No tuple ends in `b` any more; what stood beside it."""
        return _clear(self.by_second, self.by_first, b)


def _clear(index: dict[Any, set[Any]], other: dict[Any, set[Any]], key: Any) -> Collection[Any]:
    row = index.pop(key, EMPTY)
    for x in row:
        keys = other[x]
        if len(keys) > 1:
            keys.discard(key)
        else:
            del other[x]
    return row


def _drop(index: dict[Any, set[Any]], key: Any, value: Any) -> None:
    found = index.get(key)
    if found is not None:
        found.discard(value)
        if not found:
            del index[key]


@dataclass(slots=True)
class Program:
    """The compiled text of one law with its constants."""

    writer: Writer
    code: CodeType
    blocks: dict[str, CodeType] = field(default_factory=dict)

    def block(self, action: str) -> CodeType:
        """Compiled when first asked for: most engines write few kinds of block."""
        if action not in self.blocks:
            law = self.writer.law
            self.blocks[action] = compile(self.writer.block(law.actions[action]), f"<{law.name}, {action}>", "exec")
        return self.blocks[action]


@lru_cache(maxsize=64)
def _program(law: Law, constants: tuple[tuple[str, int], ...]) -> Program:
    writer = Writer(law, dict(constants))
    return Program(writer, compile(writer.text(), f"<{law.name}>", "exec"))


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
        self._program, self._scope = _program(law, tuple(self.constants.items())), scope
        self._facts = {sort: list(self._speaking_of(sort)) for sort in COMING_AND_GOING if sort in self.universe}
        self._watch(self._program.writer, scope)
        self.actions: dict[str, Callable[..., int]] = {n: scope[n] for n in law.actions}
        self.properties: dict[str, Callable[[], bool]] = {n: scope[f"holds_{n}"] for n in law.invariants}
        self._blocks: dict[str, Callable[..., int]] = {}

    def _watch(self, writer: Writer, scope: dict[str, Any]) -> None:
        """Room for what is touched and for what stands; and the program, with its checks and the facts of each."""
        self.touched: dict[tuple[str, str], set[Any]] = {fact: set() for fact in writer.watched}
        scope |= {f"touched_{symbol}_{sort}": elements for (symbol, sort), elements in self.touched.items()}
        self._sure: list[tuple[str, set[Any]]] = [(s.sort, set()) for s in writer.standing.values()]
        scope |= {f"sure_{s.name}": e for s, (_, e) in zip(writer.standing.values(), self._sure, strict=True)}
        exec(self._program.code, scope)
        self._checks: list[tuple[str, Callable[[Iterable[Any]], bool], list[set[Any]]]] = [
            (check.rule, scope[check.name], [self.touched[fact] for fact in check.facts]) for check in writer.checks
        ]

    def block(self, action: str) -> Callable[..., int]:
        """Many events of one kind at once: takes a column for each parameter, gives the index of the first wrong one.

        The events before that one have been taken; it is -1 when all have.
        """
        if action not in self._blocks:
            exec(self._program.block(action), self._scope)
            self._blocks[action] = self._scope[f"{action}_block"]
        return self._blocks[action]

    def settle(self) -> str | None:
        """A step invariant that an update since the last call has broken, or None; then nothing counts as touched.

        What no relation and no function speaks of any more is forgotten, so that a long log needs no more room.
        """
        for name, broken, facts in self._checks:
            live = [elements for elements in facts if elements]
            if live and broken(live[0] if len(live) == 1 else set().union(*live)):
                return name
        candidates: dict[str, set[Any]] = {"Loan": set(self.universe.get("Loan", ()))}
        for (_, sort), elements in self.touched.items():
            if elements and sort in self._facts:
                candidates.setdefault(sort, set()).update(elements)
            elements.clear()
        for sort, elements in candidates.items():
            self._forget(sort, elements)
        return None

    def _forget(self, sort: str, elements: set[Any]) -> None:
        for facts in self._facts.get(sort, ()):
            if not elements:
                return
            elements = elements.difference(facts)
        values = [self.values[n] for n, f in self.law.functions.items() if f.sort.__name__ == sort]
        for x in elements:
            self.universe[sort].pop(x, None)
            for of in values:
                of.pop(x, None)
        for known, sure in self._sure:
            if known == sort:
                sure.difference_update(elements)

    def _speaking_of(self, sort: str) -> Iterable[Any]:
        """What has an entry for each element of the sort that it speaks of.

        A function says something of a loan only as long as the loan runs on some record's account.
        """
        for name, relation in self.law.relations.items():
            pairs = self.pairs.get(name)
            for place, s in enumerate(relation.sorts):
                if s.__name__ == sort:
                    yield self.sets[name] if pairs is None else pairs.by_second if place else pairs.by_first
        if sort != "Loan":
            yield from (self.values[name] for name, f in self.law.functions.items() if f.sort.__name__ == sort)

    def state(self) -> concrete.State:
        """The same state for the concrete reading."""
        relations: dict[str, set[tuple[Any, ...]]] = {n: {(x,) for x in xs} for n, xs in self.sets.items()}
        for name, pairs in self.pairs.items():
            relations[name] = {(a, b) for a, bs in pairs.by_first.items() for b in bs}
        universe = {s: list(self.universe[s.__name__]) for s in self.law.sorts}
        return concrete.State(universe, self.constants, relations, {n: dict(v) for n, v in self.values.items()})

    def load(self, state: concrete.State) -> None:
        """Take over a concrete state; nothing in it counts as touched."""
        for noted in (*self.touched.values(), *(sure for _, sure in self._sure)):
            noted.clear()
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
