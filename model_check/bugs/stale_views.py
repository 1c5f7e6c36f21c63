"""Class K, stale views: a second table, map or cursor does not follow the first."""

from __future__ import annotations

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.events import release, truncate
from freehold.spec.language import Body, Law
from freehold.spec.operations import Steps
from freehold.spec.state import (
    C,
    P,
    Page,
    Record,
    begin,
    end,
    free,
    has_peer,
    in_tree,
    in_use,
    locks,
    maps,
    owns,
    parent,
    pos,
    written,
)
from freehold.spec.terms import no
from freehold.spec.variant import edit, steps, variant


def _recover(law: Law) -> None:
    @law.action
    def replace_node(k: Record, d: Page, p: Page) -> Body:
        """A tombstone takes both halves of a copy of its tokens; its own full page is freed, locked or not."""
        yield in_use(k) & owns(k, d) & maps(k, d) & (end(d) <= C(k)), "the record has a written copy"
        yield begin(d) == P(k), "the copy continues the published prefix"
        yield in_tree(p) & ~has_peer(p) & (pos(d) == pos(p)), "a tombstone stands at its position"
        yield no(Page, lambda q: parent(p, q) | parent(q, p)), "it stands alone"
        yield in_tree.drop(p)
        yield written.drop(p)
        yield free.add(p)
        yield owns.drop(k, d)
        yield in_tree.add(d)
        yield written.add(d)
        yield locks.add(k, d)
        yield P.becomes(k, end(d))

    @law.operation
    def recover(k: Record, d: Page, p: Page) -> Steps:
        """Insert over a tombstone."""
        yield replace_node(k, d, p)


def _row_names_freed_pages(law: Law) -> Law:
    """Pages behind the window are freed whole; the row still names them."""
    return variant(
        law,
        edit("window_drop", do=lambda k, floor, e: [
            free.gains(lambda p: owns(k, p) & (begin(p) >= floor) & (end(p) <= e)),
            owns[k].loses(lambda p: owns(k, p) & (begin(p) >= floor) & (end(p) <= e)),
        ]),
    )  # fmt: skip


def _list_only_grows(law: Law) -> Law:
    return variant(
        law,
        edit("truncate", undo="maps"),
        edit("release", drop="no row entry keeps any of the pages"),
        steps("trim", lambda k, a: [truncate(k, a), release(k, lambda p: owns(k, p) & (begin(p) >= a))]),
    )


BUGS = (
    Bug(
        "sgl-project/sglang#27586", "K", "a tombstone's map entry still names the swa page that it gave back",
        Shows.STATE, lambda law: variant(law, edit("evict_peer", undo="peer")), small(Page=1, SwaPage=1), 5,
    ),
    Bug(
        "sgl-project/sglang#36135", "K", "a free that looks its unit up late finds the one that replaced it",
        Shows.STATE, lambda law: variant(law, edit("repeer", undo="peer loses")), small(Page=2, SwaPage=1), 7,
    ),
    Bug(
        "sgl-project/sglang#29352", "K", "repairing a tombstone frees its full page under a request that runs on it",
        Shows.STATE, lambda law: variant(law, extra=_recover), small(Page=2, Row=2, Record=2, Request=2, SwaPage=1), 8,
    ),
    Bug(
        "vllm-project/vllm#42273", "K", "the manager drops blocks behind the window; the worker's row keeps them",
        Shows.STATE, _row_names_freed_pages, small(Page=2, row_width=2, window=1, SwaPage=2), 5,
    ),
    Bug(
        "RBLN-SW/vllm-rbln#662", "K", "a block is granted, and the message that puts it in the row is lost",
        Shows.STATE, lambda law: variant(law, edit("extend", undo="maps")), small(Page=1), 3,
    ),
    Bug(
        "NVIDIA/TensorRT-LLM#16448", "K", "a rewind frees the last block; a list that only grows still has it",
        Shows.STATE, _list_only_grows, small(Page=1), 4,
    ),
    Bug(
        "NVIDIA/TensorRT-LLM#13320", "K", "the token count of a request grows and its list of blocks does not",
        Shows.STATE, lambda law: variant(law, edit("grow", drop="the new length ends inside the last page")),
        small(Page=1), 3,
    ),
    Bug(
        "sgl-project/sglang#34870", "K", "the cursor of what the tree owns stays behind after an insert",
        Shows.STATE, lambda law: variant(law, edit("publish", undo="P")), small(Page=1), 4,
    ),
)  # fmt: skip
