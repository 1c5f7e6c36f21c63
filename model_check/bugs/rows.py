"""Class N: the reserve is wider than the request's row: writes spill into the next row, and the release is clamped."""

from __future__ import annotations

from typing import Final

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.language import Law
from freehold.spec.state import PAGE_SIZE, ROW_WIDTH
from freehold.spec.variant import edit, variant

_WIDE = "the row is wide enough"


def branches_are_aligned_one_by_one(law: Law) -> Law:
    """Each draft branch is rounded up to whole pages, and nobody compares their sum with the width of the row."""
    return variant(law, edit("extend", drop=_WIDE))


def headroom_only_for_larger_pages(law: Law) -> Law:
    """Rows get their headroom only where a page has more than one token; the reserve is the same everywhere."""
    return variant(law, edit("extend", swap={_WIDE: lambda k, p, a: (a <= ROW_WIDTH + 1) & (a <= ROW_WIDTH * 2)}))


def tail_grows_past_the_row(law: Law) -> Law:
    """The row is as wide as the sequence may be long, and the draft's tokens grow the last page beyond that."""
    return variant(law, edit("grow", swap={_WIDE: lambda k, a: a <= ROW_WIDTH + PAGE_SIZE}))


BUGS: Final = (
    Bug("sgl-project/sglang#26972", "N", "draft branches reserve more pages than the row has entries",
        Shows.STATE, branches_are_aligned_one_by_one, small(Page=2, page_size=2, row_width=2), 4),
    Bug("sgl-project/sglang#33581", "N", "with pages of one token the reserve passes the end of the row",
        Shows.STATE, headroom_only_for_larger_pages, small(Page=2), 4),
    Bug("vllm-project/vllm-ascend#11466", "N", "the block table has no entries for the draft behind the longest prompt",
        Shows.STATE, tail_grows_past_the_row, small(Page=2, page_size=2, row_width=3), 5),
)  # fmt: skip
