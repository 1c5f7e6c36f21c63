"""The KV caches of a model: plain tensors, one pair a layer, addressed by page or by slot.

Storage says nothing about who holds a page; that is the memory package's business.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from freehold.impl.execution.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The keys and values of one layer.

    keys, values: `[pages + 1, page_size, kv_heads, head_dim]`; page 0 is padding.
    window_tokens: 0 where the layer attends fully and its pages are those of the page table; above 0 where it looks
    back on so many tokens and its pages are swa pages.
    A *slot* is one token's place: `page * page_size + offset in the page`.
    """

    keys: Tensor
    values: Tensor
    window_tokens: int


@dataclass(frozen=True, slots=True)
class KvStorage:
    """The caches of a model by its layers; None for a layer without attention."""

    layers: tuple[LayerCache | None, ...]
    dtype: torch.dtype

    @classmethod
    def allocate(
        cls,
        shape: ModelShape,
        *,
        num_pages: int,
        num_swa_pages: int,
        page_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> "KvStorage":
        """Zeroed caches of so many pages, and the padding page 0 in each.

        Raises torch.OutOfMemoryError or RuntimeError where the device has no room.
        """

        def zeros(pages: int) -> Tensor:
            size = (pages + 1, page_size, shape.kv_heads, shape.head_dim)
            return torch.zeros(size, device=device, dtype=dtype)

        layers: list[LayerCache | None] = []
        for layer in shape.layers:
            pages = num_swa_pages if layer.window_tokens else num_pages
            layers.append(LayerCache(zeros(pages), zeros(pages), layer.window_tokens) if layer.attends else None)
        return cls(tuple(layers), dtype)

    def tensors(self) -> Iterator[Tensor]:
        """Every cache, keys and values of each layer."""
        for layer in (*self.full, *self.sliding):
            yield from (layer.keys, layer.values)

    @property
    def full(self) -> tuple[LayerCache, ...]:
        """Layers that attend fully."""
        return tuple(layer for layer in self.layers if layer is not None and not layer.window_tokens)

    @property
    def sliding(self) -> tuple[LayerCache, ...]:
        """Layers with a sliding window."""
        return tuple(layer for layer in self.layers if layer is not None and layer.window_tokens)


def slot_rows(cache: Tensor) -> Tensor:
    """One layer's cache as one row a slot: a view `[num_pages * page_size, kv_heads * head_dim]`."""
    return cache.view(cache.shape[0] * cache.shape[1], -1)
