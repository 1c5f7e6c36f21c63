"""A planted bug in the real engine under each policy: what is said, what is taken, and that the engine lives on."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from freehold.cli import app
from freehold.impl import containment
from freehold.impl.containment import Containment, InvariantBroken, Policy, contain
from freehold.impl.damage import Damage, as_logged
from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.execution.canary import Canary
from freehold.impl.memory.arrays import Pages
from freehold.impl.memory.events import NullSink
from freehold.impl.memory.pool import PagePool
from freehold.impl.memory.record import KvRecord
from freehold.impl.memory.tables import KvTables
from freehold.impl.observe import Observation
from freehold.impl.scheduling.ports import ForwardBatch
from freehold.impl.scheduling.request import FinishReason, Request, StepOutput
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.model_check.content import ContentExecutor, LazyFlight, Shape, continuation
from freehold.spec.errors import InvalidInput, RuleBroken
from freehold.spec.observed import compare
from freehold.spec.trace import BadTrace, Event, read

CONFIG = EngineConfig(page_size=4, num_pages=32, max_context_tokens=32, max_running=4, chunk_tokens=32, num_rows=8)
AHEAD = replace(CONFIG, overlap=True, window_tokens=6, num_swa_pages=24)
CONFIGS = pytest.mark.parametrize("config", [CONFIG, AHEAD], ids=["plain", "overlap and window"])
Plant = Callable[["Contained"], None]


class Contained(Engine):
    """An engine that remembers what was damaged."""

    def __init__(self, sink: Containment, config: EngineConfig) -> None:
        shape = Shape(config.window_tokens)
        super().__init__(config, lambda tables: ContentExecutor(tables, 4, shape), sink=sink, containment=sink)
        self.shape, self.sink, self.pool, self.damage = shape, sink, self.cache.pages.full, list[Damage]()

    def _end_damaged(self, damage: Damage) -> list[StepOutput]:
        self.damage.append(damage)
        return super()._end_damaged(damage)

    def ask(self, seed: int, tokens: int = 8) -> Request:
        """A request for `tokens` tokens after nine that no other seed has."""
        return self.submit([seed * 9 + position for position in range(9)], max_new_tokens=tokens)


def plant_bug(pool: PagePool, verb: str, bug: Callable[[Any, Any], Any]) -> None:
    """The next time that the pool's `alloc` or `free` has something to do, `bug(right, argument)` takes its place."""
    right = getattr(pool, verb)

    def once(argument: Any) -> Any:
        if not np.any(argument):
            return right(argument)
        setattr(pool, verb, right)
        return bug(right, argument)

    setattr(pool, verb, once)


def first_record(engine: Contained) -> KvRecord:
    kv = next(iter(engine.scheduler.queues.all())).kv
    assert kv is not None
    return kv


def give_away(pool: PagePool, unit: int) -> None:
    """The next unit that is given out is this one, whoever has it."""

    def give(right: Callable[[int], Pages], count: int) -> Pages:
        units = right(count)
        units[0] = unit
        return units

    plant_bug(pool, "alloc", give)


def page_given_to_two(engine: Contained) -> None:
    """The next page that is given out belongs to the first request."""
    give_away(engine.pool, int(engine.cache.rows.page_table[first_record(engine).row, 2]))


def half_given_to_two(engine: Contained) -> None:
    """The next swa page that is given out belongs to the first request."""
    give_away(
        engine.cache.pages.swa, int(engine.cache.pages.peers[engine.cache.rows.page_table[first_record(engine).row, 2]])
    )


def half_lost(engine: Contained) -> None:
    """The next time that swa pages are given out, one more goes to nobody."""
    plant_bug(engine.cache.pages.swa, "alloc", lambda right, count: [right(count), right(1)][0])


def page_freed_twice(engine: Contained) -> None:
    """The next page that comes back does so twice."""

    def twice(right: Callable[[Pages], None], pages: Pages) -> None:
        right(pages)
        right(pages[:1])

    plant_bug(engine.pool, "free", twice)


def page_lost(engine: Contained) -> None:
    """The next time that pages are given out, one goes to nobody."""
    plant_bug(engine.pool, "alloc", lambda right, count: np.concatenate([right(count)[:-1], right(1)]))


def row_bound_twice(engine: Contained) -> None:
    """The next row that is bound belongs to the first request."""
    engine.cache.rows.free_rows.append(first_record(engine).row)


def contained(policy: Policy, directory: Path, config: EngineConfig = CONFIG, **options: int) -> Contained:
    sink = contain(config.header, policy, directory=directory / "dumps", **options)
    assert isinstance(sink, Containment)
    return Contained(sink, config)


def serve(engine: Contained, plant: Plant) -> tuple[list[Request], list[Request]]:
    """Requests around a bug, until it bites if it ever does, and eight more behind it; all of them have left."""
    around = [engine.ask(1), engine.ask(2)]
    engine.step()
    plant(engine)
    while engine.busy or (len(around) < 20 and not engine.sink.breaches):
        if len(around) < 20 and not engine.sink.breaches:
            around.append(engine.ask(len(around) + 1))
        engine.step()
    later = []
    for seed in (1, 2, 3, 4, 11, 12, 13, 14):
        later.append(engine.ask(seed))
        engine.step()
    engine.run_until_idle()
    return around, later


def wrong(engine: Contained, requests: list[Request]) -> list[Request]:
    """Those that did not end with the one right continuation."""
    return [
        request
        for request in requests
        if request.finish_reason is not FinishReason.LENGTH
        or request.output != continuation(request.tokens(0, request.prompt_tokens).tolist(), 8, shape=engine.shape)
    ]


def assert_in_step(engine: Contained) -> None:
    """The monitor and the engine agree on everything, but for what lies under quarantine."""
    monitor = engine.sink.monitor
    assert monitor.verdict is None
    assert compare(Event(1, "observe", ({},)), as_logged(engine.observe()), monitor.compiled) is None
    assert all(prop() for prop in monitor.compiled.properties.values())


def test_off_has_no_monitor(tmp_path: Path) -> None:
    assert isinstance(contain(CONFIG.header, Policy.OFF, directory=tmp_path), NullSink)


@CONFIGS
def test_without_a_bug_nothing_is_said_or_taken(
    config: EngineConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = contained(Policy.DUMP, tmp_path, config, observe_every=1)
    around, later = serve(engine, lambda engine: None)
    assert wrong(engine, around + later) == []
    assert (caplog.records, engine.damage, list(tmp_path.iterdir())) == ([], [], [])
    assert not engine.sink.breaches
    assert_in_step(engine)


@CONFIGS
@pytest.mark.parametrize("observe_every", [0, 1])
@pytest.mark.parametrize("plant", [page_given_to_two, page_freed_twice, page_lost, row_bound_twice])
def test_dump_ends_those_concerned_and_the_engine_lives_on(
    plant: Plant, observe_every: int, config: EngineConfig, tmp_path: Path
) -> None:
    engine = contained(Policy.DUMP, tmp_path, config, observe_every=observe_every)
    around, later = serve(engine, plant)
    assert wrong(engine, later) == []
    assert all(request.finish_reason is FinishReason.ERROR for request in wrong(engine, around))
    if plant is page_lost and not observe_every:
        assert not engine.damage  # no event tells of it
        return
    assert engine.damage
    assert_in_step(engine)
    assert 1 <= sum(engine.sink.breaches.values()) == len(engine.sink.dumps) <= 2
    state, withheld = engine.observe().relations, engine.pool.withheld
    free, in_tree = ({page for (page,) in state[name]} for name in ("free", "in_tree"))
    assert not free & withheld
    assert free | in_tree | withheld >= set(range(1, CONFIG.num_pages + 1))
    assert 1 <= len(withheld) <= (7 if plant is row_bound_twice else 3)  # a row with two records: all pages of both
    assert engine.cache.rows.withheld == ({1} if plant is row_bound_twice else set())


@pytest.mark.parametrize("plant", [half_given_to_two, half_lost])
def test_swa_pages_go_under_quarantine_too(plant: Plant, tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path, AHEAD, observe_every=1)
    around, later = serve(engine, plant)
    assert wrong(engine, later) == []
    assert len(wrong(engine, around)) == (2 if plant is half_given_to_two else 0)
    assert 1 <= len(engine.cache.pages.swa.withheld) <= 2
    assert_in_step(engine)


def test_both_owners_of_a_page_are_ended_and_nobody_else(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    around, _ = serve(engine, page_given_to_two)
    assert wrong(engine, around) == [around[0], around[2]]
    (damage,) = engine.damage
    assert (damage.requests, damage.sessions, damage.tree) == ((around[0].id, around[2].id), (), True)
    assert damage.units == {"full": {3, 7}}  # the page that two had, and the one that nobody got
    assert {3, 7}.isdisjoint({page for (page,) in engine.observe().relations["free"]})


def test_a_sessions_kv_goes_and_its_history_stays(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    engine.open_session("s")
    first = engine.submit([1, 2, 3], session_id="s", max_new_tokens=4)
    engine.run_until_idle()
    give_away(engine.pool, 1)
    other = engine.ask(1)
    engine.run_until_idle()
    (damage,) = engine.damage
    assert (damage.requests, damage.sessions) == ((other.id,), ("s",))
    assert engine.cache.sessions.find("s").kv is None
    turn = engine.submit([4], session_id="s", max_new_tokens=4)
    engine.run_until_idle()
    assert turn.output == continuation([1, 2, 3, *first.output, 4], 4)
    assert_in_step(engine)


def test_a_page_that_comes_back_from_quarantine_goes_to_nobody(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    engine.ask(1)
    engine.step()
    engine.sink.emit("acquire", 1, [3])  # no such thing happened
    engine.step()
    assert (engine.damage[0].units, engine.damage[0].requests) == ({"full": {3}}, ())
    assert (1, 3) in engine.observe().relations["owns"]
    engine.run_until_idle()
    engine.flush()
    engine.step()
    assert {page for (page,) in engine.observe().relations["free"]} == set(range(1, CONFIG.num_pages + 1)) - {3}
    assert_in_step(engine)
    assert 3 not in engine.sink.monitor.compiled.universe["Page"]
    engine.sink.emit("mark", "quiescent")  # no leak is seen
    assert engine.sink.breaches == {"acquire": 1}


def test_whoever_reads_wrong_kv_is_ended_and_the_page_is_written_again(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    first, twin, other = engine.ask(1), engine.ask(1), engine.ask(2)
    engine.step()
    assert engine.observe().relations["in_tree"] == {(page,) for page in (1, 2, 7, 8)}
    engine.sink.report("content", "request 'request-1' would read stale KV", {"swa": set(), "full": {2}})
    engine.sink.report("content", "request 'request-2' would read stale KV", {"full": {2}})
    engine.step()
    assert engine.observe().relations["in_tree"] == {(7,), (8,)}
    engine.run_until_idle()
    assert {first.finish_reason, twin.finish_reason} == {FinishReason.ERROR}
    assert wrong(engine, [other]) == []
    assert [(damage.units, damage.tree) for damage in engine.damage] == [({}, True)]
    verdict = json.loads(engine.sink.dumps[0].read_text().splitlines()[-1])["verdict"]
    assert (verdict["rule"], verdict["unit"]) == ("content", "page 2")
    assert wrong(engine, serve(engine, lambda engine: None)[1]) == []
    assert_in_step(engine)
    assert engine.sink.breaches == {"content": 1}


@CONFIGS
@pytest.mark.parametrize("policy", [Policy.WARN, Policy.DUMP])
def test_a_step_that_breaks_off_ends_everybody_and_nothing_more(
    policy: Policy, config: EngineConfig, tmp_path: Path
) -> None:
    engine = contained(policy, tmp_path, config)

    def guard(right: Callable[[int], Pages], count: int) -> Pages:
        raise RuleBroken("a guard of the engine")

    around, later = serve(engine, lambda engine: plant_bug(engine.pool, "alloc", guard))
    assert wrong(engine, later) == []
    assert wrong(engine, around) == around
    assert engine.sink.breaches == {"guard": 1}
    assert len(engine.sink.dumps) == (policy is Policy.DUMP)
    assert_in_step(engine)


def test_under_raise_a_step_that_breaks_off_says_why(tmp_path: Path) -> None:
    engine = contained(Policy.RAISE, tmp_path)

    def guard(right: Callable[[int], Pages], count: int) -> Pages:
        raise RuleBroken("a guard of the engine")

    with pytest.raises(RuleBroken, match="a guard of the engine") as caught:
        serve(engine, lambda engine: plant_bug(engine.pool, "alloc", guard))
    assert not isinstance(caught.value, InvariantBroken)


class Marked(ContentExecutor):
    """An executor under the canary, for steps that are not launched ahead."""

    def __init__(self, tables: KvTables) -> None:
        super().__init__(tables, 4)
        self.canary = Canary(tables, 4)

    def launch(self, batch: ForwardBatch) -> LazyFlight:
        self.marks = self.canary.plan(batch)
        return super().launch(batch)

    def _run(self, batch: ForwardBatch, shares: Sequence[Any]) -> list[int | None]:
        self.marks.verify()
        answers = super()._run(batch, shares)
        self.marks.write(torch.tensor([token for item in batch.items for token in item.token_ids]))
        return answers


def test_what_the_canary_sees_ends_its_readers_and_leaves_the_tree(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    executor = engine.scheduler.executor = Marked(engine.cache.tables)
    engine.ask(1)
    engine.run_until_idle()
    marks = executor.canary.pools[0].marks
    marks[8:12] = marks[4:8]  # page 2 has the KV of page 1 now, and no owner counts differ
    reader = engine.ask(1)
    engine.run_until_idle()
    assert (reader.finish_reason, reader.output) == (FinishReason.ERROR, [])
    assert engine.sink.breaches == {"content": 1}
    assert [(damage.units, damage.tree) for damage in engine.damage] == [({}, True)]
    assert wrong(engine, [engine.ask(1), *serve(engine, lambda engine: None)[1]]) == []
    assert_in_step(engine)


def test_a_pool_that_cannot_withhold_keeps_its_units(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    engine.ask(1)
    engine.step()
    engine.sink.emit("acquire", 1, [3])
    engine.sink.settle(engine.scheduler, {}, engine.damage.append)
    assert (engine.damage, engine.sink.withheld) == ([], {})
    engine.run_until_idle()
    assert_in_step(engine)


def test_warn_says_each_rule_once_and_touches_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = contained(Policy.WARN, tmp_path, observe_every=1)
    _, later = serve(engine, page_lost)
    assert wrong(engine, later) == []
    assert engine.sink.breaches == {"observe": 1}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "free(9): the events have it, the engine doesn't" in record.getMessage()
    assert (engine.damage, list(tmp_path.iterdir()), engine.pool.withheld) == ([], [], frozenset())
    assert_in_step(engine)


def test_under_warn_a_page_with_two_owners_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = contained(Policy.WARN, tmp_path)
    around, later = serve(engine, page_given_to_two)
    assert {request.finish_reason for request in around + later} == {FinishReason.LENGTH}
    assert len(caplog.records) == len(engine.sink.breaches) >= 1
    assert engine.sink.breach is None


def test_raise_ends_the_step_when_it_is_whole(tmp_path: Path) -> None:
    engine = contained(Policy.RAISE, tmp_path)
    with pytest.raises(InvariantBroken, match="each page is free") as caught:
        serve(engine, page_given_to_two)
    verdict = caught.value.verdict
    assert (verdict.rule, verdict.unit, caught.value.exit_code) == ("acquire", "page 3", 1)
    assert engine.sink.count > verdict.event_number
    assert all(request.kv for request in engine.scheduler.queues.holders())
    with pytest.raises(InvariantBroken):
        engine.step()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("plant", "observe_every"), [(page_given_to_two, 0), (page_lost, 1), (row_bound_twice, 0)])
def test_a_dump_is_a_log_that_check_reads_to_the_verdict(plant: Plant, observe_every: int, tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path, observe_every=observe_every)
    serve(engine, plant)
    path = engine.sink.dumps[0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    verdict = lines[-1]["verdict"]
    assert path.name == f"breach-{verdict['rule']}-{verdict['event_number']}.jsonl"
    answer = CliRunner().invoke(app, ["check", "--json", str(path)])
    assert answer.exit_code == 1
    found = json.loads(answer.stdout)["verdict"]
    assert {**found, "owners": verdict["owners"]} == verdict
    assert [*path.parent.glob("*.part")] == []


def test_a_dump_that_begins_in_the_middle_says_so(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path, ring_events=6)
    serve(engine, page_given_to_two)
    path = engine.sink.dumps[0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    last = lines[-1]["verdict"]["event_number"]
    assert [line["n"] for line in lines[1:-1]] == list(range(last - 5, last + 1))
    answer = CliRunner().invoke(app, ["check", str(path)])
    assert (answer.exit_code, "event number 1 was expected" in answer.output) == (2, True)
    with pytest.raises(BadTrace):
        list(read(path)[1])


def test_a_dump_that_cannot_be_written_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    engine = contained(Policy.DUMP, tmp_path / "file")  # no directory can be made below it
    _, later = serve(engine, page_given_to_two)
    assert wrong(engine, later) == []
    assert engine.sink.dumps == []
    assert "could not be written" in caplog.text


def test_an_event_that_cannot_be_read_is_a_breach(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    engine.sink.emit("place")
    assert engine.sink.breach is not None
    assert engine.sink.breach.clause.startswith("the event can be read")
    _, later = serve(engine, lambda engine: None)
    assert wrong(engine, later) == []
    assert_in_step(engine)


def test_structures_that_cannot_be_read_stop_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = contained(Policy.DUMP, tmp_path)

    def lost(scheduler: Scheduler) -> Observation:
        raise KeyError(3)

    monkeypatch.setattr(containment, "observe", lost)
    _, later = serve(engine, page_given_to_two)
    assert {request.finish_reason for request in later} == {FinishReason.LENGTH}
    assert "could not be contained" in caplog.text
    assert engine.sink.breach is not None


def test_a_breach_in_every_step_is_no_flood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containment, "MAX_DUMPS", 6)
    engine = contained(Policy.DUMP, tmp_path)
    for step in range(3000):
        engine.sink.emit("commit", 77, 5)
        engine.step()
        if step == 3:
            assert engine.sink.breaches == {"commit": 4}
    assert engine.sink.breaches == {"commit": 15}
    numbers = [int(path.stem.split("-")[-1]) for path in engine.sink.dumps]
    assert numbers[:5] == [1, 4, 7, 10, 13]  # each step also marks its end, and that nothing runs
    assert len(numbers) == 6
    assert sum("is broken" in record.getMessage() for record in caplog.records) == 1
    while engine.sink.breach:
        engine.step()
    engine.sink.emit("end_session", "s")
    assert engine.sink.dumps[-1].name.startswith("breach-end_session-")  # the first of another rule


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for policy, options in ((Policy.DUMP, {}), (Policy.WARN, {"ring_events": 0}), (Policy.WARN, {"observe_every": -1})):
        with pytest.raises(InvalidInput):
            contain(CONFIG.header, policy, **options)
    with pytest.raises(InvalidInput):
        Containment(CONFIG.header, Policy.OFF)
