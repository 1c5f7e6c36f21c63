"""Runs a transformers model over paged KV: the `Executor` of the scheduler."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from freehold.impl.execution import attention
from freehold.impl.execution.batch import ForwardStep, ModelCall, StepPlanner
from freehold.impl.execution.kv_storage import KvStorage
from freehold.impl.execution.model_shape import ModelShape, model_shape
from freehold.impl.execution.page_map import PageMap
from freehold.impl.execution.paths import KernelPath, TorchPath
from freehold.impl.execution.sampler import sample
from freehold.impl.execution.states import StateStorage
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.flight import Landed, run_now
from freehold.impl.scheduling.ports import ForwardBatch
from freehold.spec.errors import InvalidInput, Unsupported


class ModelRunner:
    """An `Executor` over a causal language model of transformers, whose steps are over when they are launched.

    It takes the model for its own: the model's attention is set to pages, and `model.generate` no longer
    works until `model.set_attn_implementation("sdpa")`. It allocates the KV storage; which page belongs to
    whom is read from the tables at each step, and decided elsewhere.
    `launch` is `prepare` and `run`. `Worker` and `StreamExecutor` call the two apart, so that steps overlap with the
    scheduler: `prepare` reads the tables and what it returns stays right, `run` is for one thread and in order.
    """

    def __init__(
        self,
        model: nn.Module,
        tables: KvTables,
        *,
        page_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        num_state_slots: int = 0,
    ) -> None:
        """Move `model` to `device`, cast its weights to `dtype` (None: as they are) and allocate its caches.

        tables: filled by the memory package; they say how many pages each pool has. page_size: tokens a page.
        num_state_slots: sequences whose recurrent state is kept at once, for a model that has one.
        Raises InvalidInput for impossible sizes, Unsupported for a model whose layers need a pool that there isn't,
        or attend in a way that is not served.
        """
        device = torch.device(device)
        self.model: Any = model  # transformers' classes are untyped here
        shape = model_shape(self.model.config)
        _check_sizes(shape, tables, page_size, device, num_state_slots)
        self.model.to(device=device).eval()
        if dtype is not None:
            cast_weights(model, dtype)
        self.states = self._allocate_states(num_state_slots) if shape.recurrent else None
        attention.install(model)
        self.storage = KvStorage.allocate(
            shape,
            num_pages=tables.num_pages,
            num_swa_pages=tables.num_swa_pages,
            page_size=page_size,
            device=device,
            dtype=next(model.parameters()).dtype,
        )
        self.planner = StepPlanner(
            tables=tables,
            page_size=page_size,
            device=device,
            storage=self.storage,
            full=PageMap(tables, page_size, device, 0) if self.storage.full else None,
            sliding=PageMap(tables, page_size, device, shape.window_tokens) if self.storage.sliding else None,
            states=self.states,
            path=KernelPath() if device.type == "cuda" else TorchPath(),
        )
        self._last_tokens = torch.zeros(tables.page_table.shape[0], dtype=torch.int64, device=device)

    def launch(self, batch: ForwardBatch) -> Landed:
        """Write the KV of every item's new tokens, and choose the next token where one is wanted.

        Raises InvalidInput for a batch that does not fit the tables, RuleBroken where a token has no page; nothing is
        written then. What the model raises comes out of the flight's `result`.
        """
        step = self.prepare(batch)
        return run_now(lambda: self.run(step))

    def prepare(self, batch: ForwardBatch) -> ForwardStep:
        """The step that computes `batch`, from the tables as they are now. Raises as `launch` does."""
        return self.planner.plan(batch)

    def run(self, step: ForwardStep) -> list[int | None]:
        """Run a step and wait for it: the next token of each item, None where none is wanted."""
        return step.tokens(self.compute(step))

    def compute(self, step: ForwardStep) -> Tensor:
        """Run a step; `[samples]` int64 on the device, the tokens chosen, without waiting for them."""
        logits = self.logits(step)
        if not step.samples:
            return step.sample_rows
        tokens = sample(logits, step.draws)
        self._last_tokens[step.sample_rows] = tokens
        return tokens

    def last_token(self, row: int) -> int:
        """The token that was sampled last for a row: what `PENDING` stands for in the next step."""
        return int(self._last_tokens[row])

    @torch.inference_mode()
    def logits(self, step: ForwardStep) -> Tensor:
        """Run the model over one step; returns `[samples, vocabulary]`, the logits that are wanted."""
        logits = [self._call(call) for call in step.calls]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy recurrent states from slot to slot, (source, target) each, one after the other.

        Raises InvalidInput for a slot that does not exist; nothing is copied then.
        """
        slots = [slot for pair in pairs for slot in pair]
        if self.states is None:
            if slots:
                raise InvalidInput("this model keeps no recurrent state: there is no slot to copy")
            return
        self.states.check(slots)
        self.states.copy(pairs)

    def _call(self, call: ModelCall) -> Tensor:
        input_ids = call.input_ids
        if call.pending is not None:
            input_ids = input_ids.clone()
            input_ids[0, call.pending] = self._last_tokens[call.pending_rows]
        cache = None
        if self.states is not None and call.state is not None:
            slot, fresh = call.state
            cache = self.states.cache(slot, fresh=fresh)
        output = self.model(
            input_ids=input_ids,
            position_ids=call.position_ids,
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=call.logit_rows,
            paged_step=call.paged,
        )
        logits: Tensor = output.logits[0]
        return logits

    def _allocate_states(self, num_slots: int) -> StateStorage:
        self.model.set_attn_implementation("eager")  # the probe's; an earlier runner may have set it to pages
        return StateStorage.allocate(self.model, num_slots)


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast a model's weights in place. Buffers stay: `model.to(dtype)` would round the frequencies of the rope."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _check_sizes(
    shape: ModelShape, tables: KvTables, page_size: int, device: torch.device, num_state_slots: int
) -> None:
    if page_size < 1 or tables.num_pages < 1:
        raise InvalidInput(
            f"page_size {page_size} and num_pages {tables.num_pages} leave no page to use: give at least 1 of each"
        )
    table = tables.page_table
    if table.dim() != 2 or table.dtype != torch.int32 or tables.peers.dtype != torch.int32:
        raise InvalidInput(f"the page table and the peers must be int32, the table a matrix, not {tuple(table.shape)}")
    if device.type == "cuda" and page_size & (page_size - 1):
        raise Unsupported(f"page_size {page_size}: the GPU kernels need a power of two")
    if shape.window_tokens and not tables.num_swa_pages:
        raise Unsupported(
            f"this model has sliding-window layers that look back on {shape.window_tokens} tokens, but there are no "
            "swa pages: give the cache that window and a number of swa pages"
        )
    if shape.recurrent and num_state_slots < 1:
        raise Unsupported("this model keeps a recurrent state per sequence: give num_state_slots of at least 1")
