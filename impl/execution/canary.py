"""The content canary: a shadow of the KV caches that knows whose KV lies in each slot.

Owner counts cannot see that a row points at another sequence's page, or that a page still has what its last owner
wrote. So beside each slot of KV lie three numbers, a *mark*: the generation of its page when it was written, the
position of its token, and the *chain* of the sequence up to and with it:

    chain[i] = chain[i - 1] * M + token[i] + 1    (mod 2^64, M odd, chain[-1] = 0)

A forward step writes the marks of its new tokens, and before that holds each slot that it will read against what must
be there. M has an inverse mod 2^64, so chain[i] = M^i * sum((token[j] + 1) * M^-j for j <= i): all chains of a ragged
step are one cumulative sum in wrapping int64. That finds accidents; it is no defence against tokens chosen to collide.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from freehold.impl.memory.arrays import Tokens
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import ForwardBatch
from freehold.spec.arithmetic import ceil_pages
from freehold.spec.errors import FreeholdError, InvalidInput

_MULTIPLIER = 6364136223846793005  # of Knuth's 64-bit linear congruential generator (MMIX); odd
_TOLD = 16  # wrong slots that an error describes; of the others it keeps the pages


class Mark(NamedTuple):
    """What lies beside a slot; all zero where nothing was ever written. chain: signed, as int64 has it."""

    generation: int
    position: int
    chain: int


class WrongContent(StrEnum):
    """What a slot has instead of what its reader needs."""

    SWAPPED = "swapped"
    """KV of another sequence, or of another position, that the page's present owner may have written."""
    STALE = "stale"
    """What was there before the page was last given out."""
    UNWRITTEN = "unwritten"
    """Nothing: the slot was never written. Page 0, which is padding, never is."""


@dataclass(frozen=True, slots=True)
class WrongSlot:
    """One slot that a step would have read. pool: full or swa; page: of that pool; position: of the request's token."""

    kind: WrongContent
    request_id: str
    position: int
    page: int
    pool: str
    expected: Mark
    found: Mark

    def __str__(self) -> str:
        return (
            f"request {self.request_id!r} would read {self.kind} KV at position {self.position}, from page {self.page} "
            f"of the {self.pool} pool: expected {_told(self.expected)}; found {_told(self.found)}"
        )


class ContentBroken(FreeholdError):
    """A step would have read KV that is not its own. Nothing was read; the batch must not run.

    slots: the first wrong ones, in the order of the batch. pages, swa_pages: all pages with wrong slots.
    """

    exit_code = 1

    def __init__(self, slots: Sequence[WrongSlot], count: int, pages: dict[str, frozenset[int]]) -> None:
        more = f" (and {count - 1} more wrong slots)" if count > 1 else ""
        super().__init__(f"{slots[0]}{more}")
        self.slots = tuple(slots)
        self.pages, self.swa_pages = pages.get("full", frozenset()), pages.get("swa", frozenset())


class MarkCheck(Protocol):
    """Compares what lies beside some slots with what must. The one place where a kernel may do it instead of torch."""

    def __call__(self, marks: Tensor, slots: Tensor, expected: Tensor) -> Tensor:
        """Indices into `slots` of those that differ, ascending: int64 [wrong].

        marks: int64 [all slots, 3]; slots: int64 [n]; expected: int64 [n, 3]. All on one device; nothing is changed.
        """
        ...


def check_marks(marks: Tensor, slots: Tensor, expected: Tensor) -> Tensor:
    """The reference `MarkCheck`, on any device."""
    return (marks[slots] != expected).any(dim=1).nonzero().flatten()


@dataclass(frozen=True, slots=True)
class _Pool:
    """A pool's marks, int64 [(pages + 1) * page_size, 3]; window_tokens: how far its layers look back, None for all."""

    name: str
    marks: Tensor
    window_tokens: int | None


@dataclass(frozen=True, slots=True)
class _Mapped:
    """The pages behind the rows of a batch, one row after the other, int64 [pages], and the generation of each."""

    pages: Tensor
    generations: Tensor


@dataclass(frozen=True, slots=True)
class _Span:
    """Tokens of several items, item after item.

    items: int64 [tokens], the item of each; positions: int64 [tokens]; lengths: int64 [items].
    """

    items: Tensor
    positions: Tensor
    lengths: Tensor


class Canary:
    """The marks of every slot of one model's caches."""

    def __init__(
        self,
        tables: KvTables,
        page_size: int,
        window_tokens: int = 0,
        *,
        device: torch.device | str = "cpu",
        check: MarkCheck = check_marks,
    ) -> None:
        """`window_tokens`: tokens before its own that a token looks back on in the swa pool, as in `CacheGeometry`.

        `device`: where the marks lie, 24 bytes for each slot; the tables stay on the host.
        Raises InvalidInput when only one of window and swa pages is there.
        """
        if (window_tokens > 0) != (tables.num_swa_pages > 0):
            raise InvalidInput("a sliding window needs swa pages, and swa pages a window")
        self.tables, self.page_size, self.device, self.check = tables, page_size, torch.device(device), check
        self.pools = [self._pool("full", tables.num_pages, None)]
        if window_tokens:
            self.pools.append(self._pool("swa", tables.num_swa_pages, window_tokens))
        width_tokens = tables.page_table.shape[1] * page_size
        self.powers = _powers(_MULTIPLIER, width_tokens).to(self.device)
        self.inverses = _powers(pow(_MULTIPLIER, -1, 1 << 64), width_tokens).to(self.device)

    def plan(self, batch: ForwardBatch) -> "CanaryStep":
        """What a step reads and writes, by the tables as they are now: call it where the step is launched.

        Raises InvalidInput for an item without the tokens before its new ones.
        """
        for item in batch.items:
            if item.start_tokens and (item.prefix is None or len(item.prefix) != item.start_tokens):
                raise InvalidInput(f"request {item.request_id!r} comes without its prefix, which the canary needs")
        starts = torch.tensor([item.start_tokens for item in batch.items])
        added = torch.tensor([len(item.token_ids) for item in batch.items])
        row_pages = torch.tensor(
            [ceil_pages(item.start_tokens + len(item.token_ids), self.page_size) for item in batch.items]
        )
        rows = torch.repeat_interleave(torch.tensor([item.row for item in batch.items]), row_pages)
        pages = self.tables.page_table[rows, _places(row_pages)].long()
        halves = self.tables.peers[pages].long()
        mapped = [_Mapped(pages, self.tables.generations[pages]), _Mapped(halves, self.tables.swa_generations[halves])]
        return CanaryStep(
            self,
            tuple(item.request_id for item in batch.items),
            tuple(item.prefix for item in batch.items if item.start_tokens and item.prefix is not None),
            starts.to(self.device),
            added.to(self.device),
            (row_pages.cumsum(0) - row_pages).to(self.device),
            [_Mapped(m.pages.to(self.device), m.generations.to(self.device)) for m in mapped],
        )

    def _pool(self, name: str, num_pages: int, window_tokens: int | None) -> _Pool:
        shape = ((num_pages + 1) * self.page_size, 3)
        return _Pool(name, torch.zeros(shape, dtype=torch.int64, device=self.device), window_tokens)


@dataclass(slots=True, eq=False)
class CanaryStep:
    """The canary's part of one forward step: `verify` before it reads, then `write` with the tokens that it writes.

    Steps must be verified and written in the order of their launch. The tables are not looked at any more.
    """

    canary: Canary
    request_ids: tuple[str, ...]
    prefixes: tuple[Tokens, ...]
    starts: Tensor
    added: Tensor
    first_pages: Tensor
    mapped: Sequence[_Mapped]
    _ends: Tensor | None = field(default=None, init=False)

    def verify(self) -> None:
        """Hold every slot that the step reads against what must be there; in the swa pool, those in a window.

        Raises ContentBroken.
        """
        prefix, chains, self._ends = self._prefix()
        wrong: list[WrongSlot] = []
        pages: dict[str, frozenset[int]] = {}
        count = 0
        for pool, mapped in zip(self.canary.pools, self.mapped, strict=False):
            span = prefix
            read = torch.ones_like(span.positions, dtype=torch.bool)
            if pool.window_tokens is not None:
                read = span.positions >= (self.starts - pool.window_tokens)[span.items]
            span = _Span(span.items[read], span.positions[read], span.lengths)
            slots, found_pages, expected = self._marks(mapped, span, chains[read])
            bad = self.canary.check(pool.marks, slots, expected)
            if len(bad):
                count += len(bad)
                pages[pool.name] = frozenset(found_pages[bad].tolist())
                wrong += self._wrong(pool, span, slots, expected, bad[: _TOLD - len(wrong)])
        if wrong:
            raise ContentBroken(wrong, count, pages)

    def write(self, tokens: Tensor) -> None:
        """The step's new tokens are in their slots now, or will be before the next step reads.

        tokens: integers [new tokens], item after item in the order of the batch, none of them pending any more.
        """
        span = self._span(self.starts, self.added)
        before = self._prefix()[2] if self._ends is None else self._ends
        chains, _ = self._chains(tokens.to(self.canary.device), span, before)
        for pool, mapped in zip(self.canary.pools, self.mapped, strict=False):
            slots, pages, marks = self._marks(mapped, span, chains)
            real = pages > 0  # what is written to padding must be missed by whoever reads it
            pool.marks[slots[real]] = marks[real]

    def _prefix(self) -> tuple[_Span, Tensor, Tensor]:
        """The tokens before the new ones, their chains [tokens], and what those of the new ones go on from [items]."""
        span = self._span(torch.zeros_like(self.starts), self.starts)
        tokens = torch.from_numpy(np.concatenate([*self.prefixes, np.empty(0, np.int32)])).to(self.canary.device)
        return span, *self._chains(tokens, span, torch.zeros_like(self.starts))

    def _span(self, starts: Tensor, lengths: Tensor) -> _Span:
        items = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
        return _Span(items, starts[items] + _places(lengths), lengths)

    def _chains(self, tokens: Tensor, span: _Span, before: Tensor) -> tuple[Tensor, Tensor]:
        """The chain at each token, int64 [tokens], and of each item the sum of (token + 1) * M^-position to its end.

        before: those sums up to the span, int64 [items].
        """
        weighted = (tokens.long() + 1) * self.canary.inverses[span.positions]
        running = torch.cat([weighted.new_zeros(1), weighted.cumsum(0)])
        lasts = span.lengths.cumsum(0)
        shift = before - running[lasts - span.lengths]
        chains = (running[1:] + shift[span.items]) * self.canary.powers[span.positions]
        return chains, running[lasts] + shift

    def _marks(self, mapped: _Mapped, span: _Span, chains: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each token its slot [tokens], its page [tokens], and its mark [tokens, 3]."""
        size = self.canary.page_size
        at = self.first_pages[span.items] + span.positions // size
        pages = mapped.pages[at]
        marks = torch.stack([mapped.generations[at], span.positions, chains], dim=1)
        return pages * size + span.positions % size, pages, marks

    def _wrong(self, pool: _Pool, span: _Span, slots: Tensor, expected: Tensor, bad: Tensor) -> list[WrongSlot]:
        found = pool.marks[slots[bad]].tolist()
        wanted, items, positions = expected[bad].tolist(), span.items[bad].tolist(), span.positions[bad].tolist()
        pages = (slots[bad] // self.canary.page_size).tolist()
        return [
            WrongSlot(_kind(Mark(*f), Mark(*w)), self.request_ids[i], p, page, pool.name, Mark(*w), Mark(*f))
            for f, w, i, p, page in zip(found, wanted, items, positions, pages, strict=True)
        ]


def _kind(found: Mark, expected: Mark) -> WrongContent:
    if found == (0, 0, 0):
        return WrongContent.UNWRITTEN
    return WrongContent.STALE if found.generation < expected.generation else WrongContent.SWAPPED


def _places(lengths: Tensor) -> Tensor:
    """0, 1, … up to each length, one after the other: [2, 3] gives [0, 1, 0, 1, 2]."""
    starts = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    return torch.arange(len(starts), device=lengths.device) - starts


def _powers(base: int, count: int) -> Tensor:
    """base^0, base^1, … mod 2^64 as int64 [count]."""
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return torch.from_numpy(np.cumprod(factors, dtype=np.uint64).view(np.int64))


def _told(mark: Mark) -> str:
    if mark == (0, 0, 0):
        return "nothing"
    return f"generation {mark.generation}, position {mark.position}, chain {mark.chain % (1 << 64):016x}"
