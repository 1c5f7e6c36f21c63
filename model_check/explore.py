"""Exhaustive search: breadth first over everything that can happen within a scope, many states at a time.

Each level is expanded in chunks by circuits compiled from the law, its states are put into an exact set of codes, and
the law's invariants and witnesses are evaluated on every new one. The search ends when nothing new comes, at the first
level with a broken invariant, or at a budget of states or memory; the result says which. A broken invariant comes with
a shortest trace, which the concrete reading has replayed before anybody sees it. A search that has a directory leaves
a checkpoint there after each level, and can go on from it with the same counts as if it had never stopped.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import torch

from freehold.model_check.bits import columns, pairs
from freehold.model_check.bits import within as inside
from freehold.model_check.checkpoint import Checkpoint
from freehold.model_check.codes import Codec, CodeSet, mix, parted
from freehold.model_check.counterexample import Violation, confirmed, retrace
from freehold.model_check.gates import Program, compiled
from freehold.model_check.scopes import Scope, scope_named
from freehold.model_check.steps import ReadingsDisagree
from freehold.model_check.successors import Expander, Grain, operations
from freehold.model_check.symmetry import canonical, check_supported
from freehold.model_check.vector import Batch, Tensor, batch_of
from freehold.spec import concrete
from freehold.spec.errors import InvalidInput, Unsupported
from freehold.spec.language import Law, Property
from freehold.spec.terms import Formula

Chunk: TypeAlias = Callable[[], Tensor]
Map: TypeAlias = Callable[..., Iterator[Any]]
MOST_RESERVED = 1 << 26


class Symmetry(StrEnum):
    """Whether states that differ by the names of pages, rows and records are kept apart or searched once."""

    NONE = "none"
    SORTED = "sorted"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands after a level; `bytes` is what its states take."""

    depth: int
    frontier: int
    distinct: int
    generated: int
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a search found.

    `distinct` counts states (orbits, with symmetry) and `orbits_total` the states that they stand for; `generated`
    counts steps, `per_operation` by name; `depth` is the last level with a new state; `witnesses` gives the first
    level of each, or None. `closed` means that every reachable state was seen. `state_bytes` is what a state took.
    """

    name: str
    grain: Grain
    symmetry: Symmetry
    distinct: int
    generated: int
    depth: int
    closed: bool
    seconds: float
    orbits_total: int
    per_operation: Mapping[str, int]
    witnesses: Mapping[str, int | None]
    violation: Violation | None
    state_bytes: float

    @property
    def states_per_second(self) -> float:
        return self.distinct / max(self.seconds, 1e-9)

    @property
    def steps_per_second(self) -> float:
        return self.generated / max(self.seconds, 1e-9)


def explore(
    law: Law,
    scope: Scope | str,
    *,
    grain: Grain = Grain.OPERATIONS,
    symmetry: Symmetry = Symmetry.NONE,
    budget: int = 20_000_000,
    depth: int | None = None,
    memory_bytes: int | None = None,
    directory: Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
    device: str = "cpu",
    workers: int | None = None,
    chunk_states: int = 1 << 15,
) -> Result:
    """Search a scope (or the scope of that name) until it is closed, `budget` states are found, or a rule is broken.

    With `depth` the search also ends, openly, behind so many steps.

    A state takes 8 K + 8 to 16 bytes (K words a code); a search ends openly before that, and what its chunks need
    meanwhile, exceeds `memory_bytes`. `workers` threads (by default one a core, up to 4; one on a GPU) work on a chunk
    each; only the choice among equally short traces depends on how many. `directory` gets a checkpoint after each
    level, and with `resume` the search goes on from there. `InvalidInput` when no scope has the name or the directory
    does not fit; `Unsupported` when the law's states don't fit the codes or the symmetry.
    """
    within = scope_named(scope) if isinstance(scope, str) else scope
    if min(budget, chunk_states, 1 if workers is None else workers) < 1:
        raise InvalidInput(f"budget, chunk and workers must be positive, not {budget}, {chunk_states} and {workers}")
    if resume and directory is None:
        raise InvalidInput("to resume a search, name the directory of its checkpoint")
    if workers is None:
        workers = min(4, os.cpu_count() or 1) if device == "cpu" else 1
    limits = Limits(budget, memory_bytes, chunk_states, workers, depth)
    search = _Search(within.law(law), within, grain, symmetry, limits, torch.device(device), progress)
    with single_threaded():
        return search.run(directory, resume=resume)


def symmetric(law: Law, name: str) -> bool:
    """Whether the scope of that name can be searched by orbits."""
    try:
        check_supported(scope_named(name).law(law))
    except Unsupported:
        return False
    return True


def reachable(law: Law, scope: Scope, *, grain: Grain = Grain.OPERATIONS, budget: int = 100_000) -> Batch:
    """The states that a search finds first, in the order in which it finds them, until it has at least `budget`."""
    limits = Limits(budget, None, 1 << 10, 1)
    search = _Search(scope.law(law), scope, grain, Symmetry.NONE, limits, torch.device("cpu"), lambda _: None)
    search.run(None, resume=False)
    (known,) = search.parts
    return search.codec.unpack(known.codes(0, known.count))


def invariants(law: Law, grain: Grain) -> list[tuple[Property, Formula]]:
    """What must hold in each state that a search of this grain sees; quiescent rules where nothing runs."""
    groups = ("always",) if grain is Grain.EVENTS else ("always", "step", "quiescent")
    found = [p for p in law.invariants.values() if p.group in groups]
    return [(p, law.idle >> p.term if p.group == "quiescent" else p.term) for p in found]


@dataclass(frozen=True, slots=True)
class Limits:
    """States, bytes and steps that a search may take (None: any number), and threads with so many states each."""

    states: int
    memory: int | None
    chunk: int
    workers: int
    depth: int | None = None


@contextmanager
def single_threaded() -> Iterator[None]:
    """Keep PyTorch from splitting single operations: threads of our own split the work, and wait without spinning."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Watch:
    """The rules and witnesses of a search, ready to run on new states."""

    def __init__(self, codec: Codec, law: Law, grain: Grain) -> None:
        ground, now = codec.ground()
        self.rules = invariants(law, grain)
        self.witnesses: dict[str, int | None] = dict.fromkeys(law.witnesses)
        self._gates = ground.gates
        broken = [ground.gates.negate(ground.holds(term, {}, now)) for _, term in self.rules]
        self._rules = compiled(ground.gates, broken)
        self._scenes = {name: ground.holds(w.term, {}, now) for name, w in law.witnesses.items()}

    def level(self, chunks: Iterable[Chunk], depth: int, side_by_side: Map) -> tuple[int, Tensor] | None:
        """Note witnesses in a level; the number of the first broken rule of its first chunk, and a code `[K, 1]`."""
        missing = [name for name, level in self.witnesses.items() if level is None]
        scenes = compiled(self._gates, [self._scenes[name] for name in missing])
        first = None
        for met, broken in side_by_side(partial(self._chunk, scenes), chunks):
            self.witnesses.update((name, depth) for name, hit in zip(missing, met, strict=True) if hit)
            first = first or broken
        return first

    def _chunk(self, scenes: Program, chunk: Chunk) -> tuple[list[bool], tuple[int, Tensor] | None]:
        codes = chunk()
        bits = columns(codes)
        there = inside(codes.shape[1], bits.shape[1], codes.device)
        met = (scenes.run(bits) & there).any(1).tolist()
        broken = self._rules.run(bits) & there
        if not bool(broken.any()):
            return met, None
        rules, rows = pairs(broken)
        row = rows[rules == rules[0]].min()
        return met, (int(rules[0]), codes[:, row].unsqueeze(1))


@dataclass(frozen=True, slots=True)
class _Coming:
    """What a chunk leads to: for each part codes and their hashes, and how often each way was taken.

    With symmetry, also how many states each code stands for; `irregular` counts those without the shape for that.
    """

    parts: Sequence[tuple[Tensor, Tensor, Tensor | None]]
    taken: Tensor
    irregular: int = 0


@dataclass(slots=True)
class _Search:
    law: Law
    scope: Scope
    grain: Grain
    symmetry: Symmetry
    limits: Limits
    device: torch.device
    progress: Callable[[Progress], None]
    codec: Codec = field(init=False)
    expand: Expander = field(init=False)
    watch: _Watch = field(init=False)
    parts: list[CodeSet] = field(init=False)  # a code's hash says in which it is
    levels: list[list[int]] = field(init=False)  # where each level begins in each part, and where the last one ends
    orbits_total: int = field(init=False, default=0)
    irregular: int = field(init=False, default=0)
    steps: Tensor = field(init=False)  # how often each way was taken
    started: float = field(init=False)
    side_by_side: Map = field(init=False, default=map)

    def __post_init__(self) -> None:
        self.started = time.perf_counter()
        if self.symmetry is Symmetry.SORTED:
            check_supported(self.law)
        self.codec = Codec(self.law, self.scope)
        self.expand = Expander(self.codec, operations(self.law, self.grain), self.device)
        self.watch = _Watch(self.codec, self.law, self.grain)
        reserved = self._reserved() // self.limits.workers + 1
        self.parts = [CodeSet(self.codec.words, self.device, reserved) for _ in range(self.limits.workers)]
        self.levels = [[0] * len(self.parts)]
        self.steps = torch.zeros(len(self.expand.ways), dtype=torch.int64, device=self.device)

    def run(self, directory: Path | None, *, resume: bool) -> Result:
        if self.limits.workers == 1:
            return self._run(directory, resume)
        with ThreadPoolExecutor(self.limits.workers) as pool:
            self.side_by_side = pool.map
            return self._run(directory, resume)

    def _run(self, directory: Path | None, resume: bool) -> Result:
        identity = _identity(self.law, self.scope, self.grain, self.symmetry)
        checkpoint = None if directory is None else Checkpoint(directory, identity, self.codec.words)
        if checkpoint is not None and resume:
            self._load(checkpoint)
            broken = None
        else:
            if checkpoint is not None:
                checkpoint.begin()
            beginning = concrete.initial(self.law, self.scope.sizes, self.scope.constants)
            codes = self.codec.pack(batch_of(self.law, [beginning], self.device))
            self._put([self._coming(codes, self.steps)])
            broken = self._level_ends(checkpoint)
        whole, closed = True, False
        while broken is None and whole and not closed and len(self.levels) - 2 != self.limits.depth:
            whole = self._level()
            closed = whole and self._ends() == self.levels[-1]
            if not closed:
                broken = self._level_ends(checkpoint if whole else None)
            self.progress(self._progress(closed))
        violation = None if broken is None else self._violation(*broken)
        if violation is None and self.irregular:
            raise Unsupported(f"{self.irregular} states lack the shape that symmetry needs; search without symmetry")
        return self._result(closed, violation)

    # One level -------------------------------------------------------------------------------------------------------

    def _level(self) -> bool:
        """Put all successors of the last level into the set; False when a limit ends it before."""
        chunks = self._chunks(len(self.levels) - 2)
        while group := list(islice(chunks, self.limits.workers)):
            if self._count() >= self.limits.states:
                return False
            coming = list(self.side_by_side(self._expanded, group))
            if self.limits.memory is not None and self._bytes(coming) > self.limits.memory:
                return False
            self._put(coming)
        return True

    def _chunks(self, level: int) -> Iterator[Chunk]:
        for part, low, high in zip(self.parts, self.levels[level], self.levels[level + 1], strict=True):
            for start in range(low, high, self.limits.chunk):
                yield partial(part.codes, start, min(high, start + self.limits.chunk))

    def _expanded(self, chunk: Chunk) -> _Coming:
        found = self.expand(chunk())
        return self._coming(found.codes, torch.bincount(found.ways, minlength=len(self.expand.ways)))

    def _coming(self, codes: Tensor, taken: Tensor) -> _Coming:
        hashes = mix(codes)
        if self.symmetry is Symmetry.NONE:
            places = parted(codes, hashes, len(self.parts))
            return _Coming([(codes[:, at], hashes[at], None) for at in places], taken)
        (at,) = parted(codes, hashes, 1)  # equal successors need a canonical state only once
        shape = canonical(self.law, self.codec.unpack(codes[:, at]))
        codes = self.codec.pack(shape.batch)
        hashes = mix(codes)
        places = parted(codes, hashes, len(self.parts))
        orbits = [(codes[:, at], hashes[at], shape.orbits[at]) for at in places]
        return _Coming(orbits, taken, int((~shape.regular).sum()))

    def _put(self, coming: list[_Coming]) -> None:
        self.orbits_total += sum(self.side_by_side(partial(self._fill, coming), range(len(self.parts))))
        for each in coming:
            self.steps = self.steps + each.taken
            self.irregular += each.irregular

    def _fill(self, coming: list[_Coming], part: int) -> int:
        """Put what belongs to a part into it; how many states its new codes stand for."""
        total = 0
        for codes, hashes, orbits in (each.parts[part] for each in coming):
            new = self.parts[part].add(codes, hashes)
            total += new.numel() if orbits is None else int(orbits[new].sum())
        return total

    def _level_ends(self, checkpoint: Checkpoint | None) -> tuple[int, Tensor] | None:
        """Look at the new states, and save them; a broken rule and the code of a state with it."""
        self.levels.append(self._ends())
        depth = len(self.levels) - 2
        broken = self.watch.level(self._chunks(depth), depth, self.side_by_side)
        if broken is None and checkpoint is not None:
            checkpoint.save(depth, (chunk() for chunk in self._chunks(depth)), self._counters())
        return broken

    def _ends(self) -> list[int]:
        return [part.count for part in self.parts]

    def _count(self) -> int:
        return sum(self._ends())

    # Limits and checkpoints ------------------------------------------------------------------------------------------

    def _reserved(self) -> int:
        """Codes to reserve room for; what is not used costs no memory on the CPU."""
        fitting = MOST_RESERVED if self.limits.memory is None else self.limits.memory // (8 * self.codec.words)
        return min(self.limits.states, fitting)

    def _bytes(self, coming: list[_Coming]) -> int:
        """What the states will take when these are put in, with what their chunks need meanwhile."""
        new = [sum(each.parts[n][1].numel() for each in coming) for n in range(len(self.parts))]
        states = sum(part.bytes_for(part.count + count) for part, count in zip(self.parts, new, strict=True))
        return states + sum(self.expand.bytes_for(self.limits.chunk, int(each.taken.sum())) for each in coming)

    def _counters(self) -> dict[str, Any]:
        return {
            "steps": self.steps.tolist(), "orbits_total": self.orbits_total, "irregular": self.irregular,
            "witnesses": self.watch.witnesses, "seconds": time.perf_counter() - self.started,
        }  # fmt: skip

    def _load(self, checkpoint: Checkpoint) -> None:
        levels, counters = checkpoint.load()
        for codes in levels:
            codes = codes.to(self.device)
            hashes = mix(codes)
            for part, at in zip(self.parts, parted(codes, hashes, len(self.parts)), strict=True):
                part.add(codes[:, at], hashes[at])
            self.levels.append(self._ends())
        self.steps = self.steps + torch.tensor(counters["steps"], device=self.device)
        self.orbits_total, self.irregular = counters["orbits_total"], counters["irregular"]
        self.watch.witnesses.update(counters["witnesses"])
        self.started -= counters["seconds"]

    # What was found --------------------------------------------------------------------------------------------------

    def _progress(self, closed: bool) -> Progress:
        states = sum(part.bytes_for(part.count) for part in self.parts)
        seconds, frontier = time.perf_counter() - self.started, 0 if closed else self._count() - sum(self.levels[-2])
        return Progress(len(self.levels) - 2, frontier, self._count(), int(self.steps.sum()), seconds, states)

    def _result(self, closed: bool, violation: Violation | None) -> Result:
        taken = Counter(dict.fromkeys((o.name for o in operations(self.law, self.grain)), 0))
        for way, times in zip(self.expand.ways, self.steps.tolist(), strict=True):
            taken[way.operation.name] += times
        last = self._progress(closed)
        return Result(
            self.scope.name, self.grain, self.symmetry, last.distinct, last.generated, last.depth, closed,
            last.seconds, self.orbits_total, dict(taken), dict(self.watch.witnesses), violation,
            last.bytes / last.distinct,
        )  # fmt: skip

    def _violation(self, rule: int, code: Tensor) -> Violation:
        path = [code]
        for level in reversed(range(len(self.levels) - 2)):
            path.append(self._before(path[-1], level))
        steps = retrace(self.expand, path[::-1], self._same)
        return confirmed(self.law, self.codec, self.grain, self.watch.rules[rule], steps)

    def _before(self, wanted: Tensor, level: int) -> Tensor:
        """A state of a level that leads to the wanted one: nothing remembers it, so look again."""
        for chunk in self._chunks(level):
            codes = chunk()
            found = self.expand(codes)
            fitting = (self._same(found.codes) == wanted).all(0).nonzero().view(-1)
            if fitting.numel():
                return codes.index_select(1, found.rows[fitting[:1]])
        raise ReadingsDisagree(f"no state of the level before leads to {wanted.tolist()}")

    def _same(self, codes: Tensor) -> Tensor:
        if self.symmetry is Symmetry.NONE:
            return codes
        return self.codec.pack(canonical(self.law, self.codec.unpack(codes)).batch)


def _identity(law: Law, scope: Scope, grain: Grain, symmetry: Symmetry) -> str:
    """A digest that differs when the law, the scope or the way of searching does."""
    parts = (law.relations, law.functions, law.actions, law.operations, law.invariants, law.witnesses, law.initial)
    return hashlib.sha256(repr((parts, scope, grain, symmetry)).encode()).hexdigest()
