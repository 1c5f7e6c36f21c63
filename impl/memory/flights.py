"""Forward steps in flight, and what waits for their end.

A step that was launched reads and writes pages until its fence. What its requests give back meanwhile is not free: it
lies with the step, the last one that touches it, and goes to the free units when that step has ended. Steps end in the
order in which they were launched, so the last one to touch a unit is the one to wait for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from freehold.impl.memory.arrays import Pages


@dataclass(slots=True, eq=False)
class Touched:
    """Units of one pool that a step touches.

    ids: what it touches, any shape; 0 is padding.
    returned: what was given back since, and waits for the step.
    """

    ids: Pages
    returned: list[Pages] = field(default_factory=list)
    _mask: NDArray[np.bool_] | None = None

    def keep(self, units: Pages, num_units: int) -> Pages:
        """The step keeps those of `units` that it touches; returns the others."""
        if self._mask is None:  # most steps end before anybody gives anything back
            self._mask = np.zeros(num_units + 1, np.bool_)
            self._mask[self.ids] = True
        touched = self._mask[units]
        if not touched.any():
            return units
        self.returned.append(units[touched])
        return units[~touched]

    def waiting(self) -> Pages:
        """What waits for the step."""
        return np.concatenate([*self.returned, np.empty(0, np.int32)])


@dataclass(slots=True, eq=False)
class StepLoan:
    """One forward step in flight: a loan on the account of each of its records, in the order of `loans`.

    loans: the number of the loan by the number of the record.
    starts: the first position that each one writes. first_written: index of the first page that each one writes.
    pages: what the rows mapped at the launch, shape [records, pages]; halves: the same of the swa pool.
    """

    loans: Mapping[int, int]
    starts: Sequence[int]
    first_written: Sequence[int]
    pages: Touched
    halves: Touched


class Flights:
    """The steps in flight, in the order of their launch."""

    def __init__(self, num_pages: int, num_swa_pages: int) -> None:
        self.steps: list[StepLoan] = []
        self._num_pages, self._num_swa_pages = num_pages, num_swa_pages

    def before(self, record: int) -> list[int]:
        """Loans in flight on the account of a record, the oldest first."""
        return [step.loans[record] for step in self.steps if record in step.loans]

    def hold_pages(self, pages: Pages) -> Pages:
        """Pages that are given back now: those in flight wait; returns the others."""
        for step in reversed(self.steps):
            pages = step.pages.keep(pages, self._num_pages)
        return pages

    def hold_halves(self, halves: Pages) -> Pages:
        """The same for swa pages."""
        for step in reversed(self.steps):
            halves = step.halves.keep(halves, self._num_swa_pages)
        return halves
