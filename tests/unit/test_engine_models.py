"""The engine over real architectures with tiny random weights: the tokens of transformers, whatever happens on the way.

One scene goes through prefix hits, chunks, windows that move on, retraction, an abort, and a session that rewinds.
After each step the monitor has judged every event, the structures equal the law's state, and everything that is free
is filled with NaN. Greedy tokens in float32 must equal those of transformers' own cache.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor
from unit.paged_bench import generated
from unit.tiny_models import NAMES, RECURRENT, SLIDING, prompt, tiny

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.execution.batch import ForwardStep
from freehold.impl.execution.canary import Canary, ContentBroken
from freehold.impl.execution.canary_runner import CanaryRunner
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.execution.page_map import PageMap
from freehold.impl.execution.poison import poison
from freehold.impl.execution.worker import Worker
from freehold.impl.memory import cache as cache_module
from freehold.impl.memory.cache import KvCache
from freehold.impl.memory.states import StateSlots
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import Executor
from freehold.impl.scheduling.request import FinishReason, Request
from freehold.impl.scheduling.scheduler import ExecutionFailed
from freehold.impl.serving.assembly import poison_free
from freehold.spec.errors import RuleBroken
from freehold.spec.monitor import Monitor
from freehold.spec.observed import compare
from freehold.spec.state import Place
from freehold.spec.trace import Event, single_events

CONTEXT_TOKENS = 40
NEW_TOKENS = 9


class Watched:
    """An engine over a tiny model, watched and poisoned after each step; use it as a context manager."""

    def __init__(self, name: str, page_size: int, overlap: bool, canary: bool = False, **sizes: Any) -> None:
        self.name, (self.model, window) = name, tiny(name)
        pages = -(-CONTEXT_TOKENS // page_size)
        pools: dict[str, Any] = {}
        if window:
            pools = {"window_tokens": window, "num_swa_pages": -(-window // page_size) * 4 + 6}
        if name in RECURRENT:
            pools["num_state_slots"] = 5
        default = {"num_pages": pages + pages // 2, "max_running": 3, "chunk_tokens": 7, "num_rows": 5}
        self.config = EngineConfig(
            page_size=page_size, max_context_tokens=CONTEXT_TOKENS, overlap=overlap, **{**default, **pools, **sizes}
        )
        self.monitor, self.counts = Monitor(self.config.header), Counter[str]()
        self.places: dict[Any, Place] = {}
        self.canary = canary
        self.finite = True  # all logits so far
        self.engine = Engine(self.config, self.make_executor, sink=self)

    def make_executor(self, tables: KvTables) -> Executor:
        config = self.config
        self.runner = ModelRunner(
            self.model, tables, page_size=config.page_size, num_state_slots=config.num_state_slots
        )
        logits = self.runner.logits

        def looked_at(step: ForwardStep) -> Tensor:
            found = logits(step)
            self.finite &= bool(found.isfinite().all())
            return found

        self.runner.logits = looked_at  # type: ignore[method-assign]
        checked = CanaryRunner(self.runner, Canary(tables, config.page_size, config.window_tokens))
        self.executor = checked if self.canary else self.runner
        return Worker(self.executor) if config.overlap else self.executor

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *exc: object) -> None:
        executor = self.engine.scheduler.executor
        if isinstance(executor, Worker):
            executor.close()

    def emit(self, name: str, *args: Any) -> None:
        event = Event(self.monitor.count + 1, name, args)
        for single in single_events(event):
            self.counts[single.name] += 1
        if name == "place":
            self.counts["retract"] += args[1] is Place.WAITING and self.places.get(args[0], Place.OUT) is not Place.OUT
            self.places[args[0]] = args[1]
        self.monitor.feed(event)

    def ask(self, tokens: tuple[int, ...], new_tokens: int = NEW_TOKENS, **how: Any) -> Request:
        return self.engine.submit(list(tokens), max_new_tokens=new_tokens, **how)

    def step(self) -> None:
        self.engine.step()
        seen = self.engine.observe()
        state = {**seen.relations, **seen.functions, "conflicts": seen.conflicts}
        event = Event(self.monitor.count + 1, "observe", (state,))
        verdict = self.monitor.verdict or compare(event, state, self.monitor.compiled)
        assert verdict is None, str(verdict)
        self.poison()

    def poison(self) -> None:
        poison_free(self.runner, self.engine.cache)
        poison(self.runner.storage, [0], [0])

    def run(self) -> None:
        while self.engine.busy:
            self.step()

    def right(self, tokens: tuple[int, ...], new_tokens: int = NEW_TOKENS) -> list[int]:
        return generated(self.name, tokens, new_tokens)


def play(watched: Watched) -> list[tuple[list[int], list[int]]]:
    """The scene; what each request said, and what is right."""
    watched.poison()
    long, short = prompt(24, 1), prompt(11, 2)
    shared = (*long[:16], *prompt(6, 3))
    said: list[tuple[Request, list[int]]] = [(watched.ask(long), watched.right(long))]
    for _ in range(5):
        watched.step()
    said += [(watched.ask(tokens), watched.right(tokens)) for tokens in (shared, short)]
    doomed = watched.ask(prompt(13, 4))
    while not doomed.output and watched.engine.busy:
        watched.step()
    watched.engine.abort(doomed.id)
    watched.run()
    assert doomed.finish_reason is FinishReason.ABORT
    many = [prompt(5, seed) for seed in (8, 9, 10)]  # admitted together, though the pool has no room for all they say
    said += [(watched.ask(tokens, 30), watched.right(tokens, 30)) for tokens in many]
    watched.run()
    watched.engine.open_session("s")
    history: tuple[int, ...] = ()
    for number, (kept, new) in enumerate(((0, prompt(9, 5)), (17, prompt(3, 6)), (10, prompt(4, 7)))):
        history = (*history[:kept], *new)
        turn = watched.ask(new, 8, session_id="s", rewind_to=kept if number else None)
        watched.run()
        right = watched.right(history, 8)
        said.append((turn, right))
        history = (*history, *right)
    watched.engine.close_session("s")
    again = watched.ask(long)
    watched.run()
    said.append((again, watched.right(long)))
    return [(request.output, right) for request, right in said]


CASES = [
    pytest.param(name, page_size, overlap, id=f"{name}-{page_size}-{'overlap' if overlap else 'in turn'}")
    for name in NAMES
    for page_size, overlap in ((1, False), (4, False), (1, True), (4, True))
    if not (overlap and name in RECURRENT)
]


@pytest.mark.parametrize(("name", "page_size", "overlap"), CASES)
def test_greedy_tokens_are_those_of_transformers_whatever_happens(name: str, page_size: int, overlap: bool) -> None:
    with Watched(name, page_size, overlap) as watched:
        for said, right in play(watched):
            assert said == right
        assert watched.finite
        counts, config = watched.counts, watched.config
        taken = ["attach", "evict", "transfer_to_session", "transfer_to_request", "retract"]
        taken += ["window_drop", "pair"] if config.window_tokens else []
        taken += ["load_state", "checkpoint_state", "take_state"] if config.num_state_slots else []
        taken += ["lend", "loan_close"] if overlap else []
        assert [path for path in taken if not counts[path]] == []


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", SLIDING)
def test_a_swa_pool_that_is_too_small_for_all_makes_tombstones_and_right_tokens(name: str, overlap: bool) -> None:
    _, window = tiny(name)
    with Watched(name, 1, overlap, num_swa_pages=window + 9, num_pages=90) as watched:
        prompts = [prompt(20, seed) for seed in range(4)]
        requests = [watched.ask(tokens) for tokens in prompts]
        watched.step()
        assert watched.places[requests[-1].id] is Place.WAITING, "the full pool has room for it, the swa pool has not"
        watched.run()
        again = watched.ask(prompts[0])
        watched.run()
        assert [r.output for r in requests] == [watched.right(tokens) for tokens in prompts]
        assert again.output == watched.right(prompts[0])
        assert watched.finite
        assert watched.counts["evict_peer"]


def test_who_is_aborted_in_flight_leaves_its_pages_to_nobody_until_the_step_has_landed() -> None:
    with Watched("llama", 1, True, num_pages=60) as watched:
        stays, doomed = watched.ask(prompt(9, 1), 20), watched.ask(prompt(9, 2), 20, publishes=False)
        while not doomed.output:
            watched.step()
        assert watched.engine.scheduler.flights
        watched.engine.abort(doomed.id)
        watched.run()
        assert doomed.finish_reason is FinishReason.ABORT
        assert stays.output == watched.right(prompt(9, 1), 20)
        assert watched.finite


def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache gives swa pages back when a next token still looks back on the last position in them."""
    right = cache_module.window_cursor
    monkeypatch.setattr(cache_module, "window_cursor", lambda tokens, window, size: right(tokens, window - 1, size))


def talk(watched: Watched) -> tuple[Request, list[int]]:
    """One request, several windows long, whose KV nobody shares; poisoned after each step, judged by nobody."""
    tokens = prompt(20, 1)
    watched.poison()
    request = watched.ask(tokens, publishes=False)
    while watched.engine.busy:
        watched.engine.step()
        watched.poison()
    assert watched.counts["window_drop"]
    return request, watched.right(tokens)


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("name", SLIDING)
def test_a_window_that_is_a_token_too_short_shows_in_the_tokens(
    name: str, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PageMap, "check", lambda *_: None)  # it would refuse the step before the poison shows
    if short:
        short_windows(monkeypatch)
    with Watched(name, 1, False) as watched:
        request, right = talk(watched)
        assert (request.output != right) == short
        assert watched.finite != short


@pytest.mark.parametrize("name", SLIDING)
def test_a_window_that_is_a_token_too_short_is_refused_by_the_executor_and_the_law(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_windows(monkeypatch)
    with Watched(name, 1, False) as watched:
        request, _ = talk(watched)
        assert isinstance(request.error, ExecutionFailed)
        assert isinstance(request.error.__cause__, RuleBroken)
        assert "no swa page" in str(request.error.__cause__)
        assert watched.monitor.verdict is not None


@pytest.mark.parametrize("name", RECURRENT)
def test_a_fork_without_its_state_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: StateSlots, kv: Any, page: int) -> None:
        self._sink.emit("load_state", kv.id, kv.state, page, self.snapshots[page])

    monkeypatch.setattr(StateSlots, "load", load)
    with Watched(name, 4, False) as watched:
        tokens = prompt(24, 1)
        first = watched.ask(tokens)
        watched.run()
        second = watched.ask(tokens)
        watched.run()
        assert first.output == watched.right(tokens)
        assert watched.counts["load_state"]
        assert second.output != first.output


@pytest.mark.parametrize("name", RECURRENT)
def test_poison_fills_the_free_state_slots_and_no_other(name: str) -> None:
    with Watched(name, 4, False) as watched:
        watched.ask(prompt(24, 1))
        watched.step()
        pool, states = watched.engine.cache.states.pool, watched.runner.states
        free = pool.stack[: pool.free_pages].tolist()
        held = sorted(set(range(1, watched.config.num_state_slots + 1)) - set(free))
        assert free
        assert held
        assert states
        for state in states.tensors():
            assert state[free].isnan().all()
            assert state[held].isfinite().all()
        watched.run()


def swap_rows(cache: KvCache) -> None:
    table = cache.rows.page_table
    first, second = sorted(cache.rows.bound)[:2]
    table[[first, second], 0] = table[[second, first], 0]


def renew_generation(cache: KvCache) -> None:
    page = cache.rows.page_table[min(cache.rows.bound), 0]
    cache.pages.full.generations[page] += 1


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("disturb", [swap_rows, renew_generation])
def test_content_of_somebody_else_ends_its_readers_and_nobody_else(
    disturb: Callable[[KvCache], None], overlap: bool
) -> None:
    with Watched("llama", 4, overlap, canary=True, num_pages=40, max_running=2) as watched:
        quiet = watched.ask(prompt(9, 1))
        watched.run()
        assert quiet.output == watched.right(prompt(9, 1))
        requests = [watched.ask(prompt(9, seed), publishes=False) for seed in (2, 3)]
        waits = watched.ask(prompt(9, 4))
        for _ in range(4):
            watched.engine.step()
        disturb(watched.engine.cache)
        watched.engine.run_until_idle()
        for request in requests:
            assert isinstance(request.error, ExecutionFailed)
            assert isinstance(request.error.__cause__, ContentBroken)
        assert waits.output == watched.right(prompt(9, 4))
        assert watched.engine.cache.pages.full.free_pages + watched.engine.cache.tree.unlocked_pages == 40
