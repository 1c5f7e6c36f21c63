"""Replays a prefix-cache trace through SGLang's own caches, in SGLang's interpreter: a script, with no import of ours.

    PYTHON -P peers_sglang.py trace.json PAGE_SIZE POOL_TOKENS

The last line on stdout is one JSON object: `version` and `rows`, or `missing` with the reason. Each row holds the
hits and the seconds of each part that `bench_cache.CacheCost` names. What is driven: match, lock, eviction, the paged
allocator, the row's table, insert, unlock and free, for one request after another. What is left out, to SGLang's
gain: its request objects, the second walk that moves a row onto the tree's pages, and the split at the prompt's end.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from typing import Any

import numpy as np

WANTED = "0.5.23"
KEPT: list[Any] = []  # a library of operators takes its definitions back when it is collected
BLOCK_TOKENS = 512
# The name of a row, the cache's class, and the core of its tree where there is a choice.
SYSTEMS = (("UnifiedRadixCache, Rust", "rust"), ("UnifiedRadixCache, Python", "python"), ("RadixCache", ""))


def missing() -> str | None:
    """Why SGLang can't be driven here, or None."""
    try:
        found = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return "not installed"
    return None if found == WANTED else f"version {found} is installed, this script drives {WANTED}"


def declare_torchvision_operators() -> None:
    """Let a torchvision built for CUDA be imported beside a torch that isn't: its import asks for two operators."""
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        KEPT.append(library)


def requests(path: str) -> Iterator[tuple[Any, int]]:
    """Each request's tokens and the length of its prompt, as `bench_cache.tokens_of` makes them."""
    offsets = np.arange(BLOCK_TOKENS, dtype=np.int64)
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)
    for number, (blocks, input_tokens, output_tokens) in enumerate(trace):
        ids = np.array(blocks, np.int64) % (1 << 21)
        prompt = (ids[:, None] * BLOCK_TOKENS + offsets).reshape(-1)[:input_tokens]
        output = np.arange(output_tokens, dtype=np.int64) + (1 << 30) + (number << 11) % (1 << 30)
        yield array("q", np.concatenate([prompt, output]).tobytes()), len(prompt)


class Replay:
    """One cache over one pool, and the time that each part of a request's life takes in it."""

    def __init__(self, core: str, page_size: int, pool_tokens: int, row_tokens: int) -> None:
        import torch
        from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.mem_cache.radix_cache import RadixCache
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        self.page_size, self.pool_tokens = page_size, -(-pool_tokens // page_size) * page_size
        self.allocator = PagedTokenToKVPoolAllocator(self.pool_tokens, page_size, torch.float16, "cpu", None, False)
        self.rows = ReqToTokenPool(1, row_tokens, "cpu", False)
        params = CacheInitParams(False, self.rows, self.allocator, page_size)
        if core:
            params.tree_components, params.tree_core_backend = (ComponentType.FULL,), core
        self.cache: Any = UnifiedRadixCache(params) if core else RadixCache(params)
        chosen = getattr(self.cache, "_tree_core_backend", core)
        if chosen != core:
            raise RuntimeError(f"the {core} core can't be had here, SGLang takes the {chosen} one")
        self.cost = {"tokens": 0, "hits": 0, "match_s": 0.0, "take_s": 0.0, "publish_s": 0.0, "release_s": 0.0}

    def request(self, tokens: Any, prompt_tokens: int) -> None:
        """One request's life: matched, given pages, published, run to its end, published again and released."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        clock, cache, row = time.thread_time, self.cache, self.rows.req_to_token[1]
        times = [clock()]
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens, limit=prompt_tokens - 1)))
        hit = match.device_prefix_len
        times.append(clock())
        lock = cache.lock(match.last_device_node)
        if hit:
            row[:hit] = cache.path_device_indices(match.last_device_node)[:hit]
        self.take(row, hit, prompt_tokens)
        times.append(clock())
        owned, lock = self.publish(row, tokens[:prompt_tokens], hit, lock)
        times.append(clock())
        if len(tokens) > prompt_tokens:
            self.take(row, prompt_tokens, len(tokens))
        owned, lock = self.publish(row, tokens, owned, lock)
        cache.unlock(lock)
        self.allocator.free_segment(row[owned : len(tokens)].long(), start_pos=owned)
        times.append(clock())
        for part, start, end in zip(("match_s", "take_s", "publish_s", "release_s"), times, times[1:], strict=False):
            self.cost[part] += end - start
        self.cost["tokens"] += prompt_tokens
        self.cost["hits"] += hit

    def take(self, row: Any, start: int, end: int) -> None:
        """Pages for the tokens [start, end) of the row that lie on none yet, after eviction where the pool is short.

        The allocator's `alloc_extend` is a kernel on a GPU; its stand-in on a CPU works token by token and would cost
        SGLang more than all the rest, so whole pages are taken by `alloc`, which is the cheapest way it has.
        """
        from sglang.srt.mem_cache.common import evict_from_tree_cache

        start, end = (-(-tokens // self.page_size) * self.page_size for tokens in (start, end))
        if end > start:
            evict_from_tree_cache(self.cache, end - start)
            row[start:end] = self.allocator.alloc(end - start)

    def publish(self, row: Any, tokens: Any, owned: int, lock: Any) -> tuple[int, Any]:
        """The tree takes the whole pages of the tokens; returns how many tokens are its own, and the lock on them."""
        import torch
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        key = RadixKey(tokens).page_aligned(self.page_size)
        values = row[: len(key)].to(dtype=torch.int64, copy=True)
        result = self.cache.insert(InsertParams(key=key, value=values, prev_prefix_len=owned, inserted_len=owned))
        if result.prefix_len > owned:
            raise RuntimeError(f"the tree held {result.prefix_len} tokens where {owned} were matched: pages are lost")
        self.cache.unlock(lock)
        return len(key), self.cache.lock(result.last_device_node)

    def check(self) -> None:
        """At the end every page is free or can be evicted."""
        whole = self.allocator.available_size() + self.cache.evictable_size()
        if whole != self.pool_tokens:
            raise RuntimeError(f"{whole} of {self.pool_tokens} tokens are free or evictable at the end")


def replay(path: str, page_size: int, pool_tokens: int) -> list[dict[str, Any]]:
    """A row for each system. Each has a process of its own, so that none runs in memory that another left."""
    import torch

    torch.set_num_threads(1)  # one thread's clock is read
    row_tokens = max(len(tokens) for tokens, _ in requests(path)) + page_size
    rows = []
    for name, core in SYSTEMS:
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as process:
            cost = process.submit(cost_of, core, path, page_size, max(pool_tokens, row_tokens), row_tokens)
            try:
                rows.append({"name": name, **cost.result()})
            except Exception as error:  # the other systems' rows still count
                rows.append({"name": name, "missing": f"{type(error).__name__}: {error}"})
    return rows


def cost_of(core: str, path: str, page_size: int, pool_tokens: int, row_tokens: int) -> dict[str, float]:
    """The whole trace through one cache."""
    system = Replay(core, page_size, pool_tokens, row_tokens)
    gc.collect()
    gc.freeze()
    for tokens, prompt_tokens in requests(path):
        system.request(tokens, prompt_tokens)
    system.check()
    return system.cost


def main(path: str, page_size: str, pool_tokens: str) -> None:
    """Print the rows, or why there are none."""
    found: dict[str, Any] = {"peer": "SGLang", "version": WANTED}
    why = missing()
    if why is None:
        try:
            declare_torchvision_operators()
            found["rows"] = replay(path, int(page_size), int(pool_tokens))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
    print(json.dumps(found if why is None else {"peer": "SGLang", "missing": why}))


if __name__ == "__main__":
    main(*sys.argv[1:])
