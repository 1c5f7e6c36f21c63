"""Starvation: no alarm on lawful runs of the engine, an alarm that names the one who waits in a planted one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from freehold.impl.engine import EngineConfig
from freehold.impl.scheduling.policy import FirstCome
from freehold.impl.scheduling.request import Request
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.model_check.harness import Checked
from freehold.model_check.programs import random_program, run_program
from freehold.model_check.watch import Check
from freehold.spec.errors import InvalidInput
from freehold.spec.starvation import Alarm, Starvation, patience_steps
from freehold.spec.state import Place
from freehold.spec.trace import Event, Header


def alarms_of(events: Sequence[Event], bound: int) -> list[Alarm]:
    starving = Starvation(bound)
    for event in events:
        starving.feed(event)
    return starving.alarms


@pytest.mark.parametrize("seed", range(12))
def test_no_alarm_on_lawful_runs_of_the_engine(seed: int) -> None:
    program = random_program(seed, 60)
    run = run_program(program)
    assert run.violation is None
    config = program.config
    header = Header(config.page_size, config.num_pages, config.geometry.num_rows, config.max_context_tokens)
    assert alarms_of(run.events, patience_steps(header)) == []
    assert alarms_of(run.events, 1), "with no patience at all there is somebody to name"


CONFIG = EngineConfig(
    page_size=2, num_pages=16, max_context_tokens=16, max_running=2, chunk_tokens=4, num_rows=2, policy="first_come"
)


def newest_first(policy: FirstCome, waiting: Mapping[str, Request], limit: int, cache: Any) -> list[Request]:
    return list(reversed(waiting.values()))[:limit]


def nobody_resumes(scheduler: Scheduler) -> dict[Request, int]:
    return dict.fromkeys(scheduler.queues.running.values(), 1)


@pytest.mark.parametrize(
    ("owner", "attribute", "wrong", "who", "state"),
    [
        (FirstCome, "candidates", newest_first, "request r3", "waiting"),
        (Scheduler, "_plan", nobody_resumes, "request r1", "parked"),
    ],
)
def test_planted_starvation_is_named(
    owner: Any, attribute: str, wrong: Any, who: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, attribute, wrong)
    checked = Checked(CONFIG, frozenset({Check.GUARDS}))
    checked.submit([0] * 9, 4, False, -1, 0)  # longer than a chunk
    for _ in range(2):
        checked.submit([1], 3, False, -1, 0)
        checked.step(1)
    bound = checked.patience_steps
    for _ in range(bound + 4):
        checked.submit([1], 3, False, -1, 0)
        checked.step(1)
    alarms = alarms_of(checked.watch.events, bound)
    assert (who, state) in {(alarm.who, alarm.state) for alarm in alarms}
    assert all(alarm.steps == bound + 1 for alarm in alarms)


def test_every_state_is_watched_and_older_ones_go_first() -> None:
    starving = Starvation(3)
    starving.emit("place", "old", Place.WAITING)
    starving.emit("place", "old", Place.PREFILL)
    starving.emit("place", "old", Place.PARKED)
    starving.emit("place", "new", Place.WAITING)
    starving.emit("place", "new", Place.PREFILL)
    starving.emit("place", "new", Place.WAITING)
    starving.emit("use", "s", "new")
    starving.emit("close_session", "s")
    for _ in range(3):
        starving.emit("mark", "step")
    assert starving.alarms == []
    starving.emit("place", "old", Place.OUT)
    for _ in range(3):
        starving.emit("mark", "step")
    assert starving.alarms == [], "somebody older left: new has had its right of way for three steps only"
    starving.emit("mark", "step")
    found = {(a.who, a.state, a.since_step, a.since_event, a.steps) for a in starving.alarms}
    assert found == {
        ("request new", "live", 0, 4, 4),
        ("request new", "retracted", 0, 6, 4),
        ("session s", "closing", 0, 8, 4),
    }
    assert str(starving.alarms[0]) == "request new is live since step 0 (event 4): nobody older has left for 4 steps"
    starving.emit("mark", "step")
    assert len(starving.alarms) == 3, "each wait is told once"


def test_a_wait_that_ends_in_time_is_forgotten() -> None:
    starving = Starvation(2)
    starving.emit("place", "a", Place.WAITING)
    starving.emit("mark", "step")
    starving.emit("place", "a", Place.PREFILL)
    starving.emit("place", "a", Place.OUT)
    for _ in range(5):
        starving.emit("mark", "step")
    assert starving.alarms == []


def test_a_bound_of_no_step_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one step"):
        Starvation(0)


@pytest.mark.parametrize("seed", range(12))
def test_the_engine_decides_as_the_policies_say(seed: int) -> None:
    """The youngest gives way, or by another key at least never the oldest; nobody is admitted in that step.

    FirstCome admits in the order of arrival.
    """
    program = random_program(seed, 60)
    ages: dict[str, int] = {}
    places: dict[str, Place] = {}
    gave_way = False
    for event in run_program(program).events:
        if event.name == "mark":
            gave_way = False
        if event.name != "place":
            continue
        name, there = event.args
        here = places.get(name, Place.OUT)
        if here is Place.OUT:
            ages[name] = event.number
        holders = [r for r, q in places.items() if q >= Place.PREFILL]
        waiting = [r for r, q in places.items() if q is Place.WAITING]
        if there is Place.WAITING and here is not Place.OUT:
            assert name != min(holders, key=ages.__getitem__)
            if program.config.retraction == "youngest":
                assert name == max(holders, key=ages.__getitem__)
            gave_way = True
        if there is Place.PREFILL and here is Place.WAITING:
            assert not gave_way
            if program.config.policy == "first_come":
                assert name == min(waiting, key=ages.__getitem__)
        places[name] = there
