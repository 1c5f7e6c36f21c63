"""A model runner over tables made by hand: scattered pages and peers, as in a used memory, and NaN elsewhere."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from unit.tiny_models import tiny

from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.execution.poison import poison, poison_states
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import BatchItem, ForwardBatch, Sampling

GREEDY = Sampling()
ROWS = 8
ROW_TOKENS = 256
STATE_SLOTS = 5


def tables_for(page_table: Tensor, num_pages: int, num_swa_pages: int = 0) -> KvTables:
    """Tables over a page table, for pages 1..num_pages, without any peer yet."""
    return KvTables(
        page_table=page_table,
        peers=torch.zeros(num_pages + 1, dtype=torch.int32),
        generations=torch.zeros(num_pages + 1, dtype=torch.int64),
        swa_generations=torch.zeros(num_swa_pages + 1, dtype=torch.int64),
    )


def item(
    row: int, token_ids: Sequence[int], start_tokens: int, *, samples: bool = True, state_slot: int | None = None
) -> BatchItem:
    """A greedy item of request `r{row}`, its state in the slot of the same number unless another is named."""
    return BatchItem(
        request_id=f"r{row}",
        token_ids=tuple(token_ids),
        start_tokens=start_tokens,
        row=row,
        samples=samples,
        sampling=GREEDY,
        state_slot=row if state_slot is None else state_slot,
    )


class Bench:
    """A runner of a tiny model. Whatever no row holds is NaN in both pools, the padding pages included."""

    def __init__(self, name: str, page_size: int) -> None:
        model, self.window_tokens = tiny(name)
        self.page_size = page_size
        num_pages = ROWS * ROW_TOKENS // page_size
        num_swa_pages = num_pages - 5 if self.window_tokens else 0
        self.page_table = torch.zeros((ROWS + 1, ROW_TOKENS // page_size), dtype=torch.int32)
        self.tables = tables_for(self.page_table, num_pages, num_swa_pages)
        shuffle = torch.Generator().manual_seed(7)
        self.free_pages: list[int] = (torch.randperm(num_pages, generator=shuffle) + 1).tolist()
        self.free_swa_pages: list[int] = (torch.randperm(num_swa_pages, generator=shuffle) + 1).tolist()
        self.runner = ModelRunner(model, self.tables, page_size=page_size, num_state_slots=STATE_SLOTS)
        poison(self.runner.storage, [0, *self.free_pages], [0, *self.free_swa_pages])
        if self.runner.states is not None:
            poison_states(self.runner.states, range(STATE_SLOTS + 1))

    def give(self, row: int, tokens: int) -> None:
        """Let `row` have room for `tokens` tokens in both pools."""
        for column in range(-(-tokens // self.page_size)):
            if not self.page_table[row, column]:
                page = self.free_pages.pop()
                self.page_table[row, column] = page
                if self.window_tokens:
                    self.tables.peers[page] = self.free_swa_pages.pop()

    def drop(self, row: int, stop_tokens: int) -> None:
        """Take the swa pages back whose tokens all lie before `stop_tokens`, and poison them."""
        for column in range(stop_tokens // self.page_size):
            page = int(self.page_table[row, column])
            peer = int(self.tables.peers[page])
            if peer:
                self.tables.peers[page] = 0
                self.free_swa_pages.insert(0, peer)
                poison(self.runner.storage, [], [peer])

    def advance(self, row: int, tokens: int) -> None:
        """Before a step that brings `row` from its `tokens` tokens on: drop what no later token looks back on."""
        if self.window_tokens:
            self.drop(row, max(0, tokens - self.window_tokens))

    def logits(self, *items: BatchItem) -> Tensor:
        """The logits of one step, in step order: decodes before prefills."""
        return self.runner.logits(self.runner.prepare(ForwardBatch(items=items)))

    def step(self, *items: BatchItem) -> list[int | None]:
        return self.runner.launch(ForwardBatch(items=items)).result()

    def one(self, item: BatchItem) -> int:
        """The next token of a batch of one."""
        (token,) = self.step(item)
        assert token is not None
        return token

    def decode(self, rows: dict[int, list[int]], new_tokens: int) -> None:
        """Grow each row's token list by `new_tokens`, all rows in one batch a step; the last token has no KV yet."""
        for _ in range(new_tokens):
            for row, ids in rows.items():
                self.give(row, len(ids))
                self.advance(row, len(ids) - 1)
            chosen = self.step(*(item(row, ids[-1:], len(ids) - 1) for row, ids in rows.items()))
            for ids, token in zip(rows.values(), chosen, strict=True):
                assert token is not None
                ids.append(token)


def plain_logits(name: str, token_ids: Sequence[int]) -> Tensor:
    """`[tokens, vocabulary]`: what transformers' own forward says, by its eager attention and masks, in one go."""
    with torch.inference_mode():
        logits: Tensor = _eager(name)(torch.tensor([token_ids])).logits[0]
    return logits


def generated(name: str, token_ids: Sequence[int], new_tokens: int) -> list[int]:
    """What transformers' generate says after `token_ids`, through its own cache."""
    ids = torch.tensor([token_ids])
    with torch.inference_mode():
        out = _eager(name).generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False
        )
    return [int(token) for token in out[0, len(token_ids) :]]


def _eager(name: str) -> Any:
    """The model by itself; only transformers' eager attention knows soft caps."""
    model = tiny(name)[0]
    model.set_attn_implementation("eager")
    return model
