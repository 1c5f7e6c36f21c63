"""Can each guard clause say no? A right engine never makes one do so, so somebody else has to ask.

In states that the engine is in, a probe draws events that the engine did not do, with units and names of that state as
arguments, and reads the clauses of their guards. A clause that is false of one of them was seen to refuse: what it says
is not true of everything. Clauses that have refused once are not asked again, so that a probe soon costs nothing.
"""

from __future__ import annotations

import random
from typing import Any

from freehold.model_check.coverage import ACTIONS
from freehold.spec.concrete import State, holds
from freehold.spec.monitor import Monitor
from freehold.spec.terms import IntVar, Param, SetOf

_NOBODY: Any = "nobody"


class Probe:
    """Draws from a seed; one probe may look at many engines.

    refused: the clauses that were false of a drawn event, by action and text.
    """

    def __init__(self, seed: int = 0) -> None:
        self.refused: set[tuple[str, str]] = set()
        self._draw = random.Random(seed)
        self._turn = 0

    def look(self, monitor: Monitor) -> None:
        """Draw one event in the monitor's state, of an action with a clause that has not refused yet."""
        open_ = [
            (action, clauses)
            for name, action in monitor.law.actions.items()
            if name in ACTIONS and (clauses := [c for c in action.guard if (name, c.text) not in self.refused])
        ]
        if not open_:
            return
        self._turn += 1
        action, clauses = open_[self._turn % len(open_)]
        state = monitor.compiled.state()
        env = {param: self._argument(param, state) for param in action.params}
        self.refused.update((action.name, c.text) for c in clauses if not holds(c.term, env, state))

    def _argument(self, param: Param, state: State) -> Any:
        if isinstance(param, IntVar):
            return self._draw.randint(-1, state.constants["row_width"] + state.constants["page_size"])
        if isinstance(param, SetOf):
            known = state.universe[param.sort]
            return frozenset(self._draw.sample(known, min(len(known), self._draw.randint(0, 2))))
        return self._draw.choice([*state.universe[type(param)], _NOBODY])
