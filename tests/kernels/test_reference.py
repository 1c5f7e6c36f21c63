"""The references against results worked out by hand, and against torch's own attention."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from freehold.kernels import SlotOutOfRange, reference
from freehold.kernels.cases import DecodeCase, ExtendCase, WriteCase, decode_inputs, extend_inputs, write_inputs


def _two_token_inputs(query, keys, values):
    """One head of dimension 2, page size 1: token 0 in page 2, token 1 in page 1; page 0 is NaN."""
    caches = torch.full((2, 3, 1, 1, 2), math.nan)
    caches[0, 2, 0, 0], caches[0, 1, 0, 0] = torch.tensor(keys)
    caches[1, 2, 0, 0], caches[1, 1, 0, 0] = torch.tensor(values)
    table = torch.tensor([[2, 1, -7]], dtype=torch.int32)
    return torch.tensor([[query]]), caches[0], caches[1], table, torch.tensor([2], dtype=torch.int32)


def test_decode_weighs_values_by_softmax_of_scaled_scores():
    arguments = _two_token_inputs([math.log(3.0), 0.0], [[0.0, 5.0], [2.0, 5.0]], [[4.0, 8.0], [0.0, 16.0]])
    # Scores 0 and ln 3 at scale 1/2: weights 1/4 and 3/4.
    out = reference.paged_decode(*arguments, 0.5)
    torch.testing.assert_close(out, torch.tensor([[[1.0, 14.0]]]))


def test_decode_of_one_token_returns_its_value():
    query, k_cache, v_cache, table, _ = _two_token_inputs(
        [9.0, 9.0], [[1.0, 1.0], [2.0, 2.0]], [[4.0, 8.0], [0.0, 1.0]]
    )
    out = reference.paged_decode(query, k_cache, v_cache, table, torch.tensor([1], dtype=torch.int32), 1.0)
    assert out.tolist() == [[[4.0, 8.0]]]


def test_decode_of_no_token_is_zeros():
    query, k_cache, v_cache, table, _ = _two_token_inputs([1.0, 1.0], [[1.0, 1.0]] * 2, [[1.0, 1.0]] * 2)
    out = reference.paged_decode(query, k_cache, v_cache, table, torch.tensor([0], dtype=torch.int32), 1.0)
    assert out.tolist() == [[[0.0, 0.0]]]


def test_a_window_counts_the_query_itself():
    query, k_cache, v_cache, table, tokens = _two_token_inputs(
        [math.log(3.0), 0.0], [[0.0, 5.0], [2.0, 5.0]], [[4.0, 8.0], [0.0, 16.0]]
    )
    out = reference.paged_decode(query, k_cache, v_cache, table, tokens, 0.5, window=2)
    torch.testing.assert_close(out, torch.tensor([[[1.0, 14.0]]]))
    k_cache[2], v_cache[2], table[0, 0] = math.nan, math.nan, -7
    out = reference.paged_decode(query, k_cache, v_cache, table, tokens, 0.5, window=1)
    assert out.tolist() == [[[0.0, 16.0]]]


def test_a_sink_takes_its_share_of_the_weight_and_gives_nothing():
    arguments = _two_token_inputs([math.log(3.0), 0.0], [[0.0, 5.0], [2.0, 5.0]], [[4.0, 8.0], [0.0, 16.0]])
    # Scores 0 and ln 3 beside a sink of ln 4: weights 1/8, 3/8 and, without a value, 4/8.
    out = reference.paged_decode(*arguments, 0.5, sinks=torch.tensor([math.log(4.0)]))
    torch.testing.assert_close(out, torch.tensor([[[0.5, 7.0]]]))
    out = reference.paged_decode(*arguments, 0.5, sinks=torch.tensor([-math.inf]))
    torch.testing.assert_close(out, torch.tensor([[[1.0, 14.0]]]))


def test_query_heads_read_the_kv_head_of_their_group():
    v_cache = torch.zeros(2, 4, 2, 64)
    v_cache[1, 0, 0], v_cache[1, 0, 1] = 1.0, 2.0
    out = reference.paged_decode(
        torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(0)),
        torch.ones(2, 4, 2, 64),
        v_cache,
        torch.tensor([[1]], dtype=torch.int32),
        torch.tensor([1], dtype=torch.int32),
        1.0,
    )
    assert out[0, :, 0].tolist() == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_decode_agrees_with_torch_attention(page_size, group):
    lengths = (1, 2, 63, 64, 65, 100)
    case = DecodeCase(page_size=page_size, kv_heads=2, group=group, head_dim=64, seq_tokens=lengths)
    inputs = decode_inputs(case, seed=page_size)
    out = reference.paged_decode(*inputs.arguments())
    for row, tokens in enumerate(lengths):
        pages = inputs.page_table[row, : math.ceil(tokens / page_size)].long()
        key, value = (cache[pages].flatten(0, 1)[:tokens].transpose(0, 1) for cache in (inputs.k_cache, inputs.v_cache))
        expected = scaled_dot_product_attention(inputs.query[row, :, None], key, value, enable_gqa=True)
        torch.testing.assert_close(out[row], expected[:, 0], atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("window", [0, 1, 7, 40])
@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_extend_agrees_with_torch_attention_under_a_mask(page_size, window):
    case = ExtendCase(
        page_size=page_size,
        kv_heads=2,
        group=3,
        head_dim=64,
        extend_tokens=(1, 30, 0, 5, 65),
        seq_tokens=(1, 30, 7, 70, 100),
        window=window,
    )
    inputs = extend_inputs(case, seed=page_size)
    out = reference.paged_extend(*inputs.arguments(), **inputs.options())
    start = 0
    for row, (new, tokens) in enumerate(zip(case.extend_tokens, case.seq_tokens, strict=True)):
        pages = inputs.page_table[row, : math.ceil(tokens / page_size)].clamp(min=0).long()
        key, value = (
            cache[pages].flatten(0, 1)[:tokens].transpose(0, 1).nan_to_num()
            for cache in (inputs.k_cache, inputs.v_cache)
        )
        mask = torch.ones(new, tokens, dtype=torch.bool).tril(tokens - new)
        if window:
            mask = mask.triu(tokens - new - window + 1)
        query = inputs.query[start : start + new].transpose(0, 1)
        expected = scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(out[start : start + new], expected.transpose(0, 1), atol=2e-6, rtol=2e-6)
        start += new


def test_a_token_extended_is_a_token_decoded():
    case = ExtendCase(
        page_size=4, kv_heads=2, group=3, head_dim=64, extend_tokens=(9,), seq_tokens=(23,), window=6, sinks=True
    )
    inputs = extend_inputs(case, seed=0)
    out = reference.paged_extend(*inputs.arguments(), **inputs.options())
    query, k_cache, v_cache, table, _, _, scale = inputs.arguments()
    for row in range(9):
        tokens = torch.tensor([15 + row], dtype=torch.int32)
        one = reference.paged_decode(query[row, None], k_cache, v_cache, table, tokens, scale, **inputs.options())
        torch.testing.assert_close(out[row, None], one, atol=1e-6, rtol=1e-6)


def test_extend_of_no_tokens_is_empty():
    case = ExtendCase(page_size=4, kv_heads=1, group=1, head_dim=64, extend_tokens=(0, 0), seq_tokens=(0, 9))
    assert reference.paged_extend(*extend_inputs(case, seed=0).arguments()).shape == (0, 1, 64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_decode_in_16_bits_is_the_float32_result_rounded_once(dtype):
    case = DecodeCase(page_size=4, kv_heads=2, group=3, head_dim=64, seq_tokens=(77, 5), dtype=dtype)
    inputs = decode_inputs(case, seed=0)
    query, k_cache, v_cache, *rest = inputs.arguments()
    exact = reference.paged_decode(query.float(), k_cache.float(), v_cache.float(), *rest)
    assert torch.equal(reference.paged_decode(*inputs.arguments()), exact.to(dtype))


def test_cases_poison_what_must_not_be_read():
    inputs = decode_inputs(DecodeCase(page_size=4, kv_heads=1, group=1, head_dim=64, seq_tokens=(5, 4)), seed=0)
    assert inputs.k_cache.isnan().sum() == inputs.v_cache.isnan().sum() == (7 * 4 - 9) * 64
    assert inputs.k_cache[0].isnan().all()
    assert (inputs.page_table < 0).sum() == 2 * 5 - 3


def test_windowed_cases_poison_what_no_window_holds():
    case = ExtendCase(page_size=4, kv_heads=1, group=1, head_dim=64, extend_tokens=(3, 1), seq_tokens=(20, 2), window=6)
    inputs = extend_inputs(case, seed=0)
    # The first new token of the first sequence is 17, its window starts at 12; page 3 is the first whole one in it.
    assert (~inputs.k_cache.isnan()).sum() == ((20 - 12) + 2) * 64
    assert (inputs.page_table[0, :3] < 0).all()
    assert (inputs.page_table[0, 3:5] > 0).all()


def test_write_puts_rows_in_their_slots_and_nothing_else():
    k_cache, v_cache = torch.zeros(3, 2, 1, 1), torch.zeros(3, 2, 1, 1)
    key = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)
    reference.write_kv(key, -key, k_cache, v_cache, torch.tensor([5, -1, 2]))
    assert k_cache.flatten().tolist() == [0, 0, 3, 0, 0, 1]
    assert v_cache.flatten().tolist() == [0, 0, -3, 0, 0, -1]


def test_write_through_peers_goes_to_the_same_place_of_the_peer():
    k_cache, v_cache = torch.zeros(3, 2, 1, 1), torch.zeros(3, 2, 1, 1)
    key = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(5, 1, 1)
    peers = torch.tensor([0, 9, 2, 0, 1], dtype=torch.int32)
    # Page 4 offset 1, nowhere, page 2 offset 0, page 3 that has no peer, page 0.
    reference.write_kv(key, -key, k_cache, v_cache, torch.tensor([9, -1, 4, 7, 1]), peers=peers)
    assert k_cache.flatten().tolist() == [0, 0, 0, 1, 3, 0]
    assert v_cache.flatten().tolist() == [0, 0, 0, -1, -3, 0]


def test_write_to_page_zero_is_allowed_twice():
    inputs = write_inputs(WriteCase(n=4, page_size=16, kv_heads=1, head_dim=64), seed=0)
    before = inputs.k_cache.clone()
    slots = torch.tensor([0, 0, 15, 0])
    reference.write_kv(inputs.key, inputs.value, inputs.k_cache, inputs.v_cache, slots)
    assert torch.equal(inputs.k_cache[1:], before[1:])
    assert torch.equal(inputs.k_cache[0, 15], inputs.key[2])


def test_write_of_no_rows_changes_nothing():
    inputs = write_inputs(WriteCase(n=0, page_size=16, kv_heads=1, head_dim=64), seed=0)
    before = inputs.k_cache.clone()
    reference.write_kv(*inputs.arguments())
    assert torch.equal(inputs.k_cache, before)


def test_values_outside_the_cache_are_refused():
    write = write_inputs(WriteCase(n=4, page_size=4, kv_heads=1, head_dim=64), seed=0)
    write.slots[0] = write.k_cache.shape[0] * 4
    with pytest.raises(SlotOutOfRange, match="beyond"):
        reference.write_kv(*write.arguments())
    for slot, peer, word in ((8, 1, "with a peer"), (4, 9, "beyond"), (4, -1, "is no page")):
        write.slots[:] = torch.tensor([slot, -1, -1, -1])
        with pytest.raises(SlotOutOfRange, match=word):
            reference.write_kv(*write.arguments(), peers=torch.tensor([0, peer], dtype=torch.int32))
    case = DecodeCase(page_size=4, kv_heads=1, group=1, head_dim=64, seq_tokens=(5,))
    too_long = decode_inputs(case, seed=0)
    too_long.seq_tokens[0] = too_long.page_table.shape[1] * 4 + 1
    with pytest.raises(SlotOutOfRange, match="fit"):
        reference.paged_decode(*too_long.arguments())
    unmapped = decode_inputs(case, seed=0)
    unmapped.seq_tokens[0] = 9
    with pytest.raises(SlotOutOfRange, match="pages"):
        reference.paged_decode(*unmapped.arguments())


@pytest.mark.parametrize(
    ("starts", "tokens", "word"),
    [
        ((0, 3, 4), (5, 9), "rise from 0"),
        ((1, 3, 5), (5, 9), "rise from 0"),
        ((0, 6, 5), (9, 9), "rise from 0"),
        ((0, 3, 5), (2, 9), "3 of them new"),
        ((0, 3, 5), (99, 9), "fit"),
    ],
)
def test_starts_and_lengths_that_cannot_be_are_refused(starts, tokens, word):
    case = ExtendCase(page_size=4, kv_heads=1, group=1, head_dim=64, extend_tokens=(3, 2), seq_tokens=(5, 9))
    inputs = extend_inputs(case, seed=0)
    inputs.query_start[:] = torch.tensor(starts)
    inputs.seq_tokens[:] = torch.tensor(tokens)
    with pytest.raises(SlotOutOfRange, match=word):
        reference.paged_extend(*inputs.arguments())
