"""The simulated world: same script, same log; planted bugs show; what failed is shrunk and replays from a file."""

from collections.abc import Callable
from typing import Any

import pytest

from freehold.impl.memory.cache import KvCache
from freehold.impl.memory.flights import Flights
from freehold.impl.memory.states import StateSlots
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.model_check.campaign import campaign, run, run_part, shrunk
from freehold.model_check.simulate import Script, World, random_script
from freehold.spec.errors import InvalidInput
from freehold.spec.trace import Event


def log_of(script: Script) -> bytes:
    events: list[Event] = []
    World(script, events.append).run()
    return "\n".join(map(str, events)).encode()


def test_a_script_gives_the_same_log_byte_for_byte_from_its_seed_and_from_its_file() -> None:
    for seed in (3, 4, 9):
        log = log_of(random_script(seed))
        assert len(log) > 1000
        assert log_of(random_script(seed)) == log
        assert log_of(Script.from_json(random_script(seed).to_json())) == log
    assert log_of(random_script(3)) != log_of(random_script(4))


def test_a_file_that_is_no_script_is_refused() -> None:
    for text in ("", "[]", '{"config": {}}', '{"config": {"page_size": 3}, "steps": [], "passes": {}}'):
        with pytest.raises(InvalidInput):
            Script.from_json(text)


def test_scenarios_of_every_kind_hold_and_every_end_is_seen() -> None:
    found = campaign(range(300), processes=1)
    assert [failure.text for failure in found.failures] == []
    assert found.scenarios == 300
    assert set(found.ends) == {"length", "abort", "error", "timeout"}
    assert found.passes > 3000


def no_hold(self: Flights, units: Any) -> Any:
    return units


def keeps_on(self: Scheduler, request: Any, reason: Any, error: Any = None) -> Any:
    raise RuntimeError("nobody is let go")


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (Flights, "hold_pages", no_hold),
        (Flights, "hold_halves", no_hold),
        (KvCache, "slide", lambda self, kv: None),
        (StateSlots, "give_up", lambda self, kv: setattr(kv, "state", None)),
        (Scheduler, "abandon", keeps_on),
    ],
)
def test_a_bug_shows_and_its_script_shrinks(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, wrong: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    failure = next(f for first in range(0, 400, 20) for f in run_part(range(first, first + 20)).failures)
    small = shrunk(failure.script, failure.text, attempts=60)
    assert run(small)[1]
    assert sum(map(len, small.steps)) < sum(map(len, random_script(failure.seed).steps))
    monkeypatch.undo()
    assert run(small)[1] == ""
