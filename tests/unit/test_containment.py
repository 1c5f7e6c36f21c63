"""A planted bug in the real engine under each policy: what is said, what is taken, and that the engine lives on."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from freehold.cli import app
from freehold.impl import containment
from freehold.impl.containment import Containment, InvariantBroken, Policy, contain
from freehold.impl.damage import Damage, as_logged
from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.memory.arrays import Pages
from freehold.impl.memory.events import NullSink
from freehold.impl.memory.pool import PagePool
from freehold.impl.memory.rows import RowPool
from freehold.impl.observe import Observation
from freehold.impl.scheduling.request import FinishReason, Request, StepOutput
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.model_check.content import ContentExecutor, continuation
from freehold.spec.errors import InvalidInput, RuleBroken
from freehold.spec.observed import compare
from freehold.spec.trace import BadTrace, Event, Header, read

CONFIG = EngineConfig(page_size=4, num_pages=32, max_context_tokens=32, max_running=4, chunk_tokens=32, num_rows=8)
HEADER = Header(page_size=4, pages=32, rows=8, row_width=32)
Plant = Callable[["Contained"], None]


class Pool(PagePool):
    """Pages that can be withheld, and two bugs that can be planted: they bite once."""

    withheld: frozenset[int] = frozenset()
    give_away: int | None = None
    lose = free_twice = False

    def alloc(self, count: int) -> Pages:
        pages = super().alloc(count)
        if count and self.lose:
            self.lose = False
            pages = np.concatenate([pages[:-1], super().alloc(1)])
        if count and self.give_away is not None:
            pages[0], self.give_away = self.give_away, None
        return pages

    def free(self, pages: Pages) -> None:
        kept = np.array([page for page in pages.tolist() if page not in self.withheld], np.int32)
        super().free(kept)
        if self.free_twice and len(kept):
            self.free_twice = False
            super().free(kept[:1])

    def withhold(self, units: set[int]) -> None:
        self.withheld |= units
        kept = [page for page in self.stack[: self.free_pages].tolist() if page not in self.withheld]
        self.free_pages = 0
        super().free(np.array(kept[::-1], np.int32))


class Rows(RowPool):
    """Rows that can be withheld."""

    withheld: frozenset[int] = frozenset()

    def unbind(self, row: int) -> None:
        if row not in self.withheld:
            super().unbind(row)

    def withhold(self, units: set[int]) -> None:
        self.withheld |= units
        self.free_rows[:] = [row for row in self.free_rows if row not in self.withheld]


class Contained(Engine):
    """An engine whose step ends with what its containment wants."""

    def __init__(self, sink: Containment) -> None:
        super().__init__(CONFIG, lambda table: ContentExecutor(table, CONFIG.num_pages, CONFIG.page_size), sink=sink)
        self.containment = sink
        self.pool = self.cache.pool = Pool(CONFIG.num_pages)
        self.rows = Rows(CONFIG.geometry.num_rows, CONFIG.geometry.row_pages)
        self.cache.rows.bind, self.cache.rows.unbind = self.rows.bind, self.rows.unbind  # type: ignore[method-assign]
        self.cache.rows.free_rows = self.rows.free_rows
        self.damage: list[Damage] = []

    def step(self) -> list[StepOutput]:
        outputs = super().step()
        self.containment.settle(self.scheduler, {"full": self.pool, "row": self.rows}, self.end)
        return outputs

    def end(self, damage: Damage) -> None:
        """Requests end with an error, sessions lose their KV and keep their history, the tree is emptied."""
        self.damage.append(damage)
        for name in damage.requests:
            request = self.scheduler.queues.find(name)
            if request:
                self.scheduler._abandon(request, FinishReason.ERROR, RuleBroken("its KV can't be trusted"))
        for name in damage.sessions:
            self.cache.reclaim(self.cache.sessions.find(name))
        if damage.tree:
            for pages in self.cache.tree.evict(self.cache.tree.unlocked_pages):
                self.pool.free(pages)
                self.containment.emit("evict", pages.tolist())

    def ask(self, seed: int, tokens: int = 8) -> Request:
        """A request for `tokens` tokens after nine that no other seed has."""
        return self.submit([seed * 9 + position for position in range(9)], max_new_tokens=tokens)


def page_given_to_two(engine: Contained) -> None:
    """The next page that is given out belongs to the first running request."""
    kv = next(engine.scheduler.queues.holders()).kv
    assert kv is not None
    engine.pool.give_away = int(engine.cache.rows.page_table[kv.row, 2])


def page_freed_twice(engine: Contained) -> None:
    """The next page that comes back does so twice."""
    engine.pool.free_twice = True


def row_bound_twice(engine: Contained) -> None:
    """The next row that is bound belongs to the first running request."""
    kv = next(engine.scheduler.queues.holders()).kv
    assert kv is not None
    engine.rows.free_rows.append(kv.row)


def page_lost(engine: Contained) -> None:
    """The next time that pages are given out, one goes to nobody."""
    engine.pool.lose = True


def contained(policy: Policy, directory: Path, **options: int) -> Contained:
    sink = contain(HEADER, policy, directory=directory / "dumps", **options)
    assert isinstance(sink, Containment)
    return Contained(sink)


def serve(engine: Contained, plant: Plant) -> tuple[list[Request], list[Request]]:
    """Requests around a bug, until it bites if it ever does, and eight more behind it; all of them have left."""
    around = [engine.ask(1), engine.ask(2)]
    engine.step()
    plant(engine)
    while engine.busy or (len(around) < 20 and not engine.containment.breaches):
        if len(around) < 20 and not engine.containment.breaches:
            around.append(engine.ask(len(around) + 1))
        engine.step()
    later = []
    for seed in (1, 2, 3, 4, 11, 12, 13, 14):
        later.append(engine.ask(seed))
        engine.step()
    engine.run_until_idle()
    return around, later


def wrong(requests: list[Request]) -> list[Request]:
    """Those that did not end with the one right continuation."""
    return [
        request
        for request in requests
        if request.finish_reason is not FinishReason.LENGTH
        or request.output != continuation(request.tokens(0, request.prompt_tokens).tolist(), 8)
    ]


def assert_in_step(engine: Contained) -> None:
    """The monitor and the engine agree on everything, but for what lies under quarantine."""
    monitor = engine.containment.monitor
    assert monitor.verdict is None
    assert compare(Event(1, "observe", ({},)), as_logged(engine.observe()), monitor.compiled) is None
    assert all(prop() for prop in monitor.compiled.properties.values())


def test_off_has_no_monitor(tmp_path: Path) -> None:
    assert isinstance(contain(HEADER, Policy.OFF, directory=tmp_path), NullSink)


def test_without_a_bug_nothing_is_said_or_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = contained(Policy.DUMP, tmp_path, observe_every=1)
    around, later = serve(engine, lambda engine: None)
    assert wrong(around + later) == []
    assert (caplog.records, engine.damage, list(tmp_path.iterdir())) == ([], [], [])
    assert not engine.containment.breaches
    assert_in_step(engine)


@pytest.mark.parametrize("observe_every", [0, 1])
@pytest.mark.parametrize("plant", [page_given_to_two, page_freed_twice, page_lost, row_bound_twice])
def test_dump_ends_those_concerned_and_the_engine_lives_on(plant: Plant, observe_every: int, tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path, observe_every=observe_every)
    around, later = serve(engine, plant)
    assert wrong(later) == []
    assert all(request.finish_reason is FinishReason.ERROR for request in wrong(around))
    if plant is page_lost and not observe_every:
        assert not engine.damage  # no event tells of it
        return
    assert engine.damage
    assert_in_step(engine)
    assert 1 <= sum(engine.containment.breaches.values()) == len(engine.containment.dumps) <= 2
    state, withheld = engine.observe().relations, engine.pool.withheld
    free, in_tree = ({page for (page,) in state[name]} for name in ("free", "in_tree"))
    assert not free & withheld
    assert free | in_tree | withheld >= set(range(1, CONFIG.num_pages + 1))
    assert 1 <= len(withheld) <= 3
    assert engine.rows.withheld == ({1} if plant is row_bound_twice else set())


def test_both_owners_of_a_page_are_ended_and_nobody_else(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    around, _ = serve(engine, page_given_to_two)
    assert wrong(around) == [around[0], around[2]]
    (damage,) = engine.damage
    assert (damage.requests, damage.sessions, damage.tree) == ((around[0].id, around[2].id), (), True)
    assert damage.units == {"full": {3, 7}}  # the page that two had, and the one that nobody got
    assert {3, 7}.isdisjoint({page for (page,) in engine.observe().relations["free"]})


def test_a_sessions_kv_goes_and_its_history_stays(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    engine.open_session("s")
    first = engine.submit([1, 2, 3], session_id="s", max_new_tokens=4)
    engine.run_until_idle()
    engine.pool.give_away = 1
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
    engine.containment.emit("acquire", 1, [3])  # no such thing happened
    engine.step()
    assert (engine.damage[0].units, engine.damage[0].requests) == ({"full": {3}}, ())
    assert (1, 3) in engine.observe().relations["owns"]
    engine.run_until_idle()
    while engine.cache.tree.unlocked_pages:
        engine.end(Damage({}, tree=True))
    engine.step()
    assert {page for (page,) in engine.observe().relations["free"]} == set(range(1, CONFIG.num_pages + 1)) - {3}
    assert_in_step(engine)
    assert 3 not in engine.containment.monitor.compiled.universe["Page"]
    engine.containment.emit("mark", "quiescent")  # no leak is seen
    assert engine.containment.breaches == {"acquire": 1}


def test_whoever_reads_wrong_kv_is_ended_and_the_page_is_written_again(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    first, twin, other = engine.ask(1), engine.ask(1), engine.ask(2)
    engine.step()
    assert engine.observe().relations["in_tree"] == {(page,) for page in (1, 2, 7, 8)}
    engine.containment.report("content", "request 'request-1' would read stale KV", {"swa": set(), "full": {2}})
    engine.containment.report("content", "request 'request-2' would read stale KV", {"full": {2}})
    engine.step()
    assert engine.observe().relations["in_tree"] == {(7,), (8,)}
    engine.run_until_idle()
    assert {first.finish_reason, twin.finish_reason} == {FinishReason.ERROR}
    assert wrong([other]) == []
    assert [(damage.units, damage.tree) for damage in engine.damage] == [({}, True)]
    verdict = json.loads(engine.containment.dumps[0].read_text().splitlines()[-1])["verdict"]
    assert (verdict["rule"], verdict["unit"]) == ("content", "page 2")
    assert wrong(serve(engine, lambda engine: None)[1]) == []
    assert_in_step(engine)
    assert engine.containment.breaches == {"content": 1}


def test_a_pool_that_cannot_withhold_keeps_its_units(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    engine.ask(1)
    engine.step()
    engine.containment.emit("acquire", 1, [3])
    engine.containment.settle(engine.scheduler, {}, engine.end)
    assert (engine.damage, engine.containment.withheld) == ([], {})
    engine.run_until_idle()
    assert_in_step(engine)


def test_warn_says_each_rule_once_and_touches_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = contained(Policy.WARN, tmp_path, observe_every=1)
    _, later = serve(engine, page_lost)
    assert wrong(later) == []
    assert engine.containment.breaches == {"observe": 1}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "free(9): the events have it, the engine doesn't" in record.getMessage()
    assert (engine.damage, list(tmp_path.iterdir()), engine.pool.withheld) == ([], [], frozenset())
    assert_in_step(engine)


def test_under_warn_a_page_with_two_owners_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = contained(Policy.WARN, tmp_path)
    around, later = serve(engine, page_given_to_two)
    assert {request.finish_reason for request in around + later} == {FinishReason.LENGTH}
    assert len(caplog.records) == len(engine.containment.breaches) >= 1
    assert engine.containment.breach is None


def test_raise_ends_the_step_when_it_is_whole(tmp_path: Path) -> None:
    engine = contained(Policy.RAISE, tmp_path)
    with pytest.raises(InvariantBroken, match="each page is free") as caught:
        serve(engine, page_given_to_two)
    verdict = caught.value.verdict
    assert (verdict.rule, verdict.unit, caught.value.exit_code) == ("acquire", "page 3", 1)
    assert engine.containment.count > verdict.event_number
    assert all(request.kv for request in engine.scheduler.queues.holders())
    with pytest.raises(InvariantBroken):
        engine.step()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("plant", "observe_every"), [(page_given_to_two, 0), (page_lost, 1), (row_bound_twice, 0)])
def test_a_dump_is_a_log_that_check_reads_to_the_verdict(plant: Plant, observe_every: int, tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path, observe_every=observe_every)
    serve(engine, plant)
    path = engine.containment.dumps[0]
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
    path = engine.containment.dumps[0]
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
    assert wrong(later) == []
    assert engine.containment.dumps == []
    assert "could not be written" in caplog.text


def test_an_event_that_cannot_be_read_is_a_breach(tmp_path: Path) -> None:
    engine = contained(Policy.DUMP, tmp_path)
    engine.containment.emit("place")
    assert engine.containment.breach is not None
    assert engine.containment.breach.clause.startswith("the event can be read")
    _, later = serve(engine, lambda engine: None)
    assert wrong(later) == []
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
    assert engine.containment.breach is not None


def test_a_breach_in_every_step_is_no_flood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containment, "MAX_DUMPS", 6)
    engine = contained(Policy.DUMP, tmp_path)
    for step in range(3000):
        engine.containment.emit("commit", 77, 5)
        engine.step()
        if step == 3:
            assert engine.containment.breaches == {"commit": 4}
    assert engine.containment.breaches == {"commit": 15}
    numbers = [int(path.stem.split("-")[-1]) for path in engine.containment.dumps]
    assert numbers[:5] == [1, 4, 7, 10, 13]  # each step also marks its end, and that nothing runs
    assert len(numbers) == 6
    assert sum("is broken" in record.getMessage() for record in caplog.records) == 1
    while engine.containment.breach:
        engine.step()
    engine.containment.emit("end_session", "s")
    assert engine.containment.dumps[-1].name.startswith("breach-end_session-")  # the first of another rule


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for policy, options in ((Policy.DUMP, {}), (Policy.WARN, {"ring_events": 0}), (Policy.WARN, {"observe_every": -1})):
        with pytest.raises(InvalidInput):
            contain(HEADER, policy, **options)
    with pytest.raises(InvalidInput):
        Containment(HEADER, Policy.OFF)
