"""The peers' rows of the prefix cache's table: what stands there where a peer is missing, and how figures come back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from freehold.cli import app
from freehold.model_check import bench_cache, bench_peers, peers_sglang, peers_vllm
from freehold.model_check.bench_peers import PEERS, Peer, PeerRow, peer_rows, rows_beside

TRACE = bench_cache.made_up_trace(requests=6, seed=3)
POOL = 200_000

ANSWERS = """
import json, sys
trace = json.load(open(sys.argv[1]))
page_size, pool_tokens = int(sys.argv[2]), int(sys.argv[3])
tokens = sum(input_tokens for _, input_tokens, _ in trace)
figures = dict(tokens=tokens, hits=page_size, match_s=1.0, take_s=2.0, publish_s=3.0, release_s=pool_tokens / 1e5)
print("a peer that talks first")
print(json.dumps({"rows": [{"name": "fast", **figures}, {"name": "odd", "missing": "no core"}]}))
"""


def peer(folder: Path, text: str) -> Peer:
    script = folder / "peers_fake.py"
    script.write_text(text, encoding="utf-8")
    return Peer("Fake 1.0", script, "get it from nowhere")


def test_a_peer_gets_the_trace_and_its_figures_come_back(tmp_path: Path) -> None:
    rows = peer_rows(TRACE, 16, POOL, peers=[peer(tmp_path, ANSWERS)])
    tokens = sum(asked.input_tokens for asked in TRACE)
    expected = bench_cache.CacheCost(16, 6, tokens, 16, 1.0, 2.0, 3.0, 2.0)
    assert rows == [PeerRow("Fake 1.0 fast", expected), PeerRow("Fake 1.0 odd", None, "no core")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('print(\'{"missing": "not installed"}\')', "not installed; get it from nowhere"),
        ("raise SystemExit('out of luck')", "ended with status 1 and no figures: out of luck"),
        ("", "ended with status 0 and no figures: nothing on stderr"),
        ("print('[1]')", "answered [1], not an object"),
        ("print('{}')", "no figures came back; get it from nowhere"),
        ('print(\'{"rows": [{"name": "new", "speed": 3}]}\')', "figures that aren't known"),
    ],
)
def test_a_peer_without_figures_is_a_row_that_says_why(tmp_path: Path, text: str, says: str) -> None:
    (row,) = peer_rows(TRACE, 16, POOL, peers=[peer(tmp_path, text)])
    assert row.cost is None
    assert says in row.missing


def test_an_interpreter_that_is_none_is_said_and_the_next_one_asked(tmp_path: Path) -> None:
    fake, nowhere = peer(tmp_path, ANSWERS), tmp_path / "no-python"
    (row,) = peer_rows(TRACE, 16, POOL, [nowhere], [fake])
    assert f"{nowhere} gave no answer" in row.missing
    assert peer_rows(TRACE, 16, POOL, [nowhere, sys.executable], [fake])[0].cost is not None


def test_of_two_reasons_the_one_that_says_more_is_kept(tmp_path: Path) -> None:
    absent = peer(tmp_path, 'print(\'{"missing": "not installed"}\')')
    (row,) = peer_rows(TRACE, 16, POOL, [sys.executable, tmp_path / "no-python"], [absent])
    assert "gave no answer" in row.missing


def test_the_run_that_cost_least_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [bench_cache.CacheCost(16, 6, match_s=seconds) for seconds in (2.0, 1.0, 3.0)]
    given = iter(costs)
    monkeypatch.setattr(bench_peers, "peer_rows", lambda *_: [PeerRow("Fake", next(given))])
    own, row = rows_beside(TRACE, 16, POOL, repeats=3)
    assert row.cost is costs[1]
    assert own.name == "Freehold"
    assert own.cost is not None
    assert own.cost.tokens == sum(asked.input_tokens for asked in TRACE)


def test_every_script_makes_the_tokens_that_freehold_replays(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([[a.blocks, a.input_tokens, a.output_tokens] for a in TRACE]), encoding="utf-8")
    expected = [bench_cache.tokens_of(number, asked) for number, asked in enumerate(TRACE)]
    for script in (peers_sglang, peers_vllm):
        made = list(script.requests(str(path)))
        assert [length for _, length in made] == [length for _, length in expected]
        for (tokens, _), (wanted, _) in zip(made, expected, strict=True):
            assert np.array_equal(np.array(tokens), wanted)


@pytest.mark.skipif(
    peers_sglang.missing() is None or peers_vllm.missing() is None, reason="a peer is installed beside Freehold"
)
def test_the_command_ends_well_where_no_peer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_cache, "made_up_trace", lambda: TRACE)
    monkeypatch.setattr(bench_peers, "REPEATS", 1)
    done = CliRunner().invoke(app, ["bench", "--only", "cache", "--peers"], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.replace("│", " ").split())
    assert [peer.name in shown for peer in PEERS] == [True, True]
    assert "not installed" in shown
    assert "--peers-python" in shown
