"""Who is admitted, who gives way, how much room is kept, and who ran out of time."""

from typing import Any

import pytest
from unit.stepped import Stepped, text

from freehold.impl.engine import EngineConfig
from freehold.impl.scheduling.policy import least_done, least_urgent, victim, youngest
from freehold.impl.scheduling.pressure import Pressure
from freehold.impl.scheduling.request import FinishReason, Request
from freehold.spec.errors import InvalidInput, RuleBroken
from freehold.spec.state import Place


def order_of_admission(engine: Stepped) -> list[str]:
    """Who computed their first chunk, in order."""
    return list(dict.fromkeys(event[1] for event in engine.events("place") if event[2] is Place.PREFILL))


def crowded(**options: Any) -> Stepped:
    """An engine that keeps no room at first, so that it lets in more than can finish."""
    engine = Stepped(num_pages=12, chunk_tokens=32, **options)
    engine.scheduler.pressure = Pressure(engine.config.geometry, start=0.0, floor=0.0)
    return engine


def retracted(engine: Stepped, most_steps: int = 1000) -> list[str]:
    """Who gave way, in order, until all are out."""
    names: list[str] = []
    for _ in range(most_steps):
        if not engine.engine.busy:
            return names
        running = {request.id: request.arrival for request in engine.scheduler.queues.holders()}
        engine.events()
        engine.step()
        gone = [e[1] for e in engine.events("place") if e[2] is Place.WAITING]
        assert min(running, key=lambda name: running[name], default="") not in gone
        names += gone
    raise AssertionError("requests are live still")


def test_priority_admits_the_most_urgent_first_and_equals_in_the_order_of_arrival() -> None:
    engine = Stepped(policy="priority", max_running=1)
    for name, priority in {"low": 0, "high": 5, "middle": 1, "high too": 5}.items():
        engine.submit(text(1, 4), request_id=name, priority=priority, max_new_tokens=2, publishes=False)
    engine.run()
    assert order_of_admission(engine) == ["high", "high too", "middle", "low"]


def test_first_come_does_not_look_at_priority() -> None:
    engine = Stepped(max_running=1)
    for name, priority in {"low": 0, "high": 5}.items():
        engine.submit(text(1, 4), request_id=name, priority=priority, max_new_tokens=2)
    engine.run()
    assert order_of_admission(engine) == ["low", "high"]


def request_of(engine: Stepped, name: str, arrival: int, prompt: int, output: int, priority: int) -> Request:
    request = Request(name, text(1, prompt), context_tokens=48, priority=priority)
    request.arrival = arrival
    for _ in range(output):
        request.append(0)
    return request


@pytest.mark.parametrize(("key", "gives_way"), [(youngest, "d"), (least_done, "b"), (least_urgent, "c")])
def test_each_key_names_its_victim_and_none_of_them_the_oldest(key: Any, gives_way: str) -> None:
    engine = Stepped()
    holders = [
        request_of(engine, "a", 0, prompt=20, output=0, priority=-9),  # the first in every respect, and the oldest
        request_of(engine, "b", 1, prompt=9, output=2, priority=3),
        request_of(engine, "c", 2, prompt=9, output=7, priority=0),
        request_of(engine, "d", 3, prompt=4, output=2, priority=3),
    ]
    assert victim(holders, key).id == gives_way
    assert victim(reversed(holders), key).id == gives_way
    with pytest.raises(RuleBroken, match="pages have leaked"):
        victim(holders[:1], key)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("retraction", ["youngest", "length", "priority"])
def test_retraction_never_takes_the_oldest_and_everybody_finishes(retraction: str, overlap: bool) -> None:
    engine = crowded(retraction=retraction, overlap=overlap)
    for n in range(5):
        engine.submit(text(n, 6 - n), request_id=f"r{n}", priority=n, max_new_tokens=30)
    names = retracted(engine)
    assert len(names) > 2
    assert all(len(request.output) == 30 for request in engine.requests)


@pytest.mark.parametrize(("retraction", "first"), [("youngest", "r3"), ("length", "r2"), ("priority", "r1")])
def test_who_gives_way_first_is_as_configured(retraction: str, first: str) -> None:
    engine = crowded(retraction=retraction)
    for n, (prompt, priority) in enumerate([(4, -5), (4, 1), (8, 2), (4, 2)]):
        engine.submit(text(n, prompt), request_id=f"r{n}", priority=priority, max_new_tokens=36, publishes=False)
    assert retracted(engine)[0] == first


def test_the_share_falls_with_each_step_that_goes_well_down_to_a_floor() -> None:
    pressure = Pressure(EngineConfig().geometry, start=0.1, floor=0.05)
    shares = []
    for _ in range(40):
        pressure.step_went_well()
        shares.append(pressure.share)
    assert shares == sorted(shares, reverse=True)
    assert 0.05 < shares[0] < 0.1
    assert shares[-1] == 0.05


def test_the_share_jumps_when_somebody_gave_way_but_never_above_all_of_it() -> None:
    pressure = Pressure(EngineConfig().geometry, start=0.4)
    before = pressure.share
    pressure.somebody_gave_way()
    assert pressure.share > before + 0.1
    for _ in range(9):
        pressure.somebody_gave_way()
    assert pressure.share == 1.0


def test_the_room_kept_is_the_share_of_what_may_be_generated_and_at_least_a_page() -> None:
    geometry = EngineConfig(page_size=4, max_context_tokens=64, window_tokens=8, num_swa_pages=16).geometry
    request = Request("r", text(1, 10), context_tokens=64, max_new_tokens=39)
    rooms = [Pressure(geometry, start=share).between(10, request) for share in (0.0, 0.5, 1.0)]
    assert [room.pages for room in rooms] == [1, 5, 9]  # to 11, to 30 and to 48 tokens: the last one is never written
    assert [room.halves for room in rooms] == [1, 3, 3]  # behind the window they go free again
    assert Pressure(geometry, start=0.5).between(40, request).pages == 1


def test_the_share_follows_what_happens_to_the_requests() -> None:
    engine = Stepped(num_pages=12)
    for n in range(4):
        engine.submit(text(n, 3), max_new_tokens=40)
    risen = fallen = 0
    while engine.engine.busy:
        share = engine.scheduler.pressure.share
        engine.events()
        engine.step()
        gave_way = any(event[2] is Place.WAITING for event in engine.events("place"))
        assert (engine.scheduler.pressure.share > share) == gave_way
        risen += gave_way
        fallen += engine.scheduler.pressure.share < share
    assert risen > 0
    assert fallen > 0


def test_a_high_share_keeps_a_second_request_out_that_a_low_one_lets_in() -> None:
    for share, place in ((1.0, Place.WAITING), (0.1, Place.RUNNING)):
        engine = Stepped(num_pages=16)
        engine.scheduler.pressure = Pressure(engine.config.geometry, start=share)
        engine.submit(text(1, 6), max_new_tokens=40)
        engine.step()
        second = engine.submit(text(2, 6), max_new_tokens=40)
        engine.step()
        assert second.place is place
        engine.run()


# Time


def test_who_waits_too_long_for_a_first_token_ends_and_those_that_run_go_on() -> None:
    engine = Stepped(max_running=1, waiting_timeout_s=5.0)
    runs = engine.submit(text(1, 4), request_id="runs", max_new_tokens=9)
    engine.step()
    waits = engine.submit(text(2, 4), request_id="waits", max_new_tokens=9)
    engine.clock.seconds = 5.0
    engine.step()
    assert waits.place is Place.WAITING
    engine.clock.seconds = 5.5
    engine.step()
    assert (waits.finish_reason, waits.output, waits.error) == (FinishReason.TIMEOUT, [], None)
    engine.run()
    assert len(runs.output) == 9


def test_who_had_a_token_and_gave_way_does_not_wait_too_long() -> None:
    engine = Stepped(num_pages=12, waiting_timeout_s=5.0)
    for n in range(2):
        engine.submit(text(n, 3), max_new_tokens=40)
    retracted_once = False
    while engine.engine.busy:
        engine.step()
        if engine.requests[1].place is Place.WAITING:
            retracted_once = True
            engine.clock.seconds = 100.0
    assert retracted_once
    assert all(request.finish_reason is FinishReason.LENGTH for request in engine.requests)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_who_takes_too_long_in_all_ends_wherever_it_is(steps: int, overlap: bool) -> None:
    engine = Stepped(running_timeout_s=5.0, chunk_tokens=8, overlap=overlap)
    late = engine.submit(text(1, 14), max_new_tokens=20, publishes=False)
    engine.clock.seconds = 2.0
    for _ in range(steps):
        engine.step()
    young = engine.submit(text(2, 4), max_new_tokens=6, publishes=False)
    engine.clock.seconds = 6.0
    engine.step()
    assert (late.finish_reason, late.kv, late.finished_s) == (FinishReason.TIMEOUT, None, 6.0)
    engine.run()
    assert len(young.output) == 6
    assert engine.cache.free_pages == 32


def test_a_turn_that_ran_out_of_time_leaves_its_session_as_it_was() -> None:
    engine = Stepped(running_timeout_s=5.0)
    engine.engine.open_session("s")
    engine.submit(text(1, 6), session_id="s", max_new_tokens=3)
    engine.run()
    engine.submit([1, 2], session_id="s", max_new_tokens=20)
    engine.step()
    engine.clock.seconds = 6.0
    engine.step()
    slot = engine.cache.sessions.find("s")
    assert (slot.turn, slot.kv is None, len(slot.history)) == (None, False, 9)


@pytest.mark.parametrize("name", ["waiting_timeout_s", "running_timeout_s", "session_timeout_s"])
def test_a_timeout_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="above 0 seconds"):
        Stepped(**{name: 0.0})


# Flush


@pytest.mark.parametrize("overlap", [False, True])
def test_flush_is_refused_while_anybody_runs_or_anything_is_in_flight(overlap: bool) -> None:
    engine = Stepped(overlap=overlap)
    prompt = text(1, 9)
    right = engine.right_after(prompt, 3)
    engine.submit(prompt, stop_ids=[right[-1]], max_new_tokens=9)
    while engine.engine.busy:
        engine.step()
        if engine.engine.busy:
            with pytest.raises(InvalidInput, match="wait until they have finished"):
                engine.engine.flush()
            engine.check()
    assert len(engine.seen("in_tree")) == 2
    engine.engine.flush()
    engine.check()
    assert engine.seen("in_tree") == set()
    assert engine.cache.free_pages == 32


def test_flush_empties_the_tree_with_all_that_hangs_on_it_and_sessions_stay_open() -> None:
    for pools in ({"window_tokens": 8, "num_swa_pages": 20}, {"num_state_slots": 8}):
        engine = Stepped(**pools)
        engine.engine.open_session("s")
        engine.submit(text(1, 14), max_new_tokens=7)
        first = engine.submit(text(2, 6), session_id="s", max_new_tokens=3)
        engine.run()
        engine.engine.flush()
        engine.check()
        pages = engine.cache.pages
        assert (pages.full.free_pages, pages.swa.free_pages) == (32, pages.swa.num_pages)
        assert engine.cache.states.pool.free_pages == engine.cache.states.pool.num_pages
        assert engine.submit(text(1, 14), max_new_tokens=2).output == []
        turn = engine.submit([1], session_id="s", max_new_tokens=3)
        engine.run()
        assert engine.starts_of(engine.requests[2])[0] == 0
        assert (engine.starts_of(turn)[0], turn.prompt_tokens) == (0, first.length_tokens + 1)


def test_flush_while_requests_only_wait_is_no_harm() -> None:
    engine = Stepped()
    request = engine.submit(text(1, 9), max_new_tokens=3)
    engine.engine.flush()
    engine.run()
    assert len(request.output) == 3


# Admission


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("pools", [{}, {"window_tokens": 8, "num_swa_pages": 12}])
def test_a_request_that_fits_alone_but_not_beside_pinned_sessions_gets_in(pools: dict[str, int], overlap: bool) -> None:
    engine = Stepped(num_pages=12, max_running=3, overlap=overlap, **pools)
    for n in range(3):
        engine.engine.open_session(f"s{n}")
        engine.submit(text(n, 12), session_id=f"s{n}", max_new_tokens=4)
        engine.run()
    assert engine.cache.free_pages == 0
    request = engine.submit(text(9, 40), max_new_tokens=8)
    engine.run()
    assert len(request.output) == 8
    for n in range(3):
        engine.submit([n], session_id=f"s{n}", max_new_tokens=3)
    engine.run()
    assert all(request.finish_reason is FinishReason.LENGTH for request in engine.requests)


@pytest.mark.parametrize("overlap", [False, True])
def test_alone_a_request_gets_in_that_leaves_no_room_for_anything_more(overlap: bool) -> None:
    engine = Stepped(num_pages=12, chunk_tokens=48, overlap=overlap)
    engine.submit(text(1, 47), max_new_tokens=1)
    engine.submit(text(2, 47), max_new_tokens=1)
    engine.run()
    assert [len(request.output) for request in engine.requests] == [1, 1]


def test_turns_that_wait_for_each_others_sessions_all_get_in() -> None:
    engine = Stepped(num_pages=12, max_running=3)
    for n in range(3):
        engine.engine.open_session(f"s{n}")
        engine.submit(text(n, 12), session_id=f"s{n}", max_new_tokens=4)
        engine.run()
    for n in range(3):
        engine.submit(text(5, 8), session_id=f"s{n}", max_new_tokens=20)
    engine.run()
    assert all(len(request.output) == 20 for request in engine.requests[3:])


def test_the_first_that_does_not_fit_is_not_passed_over() -> None:
    engine = Stepped(num_pages=12)
    engine.submit(text(1, 20), max_new_tokens=12)
    engine.step()
    engine.submit(text(2, 44), request_id="large", max_new_tokens=2)
    engine.submit(text(3, 1), request_id="small", max_new_tokens=1)
    engine.run()
    assert order_of_admission(engine)[1:] == ["large", "small"]


def test_an_unknown_policy_or_retraction_is_refused() -> None:
    with pytest.raises(InvalidInput, match="first_come, longest_prefix, priority"):
        Stepped(policy="luck")
    with pytest.raises(InvalidInput, match="youngest, length, priority"):
        Stepped(retraction="luck")
