"""The page table: one row for each record, one entry for each page of its sequence."""

import numpy as np
import torch
from numpy.typing import NDArray

from freehold.impl.memory.arrays import Pages
from freehold.impl.memory.record import KvRecord
from freehold.spec.errors import FreeholdError


class OutOfRows(FreeholdError):
    """Every row is bound; nothing was taken."""


class RowPool:
    """Free rows, and what the bound ones map.

    page_table: int32 [num_rows + 1, row_pages] on the host. Entry i of a row is the page behind the tokens
    [i * page_size, (i + 1) * page_size); 0 means none. Row 0 is padding and maps nothing. An executor on a GPU uploads
    the rows of its batch, so that this table is the only one that anybody writes.
    bound: the record of each row that is not free.
    withheld: rows under quarantine, which are given to nobody.
    """

    def __init__(self, num_rows: int, row_pages: int) -> None:
        self.page_table = torch.zeros((num_rows + 1, row_pages), dtype=torch.int32)
        self.free_rows = list(range(num_rows, 0, -1))
        self.bound: dict[int, KvRecord] = {}
        self.withheld: set[int] = set()
        self._table: NDArray[np.int32] = self.page_table.numpy()  # same memory

    def bind(self, record_id: int) -> KvRecord:
        """A row goes from the free rows to a new record. Raises OutOfRows when there is none."""
        if not self.free_rows:
            raise OutOfRows("every row of the page table is bound: finish a request or close a session first")
        row = self.free_rows.pop()
        kv = self.bound[row] = KvRecord(id=record_id, row=row)
        return kv

    def unbind(self, kv: KvRecord) -> None:
        """The record's row, empty by now, goes to the free rows."""
        del self.bound[kv.row]
        if kv.row not in self.withheld:
            self.free_rows.append(kv.row)

    def withhold(self, rows: set[int]) -> None:
        """Nobody gets these rows any more: free ones leave now, others when they are given back."""
        self.withheld |= rows
        self.free_rows = [row for row in self.free_rows if row not in self.withheld]

    def entries(self, row: int, first: int, last: int) -> Pages:
        """A copy of the entries [first, last) of the row."""
        return self._table[row, first:last].copy()

    def write(self, row: int, first: int, pages: Pages) -> None:
        """Entries from `first` on point at `pages`."""
        self._table[row, first : first + len(pages)] = pages

    def clear(self, row: int, first: int, last: int) -> Pages:
        """Entries [first, last) point at nothing any more; returns the pages they pointed at."""
        entries = self._table[row, first:last]
        pages = entries.copy()
        entries[:] = 0
        return pages

    def snapshot(self, rows: list[int], pages: int) -> Pages:
        """A copy of the first `pages` entries of several rows, shape [rows, pages]."""
        return self._table[rows, :pages]
