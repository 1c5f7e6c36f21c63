"""Where tokens lie in one pool: from rows and positions to slots of its caches.

The tables are read, never written. A token that a step touches must have a page; that is checked on the host, where
the tables are, so that no kernel ever reads or writes the padding page.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import BatchItem
from freehold.spec.arithmetic import ceil_pages
from freehold.spec.errors import RuleBroken


@dataclass(frozen=True, slots=True)
class PageMap:
    """The pages of one pool, behind the tokens of each row.

    window_tokens: 0 for the full pool, whose pages are those of the page table. Above 0 for the sliding pool, whose
    pages are their peers; a token at position p then reads the positions p - window_tokens..p only.
    """

    tables: KvTables
    page_size: int
    device: torch.device
    window_tokens: int

    def first_read(self, item: BatchItem) -> int:
        """The first position whose KV a step of `item` reads."""
        return max(0, item.start_tokens - self.window_tokens) if self.window_tokens else 0

    def check(self, items: Sequence[BatchItem]) -> None:
        """Raise RuleBroken where a token that `items` read or write has no page."""
        rows = torch.tensor([[item.row] for item in items])
        first = torch.tensor([[self.first_read(item) // self.page_size] for item in items])
        stops = [ceil_pages(item.start_tokens + len(item.token_ids), self.page_size) for item in items]
        stop = torch.tensor([[pages] for pages in stops])
        columns = first + torch.arange(int((stop - first).max()))
        pages = self._pages(rows, torch.minimum(columns, stop - 1))
        if not bool(pages.all()):
            index, column = (pages == 0).nonzero()[0].tolist()
            position = int(columns[index, column]) * self.page_size
            kind = "swa page" if self.window_tokens else "page"
            raise RuleBroken(
                f"request {items[index].request_id} needs the KV of token {position} on row {items[index].row}, "
                f"which has no {kind}: it was given back too early, or never taken"
            )

    def table(self, rows: Sequence[int], kv_tokens: int) -> Tensor:
        """`[rows, pages]` int32 on the device: the pages of the first `kv_tokens` tokens of each row, 0 for none."""
        return self._first_pages(rows, kv_tokens).to(self.device)

    def slots(self, row: int, start_tokens: int, stop_tokens: int) -> Tensor:
        """`[stop - start]` int64: the slots of one row's tokens start..stop."""
        positions = torch.arange(start_tokens, stop_tokens)
        return self._token_slots(torch.tensor(row), positions).to(self.device)

    def last_slots(self, items: Sequence[BatchItem]) -> Tensor:
        """`[items]` int64: the slot of the new token of each of these decodes."""
        rows = torch.tensor([item.row for item in items])
        return self._token_slots(rows, torch.tensor([item.start_tokens for item in items])).to(self.device)

    def read_slots(self, items: Sequence[BatchItem]) -> tuple[Tensor, Tensor]:
        """The slots that these decodes read, by position, each row padded with its own first one.

        Returns slots `[items, longest]` int64, and whether each is real.
        """
        rows = [item.row for item in items]
        stops = torch.tensor([[item.start_tokens + 1] for item in items])
        if not self.window_tokens:
            longest = int(stops.max())
            positions = torch.arange(longest)
            real = positions < stops
            slots = self._slots(self._first_pages(rows, longest), positions)
            return torch.where(real, slots, slots[:, :1]).to(self.device), real.to(self.device)
        first = torch.tensor([[self.first_read(item)] for item in items])
        positions = first + torch.arange(int((stops - first).max()))
        real = positions < stops
        slots = self._token_slots(torch.tensor(rows)[:, None], torch.where(real, positions, first))
        return slots.to(self.device), real.to(self.device)

    def _first_pages(self, rows: Sequence[int], kv_tokens: int) -> Tensor:
        pages = self.tables.page_table[:, : ceil_pages(kv_tokens, self.page_size)].index_select(0, torch.tensor(rows))
        return self.tables.peers[pages] if self.window_tokens else pages

    def _pages(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Pages behind columns of the page table, int32, in the common shape of the two."""
        pages = self.tables.page_table[rows, columns]
        return self.tables.peers[pages] if self.window_tokens else pages

    def _token_slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        column = positions // self.page_size
        return self._pages(rows, column).long() * self.page_size + (positions - column * self.page_size)

    def _slots(self, pages: Tensor, positions: Tensor) -> Tensor:
        """Slots of positions that are the same for every row of `pages` `[rows, pages]`."""
        if self.page_size == 1:
            return pages.index_select(-1, positions).long()
        column = positions // self.page_size
        first_slots = pages.index_select(-1, column).long() * self.page_size
        return first_slots + (positions - column * self.page_size)
