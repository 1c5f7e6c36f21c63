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

from freehold.impl.execution.kv_storage import KvStorage
from freehold.spec.errors import Unsupported

PAGED_ATTENTION = "freehold_paged"

# Keyword arguments with which transformers' models ask for attention of another kind than causal softmax.
_UNSERVED_KEYWORDS = ("sliding_window", "softcap", "s_aux", "position_bias")


class Segment(Protocol):
    """A run of a step's tokens, the half-open range start..stop, that attends in one call."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    def attend(self, query: Tensor, key_cache: Tensor, value_cache: Tensor, scale: float) -> Tensor:
        """Attention of `query` `[1, heads, tokens, head_dim]`, its rows; `[tokens, heads, head_dim]`."""
        ...


class KvWriter(Protocol):
    """Writes new keys and values `[tokens, kv_heads, head_dim]` to `slots` of a layer's caches."""

    def __call__(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor, /
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class PagedStep:
    """What the attention layers of one forward step share.

    write_slots: `[tokens]`, where each new token's KV goes.
    segments: cover the step's tokens in order.
    """

    storage: KvStorage
    write_slots: Tensor
    write_kv: KvWriter
    segments: Sequence[Segment]


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged_step: PagedStep | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for each layer: write the new KV to its pages, then attend through them.

    query: `[1, heads, tokens, head_dim]`; key, value: `[1, kv_heads, tokens, head_dim]`, of the new
    tokens, rotated.
    Returns `[1, tokens, heads, head_dim]` and None (no weights). Raises Unsupported for attention of another
    kind (sliding window, soft cap, sinks), or when the model is called outside of a `ModelRunner`.
    """
    if paged_step is None:
        raise Unsupported(
            "this model's attention is set to Freehold's pages and runs only inside a ModelRunner; call "
            "model.set_attn_implementation('sdpa') to use it on its own"
        )
    for keyword in _UNSERVED_KEYWORDS:
        if kwargs.get(keyword) is not None:
            raise Unsupported(f"attention with {keyword!r} is not served; use a model of full causal attention")
    layer = module.layer_idx
    assert isinstance(layer, int)
    key_cache, value_cache = paged_step.storage.keys[layer], paged_step.storage.values[layer]
    paged_step.write_kv(
        key[0].transpose(0, 1), value[0].transpose(0, 1), key_cache, value_cache, paged_step.write_slots
    )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    outputs = [
        segment.attend(query[:, :, segment.start : segment.stop], key_cache, value_cache, scale)
        for segment in paged_step.segments
    ]
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined[None], None


def install(model: nn.Module) -> None:
    """Make a model of transformers attend through pages. The function goes to transformers' own registry."""
    AttentionInterface.register(PAGED_ATTENTION, paged_attention)
    model.set_attn_implementation(PAGED_ATTENTION)  # type: ignore[operator]
