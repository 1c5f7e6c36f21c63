"""The next token from logits: greedy, or drawn with temperature, top-k and top-p.

A draw is a function of the logits, the seed and the position only. There is no generator whose state depends
on who else is in the batch, so that batching, chunking or a retract does not change what a request says. (The
logits themselves may differ in their last bits with the shape of the batch.)
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from freehold.impl.scheduling.ports import BatchItem, Sampling

# Below this the division would overflow, and the highest logit wins anyway.
_GREEDY_TEMPERATURE = 1e-5
# How many of the likeliest tokens a top-p draw looks at first; the whole vocabulary is sorted only when they
# fall short.
_NUCLEUS_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row of logits needs to become a token.

    uniform: in [0, 1); the share of the kept probability below the chosen token.
    """

    sampling: Sampling
    uniform: float


def draw_for(item: BatchItem) -> Draw:
    """The draw for the token after `item`'s last one, at position `start_tokens + len(token_ids)`."""
    if item.sampling.temperature < _GREEDY_TEMPERATURE:
        return Draw(item.sampling, 0.0)
    position = item.start_tokens + len(item.token_ids)
    origin = item.request_id if item.sampling.seed is None else item.sampling.seed
    digest = hashlib.blake2b(f"{origin!r}/{position}".encode(), digest_size=8).digest()
    return Draw(item.sampling, (int.from_bytes(digest) >> 11) * 2.0**-53)


def sample(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """One token for each row of `logits` `[rows, vocabulary]`, by the draw of the same index: `[rows]` int64.

    Greedy takes the lowest token id among equals. top_k is applied before top_p, which sees renormalised
    shares.
    """
    tokens = logits.argmax(dim=-1)
    drawn = [i for i, draw in enumerate(draws) if draw.sampling.temperature >= _GREEDY_TEMPERATURE]
    filtered = [i for i in drawn if draws[i].sampling.top_k > 0 or draws[i].sampling.top_p < 1.0]
    plain = sorted(set(drawn) - set(filtered))
    for rows, choose in ((plain, _draw_plain), (filtered, _draw_filtered)):
        if rows:
            chosen = [draws[i] for i in rows]
            index = torch.tensor(rows, device=logits.device)
            scaled = logits.index_select(0, index).float() / _column(
                [draw.sampling.temperature for draw in chosen], logits
            )
            tokens[index] = choose(scaled, chosen)
    return tokens


def _draw_plain(scaled: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Inverse of the cumulative distribution, in order of token id."""
    cumulative = torch.softmax(scaled, dim=-1).double().cumsum(dim=-1)
    return _invert(cumulative, draws)


def _draw_filtered(scaled: Tensor, draws: Sequence[Draw]) -> Tensor:
    """The same, in order of falling probability, over what top-k and top-p keep."""
    vocabulary = scaled.shape[1]
    top_k = _column([_limit(draw.sampling.top_k, vocabulary) for draw in draws], scaled)
    top_p = _column([draw.sampling.top_p for draw in draws], scaled).double()
    asked = max(draw.sampling.top_k or _NUCLEUS_TOKENS for draw in draws)
    values, token_ids = _ranked(scaled, min(asked, vocabulary))
    total = torch.logsumexp(scaled.double(), dim=-1, keepdim=True)
    cut_short = (top_k > values.shape[1]) & ((values.double() - total).exp().sum(-1, keepdim=True) < top_p)
    if bool(cut_short.any()):
        values, token_ids = _ranked(scaled, vocabulary)
    rank = torch.arange(values.shape[1], device=scaled.device)
    ranked = values.double().masked_fill(rank >= top_k, float("-inf"))
    whole = torch.where(top_k >= vocabulary, total, torch.logsumexp(ranked, dim=-1, keepdim=True))
    shares = (ranked - whole).exp()
    before = shares.cumsum(dim=-1) - shares
    kept = shares.masked_fill((before >= top_p) & (rank > 0), 0.0)
    chosen = _invert(kept.cumsum(dim=-1), draws)
    return token_ids.gather(1, chosen[:, None])[:, 0]


def _ranked(scaled: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of each row, falling, equals by rising token id: the same however large `count` is.

    Value and id are packed into one integer whose order is theirs: the bits of a float32, sign folded, above
    the id.
    """
    bits = scaled.contiguous().view(torch.int32).long()
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(scaled.shape[1], device=scaled.device)
    packed = ordered * (1 << 32) + (0xFFFFFFFF - ids)
    token_ids = 0xFFFFFFFF - (packed.topk(count, dim=-1).values & 0xFFFFFFFF)
    return scaled.gather(1, token_ids), token_ids


def _invert(cumulative: Tensor, draws: Sequence[Draw]) -> Tensor:
    """The first column whose cumulative share exceeds the draw's uniform share of the row's total."""
    target = _column([draw.uniform for draw in draws], cumulative) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=cumulative.shape[1] - 1)


def _limit(top_k: int, vocabulary: int) -> int:
    return min(top_k, vocabulary) if top_k > 0 else vocabulary


def _column(numbers: Sequence[float], like: Tensor) -> Tensor:
    """`[rows, 1]` on the device of `like`, float64 where it is, else float32."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.tensor(numbers, dtype=dtype, device=like.device)[:, None]
