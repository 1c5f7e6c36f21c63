"""What the monitor says of a trace of a changed law, when the law as it is reads its log.

The log has the events that the law knows, in the engine's own form, with a step mark after each operation and a
quiescent one where nothing runs. What the law has no event for happens silently: no log could name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from freehold.model_check.scopes import Scope
from freehold.model_check.steps import ReadingsDisagree, Taken
from freehold.spec import concrete
from freehold.spec.language import Action, Clause, Law
from freehold.spec.law import law as the_law
from freehold.spec.monitor import Monitor
from freehold.spec.terms import Element, Param, SetOf
from freehold.spec.trace import EVENTS, Header
from freehold.spec.verdict import Verdict


def objection(scope: Scope, law: Law, trace: Iterable[Taken], *, observed: bool) -> tuple[int, Verdict] | None:
    """The number of the event at which the monitor objects, marks not counted, and its verdict; None if it never does.

    With `observed` the engine also shows its real state after each operation.
    """
    changed = scope.law(law)
    state = concrete.initial(changed, scope.sizes, scope.constants)
    monitor, count = Monitor(_header(scope)), 0
    for step in trace:
        operation = changed.operations[step.operation]
        outcome = concrete.operate(operation, {p: _given(p, step) for p in operation.params}, state)
        if isinstance(outcome, Clause):
            raise ReadingsDisagree(f"{step} is no step of the changed law: {outcome.text}")
        events, state = outcome
        for action, env in events:
            if action.name in the_law.actions and monitor.verdict is None:
                count += 1
                monitor.emit(*_event(action, env))
        monitor.emit("mark", "step")
        if observed:
            monitor.emit("observe", _shown(state))
        if concrete.holds(changed.idle, {}, state):
            monitor.emit("mark", "quiescent")
        if monitor.verdict is not None:
            return count, monitor.verdict
    return None


def _header(scope: Scope) -> Header:
    size, constants = scope.sizes.get, scope.constants
    return Header(
        constants["page_size"], size("Page", 1), size("Row", 1), constants["row_width"], size("SwaPage", 0),
        size("StateSlot", 0), size("HostPage", 0), constants["window"], constants["namespaces"], bool(size("Loan", 0)),
    )  # fmt: skip


def _given(param: Param, step: Taken) -> Any:
    value = step.arguments[param.name]
    return frozenset((value,)) if isinstance(param, SetOf) and isinstance(value, int) else value


def _event(action: Action, env: concrete.Env) -> Iterator[Any]:
    """Name and arguments as a log has them: `grow` is a part of `extend`, and several pages stand in one event."""
    named = {p.name: _counted(p, v) for p, v in env.items()}
    name = "extend" if action.name == "grow" else action.name
    yield name
    for key in EVENTS[name]:
        if key in named:
            yield named[key]
        elif key == "pages":
            yield [named["p"]] if "p" in named else []


def _counted(param: Param, value: Any) -> Any:
    """Elements count from 0 in a scope and from 1 in a log."""
    if isinstance(param, SetOf):
        return frozenset(x + 1 for x in value)
    return value + 1 if isinstance(param, Element) else value


def _shown(state: concrete.State) -> dict[str, Any]:
    """The real state, as an engine that reads its own tables would report it: numbers of zero, too."""
    facts: dict[str, Any] = {
        name: [tuple(x + 1 for x in t) for t in state.relations.get(name, ())] for name in the_law.relations
    }
    for name, function in the_law.functions.items():
        known = state.functions.get(name, {})
        facts[name] = {x + 1: known.get(x, 0) for x in state.universe.get(function.sort, ())}
    return facts
