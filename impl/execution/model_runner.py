"""Runs a transformers model over paged KV: the `Executor` of the scheduler."""

from typing import Any

import torch
from torch import Tensor, nn

from freehold.impl.execution import attention
from freehold.impl.execution.batch import KernelPath, PageMap, RaggedStep, StepPlanner, TorchPath
from freehold.impl.execution.kv_storage import KvStorage
from freehold.impl.execution.sampler import draw_for, sample
from freehold.impl.scheduling.ports import ForwardBatch
from freehold.spec.errors import InvalidInput, Unsupported


class ModelRunner:
    """An `Executor` over a causal language model of transformers.

    It takes the model for its own: the model's attention is set to pages, and `model.generate` no longer
    works until `model.set_attn_implementation("sdpa")`. It allocates the KV storage; which page belongs to
    whom is read from the page table at each step, and decided elsewhere.
    """

    def __init__(
        self,
        model: nn.Module,
        page_table: Tensor,
        *,
        num_pages: int,
        page_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        """Move `model` to `device`, cast its weights to `dtype` (None: as they are) and allocate its caches.

        page_table: `[rows + 1, max_pages]` int32, row 0 padding, filled by the memory package.
        num_pages: pages of each cache, the padding page 0 included. page_size: tokens a page.
        Raises InvalidInput for impossible sizes, Unsupported for a model with other than full causal
        attention.
        """
        if page_size < 1 or num_pages < 2:
            raise InvalidInput(
                f"page_size {page_size} and num_pages {num_pages} leave no page to use: give at least 1 "
                "and 2, as page 0 is padding"
            )
        if page_table.dim() != 2 or page_table.dtype != torch.int32:
            raise InvalidInput(
                f"the page table must be an int32 matrix, not {page_table.dtype} {tuple(page_table.shape)}"
            )
        device = torch.device(device)
        if device.type == "cuda" and page_size & (page_size - 1):
            raise Unsupported(f"page_size {page_size}: the GPU kernels need a power of two")
        self.model: Any = model  # transformers' classes are untyped here
        self.model.to(device=device).eval()
        if dtype is not None:
            cast_weights(model, dtype)
        shape = attention_shape(self.model.config)
        attention.install(model)
        self.storage = KvStorage.allocate(
            num_pages=num_pages,
            page_size=page_size,
            device=device,
            dtype=next(model.parameters()).dtype,
            **shape,
        )
        self.planner = StepPlanner(
            storage=self.storage,
            page_map=PageMap(page_table, page_size, device),
            path=KernelPath() if device.type == "cuda" else TorchPath(),
        )

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        """Write the KV of every item's new tokens, and choose the next token where one is wanted.

        Raises InvalidInput for a batch that does not fit the page table; nothing is written then.
        """
        step = self.planner.plan(batch)
        logits = self.logits(step)
        tokens: list[int | None] = [None] * len(batch.items)
        if step.samples:
            chosen = sample(logits, [draw_for(batch.items[index]) for index in step.samples])
            for index, token in zip(step.samples, chosen, strict=True):
                tokens[index] = token
        return tokens

    @torch.inference_mode()
    def logits(self, step: RaggedStep) -> Tensor:
        """Run one step; returns `[samples, vocabulary]`, the logits of the tokens in `step.logit_rows`."""
        output = self.model(
            input_ids=step.input_ids,
            position_ids=step.position_ids,
            use_cache=False,
            logits_to_keep=step.logit_rows,
            paged_step=step.paged,
        )
        logits: Tensor = output.logits[0]
        return logits


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast a model's weights in place. Buffers stay: `model.to(dtype)` would round the frequencies of the rope."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def attention_shape(config: Any) -> dict[str, int]:
    """`num_layers`, `kv_heads` and `head_dim` of a model's configuration.

    Raises Unsupported where some layer attends otherwise than fully and causally.
    """
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None) is not None:
        raise Unsupported(
            f"{config.model_type} has layers of kind {sorted(kinds)} with window "
            f"{getattr(config, 'sliding_window', None)}; only full causal attention is served"
        )
    heads = config.num_attention_heads
    return {
        "num_layers": config.num_hidden_layers,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
    }
