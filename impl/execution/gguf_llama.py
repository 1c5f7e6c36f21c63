"""A transformers Llama model and tokenizer from a GGUF file.

transformers' own loader (`gguf_file=`) needs the accelerate package and, for the vocabulary, several seconds;
this one needs neither, and refuses what it has not been tried with.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from freehold.impl.execution.gguf_file import GgufFile, GgufTensor
from freehold.impl.execution.quiet import quiet_loading
from freehold.spec.errors import InvalidInput, Unsupported

_OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# How llama.cpp names the regular expression that splits text before byte-pair merges; the one tried is
# SmolLM's.
_PRE_TOKENIZERS = ("smollm",)
_CONTROL_TOKEN = 3


def llama_config(file: GgufFile) -> Any:
    """The `LlamaConfig` that the metadata describes.

    Raises Unsupported for another architecture or a scaled rope, InvalidInput for missing metadata.
    """
    architecture = file.require("general.architecture")
    if architecture != "llama":
        raise Unsupported(
            f"{file.path} holds a {architecture!r} model; of GGUF files, only the architecture 'llama' is served. "
            "Other models load from a Hugging Face directory with config.json and *.safetensors"
        )
    scaling = file.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise Unsupported(f"{file.path} scales its rope ({scaling!r}); load the model from a Hugging Face directory")
    layers = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
    if len(layers) != file.require("llama.block_count"):  # before a model of a corrupt size is built
        raise InvalidInput(
            f"{file.path} has tensors of {len(layers)} layers, its metadata says "
            f"{file.require('llama.block_count')}: fetch it again"
        )
    hidden = file.require("llama.embedding_length")
    heads = file.require("llama.attention.head_count")
    tokens = file.require("tokenizer.ggml.tokens")
    return LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=hidden,
        intermediate_size=file.require("llama.feed_forward_length"),
        num_hidden_layers=len(layers),
        num_attention_heads=heads,
        num_key_value_heads=file.metadata.get("llama.attention.head_count_kv", heads),
        head_dim=file.metadata.get("llama.attention.key_length", hidden // heads),
        max_position_embeddings=file.require("llama.context_length"),
        rms_norm_eps=file.require("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": file.metadata.get("llama.rope.freq_base", 10_000.0),
        },
        tie_word_embeddings="output.weight" not in file.tensors,
        bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=file.metadata.get("tokenizer.ggml.eos_token_id"),
        pad_token_id=file.metadata.get("tokenizer.ggml.padding_token_id"),
    )


def llama_model(file: GgufFile, dtype: torch.dtype) -> nn.Module:
    """A `LlamaForCausalLM` of `dtype` on the CPU with the file's weights, dequantised.

    Raises InvalidInput where tensors are missing or of the wrong shape, Unsupported where there is one too
    many.
    """
    config = llama_config(file)
    weights = _weights(file, config, dtype)
    with torch.device("meta"):
        expected: Mapping[str, Tensor] = LlamaForCausalLM(config).state_dict()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    missing = sorted(expected.keys() - weights.keys() - tied)
    if missing:
        raise InvalidInput(f"{file.path} lacks {len(missing)} tensors, the first {missing[0]}: fetch it again")
    for name, weight in weights.items():
        if name not in expected:
            raise Unsupported(f"{file.path} has the tensor {name}, for which a Llama model has no place")
        if weight.shape != expected[name].shape:
            raise InvalidInput(
                f"{file.path}: {name} is {tuple(weight.shape)}, its metadata says {tuple(expected[name].shape)}"
            )
    with quiet_loading():
        model: nn.Module = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=dtype)
    return model.eval()


def _weights(file: GgufFile, config: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for tensor in file.tensors.values():
        weight = torch.from_numpy(tensor.dequantise())
        if ".attn_q." in tensor.name:
            weight = _half_split(weight, config.num_attention_heads, file, tensor)
        elif ".attn_k." in tensor.name:
            weight = _half_split(weight, config.num_key_value_heads, file, tensor)
        weights[_name(file, tensor)] = weight.to(dtype)
    return weights


def _name(file: GgufFile, tensor: GgufTensor) -> str:
    """transformers' name of a tensor. Raises Unsupported for one that the Llama architecture does not have."""
    stem, _, suffix = tensor.name.rpartition(".")
    if stem in _OUTER_NAMES:
        return f"{_OUTER_NAMES[stem]}.{suffix}"
    block, _, part = stem.rpartition(".")
    prefix, _, layer = block.partition(".")
    if prefix != "blk" or not layer.isdigit() or part not in _LAYER_NAMES:
        raise Unsupported(
            f"{file.path} has the tensor {tensor.name}, which plain Llama models do not have; "
            "load the model from a Hugging Face directory"
        )
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"


def _half_split(weight: Tensor, heads: int, file: GgufFile, tensor: GgufTensor) -> Tensor:
    """Rows of q or k from llama.cpp's order of rotary pairs (neighbours) to transformers' (halves of a head)."""
    rows = weight.shape[0]
    if rows % (2 * heads):
        raise InvalidInput(f"{file.path}: {tensor.name} has {rows} rows, which {heads} heads cannot share")
    pairs = weight.view(heads, rows // heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def llama_tokenizer(file: GgufFile) -> Any:
    """The file's tokenizer with its chat template, as a `PreTrainedTokenizerFast`.

    Raises Unsupported for another kind than SmolLM's byte-level BPE.
    """
    kind = file.require("tokenizer.ggml.model")
    split = file.metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or split not in _PRE_TOKENIZERS:
        raise Unsupported(
            f"{file.path} has a tokenizer of kind {kind!r} with splitting {split!r}; of GGUF files, 'gpt2' with "
            f"{_PRE_TOKENIZERS} is served. Load the model from a Hugging Face directory with tokenizer.json"
        )
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in file.require("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = file.metadata.get("tokenizer.ggml.token_type", [])
    control = [token for token, number in zip(tokens, kinds, strict=False) if number == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    named = {
        name: tokens[file.metadata[key]]
        for name, key in (
            ("bos_token", "tokenizer.ggml.bos_token_id"),
            ("eos_token", "tokenizer.ggml.eos_token_id"),
            ("unk_token", "tokenizer.ggml.unknown_token_id"),
            ("pad_token", "tokenizer.ggml.padding_token_id"),
        )
        if key in file.metadata
    }
    result = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=file.require("llama.context_length"),
        clean_up_tokenization_spaces=False,
        **named,
    )
    result.chat_template = file.metadata.get("tokenizer.chat_template")
    return result
