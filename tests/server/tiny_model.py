"""A random Llama with a tokenizer of single characters, as a Hugging Face directory."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT_TOKENS = 96
_TOKENS = ["<end>", *(chr(code) for code in range(33, 127)), "Ġ"]
CHAT_TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %} [answer]"


def write_tiny_model(folder: Path, chat_template: str | None = None) -> Path:
    """Write it to `folder`, and return that."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=len(_TOKENS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT_TOKENS,
        initializer_range=0.3,
        eos_token_id=0,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(_TOKENS)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", chat_template=chat_template)
    fast.save_pretrained(folder)
    return folder
