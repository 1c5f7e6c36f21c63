"""Class F, locks and pins: not taken, never dropped, dropped twice, or dropped by who never took them."""

from __future__ import annotations

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.events import lock
from freehold.spec.language import Law
from freehold.spec.operations import Steps
from freehold.spec.state import Page, Record, begin, locks, parent, pos
from freehold.spec.variant import edit, variant


def _only_ancestors(law: Law) -> Law:
    """The walk to the root steps up before it counts, so the page that was matched is not locked."""
    return variant(
        law,
        edit("lock", undo="locks", do=lambda k, p: [locks[k].gains(lambda q: parent(p, q))]),
        edit("attach", drop="the record locks the page"),
    )


def _look_up(law: Law) -> None:
    @law.operation
    def look_up(k: Record, p: Page) -> Steps:
        """A look-up pins what it hits for a later load, which does not come when the engine has the page already."""
        yield lock(k, p)


BUGS = (
    Bug(
        "sgl-project/mini-sglang#52", "F", "a prefix hit locks the ancestors of the page and not the page",
        Shows.STATE, _only_ancestors, small(Page=1), 6,
    ),
    Bug(
        "bytedance-iaas/sglang#748", "F", "the end of a write-back drops a lock on the path that it never took",
        Shows.STATE,
        lambda law: variant(law, edit("keep_copy", do=lambda o, p, h: [
            locks.loses(lambda k, q: locks(k, p) & (pos(q) <= pos(p))),
        ])),
        small(Page=1, HostPage=1, Loan=1), 6,
    ),
    Bug(
        "LMCache/LMCache#1034", "F", "a look-up pins pages for a load that never comes, and nobody unpins them",
        Shows.STATE, lambda law: variant(law, extra=_look_up), small(Page=1), 6,
    ),
    Bug(
        "LMCache/LMCache#2772", "F", "two clean-ups each drop a count, and the last one was the index's own",
        Shows.STATE, lambda law: variant(law, edit("evict_host", undo="archive")), small(Page=1, HostPage=1, Loan=1), 3,
    ),
    Bug(
        "NVIDIA/TensorRT-LLM#17145", "F", "a reset of the tree detaches pages on which a live request builds",
        Shows.STATE, lambda law: variant(law, edit("reset", drop="no record has a row")), small(Page=1), 5,
    ),
    Bug(
        "kvcache-ai/Mooncake#1853", "F", "the same completion arrives twice and starts a second copy",
        Shows.STATE, lambda law: variant(law, edit("keep_copy", drop="the page has no copy yet")),
        small(Page=1, HostPage=2, Loan=1), 6,
    ),
    Bug(
        "sgl-project/sglang#27038", "F", "a release walks past where its acquire stopped, over the locks of others",
        Shows.STATE,
        lambda law: variant(law, edit("unlock", undo="locks", do=lambda k, a: [
            locks.loses(lambda m, p: locks(k, p) & (begin(p) >= a)),
        ])),
        small(Page=1, Row=2, Record=2, Request=2), 8,
    ),
)  # fmt: skip
