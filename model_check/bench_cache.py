"""What the prefix cache costs on a trace of long prompts that share beginnings, without a scheduler or a model.

Each request is matched, admitted, extended, committed, published, decoded to its end and released, in arrival order,
over a pool that is full most of the time. Tokens are made from the trace's block hashes as other benchmarks of this
trace do: block `h` holds the tokens `h * 512 + i`. Without a trace file, one is generated with the same marginals as
the Mooncake conversation trace (mean of about 12,000 prompt tokens, a third of them a prefix of an earlier request).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from freehold.impl.memory.arrays import Tokens
from freehold.impl.memory.cache import KvCache, Need
from freehold.impl.memory.geometry import CacheGeometry
from freehold.impl.memory.record import KvRecord
from freehold.spec.arithmetic import ceil_pages
from freehold.spec.errors import InvalidInput

BLOCK_TOKENS = 512
POOL_TOKENS = 8_000_000
REQUESTS = 1_500


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a trace: its prompt as hashes of blocks of 512 tokens, and its lengths."""

    blocks: tuple[int, ...]
    input_tokens: int
    output_tokens: int


@dataclass(slots=True)
class CacheCost:
    """Nanoseconds per prompt token by part, and the share of prompt tokens that were hits."""

    page_size: int
    requests: int
    tokens: int = 0
    hits: int = 0
    match_s: float = 0.0
    take_s: float = 0.0
    publish_s: float = 0.0
    release_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.match_s + self.take_s + self.publish_s + self.release_s

    def nanoseconds(self, seconds: float) -> float:
        """Of one prompt token."""
        return seconds * 1e9 / max(1, self.tokens)


@dataclass(slots=True, eq=False)
class _Holder:
    id: str
    kv: KvRecord | None = None


def read_trace(path: Path | str, requests: int = REQUESTS) -> list[Asked]:
    """The first requests of a Mooncake trace. Raises InvalidInput when the file is none."""
    try:
        with Path(path).open(encoding="utf-8") as lines:
            rows = [json.loads(line) for _, line in zip(range(requests), lines, strict=False)]
        return [Asked(tuple(row["hash_ids"]), row["input_length"], row["output_length"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is no Mooncake trace ({error}): give a JSON Lines file with hash_ids") from error


def made_up_trace(requests: int = REQUESTS, seed: int = 0) -> list[Asked]:
    """Conversations whose turns repeat what was said before: lengths and reuse as in the public trace."""
    draw, fresh = random.Random(seed), iter(range(1, 1 << 30))
    talks: list[list[int]] = []
    asked = []
    for _ in range(requests):
        if talks and draw.random() < 0.3:
            history = talks[draw.randrange(max(0, len(talks) - 400), len(talks))]
        else:
            history = [0]
            talks.append(history)
        history += [next(fresh) for _ in range(max(1, int(draw.lognormvariate(2.4, 0.9))))]
        length = len(history) * BLOCK_TOKENS - draw.randrange(BLOCK_TOKENS)
        asked.append(Asked(tuple(history), length, max(1, int(draw.expovariate(1 / 343)))))
    return asked


def cache_cost(trace: Sequence[Asked], page_size: int, pool_tokens: int = POOL_TOKENS) -> CacheCost:
    """Replay the trace against a cache of so many tokens; the best of one run, timed part by part."""
    longest = max(asked.input_tokens + asked.output_tokens for asked in trace)
    pages = ceil_pages(max(pool_tokens, longest + page_size), page_size)
    cache = KvCache(
        CacheGeometry(page_size=page_size, num_pages=pages, num_rows=4, max_context_tokens=longest + page_size)
    )
    cost = CacheCost(page_size, len(trace))
    for number, asked in enumerate(trace):
        tokens, prompt_tokens = tokens_of(number, asked)
        for part, seconds in _replay(cache, _Holder(f"r{number}"), tokens, prompt_tokens, cost):
            setattr(cost, part, getattr(cost, part) + seconds)
        cost.tokens += prompt_tokens
    return cost


def tokens_of(number: int, asked: Asked) -> tuple[Tokens, int]:
    """The tokens of a request, its prompt and an output that no other has; and the length of the prompt."""
    ids = (np.array(asked.blocks, np.int64) % (1 << 21)).astype(np.int32)
    offsets = np.arange(BLOCK_TOKENS, dtype=np.int32)
    prompt = (ids[:, None] * BLOCK_TOKENS + offsets).reshape(-1)[: asked.input_tokens]
    output = np.arange(asked.output_tokens, dtype=np.int32) + (1 << 30) + (number << 11) % (1 << 30)
    return np.concatenate([prompt, output]), len(prompt)


def _replay(
    cache: KvCache, request: _Holder, tokens: Tokens, prompt_tokens: int, cost: CacheCost
) -> Iterator[tuple[str, float]]:
    """One request's life; yields the time of each part."""
    clock = time.thread_time
    started = clock()
    match = cache.match(tokens[: prompt_tokens - 1])
    cost.hits += match.matched_tokens
    yield "match_s", clock() - started
    started = clock()
    need = ceil_pages(prompt_tokens - match.matched_tokens, cache.page_size) + 1
    cache.make_room(Need(need, 0), sparing_match=match)
    kv = cache.admit(request, match)
    cache.extend([(kv, prompt_tokens - match.matched_tokens)])
    cache.commit([(kv, prompt_tokens)])
    yield "take_s", clock() - started
    started = clock()
    cache.publish(kv, tokens[kv.published_tokens : prompt_tokens])
    yield "publish_s", clock() - started
    started = clock()
    if len(tokens) > prompt_tokens:
        cache.extend([(kv, len(tokens) - prompt_tokens)])  # the output, in one go: decodes are the scheduler's cost
        cache.commit([(kv, len(tokens))])
    cache.publish(kv, tokens[kv.published_tokens :])
    cache.release(request)
    yield "release_s", clock() - started


def marginals(trace: Sequence[Asked]) -> dict[str, Any]:
    """What a reader wants to know about a trace."""
    return {
        "requests": len(trace),
        "mean prompt tokens": round(sum(asked.input_tokens for asked in trace) / len(trace)),
        "mean output tokens": round(sum(asked.output_tokens for asked in trace) / len(trace)),
    }
