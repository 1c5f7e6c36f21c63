"""Arguments that don't fit are refused with a word on what to change, before any kernel runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from freehold.kernels import BadArgument, paged_decode, write_kv
from freehold.kernels.cases import DecodeCase, WriteCase, decode_inputs, write_inputs


def _decode(**changes):
    case = DecodeCase(page_size=4, kv_heads=2, group=3, head_dim=64, seq_tokens=(5, 9))
    inputs = decode_inputs(case, seed=0)
    return replace(inputs, **{name: change(getattr(inputs, name)) for name, change in changes.items()})


def _write(**changes):
    inputs = write_inputs(WriteCase(n=6, page_size=4, kv_heads=2, head_dim=64), seed=0)
    return replace(inputs, **{name: change(getattr(inputs, name)) for name, change in changes.items()})


def _both(change):
    return {"k_cache": change, "v_cache": change}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (_both(lambda cache: cache[:, :3].contiguous()), "power of two"),
        (_both(lambda cache: cache[:, ::2]), "contiguous"),
        (_both(lambda cache: cache[:0]), "hold a page"),
        (_both(lambda cache: cache.double()), "one of"),
        ({"v_cache": lambda cache: cache.half()}, "one of"),
        ({"v_cache": lambda cache: cache[1:]}, "must both be"),
        ({"query": lambda query: query[:, :5]}, "multiple of 2"),
        ({"query": lambda query: query[..., :32]}, "64"),
        ({"query": lambda query: query.half()}, "cast the query"),
        ({"query": lambda query: query.transpose(1, 2).contiguous().transpose(1, 2)}, "dense inside a row"),
        ({"page_table": lambda table: table.long()}, "int32"),
        ({"page_table": lambda table: table[:1]}, r"\[2, max_pages\]"),
        ({"page_table": lambda table: table.t().contiguous().t()}, "dense along max_pages"),
        ({"seq_tokens": lambda tokens: tokens.long()}, "int32"),
        ({"seq_tokens": lambda tokens: tokens[:1]}, r"\[2\]"),
        ({"seq_tokens": lambda tokens: tokens.to("meta")}, "meta"),
    ],
)
def test_decode_refuses(changes, word):
    with pytest.raises(BadArgument, match=word):
        paged_decode(*_decode(**changes).arguments())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"key": lambda key: key[:, :1]}, "must both be"),
        ({"value": lambda value: value[:4]}, "must both be"),
        ({"key": lambda key: key.half()}, "cast"),
        ({"slots": lambda slots: slots.int()}, "int64"),
        ({"slots": lambda slots: slots[:5]}, "int64"),
        ({"slots": lambda slots: torch.stack([slots, slots], 1)[:, 0]}, "dense"),
        ({"key": lambda key: key.transpose(1, 2).contiguous().transpose(1, 2)}, "dense inside a row"),
        ({"key": lambda key: key.to("meta")}, "meta"),
        (_both(lambda cache: cache.flatten(0, 1)), "num_pages"),
    ],
)
def test_write_refuses(changes, word):
    with pytest.raises(BadArgument, match=word):
        write_kv(*_write(**changes).arguments())


def test_what_is_not_changed_is_accepted():
    write_kv(*_write().arguments())
    assert paged_decode(*_decode().arguments()).shape == (2, 6, 64)
