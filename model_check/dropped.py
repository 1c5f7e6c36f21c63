"""Each line of the memory that moves ownership, dropped in turn: faults that no one has thought of.

A line moves ownership, or tells of it, if it is a call for its effect, a write to an attribute or an entry, or a `del`.
All of them are found in the syntax tree of the memory's modules, so a new line is a new fault by itself. Lines that
only order what could go either way are left out, each with the reason.
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from freehold.impl.memory import (
    cache,
    device_pages,
    flights,
    pool,
    radix_tree,
    rows,
    session_moves,
    sessions,
    states,
    use_queue,
)

MODULES: tuple[ModuleType, ...] = (
    cache, device_pages, states, flights, session_moves, sessions, radix_tree, use_queue, rows, pool,
)  # fmt: skip
# Lines that own nothing, by function and text, and what gets lost without them.
_ORDER = "only which of several goes first"
_HIT = "only a later prefix hit: what is lost is computed again"
_QUARANTINE = "no program has a broken contract whose units are withheld"
_CAUTION = "only fewer pages are promised than could be had: the scheduler waits for the fence and asks again"
HARMLESS: Mapping[tuple[str, str], str] = {
    ("lock", "self._tick += 1"): _ORDER,
    ("lock", "node.last_used = self._tick"): _ORDER,
    ("_let_go", "self._tick += 1"): _ORDER,
    ("_let_go", "node.last_used = self._tick"): _ORDER,
    ("load", "self.snapshots.move_to_end(page)"): _ORDER,
    ("_give_back", "cache.sessions.touch(slot)"): _ORDER,
    ("touch", "self.slots[slot.id] = self.slots.pop(slot.id)"): _ORDER,
    ("checkpoint", "self.states.checkpoint(kv, page)"): _HIT,
    ("donate", "self.states.donate(kv, page)"): _HIT,
    ("save", "kv.saved_tokens = kv.committed_tokens"): "only KV that outlives an aborted turn",
    ("give_up", "kv.state = None"): "the record gets another state at once, or is gone",
    ("lock", "self._paired.push(node)"): "the node is queued since it was made",
    ("in_flight", "touched[0] = False"): "a page without a half has none to lose",
    ("alloc", "self._generations[pages] += 1"): "only what instruments of content read",
    ("withhold", "self.withheld |= pages"): _QUARANTINE,
    ("withhold", "self._stack[:len(kept)] = kept"): _QUARANTINE,
    ("withhold", "self.withheld |= rows"): _QUARANTINE,
    ("withhold", "self.free_rows = [row for row in self.free_rows if row not in self.withheld]"): _QUARANTINE,
    ("drop_unlocked", "self._evict(self.tree.unlocked_pages)"): _QUARANTINE,
    ("_orphaned_pages", "touched[step.pages.waiting()] = False"): _CAUTION,
    (
        "_orphaned_pages",
        "touched[self.rows.snapshot(list(self.rows.bound), self.geometry.row_pages)] = False",
    ): _CAUTION,
    ("withhold", "self.free_pages = len(kept)"): _QUARANTINE,
}


@dataclass(frozen=True, slots=True)
class Dropped:
    """A function of the memory without one of its lines.

    owner: the class or module that has the function. line: the text of what is missing.
    """

    owner: Any
    definition: ast.FunctionDef
    statement: ast.stmt

    @property
    def function(self) -> str:
        return self.definition.name

    @property
    def line(self) -> str:
        return ast.unparse(self.statement).splitlines()[0]

    @property
    def name(self) -> str:
        """Where it was, and what."""
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.function} lacks `{self.line}`"

    @property
    def kind(self) -> str:
        return "tells nothing" if _tells(self.statement) else "dropped line"

    @property
    def says(self) -> str:
        return f"line {self.statement.lineno} of {self._module.__name__} is missing"

    @property
    def _module(self) -> ModuleType:
        return self.owner if isinstance(self.owner, ModuleType) else sys.modules[self.owner.__module__]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The memory lacks the line inside the `with`."""
        original = vars(self.owner)[self.function]
        setattr(self.owner, self.function, self._without())
        try:
            yield
        finally:
            setattr(self.owner, self.function, original)

    def _without(self) -> Any:
        namespace: dict[str, Any] = {}
        changed = cast(ast.stmt, _Drop(self.statement).visit(copy.deepcopy(self.definition)))
        tree = ast.Module([changed], [])
        exec(compile(tree, self._module.__file__ or "", "exec"), vars(self._module), namespace)
        return namespace[self.function]


class _Drop(ast.NodeTransformer):
    """Puts `pass` in the place of a statement, which is known by where it stands."""

    def __init__(self, statement: ast.stmt) -> None:
        self._place = (statement.lineno, statement.col_offset)

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.stmt) and (node.lineno, node.col_offset) == self._place:
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


def every_line() -> Iterator[Dropped]:
    """A fault for each line of the memory that moves ownership, in the order of `MODULES`."""
    for module in MODULES:
        for node in ast.parse(inspect.getsource(module)).body:
            functions = node.body if isinstance(node, ast.ClassDef) else [node]
            owner = getattr(module, node.name) if isinstance(node, ast.ClassDef) else module
            for function in functions:
                if isinstance(function, ast.FunctionDef) and function.name != "__init__":
                    for statement in ast.walk(function):
                        if isinstance(statement, ast.stmt) and moves(statement):
                            fault = Dropped(owner, function, statement)
                            if (function.name, fault.line) not in HARMLESS:
                                yield fault


def moves(node: ast.stmt) -> bool:
    """Whether a statement changes something beyond the names of its function."""
    match node:
        case ast.Expr(ast.Call()) | ast.Delete():
            return True
        case ast.Assign(targets=targets):
            return any(_is_place(target) for target in targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return _is_place(target)
    return False


def _tells(node: ast.stmt) -> bool:
    """Whether it is an event, and moves nothing itself."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(attr="emit" | "_tell"))):
            return True
    return False


def _is_place(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple):
        return any(_is_place(each) for each in target.elts)
    return isinstance(target, ast.Attribute | ast.Subscript)
