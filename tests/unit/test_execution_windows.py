"""Models of every attention kind say through two pools what transformers says by itself, and read nothing else.

Logits lie within 1e-4 of transformers' (their spread is about 2; float32), and greedy tokens are equal. All that no
row holds is NaN: free pages of both pools, the padding pages, and each swa page from the moment the window has left it.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import GemmaConfig, Llama4TextConfig, LlamaConfig, Mamba2Config, MistralConfig
from unit.paged_bench import Bench, generated, item, plain_logits, tables_for
from unit.tiny_models import NAMES, RECURRENT, SLIDING, prompt, tiny

from freehold.impl.execution.attention import paged_attention
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.execution.model_shape import model_shape, window_tokens_of
from freehold.impl.execution.paths import KernelPath
from freehold.impl.scheduling.ports import ForwardBatch
from freehold.spec.errors import RuleBroken, Unsupported

TOLERANCE = 1e-4
PAGE_SIZES = (1, 4)
SEEING = tuple(name for name in NAMES if name not in RECURRENT)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def assert_close(logits: torch.Tensor, plain: torch.Tensor) -> None:
    torch.testing.assert_close(logits, plain, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("name", SEEING)
def test_logits_equal_transformers_through_chunks_and_decodes(name: str, page_size: int) -> None:
    """Chunks below, at and above the window, and decodes far beyond it, with every swa page dropped when it may be."""
    bench = Bench(name, page_size)
    ids = prompt(60, 1)
    rows = []
    borders = (0, 1, 3, 12, 13, 40, *range(41, 61))
    for start, stop in pairwise(borders):
        bench.give(3, stop)
        bench.advance(3, start)
        rows.append(bench.logits(item(3, ids[start:stop], start)))
    assert_close(torch.cat(rows), plain_logits(name, ids)[[stop - 1 for stop in borders[1:]]])
    if bench.window_tokens:
        peers = bench.tables.peers[bench.page_table[3, : 60 // page_size]]
        assert int((peers > 0).sum()) <= -(-(bench.window_tokens + 1) // page_size) + 1


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("name", SEEING)
def test_greedy_tokens_equal_generate_in_a_mixed_batch(name: str, page_size: int) -> None:
    bench = Bench(name, page_size)
    prompts = {row: prompt(tokens, row) for row, tokens in ((1, 1), (2, 5), (3, 33), (4, 150))}
    rows = {row: list(ids) for row, ids in prompts.items()}
    for row, ids in rows.items():
        bench.give(row, len(ids))
    first = bench.step(*(item(row, ids[:20], 0, samples=len(ids) <= 20) for row, ids in rows.items()))
    assert first[2:] == [None, None]
    for row, token in zip((1, 2), first, strict=False):
        assert token is not None
        rows[row].append(token)
        bench.give(row, len(rows[row]))
    for row in rows:
        bench.advance(row, 20 if row > 2 else len(rows[row]) - 1)
    mixed = bench.step(
        item(4, rows[4][20:], 20), *(item(row, rows[row][-1:], len(rows[row]) - 1) for row in (1, 2)),
        item(3, rows[3][20:], 20),
    )  # fmt: skip
    for row, token in zip((4, 1, 2, 3), mixed, strict=True):
        assert token is not None
        rows[row].append(token)
    bench.decode(rows, 10)
    expected = {row: [*ids, *generated(name, ids, len(rows[row]) - len(ids))] for row, ids in prompts.items()}
    assert rows == expected
    assert len({tuple(ids[-8:]) for ids in rows.values()}) == 4


@pytest.mark.parametrize("name", SLIDING)
def test_a_chunk_longer_than_a_mask_block_slides_too(name: str) -> None:
    bench = Bench(name, 16)
    bench.page_table = bench.tables.page_table.new_zeros((2, 64))
    ids = prompt(700, 2)
    tables = tables_for(bench.page_table, 60, 60)
    bench.runner = ModelRunner(tiny(name)[0], tables, page_size=16)
    bench.page_table[1, :44] = torch.arange(44, 0, -1)
    tables.peers[1:] = torch.arange(60, 0, -1)
    logits = torch.cat((bench.logits(item(1, ids[:3], 0)), bench.logits(item(1, ids[3:], 3))))
    assert_close(logits, plain_logits(name, ids)[[2, 699]])


@pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma3", "gpt_oss"])
def test_the_kernel_path_says_the_same(name: str) -> None:
    """On the CPU the kernels are their torch references, so that the plan for a GPU is checked without one."""
    bench = Bench(name, 4)
    bench.runner.planner = replace(bench.runner.planner, path=KernelPath())
    ids = {1: prompt(38, 1), 2: prompt(23, 2)}
    plain = {row: plain_logits(name, tokens) for row, tokens in ids.items()}
    for row, tokens in ids.items():
        bench.give(row, len(tokens))
    work = {1: ((0, 20), (20, 37), (37, 38)), 2: ((0, 3), (3, 22), (22, 23))}
    for first, second in zip(work[1], work[2], strict=True):
        bench.advance(1, first[0])
        bench.advance(2, second[0])
        logits = bench.logits(item(2, ids[2][slice(*second)], second[0]), item(1, ids[1][slice(*first)], first[0]))
        assert_close(logits, torch.stack((plain[2][second[1] - 1], plain[1][first[1] - 1])))


def test_the_kernels_refuse_a_soft_cap() -> None:
    bench = Bench("gemma2", 4)
    bench.runner.planner = replace(bench.runner.planner, path=KernelPath())
    bench.give(1, 3)
    with pytest.raises(Unsupported, match="soft cap"):
        bench.step(item(1, (1, 2, 3), 0))


@pytest.mark.parametrize("name", SLIDING)
def test_a_window_dropped_one_position_too_early_is_seen(name: str) -> None:
    """Page size 1: the first position that a decode may miss is NaN and changes nothing; the next one changes all."""
    tokens = 30
    ids = prompt(tokens + 1, 3)
    logits = {}
    for early in (0, 1):
        bench = Bench(name, 1)
        bench.give(2, tokens + 1)
        bench.step(item(2, ids[:tokens], 0, samples=False))
        stop = tokens - bench.window_tokens + early
        peers = bench.tables.peers.clone()
        bench.drop(2, stop)
        dropped = int(bench.page_table[2, stop - 1])
        assert peers[dropped]
        assert not bench.tables.peers[dropped]
        bench.tables.peers.copy_(peers)  # the row goes on reading pages that are no longer its own
        logits[early] = bench.logits(item(2, ids[tokens:], tokens))
    assert_close(logits[0], plain_logits(name, ids)[-1:])
    assert bool(logits[1].isnan().all())


@pytest.mark.parametrize("name", SLIDING)
@pytest.mark.parametrize("chunk_tokens", [1, 4])
def test_a_token_in_the_window_without_an_swa_page_breaks_a_rule(name: str, chunk_tokens: int) -> None:
    ids = prompt(40, 3)
    bench = Bench(name, 1)
    bench.give(2, 40)
    bench.step(item(2, ids[:30], 0, samples=False))
    first_read = 30 - bench.window_tokens
    work = item(2, ids[30 : 30 + chunk_tokens], 30)
    bench.drop(2, first_read)
    bench.runner.prepare(ForwardBatch(items=(work,)))
    bench.drop(2, first_read + 1)
    with pytest.raises(RuleBroken, match=f"r2 needs the KV of token {first_read} on row 2, which has no swa page"):
        bench.step(work)


def test_a_token_without_a_page_breaks_a_rule_before_anything_is_written() -> None:
    bench = Bench("llama", 4)
    bench.give(1, 9)
    bench.give(2, 12)
    bench.page_table[2, 1] = 0
    with pytest.raises(RuleBroken, match="r2 needs the KV of token 4 on row 2, which has no page"):
        bench.step(item(1, prompt(9, 1), 0), item(2, prompt(12, 1), 0))
    assert all(bool(cache.isnan().all()) for cache in bench.runner.storage.tensors())


def test_windows_are_counted_without_the_current_token() -> None:
    assert {name: tiny(name)[1] for name in NAMES} == {
        "llama": 0, "qwen3": 0, "mistral": 8, "gemma2": 6, "gemma3": 6, "gpt_oss": 5,
        "falcon_h1": 0, "bamba": 0, "qwen3_next": 0,
    }  # fmt: skip
    assert window_tokens_of(MistralConfig(sliding_window=2)) == 1
    assert window_tokens_of(MistralConfig(sliding_window=None)) == 0


def test_layers_lie_in_the_pool_of_their_kind() -> None:
    bench = Bench("gemma3", 4)
    sizes = [layer.keys.shape[0] for layer in bench.runner.storage.layers if layer is not None]
    full, sliding = bench.tables.num_pages + 1, bench.tables.num_swa_pages + 1
    assert sizes == [sliding, sliding, full, sliding]
    assert not Bench("mistral", 4).runner.storage.full
    assert [layer is not None for layer in Bench("bamba", 4).runner.storage.layers] == [False, True, False]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MistralConfig(sliding_window=1), "window 1; the window must be 2 or more"),
        (Llama4TextConfig(), "layers of kind 'chunked_attention'"),
        (LlamaConfig(num_kv_shared_layers=1), "share the keys"),
        (Mamba2Config(), "without attention"),
        (GemmaConfig(use_bidirectional_attention=True), "later tokens"),
    ],
)
def test_configurations_of_other_kinds_are_refused(config: Any, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        model_shape(config)


def test_sliding_layers_need_swa_pages() -> None:
    table = torch.zeros((3, 4), dtype=torch.int32)
    with pytest.raises(Unsupported, match="look back on 8 tokens, but there are no swa pages"):
        ModelRunner(tiny("mistral")[0], tables_for(table, 7), page_size=4)


def test_attention_that_differs_from_the_configuration_is_refused() -> None:
    bench = Bench("llama", 4)
    bench.give(1, 3)
    paged = bench.runner.prepare(ForwardBatch(items=(item(1, (5, 6, 7), 0),))).calls[0].paged
    module = bench.runner.model.model.layers[1].self_attn
    heads = torch.zeros((1, 6, 3, 8))
    keys = torch.zeros((1, 2, 3, 8))
    paged_attention(module, heads, keys, keys, None, paged_step=paged)
    with pytest.raises(Unsupported, match="sliding_window 4"):
        paged_attention(module, heads, keys, keys, None, paged_step=paged, sliding_window=4)
    with pytest.raises(Unsupported, match=r"values of \(2, 4\)"):
        paged_attention(module, heads, keys, keys[..., :4], None, paged_step=paged)
    with pytest.raises(Unsupported, match="position_bias"):
        paged_attention(module, heads, keys, keys, None, paged_step=paged, position_bias=heads)
    module.layer_idx = 2
    with pytest.raises(Unsupported, match="layer 2 attends"):
        paged_attention(module, heads, keys, keys, None, paged_step=paged)
