"""Checkpoints of a search: the codes of each level in a file of its own, and one small file that says what is valid.

A level's file is written before the small one names it, and the small one is put in place in one move, so a search
that is killed at any moment leaves the checkpoint of a whole level behind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from freehold.spec.errors import InvalidInput

NAME = "search.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory for one search; `identity` tells searches apart that must not continue each other."""

    directory: Path
    identity: str
    words: int

    def begin(self) -> None:
        """Make the directory; `InvalidInput` when there is a search in it already."""
        if (self.directory / NAME).exists():
            raise InvalidInput(f"{self.directory} has a checkpoint: resume it, or name another directory")
        self.directory.mkdir(parents=True, exist_ok=True)

    def save(self, level: int, chunks: Iterable[torch.Tensor], counters: Mapping[str, Any]) -> None:
        """Add the codes `[K, n]` of a level, and say how far the search is."""
        with self._level(level).open("wb") as file:
            for codes in chunks:
                file.write(codes.t().contiguous().cpu().numpy().tobytes())
        fresh = self.directory / f"{NAME}.new"
        fresh.write_text(json.dumps({"identity": self.identity, "levels": level + 1, "counters": counters}))
        os.replace(fresh, self.directory / NAME)

    def load(self) -> tuple[Iterator[torch.Tensor], Mapping[str, Any]]:
        """The codes of each level, one by one, `[K, n]`; and the counters.

        `InvalidInput` when there is nothing to resume, or another search.
        """
        path = self.directory / NAME
        if not path.exists():
            raise InvalidInput(f"{self.directory} has no checkpoint to resume")
        saved = json.loads(path.read_text())
        if saved["identity"] != self.identity:
            raise InvalidInput(f"{self.directory} belongs to another search: its law, scope, grain or symmetry differ")
        stored = (np.fromfile(self._level(n), np.int64) for n in range(saved["levels"]))
        return (torch.from_numpy(rows.reshape(-1, self.words)).t() for rows in stored), saved["counters"]

    def _level(self, number: int) -> Path:
        return self.directory / f"level-{number:04}.codes"
