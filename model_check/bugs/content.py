"""Class J: stale or wrong content under a valid page.

The identity of a page (its namespace, its position, that it is written, what a state has seen) says something else
than its bytes do.
"""

from __future__ import annotations

from typing import Final

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.events import commit
from freehold.spec.language import Law
from freehold.spec.pools import advance_state
from freehold.spec.state import A, StateSlot, T, host_pos, pos, state
from freehold.spec.terms import forall
from freehold.spec.variant import edit, steps, variant


def published_when_allocated(law: Law) -> Law:
    """A page gets its place in the index when it is allocated, a forward before its content is there."""
    return variant(law, edit("publish", drop="only written pages are published"))


def page_keeps_its_old_name(law: Law) -> Law:
    """The pool drops a page from its own index and leaves the name on the page that the engine looks at."""
    return variant(law, edit("extend", undo="label"))


def index_entry_outlives_the_page(law: Law) -> Law:
    """A page that is taken for other tokens stays in the index as what it held before."""
    return variant(law, edit("evict", undo="written loses"))


def evictor_forgets_the_index(law: Law) -> Law:
    """Popping a page from the evictor for a new use does not take it out of the lookup table."""
    return variant(law, edit("evict", undo="in_tree loses"))


def adapters_share_by_name(law: Law) -> Law:
    """The key of a page has the adapter's name and not its identity, so two adapters of one name share pages."""
    return variant(law, edit("attach", drop="the page has the record's namespace"))


def reload_keeps_the_old_pages(law: Law) -> Law:
    """An adapter is loaded again under its name, and KV of the old weights stays in what runs with the new ones."""
    return variant(law, edit("tag", drop="the record is empty"))


def snapshot_between_borders(law: Law) -> Law:
    """A state that is ahead of the page's end is registered as the state at the page's end."""
    return variant(law, edit("checkpoint_state", drop="the state has seen exactly the tokens up to the page's end"))


def state_index_in_the_wrong_unit(law: Law) -> Law:
    """The column of the state is computed with another group's page size, so a state further on is restored."""
    return variant(law, edit("load_state", drop=("the record locks the page", "the page ends where the record does")))


def padding_runs_into_the_state(law: Law) -> Law:
    """A step that is padded to a fixed width saves the state behind the padding, which no cut of lengths undoes."""
    return variant(
        law, edit("commit", swap={
            "the running state has seen the new tokens": lambda k, c: forall(
                StateSlot, lambda z: state(k, z) >> (T(z) >= c)
            )
        }),
        steps("write_state", lambda k, z, c: [advance_state(k, z, A(k)), commit(k, c)]),
    )  # fmt: skip


def half_a_page_is_shared(law: Law) -> Law:
    """The last page is published while its donor still writes into it, and the next reader writes there as well."""
    return variant(law, edit("publish", drop="only whole pages are published"))


def sleep_keeps_the_tree(law: Law) -> Law:
    """Sleeping drops the bytes of all pages and keeps the prefix tree, so a hit after waking reads nothing."""
    return variant(law, edit("reset", undo=("in_tree loses", "parent loses")))


def copies_are_filed_by_another_unit(law: Law) -> Law:
    """Hashes are computed for finer pieces than a page, and a copy is filed under the hash of another piece."""
    return variant(
        law, edit("copy_out", undo="host_pos", do=lambda o, p, h: [host_pos.becomes(h, pos(p) + pos(p) + 1)])
    )


def different_images_have_one_key(law: Law) -> Law:
    """The content's hash is cut to a few bits, so what one image left in the store is loaded behind another one."""
    return variant(law, edit("land", drop="the page before it has its namespace"))


def shorter_copy_keeps_the_tail(law: Law) -> Law:
    """A cached entry is cut by its length alone: behind the common prefix the donor's entries are still there."""
    return variant(law, edit("truncate", undo="maps loses"))


_STATES = small(Page=1, StateSlot=2, page_size=1, row_width=2)

BUGS: Final = (
    Bug("GeeeekExplorer/nano-vllm#209", "J", "a page is found in the cache before the forward that fills it",
        Shows.STATE, published_when_allocated, small(Page=1), 4),
    Bug("ovg-project/kvcached#362", "J", "a page that is used again keeps the name of what it held",
        Shows.STATE, page_keeps_its_old_name, small(Page=1, namespaces=2), 8),
    Bug("GeeeekExplorer/nano-vllm#163", "J", "an index entry outlives the content that it names",
        Shows.STATE, index_entry_outlives_the_page, small(Page=1), 7),
    Bug("vllm-project/vllm#4761", "J", "a freed page is still found as cached",
        Shows.STATE, evictor_forgets_the_index, small(Page=1, Loan=1), 7),
    Bug("vllm-project/vllm#30931", "J", "two adapters of one name share cached pages",
        Shows.STATE, adapters_share_by_name, small(Page=1, namespaces=2), 9),
    Bug("vllm-project/vllm#42125", "J", "an adapter that is loaded again is served KV of its old weights",
        Shows.STATE, reload_keeps_the_old_pages, small(Page=1, namespaces=2), 5),
    Bug("vllm-project/vllm#47861", "J", "a state behind the page's end is cached as the state at its end",
        Shows.STATE, snapshot_between_borders, _STATES, 7),
    Bug("vllm-project/vllm#55601", "J", "a prefix hit restores the state of another position",
        Shows.STATE, state_index_in_the_wrong_unit, _STATES, 10),
    Bug("vllm-project/vllm#55178", "J", "placeholder tokens run into the saved state",
        Shows.STATE, padding_runs_into_the_state, small(Page=1, StateSlot=1, page_size=2, row_width=2), 6),
    Bug("Avarok-Cybersecurity/atlas#1193", "J", "a page that is half full is shared while two write into it",
        Shows.STATE, half_a_page_is_shared, small(Page=1, page_size=2, row_width=2), 5),
    Bug("vllm-project/vllm#17103", "J", "the prefix tree survives a sleep that drops the pages",
        Shows.STATE, sleep_keeps_the_tree, small(Page=1), 7),
    Bug("ovg-project/kvcached#451", "J", "a copy is filed under the hash of another position",
        Shows.STATE, copies_are_filed_by_another_unit, small(Page=1, HostPage=1, Loan=1), 6),
    Bug("LMCache/LMCache#4783", "J", "one image's pages are loaded behind the prefix of another",
        Shows.STATE, different_images_have_one_key, small(Page=2, HostPage=1, Loan=1, row_width=2, namespaces=2), 9),
    Bug("waybarrios/vllm-mlx#385", "J", "a cached entry that is cut keeps the tail of its donor",
        Shows.STATE, shorter_copy_keeps_the_tail, small(Page=1), 5),
)  # fmt: skip
