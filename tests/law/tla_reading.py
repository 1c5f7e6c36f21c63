"""A reader of the TLA+ that the export writes, by its text alone: it knows nothing of the law or its terms.

Only what the export uses is understood, with brackets around whatever could be read in two ways. A node is a function
of an environment, the values of the names in sight; sets are frozensets, pairs are tuples, functions and records `Map`.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

Env = dict[str, Any]
Node = Callable[[Env], Any]

TOKEN = re.compile(r"\\A|\\E|\\in|\\cup|\\X|\\div|\\/|/\\|\|->|=>|==|<<|>>|<=|\.\.|\w+'?|\\|[-+*=#<~!.,:()\[\]{}]")
BINARY: tuple[dict[str, Callable[[Any, Any], Any]], ...] = (
    {"=>": lambda a, b: not a or b},
    {"/\\": operator.and_, "\\/": operator.or_},
    {"=": operator.eq, "#": operator.ne, "<": operator.lt, "<=": operator.le, "\\in": lambda a, b: a in b},
    {"\\cup": operator.or_, "\\": operator.sub},
    {"+": operator.add, "-": operator.sub, "..": lambda a, b: frozenset(range(a, b + 1))},
    {"*": operator.mul, "\\div": operator.floordiv},
)  # from the loosest to the tightest
LAZY = {"=>": (False, True), "/\\": (False, False), "\\/": (True, True)}  # on this left value, that is the result


class Map(dict[Any, Any]):
    """A function or a record; never changed once it is made."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


class Module:
    """The definitions of a module, with the constants of its configuration."""

    def __init__(self, module: str, config: str) -> None:
        text = re.sub(r"\(\*.*?\*\)", "", module).partition("VARIABLE state")[2]
        text = re.split(r"\n={4,}", "\n".join(line.split("\\*")[0] for line in text.splitlines()))[0]
        parts = re.split(r"^(\w+)(?:\(([\w, ]*)\))? ==", text, flags=re.MULTILINE)[1:]
        self.bodies = {n: b for n, b in zip(parts[::3], parts[2::3], strict=True) if n != "Spec"}
        self.params = {n: p.split(", ") if p else [] for n, p in zip(parts[::3], parts[1::3], strict=True)}
        self.constants: Env = {
            name: int(value) if value.isdigit() else frozenset(value.strip("{}").split(", "))
            for name, value in re.findall(r"^    (\w+) = (.*)$", config, flags=re.MULTILINE)
        }
        self.nodes = {n: Reader(self, b).whole() for n, b in self.bodies.items()}

    def call(self, name: str, args: list[Any], env: Env) -> Any:
        here = {k: env[k] for k in ("state", "state'") if k in env}
        return self.nodes[name]({**here, **dict(zip(self.params[name], args, strict=True))})

    def first(self) -> Map:
        """The one state that Init allows: its first conjunct is the state, the others must hold of it."""
        value, *rest = self.bodies["Init"].strip().removeprefix("/\\ state =").split("\n    /\\ ")
        state = Reader(self, value).whole()({})
        assert all(Reader(self, r).whole()({"state": state}) for r in rest)
        assert isinstance(state, Map)
        return state

    def successors(self, state: Map) -> Iterator[Map]:
        """The state after each operation that Next allows, for each choice of its parameters."""
        for bound, name, args in re.findall(
            r"\\/ (?:\(\\E (.*?) : )?Op_(\w+)(?:\((.*?)\))?\)?\n", self.bodies["Next"] + "\n"
        ):
            names = [b.split(" \\in ") for b in bound.split(", ")] if bound else []
            nodes = [Reader(self, a).whole() for a in args.split(", ")] if args else []
            for values in itertools.product(*(Reader(self, s).whole()({}) for _, s in names)):
                env = {n: v for (n, _), v in zip(names, values, strict=True)}
                after: list[Map] = []
                if self.call(f"Op_{name}", [node(env) for node in nodes], {"state": state, "state'": after}):
                    yield after[0]

    def count(self) -> tuple[int, int, int]:
        """Distinct states, steps and the last level with a new state; every invariant holds in each state."""
        level = [self.first()]
        seen, steps, depth = set(level), 0, 0
        rules = [n for n in self.bodies if n.startswith("Inv_")]
        while level:
            new: list[Map] = []
            for state in level:
                assert all(self.call(rule, [], {"state": state}) for rule in rules)
                for after in self.successors(state):
                    steps += 1
                    if after not in seen:
                        seen.add(after)
                        new.append(after)
            level, depth = new, depth + bool(new)
        return len(seen), steps, depth


class Reader:
    """One text, read from left to right."""

    def __init__(self, module: Module, text: str) -> None:
        self.module, self.tokens, self.at = module, [*TOKEN.findall(text), ""], 0

    def whole(self) -> Node:
        found = self.expression()
        assert self.tokens[self.at :] == [""], self.tokens[self.at - 5 : self.at + 5]
        return found

    def next(self, *wanted: str) -> str:
        token = self.tokens[self.at]
        assert not wanted or token in wanted, (wanted, self.tokens[self.at - 5 : self.at + 5])
        self.at += 1
        return token

    def listed(self, read: Callable[[], Any], end: str) -> list[Any]:
        """Things with commas between them."""
        found = [read()]
        while self.next(",", end) == ",":
            found.append(read())
        return found

    def expression(self, level: int = 0) -> Node:
        if level == len(BINARY):
            return self.postfix()
        if level == 1 and self.tokens[self.at] in BINARY[1]:  # the first bullet of a list
            self.at += 1
        found = self.product() if level == 4 else self.expression(level + 1)
        while self.tokens[self.at] in BINARY[level]:
            sign = self.next()
            right = self.product() if level == 4 else self.expression(level + 1)
            found = self.joined(sign, BINARY[level][sign], found, right)
        return found

    def joined(self, sign: str, apply: Callable[[Any, Any], Any], left: Node, right: Node) -> Node:
        if sign not in LAZY:
            return lambda e: apply(left(e), right(e))
        stop, result = LAZY[sign]
        return lambda e: result if left(e) == stop else right(e)

    def product(self) -> Node:
        parts = [self.expression(5)]
        while self.tokens[self.at] == "\\X":
            self.at += 1
            parts.append(self.expression(5))
        return parts[0] if len(parts) == 1 else lambda e: frozenset(itertools.product(*(p(e) for p in parts)))

    def postfix(self) -> Node:
        found = self.primary()
        while self.tokens[self.at] in (".", "["):
            found = self.applied(found)
        return found

    def applied(self, of: Node) -> Node:
        if self.next() == ".":
            name = self.next()
            return lambda e: of(e)[name]
        argument = self.expression()
        self.next("]")
        return lambda e: of(e)[argument(e)]

    def primary(self) -> Node:
        token = self.next()
        special = {
            "\\A": self.quantifier, "\\E": self.quantifier, "{": self.braces, "<<": self.tuple, "[": self.brackets,
            "IF": self.choice, "LET": self.let, "(": self.bracketed, "~": self.negation, "Cardinality": self.size,
        }  # fmt: skip
        if token in special:
            return special[token]()
        if token.isdigit():
            return lambda _: int(token)
        if token in ("TRUE", "FALSE"):
            return lambda _: token == "TRUE"
        if token == "state'":
            self.next("=")
            value = self.expression(2)
            return lambda e: e["state'"].append(value(e)) is None
        if token in self.module.bodies:
            args = []
            if self.tokens[self.at] == "(":
                self.at += 1
                args = self.listed(self.expression, ")")
            return lambda e: self.module.call(token, [a(e) for a in args], e)
        return lambda e: self.look(e, token)

    def look(self, env: Env, name: str) -> Any:
        if name not in env and name in self.module.constants:
            return self.module.constants[name]
        value = env[name]
        return value() if callable(value) else value

    def bracketed(self) -> Node:
        found = self.expression()
        self.next(")")
        return found

    def negation(self) -> Node:
        body = self.expression(2)
        return lambda e: not body(e)

    def size(self) -> Node:
        self.next("(")
        body = self.bracketed()
        return lambda e: len(body(e))

    def choice(self) -> Node:
        test, _, yes, _, no = (
            self.expression(),
            self.next("THEN"),
            self.expression(),
            self.next("ELSE"),
            self.expression(),
        )
        return lambda e: yes(e) if test(e) else no(e)

    def let(self) -> Node:
        definitions: list[tuple[str, Node]] = []
        while self.tokens[self.at] != "IN":
            name = self.next()
            self.next("==")
            definitions.append((name, self.expression()))
        self.next("IN")
        body = self.expression()

        def read(env: Env) -> Any:
            here, known = dict(env), Env()

            def value(name: str, node: Node) -> Any:
                if name not in known:
                    known[name] = node(here)
                return known[name]

            here |= {n: lambda n=n, d=d: value(n, d) for n, d in definitions}
            return body(here)

        return read

    def quantifier(self) -> Node:
        every = self.tokens[self.at - 1] == "\\A"
        bound = self.listed(lambda: (self.next(), self.next("\\in"), self.expression(3)), ":")
        body = self.expression()

        def read(env: Env) -> bool:
            rows = itertools.product(*(among(env) for _, _, among in bound))
            truths = (body({**env, **{n: v for (n, _, _), v in zip(bound, row, strict=True)}}) for row in rows)
            return all(truths) if every else any(truths)

        return read

    def binder(self) -> Callable[[Env, Any], Env]:
        """A variable, or a tuple of them, and how its value is seen."""
        token = self.next()
        if token != "<<":
            return lambda e, v: {**e, token: v}
        names = self.listed(self.next, ">>")
        return lambda e, v: {**e, **dict(zip(names, v, strict=True))}

    def braces(self) -> Node:
        if self.tokens[self.at] == "}":
            self.at += 1
            return lambda _: frozenset()
        start = self.at
        while self.tokens[self.at] not in ("\\in", ":", "}"):
            self.at += 1
        chosen, self.at = self.tokens[self.at] == "\\in", start
        if chosen:
            bind, _, among, _, test, _ = (
                self.binder(), self.next("\\in"), self.expression(3), self.next(":"), self.expression(), self.next("}"),
            )  # fmt: skip
            return lambda e: frozenset(v for v in among(e) if test(bind(e, v)))
        first = self.expression()
        if self.tokens[self.at] == ":":
            _, bind, _, source, _ = (
                self.next(), self.binder(), self.next("\\in"), self.expression(3), self.next("}"),
            )  # fmt: skip
            return lambda e: frozenset(first(bind(e, v)) for v in source(e))
        self.next("}")
        return lambda e: frozenset((first(e),))

    def tuple(self) -> Node:
        parts = self.listed(self.expression, ">>")
        return lambda e: tuple(p(e) for p in parts)

    def brackets(self) -> Node:
        if self.tokens[self.at + 1] == "|->":
            fields = self.listed(lambda: (self.next(), self.next("|->"), self.expression()), "]")
            return lambda e: Map({n: value(e) for n, _, value in fields})
        if self.tokens[self.at + 1] == "\\in":
            name, _, among, _, body, _ = (
                self.next(), self.next(), self.expression(3), self.next("|->"), self.expression(), self.next("]"),
            )  # fmt: skip
            return lambda e: Map({v: body({**e, name: v}) for v in among(e)})
        base = self.expression()
        self.next("EXCEPT")
        changes = self.listed(self.change, "]")
        return lambda e: Map({**base(e), **{key(e): value(e) for key, value in changes}})

    def change(self) -> tuple[Node, Node]:
        self.next("!")
        if self.next(".", "[") == ".":
            name = self.next()
            key: Node = lambda _: name  # noqa: E731
        else:
            key = self.expression()
            self.next("]")
        self.next("=")
        return key, self.expression()
