"""Sampling: what may be chosen, how often, and that a draw depends on nothing but logits, seed and position."""

from collections.abc import Sequence

import pytest
import torch

from freehold.impl.execution.sampler import Draw, draw_for
from freehold.impl.execution.sampler import sample as sample_tensor
from freehold.impl.scheduling.ports import BatchItem, Sampling

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, 0.0])


def item(request_id: str, position: int, sampling: Sampling) -> BatchItem:
    return BatchItem(
        request_id=request_id, token_ids=(1,), start_tokens=position - 1, row=1, samples=True, sampling=sampling
    )


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    tokens: list[int] = sample_tensor(logits, draws).tolist()
    return tokens


def frequencies(logits: torch.Tensor, sampling: Sampling, draws: int = 4000) -> torch.Tensor:
    """Shares of each token over evenly spread uniforms."""
    rows = logits.expand(draws, -1)
    tokens = sample(rows, [Draw(sampling, (i + 0.5) / draws) for i in range(draws)])
    return torch.bincount(torch.tensor(tokens), minlength=logits.shape[0]) / draws


def test_greedy_takes_the_highest_and_among_equals_the_first() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [5.0, 1.0, 1.0]])
    assert sample(logits, [Draw(Sampling(), 0.9)] * 2) == [1, 0]


def test_a_vanishing_temperature_is_greedy() -> None:
    assert sample(LOGITS[None] * 1e30, [draw_for(item("a", 3, Sampling(temperature=1e-9)))]) == [0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_plain_draws_follow_the_softmax(temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, -1)
    shares = frequencies(LOGITS, Sampling(temperature=temperature))
    torch.testing.assert_close(shares, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=1.0, top_k=2), [0, 1]),
        (Sampling(temperature=1.0, top_k=1), [0]),
        (Sampling(temperature=1.0, top_k=99), [0, 1, 2, 3, 4]),
        (Sampling(temperature=1.0, top_p=0.56), [0]),
        (Sampling(temperature=1.0, top_p=0.58), [0, 1]),
        (Sampling(temperature=1.0, top_p=0.0), [0]),
        (Sampling(temperature=1.0, top_p=0.85, top_k=4), [0, 1, 2]),
        (Sampling(temperature=1.0, top_p=0.7, top_k=2), [0]),
    ],
)
def test_top_k_and_top_p_keep_the_right_tokens_and_their_proportions(sampling: Sampling, kept: list[int]) -> None:
    """Shares are 0.5625 0.2069 0.1255 0.0280 0.0761; top_p counts after top_k, renormalised (2 kept: 0.731 0.269)."""
    expected = torch.zeros(5)
    expected[kept] = torch.softmax(LOGITS[kept], -1)
    torch.testing.assert_close(frequencies(LOGITS, sampling), expected, rtol=0, atol=1e-3)


def test_negative_logits_rank_as_well() -> None:
    expected = torch.zeros(5)
    expected[:3] = torch.softmax(LOGITS[:3], -1)
    shares = frequencies(LOGITS - 5.0, Sampling(temperature=1.0, top_k=3))
    torch.testing.assert_close(shares, expected, rtol=0, atol=1e-3)


def test_a_nucleus_wider_than_the_first_look_is_complete() -> None:
    logits = torch.zeros(1500)
    shares = frequencies(logits, Sampling(temperature=1.0, top_p=0.9), draws=2700)
    assert int((shares > 0).sum()) == 1350
    assert int(shares.nonzero().max()) == 1349


def test_equal_logits_keep_the_lowest_ids_whoever_else_is_in_the_batch() -> None:
    """bfloat16 logits tie often; the kept set may not depend on how many candidates a neighbour asks for."""
    logits = torch.zeros(2, 2000)
    few = Draw(Sampling(temperature=1.0, top_k=3), 0.99)
    many = Draw(Sampling(temperature=1.0, top_k=1500), 0.9893)
    assert sample(logits[:1], [few]) == [2]
    assert sample(logits, [few, many]) == [2, 1483]


def test_neighbours_do_not_change_a_draw() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 5000) * 3
    samplings = [
        Sampling(temperature=0.7, seed=1),
        Sampling(),
        Sampling(temperature=1.3, top_k=40, seed=2),
        Sampling(temperature=1.0, top_p=0.95, seed=3),
        Sampling(temperature=1.0, top_k=7, top_p=0.5),
        Sampling(temperature=2.0, top_p=0.999, seed=5),
    ]
    draws = [draw_for(item(f"r{i}", 10 + i, sampling)) for i, sampling in enumerate(samplings)]
    together = sample(logits, draws)
    assert together == [sample(logits[i : i + 1], draws[i : i + 1])[0] for i in range(6)]
    assert together[::-1] == sample(logits.flip(0), draws[::-1])


def test_seed_and_position_fix_the_draw_and_the_name_stands_in_for_a_seed() -> None:
    seeded = Sampling(temperature=1.0, seed=4)
    assert draw_for(item("a", 9, seeded)) == draw_for(item("b", 9, seeded))
    assert draw_for(item("a", 9, seeded)) != draw_for(item("a", 10, seeded))
    assert draw_for(item("a", 9, seeded)) != draw_for(item("a", 9, Sampling(temperature=1.0, seed=5)))
    unseeded = Sampling(temperature=1.0)
    assert draw_for(item("a", 9, unseeded)) == draw_for(item("a", 9, unseeded))
    assert draw_for(item("a", 9, unseeded)) != draw_for(item("b", 9, unseeded))


def test_uniforms_are_spread_evenly_over_the_unit_interval() -> None:
    sampling = Sampling(temperature=1.0, seed=0)
    uniforms = torch.tensor([draw_for(item("a", position, sampling)).uniform for position in range(1, 4001)])
    assert 0.0 <= float(uniforms.min()) < float(uniforms.max()) < 1.0
    assert torch.histc(uniforms, bins=10, min=0.0, max=1.0).sub(400).abs().max() < 80
