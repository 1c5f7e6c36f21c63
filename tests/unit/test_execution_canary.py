"""The canary is silent where every slot has its own sequence's KV, and names the slot where one has not."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from freehold.impl.execution.canary import Canary, ContentBroken, Mark, WrongContent, check_marks
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import PENDING, BatchItem, ForwardBatch, Sampling
from freehold.spec.errors import InvalidInput

PAGE, WIDTH, PAGES, SWA_PAGES = 4, 8, 12, 10


class Memory:
    """Tables with a hand on them: pages are given out in the order asked for, and every one has a half."""

    def __init__(self, window_tokens: int = 0) -> None:
        self.windowed = window_tokens > 0
        self.tables = KvTables(
            page_table=torch.zeros((4, WIDTH), dtype=torch.int32),
            peers=torch.zeros(PAGES + 1, dtype=torch.int32),
            generations=torch.zeros(PAGES + 1, dtype=torch.int64),
            swa_generations=torch.zeros((SWA_PAGES if self.windowed else 0) + 1, dtype=torch.int64),
        )
        self.canary = Canary(self.tables, PAGE, window_tokens)

    def give(self, row: int, *pages: int) -> None:
        """The pages are acquired, and follow those that the row has."""
        used = int((self.tables.page_table[row] > 0).sum())
        self.share(row, *pages, at=used)
        for page in pages:
            self.tables.generations[page] += 1
            if self.windowed:
                half = SWA_PAGES + 1 - page
                self.tables.peers[page] = half
                self.tables.swa_generations[half] += 1

    def share(self, row: int, *pages: int, at: int = 0) -> None:
        """The row points at pages, whoever wrote them."""
        self.tables.page_table[row, at : at + len(pages)] = torch.tensor(pages, dtype=torch.int32)

    def item(self, row: int, tokens: Sequence[int], start: int, *, pending: bool = False) -> BatchItem:
        """A share of the sequence `tokens`, all of it from `start` on."""
        return BatchItem(
            request_id=f"r{row}",
            token_ids=(PENDING,) if pending else tuple(tokens[start:]),
            start_tokens=start,
            row=row,
            samples=True,
            sampling=Sampling(),
            prefix=np.array(tokens[:start], np.int32),
        )

    def run(self, *items: BatchItem, tokens: Sequence[int] | None = None) -> None:
        step = self.canary.plan(ForwardBatch(items=items))
        step.verify()
        step.write(torch.tensor(tokens or [token for item in items for token in item.token_ids]))

    def broken(self, *items: BatchItem) -> ContentBroken:
        step = self.canary.plan(ForwardBatch(items=items))
        with pytest.raises(ContentBroken) as caught:
            step.verify()
        return caught.value


def sequence(seed: int, length: int) -> list[int]:
    return [random.Random(seed * 1000 + position).randrange(30_000) for position in range(length)]


@pytest.fixture
def two() -> Memory:
    """Row 1 has ten tokens in pages 1 2 3, row 2 has nine in pages 4 5 6."""
    memory = Memory()
    memory.give(1, 1, 2, 3)
    memory.give(2, 4, 5, 6)
    memory.run(memory.item(1, sequence(1, 10), 0), memory.item(2, sequence(2, 9), 0))
    return memory


@pytest.mark.parametrize("window", [0, 6])
def test_right_steps_are_silent_in_chunks_and_decodes(window: int) -> None:
    memory = Memory(window)
    first, second = sequence(1, 16), sequence(2, 14)
    memory.give(1, 7, 3, 9, 1)
    memory.give(2, 2, 8, 4, 5)
    memory.run(memory.item(1, first[:5], 0))
    memory.run(memory.item(2, second[:3], 0), memory.item(1, first[:11], 5))
    memory.run(memory.item(1, first[:12], 11), memory.item(2, second[:9], 3))
    for length in range(13, 17):
        memory.run(memory.item(2, second[: length - 3], length - 4), memory.item(1, first[:length], length - 1))


def test_the_marks_are_the_chain_by_its_definition() -> None:
    memory, tokens = Memory(), sequence(5, 7)
    memory.give(1, 3, 1)
    memory.run(memory.item(1, tokens[:3], 0))
    memory.run(memory.item(1, tokens, 3))
    chain, slots = 0, [12, 13, 14, 15, 4, 5, 6]
    for position, (slot, token) in enumerate(zip(slots, tokens, strict=True)):
        chain = (chain * 6364136223846793005 + token + 1) % (1 << 64)
        generation, place, found = memory.canary.pools[0].marks[slot].tolist()
        assert (generation, place, found % (1 << 64)) == (1, position, chain)
    assert int(memory.canary.pools[0].marks.any(dim=1).sum()) == len(tokens)


def test_a_token_that_is_pending_at_the_launch_is_written_when_it_is_known(two: Memory) -> None:
    tokens = sequence(1, 12)
    step = two.canary.plan(ForwardBatch(items=(two.item(1, tokens[:11], 10, pending=True),)))
    two.tables.page_table.zero_()  # the next steps are planned before this one runs
    step.verify()
    step.write(torch.tensor([tokens[10]]))
    two.share(1, 1, 2, 3)
    two.run(two.item(1, tokens, 11))
    assert two.broken(two.item(1, [*tokens[:10], 5, 6], 11)).slots[0].position == 10


def test_pages_of_the_same_tokens_may_be_shared(two: Memory) -> None:
    tokens = sequence(1, 8) + sequence(3, 5)
    two.share(3, 1, 2)
    two.give(3, 7, 8)
    two.run(two.item(3, tokens, 8))


def test_another_sequences_page_is_swapped_content(two: Memory) -> None:
    two.share(1, 5, at=1)
    error = two.broken(two.item(2, sequence(2, 10), 9), two.item(1, sequence(1, 11), 10))
    slot = error.slots[0]
    assert (slot.kind, slot.request_id, slot.position, slot.page, slot.pool) == (
        WrongContent.SWAPPED,
        "r1",
        4,
        5,
        "full",
    )
    assert (slot.expected.generation, slot.expected.position) == (slot.found.generation, slot.found.position) == (1, 4)
    assert slot.expected.chain != slot.found.chain
    assert (set(error.pages), set(error.swa_pages), error.exit_code) == ({5}, set(), 1)
    assert "request 'r1' would read swapped KV at position 4, from page 5 of the full pool" in str(error)
    assert "3 more wrong slots" in str(error)


def test_the_same_sequences_pages_in_the_wrong_order_are_swapped_content(two: Memory) -> None:
    two.share(1, 2, 1)
    slots = two.broken(two.item(1, sequence(1, 11), 10)).slots
    assert [(slot.kind, slot.position, slot.found.position) for slot in slots[:5]] == [
        (WrongContent.SWAPPED, position, (position + 4) % 8) for position in range(5)
    ]


def test_what_a_later_owner_wrote_is_swapped_content(two: Memory) -> None:
    step = two.canary.plan(ForwardBatch(items=(two.item(1, sequence(1, 11), 10),)))
    two.give(3, 3)
    two.run(two.item(3, sequence(4, 2), 0))
    with pytest.raises(ContentBroken) as caught:
        step.verify()
    assert {(slot.kind, slot.position, slot.found.generation) for slot in caught.value.slots} == {
        (WrongContent.SWAPPED, position, 2) for position in (8, 9)
    }


def test_a_page_that_was_given_out_again_and_not_written_is_stale(two: Memory) -> None:
    two.tables.page_table[1].zero_()
    two.give(1, 1, 2, 3)
    two.run(two.item(1, sequence(1, 5), 0))
    slots = two.broken(two.item(1, sequence(1, 8), 7)).slots
    assert [(slot.kind, slot.position, slot.page) for slot in slots] == [
        (WrongContent.STALE, 5, 2),
        (WrongContent.STALE, 6, 2),
    ]
    assert slots[0].expected._replace(generation=1) == slots[0].found


def test_a_slot_that_nobody_wrote_is_found(two: Memory) -> None:
    slots = two.broken(two.item(2, sequence(2, 12), 11)).slots
    assert [(slot.kind, slot.position, slot.page, slot.found) for slot in slots] == [
        (WrongContent.UNWRITTEN, position, 6, Mark(0, 0, 0)) for position in (9, 10)
    ]


def test_a_hole_in_a_row_is_found_and_what_is_written_to_padding_is_lost(two: Memory) -> None:
    two.share(1, 0, at=2)
    tokens = sequence(1, 12)
    found = two.broken(two.item(1, tokens[:11], 10)).slots[0]
    assert (found.kind, found.position, found.page) == (WrongContent.UNWRITTEN, 8, 0)
    two.run(two.item(1, tokens, 0))
    assert not two.canary.pools[0].marks[:PAGE].any()
    assert two.broken(two.item(1, tokens, 11)).pages == {0}


def test_a_wrong_half_is_found_inside_the_window_only() -> None:
    memory, tokens = Memory(window_tokens=4), sequence(1, 16)
    memory.give(1, 1, 2, 3, 4)
    memory.run(memory.item(1, tokens[:12], 0))
    peers = memory.tables.peers
    first, second, third = peers[1:4].tolist()
    peers[1], peers[2] = 0, first  # position 12 looks back on [8, 12), which begins with page 3
    memory.run(memory.item(1, tokens[:13], 12))
    peers[3] = second
    error = memory.broken(memory.item(1, tokens[:13], 12))
    assert [(slot.kind, slot.pool, slot.page, slot.position) for slot in error.slots] == [
        (WrongContent.SWAPPED, "swa", second, position) for position in range(8, 12)
    ]
    assert (set(error.pages), set(error.swa_pages)) == (set(), {second})
    peers[3] = 0
    assert {slot.kind for slot in memory.broken(memory.item(1, tokens[:13], 12)).slots} == {WrongContent.UNWRITTEN}
    peers[3] = third
    memory.run(memory.item(1, tokens[:13], 12))


def test_a_half_that_was_given_out_again_is_stale() -> None:
    memory, tokens = Memory(window_tokens=4), sequence(1, 9)
    memory.give(1, 1, 2, 3)
    memory.run(memory.item(1, tokens[:8], 0))
    memory.tables.swa_generations[memory.tables.peers[2]] += 1
    slots = memory.broken(memory.item(1, tokens, 8)).slots
    assert [(slot.kind, slot.pool, slot.position) for slot in slots] == [
        (WrongContent.STALE, "swa", position) for position in range(4, 8)
    ]


def test_a_rewound_sequence_may_be_written_differently(two: Memory) -> None:
    tokens = sequence(1, 6) + sequence(9, 4)
    two.run(two.item(1, tokens, 6))
    two.run(two.item(1, [*tokens, 7], 10))
    assert two.broken(two.item(1, sequence(1, 11), 10)).slots[0].position == 6


def test_another_check_can_take_the_references_place(two: Memory) -> None:
    seen: list[tuple[int, ...]] = []

    def check(marks: torch.Tensor, slots: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        seen.append((*marks.shape, *slots.shape, *expected.shape))
        return check_marks(marks, slots, expected)

    two.canary.check = check
    two.run(two.item(1, sequence(1, 11), 10), two.item(2, sequence(2, 10), 9))
    assert seen == [((PAGES + 1) * PAGE, 3, 19, 19, 3)]


def test_what_it_cannot_work_with_is_refused(two: Memory) -> None:
    blind = BatchItem(request_id="r1", token_ids=(1,), start_tokens=10, row=1, samples=True, sampling=Sampling())
    with pytest.raises(InvalidInput, match="'r1' comes without its prefix"):
        two.canary.plan(ForwardBatch(items=(blind,)))
    with pytest.raises(InvalidInput, match="needs swa pages"):
        Canary(two.tables, PAGE, window_tokens=4)
