"""Fills what nobody may read with NaN, so that any read of it shows in the logits.

Attention weighs every value that it gathers, and a weight of 0 times NaN is still NaN: not even a masked read hides.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from freehold.impl.execution.kv_storage import KvStorage
from freehold.impl.execution.states import StateStorage

Ids = Sequence[int] | Tensor


def poison(storage: KvStorage, free_pages: Ids, free_swa_pages: Ids) -> None:
    """Fill the keys and values of these pages with NaN: `free_pages` of full layers, `free_swa_pages` of sliding ones.

    Page 0 of both is padding, is never read, and may be poisoned. Call it when no step that touches the pages is in
    flight. The ids are trusted.
    """
    for layers, pages in ((storage.full, free_pages), (storage.sliding, free_swa_pages)):
        index = torch.as_tensor(pages, dtype=torch.int64, device="cpu")
        for layer in layers:
            for cache in (layer.keys, layer.values):
                cache.index_fill_(0, index.to(cache.device), float("nan"))


def poison_states(states: StateStorage, free_slots: Ids) -> None:
    """Fill the recurrent states of these slots with NaN. Slot 0 is padding and may be among them."""
    index = torch.as_tensor(free_slots, dtype=torch.int64, device="cpu")
    for state in states.tensors():
        state.index_fill_(0, index.to(state.device), float("nan"))
