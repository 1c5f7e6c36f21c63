"""Class M: a slot or a row that is used again brings the last conversation along."""

from __future__ import annotations

from typing import Final

from freehold.model_check.bugs.bug import Bug, Shows
from freehold.model_check.bugs.small import small
from freehold.spec.language import Law
from freehold.spec.variant import edit, variant


def fresh_slot_keeps_its_content(law: Law) -> Law:
    """A slot that another conversation left is handed to a waiting request as if it were empty."""
    return variant(law, edit("claim_state", undo="T"))


def checkpoint_slot_is_not_written(law: Law) -> Law:
    """Slots are handed out as the last tenant left them, and one is registered before anything was copied into it."""
    return variant(law, edit("checkpoint_state", undo="T"))


def slot_is_not_cleared(law: Law) -> Law:
    """The load says that it succeeded without a match, so the caller does not clear what the slot held before."""
    return variant(law, edit("unbind_row", undo="salt"))


BUGS: Final = (
    Bug("ggml-org/llama.cpp#27148", "M", "a fresh slot continues the conversation of somebody else",
        Shows.STATE, fresh_slot_keeps_its_content, small(Page=1, StateSlot=1), 9),
    Bug("vllm-project/vllm#56524", "M", "a state slot is read that nobody wrote since its last tenant",
        Shows.STATE, checkpoint_slot_is_not_written, small(Page=1, StateSlot=2), 8),
    Bug("ggml-org/llama.cpp#23565", "M", "a slot that matches nothing keeps what it held",
        Shows.STATE, slot_is_not_cleared, small(Page=1, namespaces=2), 5),
)  # fmt: skip
