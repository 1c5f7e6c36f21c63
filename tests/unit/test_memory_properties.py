"""Small pieces of the memory against definitions that are too plain to be wrong."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freehold.impl.memory.arrays import Pages
from freehold.impl.memory.flights import Flights, StepLoan, Touched
from freehold.impl.memory.radix_tree import RadixTree
from freehold.impl.memory.tree_node import TreeLock, TreeNode
from freehold.impl.memory.window import live_prefixes, longest
from freehold.spec.arithmetic import window_cursor

CHECKS = settings(max_examples=150, derandomize=True, deadline=None)
sequences = st.lists(st.integers(0, 1), min_size=1, max_size=12)


# Windows


@CHECKS
@given(st.lists(st.booleans(), max_size=12), st.integers(0, 5))
def test_a_prefix_is_live_when_its_last_window_pages_are_alive(alive: list[bool], window_pages: int) -> None:
    naive = [all(alive[max(0, length - window_pages) : length]) for length in range(len(alive) + 1)]
    live = live_prefixes(np.array(alive, np.bool_), window_pages)
    assert live.tolist() == naive
    assert longest(live) == max(length for length, good in enumerate(naive) if good)


@CHECKS
@given(st.integers(0, 60), st.integers(0, 30), st.sampled_from([1, 2, 4, 8]))
def test_the_cursor_is_the_last_page_border_before_everything_that_the_next_token_looks_back_on(
    committed: int, window: int, page_size: int
) -> None:
    seen_by_next = set(range(max(0, committed - window), committed))
    borders = [
        border for border in range(0, committed + 1, page_size)
        if not seen_by_next & set(range(border)) and border <= max(0, committed - window)
    ]  # fmt: skip
    assert window_cursor(committed, window, page_size) == max(borders)


# The tree


def grown(page_size: int, published: list[list[int]]) -> tuple[RadixTree, list[TreeLock]]:
    """A tree into which the sequences were published one after another, and the receipts of those who did."""
    tree, receipts, page = RadixTree(page_size), list[TreeLock](), 1
    for sequence in published:
        tokens = np.array(sequence[: len(sequence) // page_size * page_size], np.int32)
        match = tree.match(tokens)
        lock = tree.lock(match, None)[0] if match.matched_tokens else None
        rest = tokens[match.matched_tokens :]
        if len(rest):
            count = len(rest) // page_size
            lock = tree.insert(rest, np.arange(page, page + count, dtype=np.int32), lock)
            page += count
        if lock:
            receipts.append(lock)
    return tree, receipts


def path(lock: TreeLock | None) -> list[int]:
    """The pages that a receipt covers, from the root down."""
    runs = [node.pages.tolist() for node in lock.anchor.upwards()] if lock else []
    return [page for run in reversed(runs) for page in run]


def counts(tree: RadixTree) -> tuple[dict[int, int], int]:
    """How many locks each page has by its node, and how many pages have none."""
    found, todo = dict[int, int](), [tree.root]
    while todo:
        node: TreeNode = todo.pop()
        todo += node.children.values()
        found |= dict.fromkeys(node.pages.tolist(), node.locks)
    return found, sum(locks == 0 for locks in found.values())


@CHECKS
@given(st.sampled_from([1, 2]), st.lists(sequences, min_size=1, max_size=5), sequences, st.data())
def test_a_shortened_match_is_its_first_pages(
    page_size: int, published: list[list[int]], wanted: list[int], data: st.DataObject
) -> None:
    tree, _ = grown(page_size, published)
    match = tree.match(np.array(wanted, np.int32))
    whole = match.pages().tolist()
    assert len(whole) * page_size == match.matched_tokens
    pages = data.draw(st.integers(0, len(whole)))
    short = match.shortened(pages, page_size)
    assert short.pages().tolist() == whole[:pages]
    assert short.matched_tokens == pages * page_size
    if pages:
        assert tree.lock(short, None)[1].tolist() == whole[:pages]


@CHECKS
@given(st.sampled_from([1, 2]), st.lists(sequences, min_size=1, max_size=5), st.data())
def test_a_shortened_receipt_covers_its_first_pages_and_the_others_keep_theirs(
    page_size: int, published: list[list[int]], data: st.DataObject
) -> None:
    tree, receipts = grown(page_size, published)
    for _ in range(3):
        if not receipts:
            return
        index = data.draw(st.integers(0, len(receipts) - 1))
        before = [path(receipt) for receipt in receipts]
        surplus = data.draw(st.integers(0, len(before[index])))
        short = tree.shorten(receipts[index], surplus)
        kept = before[index][: len(before[index]) - surplus]
        assert path(short) == kept
        assert (short is None) == (not kept)
        receipts[index : index + 1] = [short] if short else []
        before[index : index + 1] = [kept] if kept else []
        assert [path(receipt) for receipt in receipts] == before
        locks, unlocked = counts(tree)
        covered = Counter(page for pages in before for page in pages)
        assert locks == {page: covered[page] for page in locks}
        assert unlocked == tree.unlocked_pages


# Steps in flight


def flights_over(touched: list[set[int]]) -> Flights:
    """Steps in flight that touch these pages of a pool of twelve."""
    flights = Flights(12, 0)
    for pages in touched:
        row = np.array([[*sorted(pages), 0, 0]], np.int32)  # with padding, as rows have
        flights.steps.append(StepLoan({1: 1}, [0], [0], Touched(row), Touched(np.zeros((1, 1), np.int32))))
    return flights


def ids(pages: list[int]) -> Pages:
    return np.array(pages, np.int32)


@CHECKS
@given(
    st.lists(st.sets(st.integers(1, 12)), max_size=3),
    st.permutations(range(1, 13)),
    st.lists(st.integers(0, 12), max_size=3),
)
def test_what_is_given_back_waits_for_the_last_step_that_touches_it(
    touched: list[set[int]], order: list[int], cuts: list[int]
) -> None:
    flights = flights_over(touched)
    free: list[int] = []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 12], strict=True):
        free += flights.hold_pages(ids(order[start:stop])).tolist()
    last = {page: max((n for n, pages in enumerate(touched) if page in pages), default=-1) for page in order}
    assert free == [page for page in order if last[page] < 0]
    for number, step in enumerate(flights.steps):
        assert step.pages.waiting().tolist() == [page for page in order if last[page] == number]
        assert step.halves.waiting().tolist() == []


@CHECKS
@given(st.sets(st.integers(1, 12)), st.sets(st.integers(1, 12)))
def test_a_step_keeps_what_it_touches_and_hands_on_the_rest(touches: set[int], returned: set[int]) -> None:
    step = Touched(ids(sorted(touches)))
    assert set(step.keep(ids(sorted(returned)), 12).tolist()) == returned - touches
    assert set(step.waiting().tolist()) == returned & touches
    assert step.keep(ids([]), 12).tolist() == []
