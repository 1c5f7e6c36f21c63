"""Arguments that don't fit are refused with a word on what to change, before any kernel runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from freehold.kernels import BadArgument, paged_decode, paged_extend, write_kv
from freehold.kernels.cases import DecodeCase, ExtendCase, WriteCase, decode_inputs, extend_inputs, write_inputs


def _decode(**changes):
    case = DecodeCase(page_size=4, kv_heads=2, group=3, head_dim=64, seq_tokens=(5, 9), window=3, sinks=True)
    inputs = decode_inputs(case, seed=0)
    return replace(inputs, **{name: change(getattr(inputs, name)) for name, change in changes.items()})


def _extend(**changes):
    case = ExtendCase(
        page_size=4, kv_heads=2, group=3, head_dim=64, extend_tokens=(2, 5), seq_tokens=(5, 9), window=3, sinks=True
    )
    inputs = extend_inputs(case, seed=0)
    return replace(inputs, **{name: change(getattr(inputs, name)) for name, change in changes.items()})


def _write(**changes):
    inputs = write_inputs(WriteCase(n=6, page_size=4, kv_heads=2, head_dim=64, peers=True), seed=0)
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
        ({"query": lambda query: query[:, :0]}, "multiple of 2"),
        ({"window": lambda window: -1}, "window -1"),
        ({"window": lambda window: 2**31}, "window 2147483648"),
        ({"sinks": lambda sinks: sinks[:2]}, r"float32 \[6\]"),
        ({"sinks": lambda sinks: sinks.half()}, "float16"),
        ({"sinks": lambda sinks: torch.stack([sinks, sinks], 1)[:, 0]}, "dense"),
        ({"sinks": lambda sinks: sinks.to("meta")}, "meta"),
    ],
)
def test_decode_refuses(changes, word):
    inputs = _decode(**changes)
    with pytest.raises(BadArgument, match=word):
        paged_decode(*inputs.arguments(), **inputs.options())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (_both(lambda cache: cache[:, :3].contiguous()), "power of two"),
        (_both(lambda cache: cache[:, ::2]), "contiguous"),
        ({"query": lambda query: query[:, :5]}, r"\[tokens, heads, 64\], heads a multiple of 2"),
        ({"query": lambda query: query.half()}, "cast the query"),
        ({"query": lambda query: query.transpose(1, 2).contiguous().transpose(1, 2)}, "dense inside a row"),
        ({"page_table": lambda table: table[:1]}, r"\[2, max_pages\]"),
        ({"query_start": lambda starts: starts[:2]}, r"query_start must be a dense int32 \[3\]"),
        ({"query_start": lambda starts: starts.long()}, "query_start .*int64"),
        ({"query_start": lambda starts: starts.to("meta")}, "meta"),
        ({"seq_tokens": lambda tokens: tokens.long()}, "seq_tokens .*int64"),
        ({"seq_tokens": lambda tokens: tokens[0]}, r"seq_tokens|page_table"),
        ({"window": lambda window: -1}, "window -1"),
        ({"sinks": lambda sinks: sinks.double()}, "float64"),
        ({"sinks": lambda sinks: sinks.to("meta")}, "meta"),
    ],
)
def test_extend_refuses(changes, word):
    inputs = _extend(**changes)
    with pytest.raises(BadArgument, match=word):
        paged_extend(*inputs.arguments(), **inputs.options())


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
        ({"peers": lambda peers: peers.long()}, "peers must be a dense int32"),
        ({"peers": lambda peers: peers[::2]}, "peers must be a dense int32"),
        ({"peers": lambda peers: peers[None]}, "peers must be a dense int32"),
        ({"peers": lambda peers: peers.to("meta")}, "meta"),
    ],
)
def test_write_refuses(changes, word):
    inputs = _write(**changes)
    with pytest.raises(BadArgument, match=word):
        write_kv(*inputs.arguments(), peers=inputs.peers)


def test_what_is_not_changed_is_accepted():
    write, decode, extend = _write(), _decode(), _extend()
    write_kv(*write.arguments(), peers=write.peers)
    assert paged_decode(*decode.arguments(), **decode.options()).shape == (2, 6, 64)
    assert paged_extend(*extend.arguments(), **extend.options()).shape == (7, 6, 64)
