"""The KV caches of a model: plain tensors, one pair a layer, addressed by page or by slot.

Storage says nothing about who holds a page; that is the memory package's business.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvStorage:
    """Per-layer key and value caches.

    keys, values: one tensor a layer, `[num_pages, page_size, kv_heads, head_dim]`; page 0 is padding.
    A *slot* is one token's place: `page * page_size + offset in the page`.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @classmethod
    def allocate(
        cls,
        *,
        num_layers: int,
        num_pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> "KvStorage":
        """Zeroed caches; `num_pages` counts the padding page 0.

        Raises torch.OutOfMemoryError or RuntimeError where the device has no room.
        """
        shape = (num_pages, page_size, kv_heads, head_dim)
        keys = tuple(torch.zeros(shape, device=device, dtype=dtype) for _ in range(num_layers))
        values = tuple(torch.zeros(shape, device=device, dtype=dtype) for _ in range(num_layers))
        return cls(keys, values)

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self.keys[0].shape[1]

    @property
    def num_pages(self) -> int:
        """Pages of each layer, the padding page included."""
        return self.keys[0].shape[0]


def slot_rows(cache: Tensor) -> Tensor:
    """One layer's cache as one row a slot: a view `[num_pages * page_size, kv_heads * head_dim]`."""
    return cache.view(cache.shape[0] * cache.shape[1], -1)
