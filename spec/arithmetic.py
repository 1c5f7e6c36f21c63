"""Page arithmetic: every rounding that ownership depends on, in one place.

The engine calls these on integers; the law calls the same functions on its integer terms, so the formula that is
proved is the formula that runs. CrossHair checks the `post:` lines for all integers that meet the `pre:` lines,
Hypothesis tests them, and Z3 proves what the unbounded law leans on. Lengths are in tokens unless the name says pages.

An off-by-one here is the commonest origin of a lost tail page or a page freed twice, which is why no other module
of the project divides by the page size.
"""

from __future__ import annotations


def ceil_pages(tokens: int, page_size: int) -> int:
    """Pages that hold `tokens` tokens.

    pre: tokens >= 0
    pre: page_size >= 1
    post: (__return__ - 1) * page_size < tokens or __return__ == 0
    post: tokens <= __return__ * page_size
    """
    return (tokens + (page_size - 1)) // page_size


def floor_to_page(tokens: int, page_size: int) -> int:
    """Largest page-aligned length that is at most `tokens`: what can be published of `tokens` written ones.

    pre: tokens >= 0
    pre: page_size >= 1
    post: __return__ <= tokens < __return__ + page_size
    post: __return__ % page_size == 0
    """
    return tokens // page_size * page_size


def ceil_to_page(tokens: int, page_size: int) -> int:
    """Smallest page-aligned length that is at least `tokens`: the room behind `tokens` allocated ones.

    pre: tokens >= 0
    pre: page_size >= 1
    post: tokens <= __return__ < tokens + page_size
    post: __return__ % page_size == 0
    """
    return ceil_pages(tokens, page_size) * page_size


def new_pages(allocated: int, wanted: int, page_size: int) -> int:
    """Pages to acquire so that a record that holds `allocated` tokens of room has room for `wanted`.

    pre: 0 <= allocated <= wanted
    pre: page_size >= 1
    post: __return__ >= 0
    post: ceil_to_page(allocated, page_size) + __return__ * page_size == ceil_to_page(wanted, page_size)
    """
    return ceil_pages(wanted, page_size) - ceil_pages(allocated, page_size)


def is_aligned(tokens: int, page_size: int) -> bool:
    """Whether a length ends at a page border.

    pre: tokens >= 0
    pre: page_size >= 1
    post: __return__ == (floor_to_page(tokens, page_size) == ceil_to_page(tokens, page_size))
    """
    return tokens % page_size == 0


def room_tokens(allocated: int, row_width: int) -> int:
    """Tokens by which a record may still grow before its row is full.

    pre: 0 <= allocated <= row_width
    post: __return__ >= 0
    post: allocated + __return__ == row_width
    """
    return row_width - allocated


def slot_of(page: int, position: int, page_size: int) -> int:
    """Cache slot of token `position` when `page` is the page behind it.

    pre: page >= 0
    pre: position >= 0
    pre: page_size >= 1
    post: __return__ // page_size == page
    post: __return__ % page_size == position % page_size
    """
    return page * page_size + position % page_size


def window_cursor(committed: int, window: int, page_size: int) -> int:
    """Page-aligned length that the next token does not look back on: pages that end there or before are out of window.

    window: tokens before the next one that a layer looks back on.

    pre: committed >= 0
    pre: window >= 0
    pre: page_size >= 1
    post: __return__ % page_size == 0
    post: __return__ + window <= committed or __return__ == 0
    post: committed < __return__ + window + page_size
    """
    return floor_to_page(max(0, committed - window), page_size)
