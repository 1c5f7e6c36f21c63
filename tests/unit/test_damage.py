"""What an observation shows as damaged, pool by pool, and the law state that a monitor goes on from."""

from collections.abc import Mapping

import pytest

from freehold.impl.damage import Damage, assess, law_state
from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.observe import Observation
from freehold.model_check.content import ContentExecutor
from freehold.spec.monitor import Monitor
from freehold.spec.trace import Header
from freehold.spec.verdict import Kind, Verdict

Facts = Mapping[str, set[tuple[int | str, ...]]]
HEADER = Header(page_size=4, pages=6, rows=3, row_width=16, swa_pages=4, state_slots=3, window=4, in_flight=True)
# Request a holds record 1 in row 1: page 1 is the tree's, page 2 its own, each with its half, and state slot 1 runs.
# Session s has saved record 2 in row 2, page 3 and slot 2. Page 4 waits for loan 9.
SOUND: Facts = {
    "kv": {("a", 1)}, "slot_kv": {("s", 2)}, "row_of": {(1, 1), (2, 2)}, "row_free": {(3,)},
    "in_tree": {(1,)}, "locks": {(1, 1)}, "owns": {(1, 2), (2, 3)}, "maps": {(1, 1), (1, 2), (2, 3)},
    "held": {(4,)}, "free": {(5,), (6,)}, "peer": {(1, 1), (2, 2), (3, 3)}, "swa_free": {(4,)}, "swa_held": set(),
    "state": {(1, 1), (2, 2)}, "slot_free": {(3,)}, "out": {(9,)}, "reads": {(9, 4)},
}  # fmt: skip


def seen(more: Facts | None = None, less: Facts | None = None, conflicts: tuple[str, ...] = ()) -> Observation:
    relations = {name: set(facts) - (less or {}).get(name, set()) for name, facts in SOUND.items()}
    for name, facts in (more or {}).items():
        relations.setdefault(name, set()).update(facts)
    observation = Observation(conflicts=list(conflicts))
    observation.relations = relations
    return observation


def verdict(unit: str = "the scheduler", kind: Kind = "excess") -> Verdict:
    return Verdict("rule", "clause", 1, "event", kind, unit, ())


def test_a_sound_state_has_no_damage() -> None:
    assert not assess(seen(), HEADER, verdict(), {})


@pytest.mark.parametrize(
    ("observation", "units", "holders"),
    [
        (seen(more={"free": {(2,)}}), {"full": {2}}, ((), (), False)),
        (seen(more={"owns": {(2, 2)}}), {"full": {2}}, (("a",), ("s",), True)),
        (seen(more={"owns": {(2, 1)}}), {"full": {1}}, (("a",), ("s",), True)),
        (seen(less={"free": {(5,)}}), {"full": {5}}, ((), (), False)),
        (seen(less={"held": {(4,)}}), {"full": {4}}, ((), (), False)),
        (seen(more={"held": {(3,)}}), {"full": {3}}, ((), ("s",), True)),
        (seen(more={"swa_free": {(1,)}}), {"swa": {1}}, ((), (), False)),
        (seen(more={"peer": {(6, 3)}}), {"swa": {3}}, ((), ("s",), True)),
        (seen(less={"swa_free": {(4,)}}), {"swa": {4}}, ((), (), False)),
        (seen(more={"state": {(2, 1)}}), {"state": {1}}, (("a",), ("s",), True)),
        (seen(more={"row_free": {(2,)}}), {"row": {2}}, ((), (), False)),
        (seen(more={"row_of": {(2, 1)}}), {"row": {1}}, (("a",), ("s",), True)),
        (seen(conflicts=("page 6 is on the free stack 2 times",)), {"full": {6}}, ((), (), False)),
        (seen(conflicts=("page 2 is in the row of record 1 2 times",)), {"full": {2}}, (("a",), (), True)),
        (seen(conflicts=("swa page 2 is on the free stack 2 times",)), {"swa": {2}}, ((), (), False)),
        (seen(conflicts=("record 1 has a hole in its row at page 1 of 2",)), {}, ((), (), False)),
    ],
)  # fmt: skip
def test_it_names_units_and_who_cannot_be_trusted(
    observation: Observation, units: dict[str, set[int]], holders: tuple[tuple[str, ...], tuple[str, ...], bool]
) -> None:
    damage = assess(observation, HEADER, verdict(), {})
    assert (damage.units, (damage.requests, damage.sessions, damage.tree)) == (units, holders)


def test_the_verdicts_unit_counts_unless_it_is_about_order() -> None:
    assert assess(seen(), HEADER, verdict("swa page 3"), {}).units == {"swa": {3}}
    assert assess(seen(), HEADER, verdict("state slot 3", "deficit"), {}).units == {"state": {3}}
    assert not assess(seen(), HEADER, verdict("page 3", "order"), {})


def test_what_is_under_quarantine_is_no_news() -> None:
    observation = seen(less={"free": {(5,), (6,)}})
    assert assess(observation, HEADER, verdict("page 6"), {"full": {6}}).units == {"full": {5}}


def test_what_an_observation_does_not_speak_of_is_not_lost() -> None:
    observation = seen()
    del observation.relations["state"], observation.relations["slot_free"]
    assert not assess(observation, HEADER, verdict(), {})


def test_damage_is_told_in_one_line() -> None:
    damage = Damage({"full": {3, 4, 7}, "row": {1}}, ("a",), ("s",), tree=True)
    assert str(damage) == "under quarantine: full 3-4,7; row 1; not to be trusted: a, s, the prefix tree"
    assert str(Damage({})) == "under quarantine: nothing; not to be trusted: nobody"


def test_units_that_nobody_has_are_in_no_pool_of_the_law() -> None:
    monitor = Monitor(HEADER)
    observation = seen(less={"free": {(5,)}, "swa_free": {(4,)}, "row_free": {(3,)}}, more={"maps": {(1, 5)}})
    state = law_state(observation, monitor.law, monitor.compiled.state())
    universe = {sort.__name__: elements for sort, elements in state.universe.items()}
    assert universe == {
        "Page": [1, 2, 3, 4, 6], "SwaPage": [1, 2, 3], "StateSlot": [1, 2, 3], "Row": [1, 2],
        "Record": [1, 2], "Request": ["a"], "Session": ["s"], "Loan": [9],
    }  # fmt: skip
    assert state.relations["written"] == {(1,)}
    monitor.compiled.load(state)
    assert monitor.compiled.properties["no_page_leaks"]()


def test_what_the_structures_do_not_say_is_believed_as_before() -> None:
    monitor = Monitor(HEADER)
    monitor.compiled.values["T"][1] = 7
    before = monitor.compiled.state()
    before.relations["spoilt"] = {(1,)}
    state = law_state(seen(), monitor.law, before)
    assert (state.functions["T"], state.relations["spoilt"]) == ({1: 7}, {(1,)})


def test_of_a_sound_engine_it_is_the_state_that_the_monitor_has() -> None:
    config = EngineConfig(page_size=4, num_pages=12, max_context_tokens=32, max_running=3, chunk_tokens=8)
    header = Header(page_size=4, pages=12, rows=6, row_width=32)
    monitor = Monitor(header)
    engine = Engine(config, lambda table: ContentExecutor(table, 12, 4), sink=monitor)
    engine.open_session("s")
    for turn in range(3):
        engine.submit([turn, 3], session_id="s", max_new_tokens=3)
        engine.submit([1] * 9 + [turn], max_new_tokens=4)
        engine.submit([1] * 7 + [turn], max_new_tokens=12)
        while engine.busy:
            engine.step()
            now = monitor.compiled.state()
            state = law_state(engine.observe(), monitor.law, now)
            assert state.relations == now.relations
            for name, values in now.functions.items():
                if name != "pos":  # of a free page it means nothing
                    assert {x: v for x, v in state.functions[name].items() if v} == values
            assert {s.__name__: set(xs) for s, xs in state.universe.items()} == {
                s.__name__: set(xs) for s, xs in now.universe.items()
            }
    assert monitor.verdict is None
