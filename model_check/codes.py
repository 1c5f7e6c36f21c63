"""States as codes: K 64-bit words a state, and an exact set of them.

A `Codec` gives each tuple of each relation one bit and each function value as many bits as the scope needs; a
field never straddles two words. A `CodeSet` is an open-addressing hash table in tensors, with the same code on the
CPU and the GPU. It compares whole words, so states that share a hash are kept apart: what it counts is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from freehold.model_check.bits import WORD_BITS
from freehold.model_check.gates import FALSE, Gates, Node, Tree
from freehold.model_check.ground import Ground, World
from freehold.model_check.scopes import Scope
from freehold.model_check.vector import Batch, Tensor, number_type
from freehold.spec.errors import Unsupported
from freehold.spec.language import Law


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one column of a state lies in its code."""

    word: int
    shift: int


@dataclass(frozen=True, slots=True)
class Field:
    """A relation (`bits` is 1) or a function, with the shape of its elements and a slot for each of them."""

    name: str
    shape: tuple[int, ...]
    bits: int
    slots: tuple[Slot, ...]

    def places(self) -> Iterator[tuple[tuple[int, ...], list[int]]]:
        """The elements of each slot, with the numbers of its bits in a code (`WORD_BITS` a word), the lowest first."""
        for place, slot in zip(itertools.product(*map(range, self.shape)), self.slots, strict=True):
            at = WORD_BITS * slot.word + slot.shift
            yield place, list(range(at, at + self.bits))


@dataclass(slots=True)
class Codec:
    """The bit layout of a law's states over a scope."""

    law: Law
    scope: Scope
    fields: dict[str, Field] = field(init=False)
    words: int = field(init=False)

    def __post_init__(self) -> None:
        sizes, word, shift = self.scope.universe(), 0, 0
        self.fields = {}
        shapes = [(n, tuple(sizes[s] for s in r.sorts), 1) for n, r in self.law.relations.items()]
        shapes += [(n, (sizes[f.sort],), self._bits()) for n, f in self.law.functions.items()]
        for name, shape, bits in shapes:
            slots = []
            for _ in range(math.prod(shape)):
                if shift + bits > WORD_BITS:
                    word, shift = word + 1, 0
                slots.append(Slot(word, shift))
                shift += bits
            self.fields[name] = Field(name, shape, bits, tuple(slots))
        self.words = word + 1

    def _bits(self) -> int:
        """Room for each number of the scope and a page more: an invariant sees what is too long."""
        constants = self.scope.constants
        return (max(self.scope.numbers[-1], *constants.values()) + constants["page_size"]).bit_length()

    def pack(self, batch: Batch) -> Tensor:
        """Codes `int64 [K, N]` of a batch. `Unsupported` when a value has no room in the layout."""
        codes = torch.zeros((self.words, batch.count), dtype=torch.int64, device=batch.device)
        for each in self.fields.values():
            self._write(codes, each, batch.column(each.name))
        return codes

    def ground(self) -> tuple[Ground, World]:
        """A new circuit with an input for each bit of a code (`WORD_BITS` a word), and the world that it encodes."""
        gates = Gates(self.words * WORD_BITS)
        relations, functions = dict[str, dict[tuple[int, ...], Node]](), dict[str, tuple[Tree, ...]]()
        for name, each in self.fields.items():
            places = [(place, [gates.input(bit) for bit in bits]) for place, bits in each.places()]
            if name in self.law.functions:
                functions[name] = tuple(gates.natural(digits) for _, digits in places)
            else:
                relations[name] = {place: digit for place, (digit,) in places}
        return Ground(gates, self.scope.universe(), self.scope.constants), World(relations, functions)

    def bits(self, gates: Gates, world: World) -> list[Node]:
        """The nodes of the code of a world, for states where no number leaves its bits."""
        code = [FALSE] * (self.words * WORD_BITS)
        for name, each in self.fields.items():
            for place, bits in each.places():
                if name in world.relations:
                    code[bits[0]] = world.relations[name][place]
                    continue
                for digit, bit in enumerate(bits):
                    code[bit] = gates.where(world.functions[name][place[0]], lambda v, d=digit: bool(v >> d & 1))  # type: ignore[misc]
        return code

    def lost(self, gates: Gates, world: World) -> Node:
        """Where a number of a world leaves its bits."""
        fields = [(self.fields[name], values) for name, values in world.functions.items()]
        return gates.some(
            gates.where(value, lambda v, each=each: bool(v < 0 or v >> each.bits))  # type: ignore[misc]
            for each, values in fields
            for value in values
        )

    def _write(self, words: Tensor, into: Field, column: Tensor) -> None:
        flat = column.reshape(len(into.slots), -1)
        if into.bits > 1 and (int(flat.amin()) < 0 or int(flat.amax()) >> into.bits):
            raise Unsupported(f"{into.name} leaves its {into.bits} bits in scope {self.scope.name}: widen row_width")
        for slot, values in zip(into.slots, flat.unbind(0), strict=True):
            words[slot.word] |= values.to(torch.int64) << slot.shift

    def unpack(self, codes: Tensor) -> Batch:
        """The states of codes `int64 [K, N]`."""
        kind, count = number_type(self.scope.constants), codes.shape[1]
        columns: dict[str, Tensor] = {}
        for each in self.fields.values():
            dtype = torch.bool if each.name in self.law.relations else kind
            out = torch.empty((len(each.slots), count), dtype=dtype, device=codes.device)
            for slot, target in zip(each.slots, out.unbind(0), strict=True):
                target.copy_((codes[slot.word] >> slot.shift) & ((1 << each.bits) - 1))
            columns[each.name] = out.view(*each.shape, count)
        return Batch(self.scope.universe(), self.scope.constants, columns, count)


def mix(codes: Tensor) -> Tensor:
    """A 64-bit hash `[N]` of codes `[K, N]`: multiply and fold, a word at a time."""
    mixed = torch.zeros_like(codes[0])
    for word in codes.unbind(0):
        mixed ^= word
        mixed *= -7046029254386353131  # 2^64 divided by the golden ratio, as a signed odd number
        mixed ^= (mixed >> 29) & 0x7FFFFFFFF
        mixed *= -4417276706812531889
        mixed ^= (mixed >> 32) & 0xFFFFFFFF
    return mixed


def parted(codes: Tensor, hashes: Tensor, parts: int) -> list[Tensor]:
    """Codes by the part that their hash gives them, as places `int64` in `codes`.

    Most codes that come again are left out: where several fall on one slot, those that equal the last are dropped.
    """
    count, device = codes.shape[1], codes.device
    slots = hashes & (1 << max(count - 1, 1).bit_length()) - 1
    tickets = torch.arange(count, dtype=torch.int32, device=device)
    last = torch.empty(2 * max(count, 2), dtype=torch.int32, device=device).scatter_(0, slots, tickets)[slots]
    again = last != tickets
    for word in codes.unbind(0):
        again &= word == word[last]
    part = (hashes >> 32 & 0x7FFFFFFF) % parts
    return [(~again & (part == p)).nonzero().view(-1) for p in range(parts)]


MIN_TABLE = 1 << 13
REFILL = 1 << 20


class CodeSet:
    """Codes of K words, each with the number under which it came in: 0, 1, 2, …

    A state takes `8 K` bytes for its code and 8 to 16 in the table of numbers. `capacity` reserves room for codes that
    the system backs with memory when they come; beyond it, room is doubled and the codes are copied.
    """

    def __init__(self, words: int, device: torch.device | str = "cpu", capacity: int = 1 << 12) -> None:
        self.count = 0
        self._store = torch.empty((capacity, words), dtype=torch.int64, device=device)
        self._table = torch.full((MIN_TABLE,), -1, dtype=torch.int32, device=device)

    def bytes_for(self, count: int) -> int:
        """What so many states take."""
        return 8 * self._store.shape[1] * count + 4 * self._slots_for(count)

    def codes(self, start: int, stop: int) -> Tensor:
        """The codes `[K, stop - start]` with numbers in `[start, stop)`."""
        return self._store[start:stop].t().contiguous()

    def add(self, codes: Tensor, hashes: Tensor | None = None) -> Tensor:
        """Put codes `[K, M]` in; returns which of them were new, `int64 [new]`, in the order of their numbers.

        `hashes` are what `mix` says of the codes.
        """
        self._reserve(self.count + codes.shape[1])
        news = [torch.empty(0, dtype=torch.int64, device=codes.device)]
        rows = codes.t().contiguous()
        waiting = torch.arange(codes.shape[1], device=codes.device)
        slots = (mix(codes) if hashes is None else hashes) & self._mask
        while waiting.numel():
            found = self._table[slots]
            taken, vacant = (found >= 0).nonzero().view(-1), (found < 0).nonzero().view(-1)
            numbers, known = found[taken], waiting[taken]
            there, here = self._store.index_select(0, numbers), rows.index_select(0, known)
            other = torch.zeros(taken.numel(), dtype=torch.bool, device=codes.device)
            for a, b in zip(there.unbind(1), here.unbind(1), strict=True):
                other |= a != b
            passed = taken[other]
            won, lost = self._claim(slots, vacant)
            news.append(waiting[won])
            self._number(rows.index_select(0, news[-1]), slots[won])
            step = torch.cat([(slots[passed] + 1) & self._mask, slots[lost]])
            waiting, slots = waiting[torch.cat([passed, lost])], step
        return torch.cat(news)

    @property
    def _mask(self) -> int:
        return self._table.numel() - 1

    def _claim(self, slots: Tensor, vacant: Tensor) -> tuple[Tensor, Tensor]:
        """Several codes may want one vacant slot: each leaves a ticket, and who finds its own there has won."""
        wanted, tickets = slots[vacant], vacant.to(torch.int32)
        self._table.scatter_(0, wanted, tickets)
        own = self._table[wanted] == tickets
        return vacant[own], vacant[~own]

    def _number(self, rows: Tensor, slots: Tensor) -> None:
        """Give won slots the next numbers, and store their codes."""
        start = self.count
        self._append(rows)
        self._table.scatter_(0, slots, torch.arange(start, self.count, dtype=torch.int32, device=rows.device))

    def _append(self, rows: Tensor) -> None:
        stop = self.count + rows.shape[0]
        while stop > self._store.shape[0]:
            self._store = torch.cat([self._store, torch.empty_like(self._store)])
        self._store[self.count : stop] = rows
        self.count = stop

    def _slots_for(self, count: int) -> int:
        """Slots of a table that is at most half full."""
        return max(MIN_TABLE, 1 << (2 * count - 1).bit_length())

    def _reserve(self, count: int) -> None:
        size = self._slots_for(count)
        if size > self._table.numel():
            self._refill(size)

    def _refill(self, size: int) -> None:
        """A table of so many slots for what is known; the old one goes first, as the store knows everything."""
        device = self._store.device
        self._table = self._table[:0]
        self._table = torch.full((size,), -1, dtype=torch.int32, device=device)
        for start in range(0, self.count, REFILL):
            stop = min(self.count, start + REFILL)
            numbers = torch.arange(start, stop, dtype=torch.int32, device=device)
            slots = mix(self.codes(start, stop)) & self._mask
            while numbers.numel():
                vacant = (self._table[slots] < 0).nonzero().view(-1)
                self._table.scatter_(0, slots[vacant], numbers[vacant])
                left = self._table[slots] != numbers
                numbers, slots = numbers[left], (slots[left] + 1) & self._mask
