"""A model runner behind the content canary: marks are verified before a step reads, and written with its KV."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from freehold.impl.execution.batch import ForwardStep
from freehold.impl.execution.canary import Canary, CanaryStep
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.scheduling.flight import Landed, run_now
from freehold.impl.scheduling.ports import PENDING, ForwardBatch


@dataclass(frozen=True, slots=True)
class CheckedStep:
    """A step of the model and the canary's part of it.

    token_ids: the new tokens of all items in order, `PENDING` where only the step before knows them; rows: theirs.
    """

    step: ForwardStep
    marks: CanaryStep
    token_ids: list[int]
    rows: list[int]


class CanaryRunner:
    """An `Executor`, and a `Runner` for a worker: a `ModelRunner` whose reads are verified."""

    def __init__(self, runner: ModelRunner, canary: Canary) -> None:
        self._runner, self._canary = runner, canary

    def launch(self, batch: ForwardBatch) -> Landed:
        """As `ModelRunner.launch`; wrong content comes out of `result` as ContentBroken, before anything is read."""
        step = self.prepare(batch)
        return run_now(lambda: self.run(step))

    def prepare(self, batch: ForwardBatch) -> CheckedStep:
        """Both parts of the step, from the tables as they are now."""
        token_ids = [token for item in batch.items for token in item.token_ids]
        rows = [item.row for item in batch.items for _ in item.token_ids]
        return CheckedStep(self._runner.prepare(batch), self._canary.plan(batch), token_ids, rows)

    def run(self, step: CheckedStep) -> list[int | None]:
        """Verify, run, mark. Raises ContentBroken, and what the model raises."""
        step.marks.verify()
        tokens = [
            self._runner.last_token(row) if token == PENDING else token
            for token, row in zip(step.token_ids, step.rows, strict=True)
        ]
        chosen = self._runner.run(step.step)
        step.marks.write(torch.tensor(tokens))
        return chosen

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As `ModelRunner.copy_states`."""
        self._runner.copy_states(pairs)
