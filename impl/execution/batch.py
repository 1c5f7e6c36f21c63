"""From the scheduler's batch to tensors: ragged sequences of new tokens, and where their KV lies.

Decodes come first, then prefills. The model sees one sequence `[1, tokens]` with explicit positions, so that
decodes and prefills of all requests share every matrix product. Only a model with recurrent states is called for one
request at a time, since its state-space layers take a sequence for one request's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from freehold.impl.execution.attention import PagedStep, PoolStep
from freehold.impl.execution.kv_storage import KvStorage
from freehold.impl.execution.page_map import PageMap
from freehold.impl.execution.paths import AttentionPath
from freehold.impl.execution.sampler import Draw, draw_for
from freehold.impl.execution.states import StateStorage
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import PENDING, BatchItem, ForwardBatch
from freehold.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of the model.

    input_ids, position_ids: `[1, tokens]`. logit_rows: `[samples]`, the tokens whose logits are wanted.
    pending: `[unknown]`, which of the tokens are not known yet, and pending_rows: `[unknown]`, the rows whose last
    sampled tokens they are; both None where all are known.
    state: the slot of the recurrent state, and whether it starts afresh; None for a model without.
    """

    input_ids: Tensor
    position_ids: Tensor
    logit_rows: Tensor
    pending: Tensor | None
    pending_rows: Tensor | None
    paged: PagedStep
    state: tuple[int, bool] | None


@dataclass(frozen=True, slots=True)
class ForwardStep:
    """One forward step as tensors, ready to run.

    samples: for each logit row of all calls, the index of its item in the batch. sample_rows: `[samples]`, their rows.
    draws: how each is drawn. num_items: items of the batch.
    """

    calls: tuple[ModelCall, ...]
    samples: tuple[int, ...]
    sample_rows: Tensor
    draws: tuple[Draw, ...]
    num_items: int

    def tokens(self, chosen: Tensor) -> list[int | None]:
        """The next token of each item, from those `chosen` `[samples]` for the samples; None for the others."""
        tokens: list[int | None] = [None] * self.num_items
        for index, token in zip(self.samples, chosen.tolist(), strict=True):
            tokens[index] = token
        return tokens


@dataclass(frozen=True, slots=True)
class StepPlanner:
    """Turns batches into steps over fixed storage.

    full, sliding: where tokens lie in each pool, None where no layer uses it. states: None without recurrent layers.
    """

    tables: KvTables
    page_size: int
    device: torch.device
    storage: KvStorage
    full: PageMap | None
    sliding: PageMap | None
    states: StateStorage | None
    path: AttentionPath

    def plan(self, batch: ForwardBatch) -> ForwardStep:
        """The step that computes `batch`. It reads the tables, and nothing reads them afterwards.

        Raises InvalidInput for an empty batch or item, a row outside of the table, tokens beyond a row's width or a
        state slot that does not exist or that two items name; RuleBroken where a token that is read or written has
        no page.
        """
        rows, row_pages = self.tables.page_table.shape
        check_batch(batch, rows=rows, width_tokens=row_pages * self.page_size)
        order = sorted(range(len(batch.items)), key=lambda index: _step_order(batch.items[index]))
        items = [batch.items[index] for index in order]
        if self.states is not None:
            self.states.check_apart([item.state_slot for item in items])
        for page_map in (self.full, self.sliding):
            if page_map is not None:
                page_map.check(items)
        groups = [items] if self.states is None else [[item] for item in items]
        samples = [index for index in order if batch.items[index].samples]
        return ForwardStep(
            calls=tuple(self._call(group) for group in groups),
            samples=tuple(samples),
            sample_rows=torch.tensor([batch.items[i].row for i in samples], dtype=torch.int64, device=self.device),
            draws=tuple(draw_for(batch.items[index]) for index in samples),
            num_items=len(items),
        )

    def _call(self, items: Sequence[BatchItem]) -> ModelCall:
        """The call over `items`, which stand in step order."""
        token_ids: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        pending: list[int] = []
        pending_rows: list[int] = []
        for item in items:
            if PENDING in item.token_ids:
                pending.append(len(token_ids))
                pending_rows.append(item.row)
            token_ids.extend(item.token_ids)
            positions.extend(range(item.start_tokens, item.start_tokens + len(item.token_ids)))
            if item.samples:
                logit_rows.append(len(token_ids) - 1)
        state = None if self.states is None else (items[0].state_slot, items[0].start_tokens == 0)
        return ModelCall(
            input_ids=torch.tensor([token_ids], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=self.device),
            pending=torch.tensor(pending, device=self.device) if pending else None,
            pending_rows=torch.tensor(pending_rows, device=self.device) if pending else None,
            paged=PagedStep(
                self.storage,
                self.path.write_kv,
                self._pool_step(items, self.full),
                self._pool_step(items, self.sliding),
            ),
            state=state,
        )

    def _pool_step(self, items: Sequence[BatchItem], page_map: PageMap | None) -> PoolStep | None:
        """The attention of `items` over one pool."""
        if page_map is None:
            return None
        like = torch.empty(0, dtype=self.storage.dtype, device=self.device)
        decodes = [item for item in items if len(item.token_ids) == 1]
        prefills = items[len(decodes) :]
        written = [page_map.last_slots(decodes)] if decodes else []
        for item in prefills:
            written.append(page_map.slots(item.row, item.start_tokens, item.start_tokens + len(item.token_ids)))
        segments = self.path.decodes(decodes, page_map, like)
        segments.extend(self.path.prefills(prefills, len(decodes), page_map, like))
        return PoolStep(written[0] if len(written) == 1 else torch.cat(written), segments)


def check_batch(batch: ForwardBatch, *, rows: int, width_tokens: int) -> None:
    """Raise InvalidInput unless every item brings tokens, on a row of its own, within the row's width.

    Only a decode's one token may be `PENDING`.
    """
    if not batch.items:
        raise InvalidInput("an empty batch has nothing to compute; skip the step instead")
    taken: set[int] = set()
    for item in batch.items:
        stop_tokens = item.start_tokens + len(item.token_ids)
        if not item.token_ids:
            raise InvalidInput(f"request {item.request_id} brings no new token; leave it out of the batch")
        if len(item.token_ids) > 1 and PENDING in item.token_ids:
            raise InvalidInput(f"request {item.request_id} has a pending token in a chunk; only a decode may have one")
        if not 0 < item.row < rows or item.row in taken:
            raise InvalidInput(
                f"request {item.request_id} is on row {item.row}; give it a row of its own in 1..{rows - 1}"
            )
        if item.start_tokens < 0 or stop_tokens > width_tokens:
            raise InvalidInput(
                f"request {item.request_id} spans tokens {item.start_tokens}..{stop_tokens}; a row of the "
                f"page table holds {width_tokens}"
            )
        taken.add(item.row)


def _step_order(item: BatchItem) -> tuple[bool, int]:
    """Decodes before prefills, and decodes by length."""
    return len(item.token_ids) > 1, item.start_tokens
