"""Tiny random models of real architectures, always the same: what engine and executor tests run.

Their weights are wide enough that the highest logits lie apart, so that rounding turns no argmax.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers

from freehold.impl.execution.model_shape import window_tokens_of

VOCABULARY = 101
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_MAMBA: dict[str, Any] = {
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 8,
}


def _build(family: str, **changes: Any) -> Any:
    config = getattr(transformers, f"{family}Config")(**{**_SIZES, **changes})
    named = {"Gemma3Text": "Gemma3"}.get(family, family)
    return getattr(transformers, f"{named}ForCausalLM")(config)


def _gpt_oss() -> Any:
    model = _build(
        "GptOss",
        num_hidden_layers=4,
        sliding_window=6,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks, mean=1.0, std=1.0)
    return model


def _qwen3_next() -> Any:
    return _build(
        "Qwen3Next",
        num_hidden_layers=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )


_BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: _build("Llama"),
    "qwen3": lambda: _build("Qwen3"),
    "mistral": lambda: _build("Mistral", sliding_window=9),
    "gemma2": lambda: _build(
        "Gemma2", sliding_window=7, query_pre_attn_scalar=8, attn_logit_softcapping=2.0,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "gemma3": lambda: _build(
        "Gemma3Text", num_hidden_layers=4, sliding_window=7, query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    ),
    "gpt_oss": _gpt_oss,
    "falcon_h1": lambda: _build("FalconH1", **_MAMBA, mamba_d_ssm=32, mamba_n_heads=4, mamba_rms_norm=True),
    "bamba": lambda: _build(
        "Bamba", **_MAMBA, num_hidden_layers=3, attn_layer_indices=[1], mamba_n_heads=12, mamba_expand=2
    ),
    "qwen3_next": _qwen3_next,
}  # fmt: skip

NAMES = tuple(_BUILDERS)
SLIDING = ("mistral", "gemma2", "gemma3", "gpt_oss")
RECURRENT = ("falcon_h1", "bamba", "qwen3_next")


def tiny(name: str) -> tuple[Any, int]:
    """The model `name` of transformers in float32, in eval mode, and the law's window of it (0 for none).

    Each call builds it anew with the same weights: a runner takes its model for its own.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(13)
        model = _BUILDERS[name]().eval()
    return model, window_tokens_of(model.config)


def prompt(tokens: int, seed: int) -> tuple[int, ...]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1, VOCABULARY, (tokens,), generator=generator).tolist())
