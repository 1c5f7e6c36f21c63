"""The model runner over pages says what the same model says without them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from unit.paged_bench import tables_for

from freehold.impl.execution.model_runner import ModelRunner, cast_weights
from freehold.impl.execution.paths import KernelPath, TorchPath
from freehold.impl.scheduling.ports import BatchItem, ForwardBatch, Sampling
from freehold.spec.errors import InvalidInput, Unsupported

VOCABULARY = 101
NUM_PAGES = {1: 2600, 4: 700, 16: 200}
PAGE_SIZES = tuple(NUM_PAGES)
GREEDY = Sampling()


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def tiny_model(seed: int = 0, **changes: Any) -> Any:
    """A random Llama whose logits lie far enough apart for an argmax that rounding cannot turn."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": 0.3,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": 0,
    }
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).eval()


def prompt(tokens: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1, VOCABULARY, (tokens,), generator=generator).tolist())


def generated(token_ids: Sequence[int], new_tokens: int) -> list[int]:
    """What transformers' generate says after `token_ids`."""
    ids = torch.tensor([token_ids])
    with torch.inference_mode():
        out = tiny_model().generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False
        )
    return [int(token) for token in out[0, len(token_ids) :]]


class Bench:
    """A runner with a page table that hands out scattered pages, as a used pool would."""

    def __init__(self, page_size: int, model: Any = None, dtype: torch.dtype | None = None) -> None:
        self.page_size = page_size
        num_pages = NUM_PAGES[page_size]
        self.page_table = torch.zeros((9, 1280 // page_size), dtype=torch.int32)
        order = torch.randperm(num_pages - 1, generator=torch.Generator().manual_seed(7)) + 1
        self.free_pages: list[int] = order.tolist()
        self.runner = ModelRunner(
            tiny_model() if model is None else model,
            tables_for(self.page_table, num_pages - 1),
            page_size=page_size,
            dtype=dtype,
        )

    def give(self, row: int, tokens: int, shared: Sequence[int] = ()) -> list[int]:
        """Let `row` have room for `tokens` tokens, the first pages being `shared`; returns its pages."""
        needed_pages = -(-tokens // self.page_size) - len(shared)
        pages = [*shared, *(self.free_pages.pop() for _ in range(needed_pages))]
        self.page_table[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        return pages

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
            chosen = self.step(*(item(row, ids[-1:], len(ids) - 1) for row, ids in rows.items()))
            for ids, token in zip(rows.values(), chosen, strict=True):
                assert token is not None
                ids.append(token)


def item(row: int, token_ids: Sequence[int], start_tokens: int, samples: bool = True) -> BatchItem:
    return BatchItem(
        request_id=f"r{row}",
        token_ids=tuple(token_ids),
        start_tokens=start_tokens,
        row=row,
        samples=samples,
        sampling=GREEDY,
    )


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_logits_equal_the_plain_models_through_chunks(page_size: int) -> None:
    bench = Bench(page_size)
    ids = prompt(37, 1)
    bench.give(1, len(ids))
    rows = []
    for start, stop in ((0, 1), (1, 12), (12, 13), (13, 37)):
        planner = bench.runner.planner
        rows.append(bench.runner.logits(planner.plan(ForwardBatch(items=(item(1, ids[start:stop], start),)))))
    with torch.inference_mode():
        plain = tiny_model()(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(torch.cat(rows), plain[[0, 11, 12, 36]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_greedy_equals_generate_alone_and_batched(page_size: int) -> None:
    prompts = [prompt(tokens, seed) for seed, tokens in enumerate((1, 2, 15, 16, 17, 40, 130))]
    expected = [generated(ids, 12) for ids in prompts]
    assert len({tuple(tokens) for tokens in expected}) == len(prompts)
    together = Bench(page_size)
    rows = {row: list(ids) for row, ids in enumerate(prompts, start=1)}
    for row, ids in rows.items():
        together.give(row, len(ids) + 12)
    first = together.step(*(item(row, ids, 0) for row, ids in rows.items()))
    for ids, token in zip(rows.values(), first, strict=True):
        assert token is not None
        ids.append(token)
    together.decode(rows, 11)
    assert [ids[-12:] for ids in rows.values()] == expected
    alone = Bench(page_size)
    for row, ids in enumerate(map(list, prompts), start=1):
        alone.give(row, len(ids) + 12)
        tokens = [*ids, alone.one(item(row, ids, 0))]
        alone.decode({row: tokens}, 11)
        assert tokens[-12:] == expected[row - 1]


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_decodes_chunks_and_first_prefills_share_a_step(page_size: int) -> None:
    bench = Bench(page_size)
    ids = {row: prompt(tokens, row) for row, tokens in ((1, 20), (2, 33), (3, 9), (4, 7))}
    for row, tokens_of_row in ids.items():
        bench.give(row, len(tokens_of_row) + 4)
    assert bench.step(item(1, ids[1], 0), item(2, ids[2][:10], 0, samples=False)) == [generated(ids[1], 1)[0], None]
    assert bench.step(item(4, ids[4], 0)) == generated(ids[4], 1)
    mixed = bench.step(
        item(2, ids[2][10:30], 10, samples=False),
        item(1, generated(ids[1], 1), len(ids[1])),
        item(3, ids[3], 0),
        item(4, generated(ids[4], 1), len(ids[4])),
    )
    assert mixed == [None, generated(ids[1], 2)[1], generated(ids[3], 1)[0], generated(ids[4], 2)[1]]
    assert bench.step(item(2, ids[2][30:], 30)) == generated(ids[2], 1)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_rows_that_share_a_prefix_read_the_same_pages(page_size: int) -> None:
    bench = Bench(page_size)
    prefix = prompt(32, 5)
    tails = (prompt(9, 6), prompt(3, 7))
    pages = bench.give(1, 48)
    bench.step(item(1, prefix + tails[0], 0))
    before = [cache.clone() for cache in bench.runner.storage.tensors()]
    shared = pages[: 32 // page_size]
    bench.give(2, 48, shared)
    rows = {2: [*prefix, *tails[1]]}
    rows[2].append(bench.one(item(2, tails[1], 32)))
    bench.decode(rows, 5)
    assert rows[2][-6:] == generated(prefix + tails[1], 6)
    for cache, old in zip(bench.runner.storage.tensors(), before, strict=True):
        assert torch.equal(cache[shared], old[shared])


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_only_own_slots_are_read_and_written(page_size: int) -> None:
    """Every slot that no request owns holds NaN, the padding page and the unwritten tail of the last page included."""
    bench = Bench(page_size)
    for cache in bench.runner.storage.tensors():
        cache.fill_(float("nan"))
    rows = {1: list(prompt(21, 1)), 2: list(prompt(150, 2)), 3: list(prompt(5, 3))}
    for row, ids in rows.items():
        bench.give(row, len(ids) + 8)
        bench.step(item(row, ids[:2], 0, samples=False))
        ids.append(bench.one(item(row, ids[2:], 2)))
    bench.decode(rows, 7)
    assert rows[1][-8:] == generated(prompt(21, 1), 8)
    assert rows[2][-8:] == generated(prompt(150, 2), 8)
    assert rows[3][-8:] == generated(prompt(5, 3), 8)
    written = sum(len(ids) - 1 for ids in rows.values())
    for cache in bench.runner.storage.tensors():
        assert int((~cache.isnan()).all(dim=(2, 3)).sum()) == written
        assert bool(cache[0].isnan().all())


def test_lengths_far_apart_and_chunks_longer_than_a_mask_block() -> None:
    bench = Bench(16)
    rows = {1: list(prompt(700, 1)), 2: list(prompt(6, 2)), 3: list(prompt(260, 3))}
    for row, ids in rows.items():
        bench.give(row, len(ids) + 4)
        bench.step(item(row, ids[:5], 0, samples=False))
        ids.append(bench.one(item(row, ids[5:], 5)))
    bench.decode(rows, 3)
    for row, tokens in ((1, 700), (2, 6), (3, 260)):
        assert rows[row][-4:] == generated(prompt(tokens, row), 4)


def test_the_kernel_path_says_the_same() -> None:
    """On the CPU the kernels are their torch references, so that the plan for a GPU is checked without one."""
    answers = []
    for path in (TorchPath(), KernelPath()):
        bench = Bench(4)
        runner = bench.runner
        runner.planner = replace(runner.planner, path=path)
        rows = {row: list(prompt(tokens, row)) for row, tokens in ((1, 3), (2, 140), (3, 30))}
        for row, ids in rows.items():
            bench.give(row, len(ids) + 6)
            ids.append(bench.one(item(row, ids, 0)))
        bench.decode(rows, 5)
        answers.append(rows)
    assert answers[0] == answers[1]


def test_sampled_text_does_not_depend_on_the_batch() -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=11)
    prompts = {1: prompt(8, 1), 2: prompt(30, 2), 3: prompt(17, 3)}

    def answer(groups: Sequence[Sequence[int]]) -> dict[int, list[int]]:
        bench = Bench(4)
        answers: dict[int, list[int]] = {row: [] for row in prompts}
        for group in groups:
            for row in group:
                bench.give(row, len(prompts[row]) + 10)
            items = [item(row, prompts[row], 0)._replace(sampling=sampling) for row in group]
            for step in range(10):
                chosen = bench.step(*items)
                for row, token in zip(group, chosen, strict=True):
                    assert token is not None
                    answers[row].append(token)
                items = [
                    item(row, answers[row][-1:], len(prompts[row]) + step)._replace(sampling=sampling) for row in group
                ]
        return answers

    together = answer([[1, 2, 3]])
    assert together == answer([[3], [1], [2]])
    assert together[1] != generated(prompts[1], 10)


def test_bfloat16_stays_close_and_keeps_the_rope_exact() -> None:
    bench = Bench(4, dtype=torch.bfloat16)
    assert bench.runner.storage.dtype == torch.bfloat16
    ids = prompt(25, 4)
    bench.give(1, 25)
    model = tiny_model()
    cast_weights(model, torch.bfloat16)
    logits = bench.runner.logits(bench.runner.planner.plan(ForwardBatch(items=(item(1, ids, 0),))))
    with torch.inference_mode():
        plain = model(torch.tensor([ids])).logits[0, -1:]
    torch.testing.assert_close(logits, plain, rtol=0.05, atol=0.25)
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ((), "empty batch"),
        ((item(1, (), 0),), "no new token"),
        ((item(0, (5,), 0),), "row 0"),
        ((item(9, (5,), 0),), "row 9"),
        ((item(1, (5,), 0), item(1, (6,), 1)), "row of its own"),
        ((item(1, (5,), 1280),), "holds 1280"),
        ((item(1, (5,), -1),), "spans tokens"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_before_anything_is_written(
    items: tuple[BatchItem, ...], message: str
) -> None:
    bench = Bench(16)
    bench.give(1, 16)
    with pytest.raises(InvalidInput, match=message):
        bench.step(*items)
    assert not any(bool(cache.any()) for cache in bench.runner.storage.tensors())


def test_impossible_configurations_are_refused() -> None:
    table = torch.zeros((3, 4), dtype=torch.int32)
    with pytest.raises(InvalidInput, match="no page to use"):
        ModelRunner(tiny_model(), tables_for(table, 0), page_size=4)
    with pytest.raises(InvalidInput, match="no page to use"):
        ModelRunner(tiny_model(), tables_for(table, 7), page_size=0)
    with pytest.raises(InvalidInput, match="must be int32"):
        ModelRunner(tiny_model(), tables_for(table.long(), 7), page_size=4)


def test_a_runners_model_alone_says_what_to_do() -> None:
    model = tiny_model()
    ids = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        plain = model(ids).logits
        Bench(4, model)
        with pytest.raises(Unsupported, match="set_attn_implementation"):
            model(ids)
        model.set_attn_implementation("sdpa")
        assert torch.equal(model(ids).logits, plain)
