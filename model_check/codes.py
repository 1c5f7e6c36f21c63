"""States as codes: K 64-bit words a state, and an exact set of them.

A `Codec` gives each tuple of each relation one bit and each function value as many bits as the scope needs; a
field never straddles two words. A `CodeSet` is an open-addressing hash table in tensors, with the same code on the
CPU and the GPU. It compares whole words, so states that share a hash are kept apart: what it counts is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from freehold.model_check.scopes import Scope
from freehold.model_check.vector import Batch, Tensor, number_type
from freehold.spec.errors import Unsupported
from freehold.spec.language import Law

WORD_BITS = 63


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
        shapes += [(n, (sizes[f.sort],), self._bits(n)) for n, f in self.law.functions.items()]
        for name, shape, bits in shapes:
            slots = []
            for _ in range(math.prod(shape)):
                if shift + bits > WORD_BITS:
                    word, shift = word + 1, 0
                slots.append(Slot(word, shift))
                shift += bits
            self.fields[name] = Field(name, shape, bits, tuple(slots))
        self.words = word + 1

    def _bits(self, function: str) -> int:
        """Room for each number that a parameter can bring in and a page more: an invariant sees what is too long."""
        page_size, most = self.scope.constants["page_size"], self.scope.numbers[-1]
        return (-(-most // page_size) + 1 if function == "pos" else most + page_size).bit_length()

    def pack(self, batch: Batch) -> Tensor:
        """Codes `int64 [K, N]` of a batch. `Unsupported` when a value has no room in the layout."""
        codes = torch.zeros((self.words, batch.count), dtype=torch.int64, device=batch.device)
        for each in self.fields.values():
            self._write(codes, each, batch.column(each.name))
        return codes

    def repack(self, codes: Tensor, batch: Batch) -> Tensor:
        """Codes of a batch, given the codes `int64 [K, M]` of the states that it was selected from."""
        rows = batch.rows
        words = codes.clone() if rows is None else torch.stack([w.index_select(0, rows) for w in codes.unbind(0)])
        masks = [0] * self.words
        for name in batch.written:
            for slot in self.fields[name].slots:
                masks[slot.word] |= ((1 << self.fields[name].bits) - 1) << slot.shift
        for word, mask in zip(words.unbind(0), masks, strict=True):
            if mask:
                word &= ~mask
        for name in batch.written:
            self._write(words, self.fields[name], batch.column(name))
        return words

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


class CodeSet:
    """Codes of K words, each with the number under which it came in: 0, 1, 2, …"""

    def __init__(self, words: int, device: torch.device | str = "cpu", capacity: int = 1 << 12) -> None:
        self.count = 0
        self._store = torch.empty((words, capacity), dtype=torch.int64, device=device)
        self._table = torch.full((2 * capacity,), -1, dtype=torch.int32, device=device)

    def codes(self, start: int, stop: int) -> Tensor:
        """The codes `[K, stop - start]` with numbers in `[start, stop)`."""
        return self._store[:, start:stop]

    def add(self, codes: Tensor) -> Tensor:
        """Put codes `[K, M]` in; returns which of them were new, `int64 [new]`, in the order of their numbers."""
        self._reserve(self.count + codes.shape[1])
        news = [torch.empty(0, dtype=torch.int64, device=codes.device)]
        waiting, slots = torch.arange(codes.shape[1], device=codes.device), self._home(codes)
        while waiting.numel():
            found = self._table.index_select(0, slots)
            taken, vacant = (found >= 0).nonzero().view(-1), (found < 0).nonzero().view(-1)
            numbers, known = found.index_select(0, taken).to(torch.int64), waiting.index_select(0, taken)
            other = torch.zeros(taken.numel(), dtype=torch.bool, device=codes.device)
            for stored, word in zip(self._store.unbind(0), codes.unbind(0), strict=True):
                other |= stored.index_select(0, numbers) != word.index_select(0, known)
            passed = taken.index_select(0, other.nonzero().view(-1))
            won, lost = self._claim(slots, vacant)
            news.append(waiting.index_select(0, won))
            self._number(codes.index_select(1, news[-1]), slots.index_select(0, won))
            step = torch.cat([(slots.index_select(0, passed) + 1) & self._mask, slots.index_select(0, lost)])
            waiting, slots = waiting.index_select(0, torch.cat([passed, lost])), step
        return torch.cat(news)

    @property
    def _mask(self) -> int:
        return self._table.numel() - 1

    def _home(self, codes: Tensor) -> Tensor:
        return mix(codes) & self._mask

    def _claim(self, slots: Tensor, vacant: Tensor) -> tuple[Tensor, Tensor]:
        """Several codes may want one vacant slot: each leaves a ticket, and who finds its own there has won."""
        wanted, tickets = slots.index_select(0, vacant), vacant.to(torch.int32)
        self._table.scatter_(0, wanted, tickets)
        own = self._table.index_select(0, wanted) == tickets
        return vacant.index_select(0, own.nonzero().view(-1)), vacant.index_select(0, (~own).nonzero().view(-1))

    def _number(self, codes: Tensor, slots: Tensor) -> None:
        """Give won slots the next numbers, and store their codes."""
        stop = self.count + codes.shape[1]
        while stop > self._store.shape[1]:
            self._store = torch.cat([self._store, torch.empty_like(self._store)], dim=1)
        self._store[:, self.count : stop] = codes
        numbers = torch.arange(self.count, stop, dtype=torch.int32, device=codes.device)
        self._table.scatter_(0, slots, numbers)
        self.count = stop

    def _reserve(self, count: int) -> None:
        """Keep the table at most half full; a larger one is filled anew."""
        size = self._table.numel()
        while size < 2 * count:
            size *= 2
        if size == self._table.numel():
            return
        self._table = torch.full((size,), -1, dtype=torch.int32, device=self._store.device)
        slots = self._home(self.codes(0, self.count))
        waiting = torch.arange(self.count, device=slots.device)
        while waiting.numel():
            vacant = (self._table.index_select(0, slots) < 0).nonzero().view(-1)
            numbers = waiting.index_select(0, vacant).to(torch.int32)
            self._table.scatter_(0, slots.index_select(0, vacant), numbers)
            placed = self._table.index_select(0, slots) == waiting
            left = (~placed).nonzero().view(-1)
            waiting, slots = waiting.index_select(0, left), (slots.index_select(0, left) + 1) & self._mask
