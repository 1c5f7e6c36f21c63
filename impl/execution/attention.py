"""Paged attention for the models of Hugging Face transformers.

transformers calls one function for every attention layer (its attention interface) and hands on the keyword
arguments that the model was called with. The pages, slots and lengths of a step travel that way, as a
`PagedStep` in the keyword `paged_step`; nothing is kept in the module. Because no mask function is registered
under the same name, transformers builds no mask at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from freehold.impl.execution.kv_storage import KvStorage, LayerCache
from freehold.impl.execution.segments import Scoring
from freehold.spec.errors import Unsupported

PAGED_ATTENTION = "freehold_paged"

# Keyword arguments with which transformers' models ask for attention that is not served.
_UNSERVED_KEYWORDS = ("position_bias",)


class Segment(Protocol):
    """A run of a step's tokens, the half-open range start..stop, that attends in one call."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    def attend(self, query: Tensor, cache: LayerCache, scoring: Scoring) -> Tensor:
        """Attention of `query` `[1, heads, tokens, head_dim]`, its rows; `[tokens, heads, head_dim]`."""
        ...


class KvWriter(Protocol):
    """Writes new keys and values `[tokens, kv_heads, head_dim]` to `slots` of a layer's cache."""

    def __call__(self, key: Tensor, value: Tensor, cache: LayerCache, slots: Tensor, /) -> None: ...


@dataclass(frozen=True, slots=True)
class PoolStep:
    """What the layers of one pool share in one forward step.

    write_slots: `[tokens]`, where each new token's KV goes. segments: cover the step's tokens in order.
    """

    write_slots: Tensor
    segments: Sequence[Segment]


@dataclass(frozen=True, slots=True)
class PagedStep:
    """What the attention layers of one forward step need. full, sliding: by pool, None where no layer uses it."""

    storage: KvStorage
    write_kv: KvWriter
    full: PoolStep | None
    sliding: PoolStep | None

    def of_layer(self, layer: int) -> tuple[LayerCache, PoolStep]:
        """A layer's cache and its pool's share of the step. Raises Unsupported for a layer without attention."""
        cache = self.storage.layers[layer] if layer < len(self.storage.layers) else None
        pool = None if cache is None else self.sliding if cache.window_tokens else self.full
        if cache is None or pool is None:
            raise Unsupported(f"layer {layer} attends, though the model's configuration says that it does not")
        return cache, pool


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged_step: PagedStep | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for each layer: write the new KV to its pages, then attend through them.

    query: `[1, heads, tokens, head_dim]`; key, value: `[1, kv_heads, tokens, head_dim]`, of the new
    tokens, rotated. sliding_window: tokens that a query sees, its own included. s_aux: `[heads]`, attention sinks.
    Returns `[1, tokens, heads, head_dim]` and None (no weights). Raises Unsupported for attention of another
    kind, or when the model is called outside of a `ModelRunner`.
    """
    if paged_step is None:
        raise Unsupported(
            "this model's attention is set to Freehold's pages and runs only inside a ModelRunner; call "
            "model.set_attn_implementation('sdpa') to use it on its own"
        )
    for keyword in _UNSERVED_KEYWORDS:
        if kwargs.get(keyword) is not None:
            raise Unsupported(f"attention with {keyword!r} is not served; use a model of causal attention")
    layer: Any = module.layer_idx
    cache, pool = paged_step.of_layer(layer)
    if (sliding_window - 1 if sliding_window else 0) != cache.window_tokens:
        raise Unsupported(
            f"layer {layer} attends with sliding_window {sliding_window}, but the model's configuration says that it "
            f"looks back on {cache.window_tokens or 'all'} tokens"
        )
    if not key.shape[1::2] == value.shape[1::2] == cache.keys.shape[2:]:
        raise Unsupported(
            f"layer {layer} has keys of [heads, head_dim] {tuple(key.shape[1::2])} and values of "
            f"{tuple(value.shape[1::2])}; the caches of this model hold {tuple(cache.keys.shape[2:])} of both"
        )
    paged_step.write_kv(key[0].transpose(0, 1), value[0].transpose(0, 1), cache, pool.write_slots)
    scoring = Scoring(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux)
    outputs = [segment.attend(query[:, :, segment.start : segment.stop], cache, scoring) for segment in pool.segments]
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined[None], None


def install(model: nn.Module) -> None:
    """Make a model of transformers attend through pages. The function goes to transformers' own registry."""
    AttentionInterface.register(PAGED_ATTENTION, paged_attention)
    model.set_attn_implementation(PAGED_ATTENTION)  # type: ignore[operator]
