"""What a model of transformers keeps per token and per sequence, read from its configuration."""

from dataclasses import dataclass
from typing import Any

from freehold.spec.errors import Unsupported

# Kinds of layers in transformers' `layer_types`: (keeps keys and values, keeps a recurrent state).
_SERVED_KINDS = {
    "full_attention": (True, False),
    "sliding_attention": (True, False),
    "linear_attention": (False, True),
    "hybrid": (True, True),
    "moe": (False, False),
    "mlp": (False, False),
}


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps.

    attends: keys and values of tokens. window_tokens: how many tokens before the current one it looks back on; 0 for
    all of them. recurrent: a state of fixed size per sequence.
    """

    attends: bool
    window_tokens: int
    recurrent: bool


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model keeps: its layers in order, and the size of one token's keys in each layer that attends."""

    layers: tuple[LayerShape, ...]
    kv_heads: int
    head_dim: int

    @property
    def window_tokens(self) -> int:
        """Tokens before the current one that its sliding layers look back on; 0 where it has none."""
        return max(layer.window_tokens for layer in self.layers)

    @property
    def recurrent(self) -> bool:
        """Whether some layer keeps a state per sequence."""
        return any(layer.recurrent for layer in self.layers)


def window_tokens_of(config: Any) -> int:
    """The law's window of a model: how many tokens before the current one its sliding layers look back on.

    transformers' `sliding_window` counts the current token too: a query at q sees the keys k with
    q - sliding_window < k <= q (`masking_utils.sliding_window_overlay`). 0 where no layer slides.
    Raises Unsupported as `model_shape` does.
    """
    return model_shape(config).window_tokens


def model_shape(config: Any) -> ModelShape:
    """The shape of the (text) model that `config` of transformers describes.

    Raises Unsupported for a kind of layer that the engine can't serve.
    """
    text = config.get_text_config(decoder=True)
    if getattr(text, "num_kv_shared_layers", None):
        raise Unsupported(f"{text.model_type}: layers that share the keys of others are not served")
    if getattr(text, "use_bidirectional_attention", None):
        raise Unsupported(f"{text.model_type}: attention to later tokens is not served; use a causal model")
    heads = getattr(text, "num_attention_heads", None)
    if heads is None:
        raise Unsupported(f"{text.model_type} names no attention heads: a model without attention is not served")
    return ModelShape(
        layers=tuple(_layer(text, kind) for kind in _kinds(text)),
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
    )


def _kinds(text: Any) -> list[str]:
    """The kind of each layer. A model that names none has one kind throughout, sliding where it has a window."""
    kinds = getattr(text, "layer_types", None)
    if kinds is not None:
        return list(kinds)
    kind = "full_attention" if getattr(text, "sliding_window", None) is None else "sliding_attention"
    return [kind] * int(text.num_hidden_layers)


def _layer(text: Any, kind: str) -> LayerShape:
    if kind not in _SERVED_KINDS:
        raise Unsupported(
            f"{text.model_type} has layers of kind {kind!r}; served are {', '.join(sorted(_SERVED_KINDS))}"
        )
    attends, recurrent = _SERVED_KINDS[kind]
    if kind != "sliding_attention":
        return LayerShape(attends, 0, recurrent)
    window = text.sliding_window
    if window is None or window < 2:
        raise Unsupported(f"{text.model_type} has sliding layers with window {window}; the window must be 2 or more")
    return LayerShape(attends, window - 1, recurrent)
