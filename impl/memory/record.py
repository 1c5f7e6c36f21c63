"""The KV record: its presence is the ownership.

`holder.kv is None` means "holds no KV". There is no flag that says so too: a record is created when its row is bound,
moves between a request and a session slot as one object, and is gone when its row is given back.
"""

from dataclasses import dataclass
from typing import Protocol

from freehold.impl.memory.tree_node import TreeLock
from freehold.spec.errors import RuleBroken


@dataclass(slots=True, eq=False, kw_only=True)
class KvRecord:
    """The KV of one token sequence. Its row maps, in tokens:

        [0, P)  pages of the prefix tree, which `lock` keeps from eviction     P = published_tokens, page aligned
        [P, C)  private pages, written                                         C = committed_tokens
        [C, A)  private pages, not written yet                                 A = allocated_tokens

    The rest of the last page belongs to the record as well. P <= C <= A <= max_context_tokens.

    id: fresh for every record and never used again.
    row: its row of the page table.
    lock: the receipt for [0, P); None when P is 0.
    cursor_tokens: private pages before it have lost their half in the swa pool; 0 where there is no window.
    state: the slot of its recurrent state; None where the model has none, or when it was given up.
    saved_tokens: how much of it the finished turns of a session wrote; 0 where no session ever saved it.
    """

    id: int
    row: int
    published_tokens: int = 0
    committed_tokens: int = 0
    allocated_tokens: int = 0
    lock: TreeLock | None = None
    saved_tokens: int = 0
    cursor_tokens: int = 0
    state: int | None = None


class Holder(Protocol):
    """Whoever can hold a record: a request, or a session's slot."""

    id: str
    kv: KvRecord | None


def record_of(holder: Holder) -> KvRecord:
    """The record that a holder has. Raises RuleBroken where it holds none."""
    if holder.kv is None:
        raise RuleBroken(f"{holder.id!r} holds no KV where it must")
    return holder.kv
