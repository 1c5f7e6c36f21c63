"""The prefix tree against a flat list of what was put in, and its order of eviction."""

import random

import numpy as np
import pytest

from freehold.impl.memory.arrays import Tokens
from freehold.impl.memory.radix_tree import RadixTree
from freehold.impl.memory.tree_node import TreeLock


def tokens(*ids: int) -> Tokens:
    return np.array(ids, np.int32)


def put(tree: RadixTree, sequence: Tokens, first_page: int) -> TreeLock | None:
    """Publish a sequence, as a record would; its new pages are numbered from `first_page`. Returns its receipt."""
    match = tree.match(sequence)
    lock = tree.lock(match, None)[0] if match.matched_tokens else None
    pages = len(sequence) // tree.page_size - match.matched_tokens // tree.page_size
    if pages:
        rest = sequence[match.matched_tokens : match.matched_tokens + pages * tree.page_size]
        lock = tree.insert(rest, np.arange(first_page, first_page + pages, dtype=np.int32), lock)
    return lock


def let_go(tree: RadixTree, lock: TreeLock) -> None:
    """Give a whole receipt back, as a record does with its last page."""
    assert tree.shorten(lock, sum(len(node.pages) for node in lock.anchor.upwards())) is None


def found(tree: RadixTree, sequence: Tokens) -> list[int]:
    """The pages of the longest prefix."""
    match = tree.match(sequence)
    lock, pages = tree.lock(match, None)
    let_go(tree, lock)
    return pages.tolist()


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_a_match_is_the_longest_prefix_of_whole_pages(page_size: int) -> None:
    chance, tree, known = random.Random(3), RadixTree(page_size), dict[bytes, int]()
    next_page = 1
    for _ in range(300):
        sequence = tokens(*(chance.randrange(2) for _ in range(chance.randint(1, 16))))
        whole = len(sequence) // page_size * page_size
        prefixes = [sequence[:end].tobytes() for end in range(page_size, whole + 1, page_size)]
        expected = [known[prefix] for prefix in prefixes if prefix in known]
        assert tree.match(sequence).matched_tokens == len(expected) * page_size
        assert found(tree, sequence) == expected
        lock = put(tree, sequence, next_page)
        for prefix in prefixes[len(expected) :]:
            known[prefix] = next_page
            next_page += 1
        if lock:
            let_go(tree, lock)
        assert tree.unlocked_pages == len(known)


def test_a_match_changes_nothing_and_goes_on_below_a_lock() -> None:
    tree = RadixTree(2)
    put(tree, tokens(1, 2, 3, 4, 5, 6), 1)
    lock, pages = tree.lock(tree.match(tokens(1, 2, 3, 9)), None)
    assert pages.tolist() == [1]
    further = tree.match(tokens(3, 4, 5, 6, 7), below=lock)
    assert further.matched_tokens == 4
    whole, more = tree.lock(further, lock)
    assert more.tolist() == [2, 3]
    assert [node.locks for node in whole.anchor.upwards()] == [2, 2]


def test_leaves_go_longest_unused_first_and_parents_after_them() -> None:
    tree = RadixTree(1)
    long, short = put(tree, tokens(1, 2, 3), 1), put(tree, tokens(1, 2, 4), 10)
    other = put(tree, tokens(7), 20)
    for lock in (short, long, other):
        assert lock
        let_go(tree, lock)
    found(tree, tokens(1, 2, 4))  # used again: now later than the others
    assert [pages.tolist() for pages in tree.evict(4)] == [[3], [20], [10], [2]]
    assert tree.unlocked_pages == 1


def test_a_leaf_that_is_longer_than_needed_keeps_its_beginning() -> None:
    tree = RadixTree(2)
    lock = put(tree, tokens(1, 2, 3, 4, 5, 6), 1)
    assert lock
    let_go(tree, lock)
    assert [pages.tolist() for pages in tree.evict(2)] == [[3, 2]]
    assert found(tree, tokens(1, 2, 3, 4)) == [1]
    assert [pages.tolist() for pages in tree.evict(5)] == [[1]]
    assert tree.root.children == {}


def test_what_a_receipt_covers_stays() -> None:
    tree = RadixTree(1)
    lock = put(tree, tokens(1, 2, 3, 4), 1)
    assert lock
    part, _ = tree.lock(tree.match(tokens(1, 2)), None)
    let_go(tree, lock)
    assert [pages.tolist() for pages in tree.evict(9)] == [[4, 3]]
    assert tree.unlocked_pages == 0
    let_go(tree, part)
    assert [pages.tolist() for pages in tree.evict(9)] == [[2, 1]]


def test_a_split_keeps_every_receipt() -> None:
    tree = RadixTree(1)
    deep = put(tree, tokens(1, 2, 3, 4), 1)
    shallow, _ = tree.lock(tree.match(tokens(1, 2, 9)), None)
    assert deep
    assert [node.pages.tolist() for node in deep.anchor.upwards()] == [[3, 4], [1, 2]]
    assert [node.locks for node in deep.anchor.upwards()] == [1, 2]
    assert [node.pages.tolist() for node in shallow.anchor.upwards()] == [[1, 2]]


def test_matching_counts_what_locking_would_take_from_eviction() -> None:
    tree = RadixTree(1)
    lock = put(tree, tokens(1, 2, 3, 4), 1)
    assert lock
    half, _ = tree.lock(tree.match(tokens(1, 2)), None)
    assert tree.match(tokens(1, 2, 3)).unlocked_pages() == 0
    let_go(tree, lock)
    assert tree.match(tokens(1, 2, 3)).unlocked_pages() == 1
    let_go(tree, half)
    assert tree.match(tokens(1, 2, 3)).unlocked_pages() == 3
