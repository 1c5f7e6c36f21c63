"""One public bug, as a small change of the law and the scope in which it shows.

A bug is never written down as a trace: the instruments have to find one, the shortest, and they have to find none in
the law as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from freehold.model_check.scopes import Scope
from freehold.spec.language import Law


class Shows(StrEnum):
    """What a bug breaks, and so which search has to find it."""

    STATE = "state"
    """An invariant, after a sequence of operations."""
    PROGRESS = "progress"
    """Something is held, or waits, for ever: no sequence of operations leads out, or a fair loop never does."""
    REPLICAS = "replicas"
    """Two ranks that take the same decisions come apart."""
    ARITHMETIC = "arithmetic"
    """A rounding in `spec.arithmetic`: no law state is needed."""


@dataclass(frozen=True, slots=True)
class Bug:
    """reference: `owner/repository#number`. kind: its class in the bank, A to O. law: the law with the bug in it.

    steps: the budget of operations within which the shortest trace has to be found.
    """

    reference: str
    kind: str
    title: str
    shows: Shows
    law: Callable[[Law], Law]
    scope: Scope
    steps: int
