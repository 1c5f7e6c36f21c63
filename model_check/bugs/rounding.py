"""Class G, page arithmetic: cursors that don't move, borders that two parts share, one number in two units."""

from __future__ import annotations

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.state import PAGE_SIZE, A, ceil_to_page, end, maps, pos
from freehold.spec.variant import edit, variant

BUGS = (
    Bug(
        "sgl-project/sglang-jax#1147", "G", "speculation takes pages and does not move the allocated length",
        Shows.STATE, lambda law: variant(law, edit("extend", undo="A")), small(Page=1), 3,
    ),
    Bug(
        "sgl-project/sglang#35270", "G", "a block that is written anew in each step is published with the rest",
        Shows.STATE,
        lambda law: variant(law, edit("publish", swap={"only written pages are published": lambda k, a: a <= A(k)})),
        small(Page=1), 4,
    ),
    Bug(
        "sgl-project/sglang#38840", "G", "page decisions leave out the tokens of the encoder, which come first",
        Shows.STATE,
        lambda law: variant(law, edit("extend", undo="pos", do=lambda k, p, a: [pos.becomes(p, A(k) // PAGE_SIZE)])),
        small(Page=2, page_size=2, row_width=4), 4,
    ),
    Bug(
        "sgl-project/sglang#7112", "G", "rounding the wrong way gives a page back that is accepted in part",
        Shows.STATE,
        lambda law: variant(law, edit("truncate", undo="maps", do=lambda k, a: [
            maps[k].loses(lambda p: maps(k, p) & (end(p) > a)),
        ])),
        small(Page=1, page_size=2, row_width=2), 4,
    ),
    Bug(
        "sgl-project/sglang#38981", "G", "the part behind the window and the rest of the row meet inside a page",
        Shows.STATE, lambda law: variant(law, edit("window_drop", drop="the cursor stands at a page border")),
        small(Page=1, page_size=2, row_width=2, window=1, SwaPage=1), 5,
    ),
    Bug(
        "ROCm/ATOM#234", "G", "a page index is turned into tokens twice",
        Shows.STATE,
        lambda law: variant(law, edit("extend", undo="pos", do=lambda k, p, a: [
            pos.becomes(p, ceil_to_page(A(k), PAGE_SIZE)),
        ])),
        small(Page=2, page_size=2, row_width=4), 4,
    ),
)  # fmt: skip
