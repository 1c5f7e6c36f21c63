"""The real scheduler in a simulated world: a clock that jumps, a device that is late or fails, clients that hang up.

Everything that happens comes from a script: what clients do before each step, and what goes wrong with each forward
pass. A script comes from a seed or from a file, and is all that a run depends on, so the same script gives the same
event log, byte for byte. The forward pass runs as late as its fence allows, on what the pages really hold.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import Flight, ForwardBatch
from freehold.impl.scheduling.request import FinishReason, Request, StepOutput
from freehold.model_check.content import ContentExecutor, Shape, continuation
from freehold.spec.errors import FreeholdError, InvalidInput
from freehold.spec.monitor import Monitor
from freehold.spec.observed import compare
from freehold.spec.trace import Event, TraceWriter

Happening = tuple[Any, ...]
"""What a client does: a method of `World` and its arguments."""

SESSIONS = 3
ALPHABET = 3


class WentWrong(FreeholdError):
    """A simulated run broke a rule, lost a unit, said a wrong token or got stuck; the message says which."""


@dataclass(frozen=True, slots=True)
class Script:
    """A whole run as plain data.

    steps: what clients do before each step of the engine. passes: what goes wrong with each forward pass, by its
    number: `late` (seconds until its fence), `fails` (launch or forward), `during` (what clients do meanwhile).
    """

    config: EngineConfig
    steps: tuple[tuple[Happening, ...], ...]
    passes: dict[int, dict[str, Any]] = field(default_factory=dict)

    def to_json(self) -> str:
        """The script for a file."""
        return json.dumps({"config": asdict(self.config), "steps": self.steps, "passes": self.passes})

    @classmethod
    def from_json(cls, text: str) -> Script:
        """Raises InvalidInput when the text is no script."""
        try:
            data = json.loads(text)
            steps = tuple(tuple(tuple(each) for each in step) for step in data["steps"])
            passes = {int(number): dict(what) for number, what in data["passes"].items()}
            return cls(EngineConfig(**data["config"]), steps, passes)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInput(
                f"not a script: an object with config, steps and passes was expected ({error})"
            ) from error


class SimClock:
    """Time that moves when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        """Seconds since the start of the run."""
        return self.now_s


@dataclass(slots=True)
class LateFlight:
    """A forward pass whose fence is passed at `due_s`: whoever waits for it moves the clock there."""

    inner: Flight
    clock: SimClock
    due_s: float
    meanwhile: Callable[[], None]

    def ready(self) -> bool:
        """Whether the fence is passed."""
        return self.clock.now_s >= self.due_s

    def result(self) -> list[int | None]:
        """What clients do meanwhile happens first; then the step ends as it must."""
        self.meanwhile()
        self.clock.now_s = max(self.clock.now_s, self.due_s)
        return self.inner.result()


class SimulatedExecutor(ContentExecutor):
    """Computes with what the pages hold, late, and not always.

    failed: ids of the requests whose forward pass was made to fail.
    """

    def __init__(self, tables: KvTables, script: Script, clock: SimClock, act: Callable[[Sequence[Happening]], None]):
        config = script.config
        super().__init__(
            tables, config.page_size, Shape(config.window_tokens, config.num_state_slots > 0), config.num_state_slots
        )
        self.failed: set[str] = set()
        self.passes = 0
        self._script, self._clock, self._act = script, clock, act
        self._doomed: list[ForwardBatch] = []
        self.before = self._fail

    def launch(self, batch: ForwardBatch) -> LateFlight:  # type: ignore[override]
        """Raises what the script says; else the step is under way."""
        self.passes += 1
        plan = self._script.passes.get(self.passes, {})
        if plan.get("fails"):
            self.failed.update(item.request_id for item in batch.items)
        if plan.get("fails") == "launch":
            raise RuntimeError("the device took no step")
        if plan.get("fails") == "forward":
            self._doomed.append(batch)
        self.batches.clear()
        due_s = self._clock.now_s + 0.01 + plan.get("late", 0.0)
        happenings = [tuple(each) for each in plan.get("during", ())]
        return LateFlight(super().launch(batch), self._clock, due_s, lambda: self._act(happenings))

    def _fail(self, batch: ForwardBatch) -> None:
        if batch in self._doomed:
            raise RuntimeError("the device is gone")


@dataclass(slots=True, eq=False)
class _Client:
    """A request as its client knows it: the tokens that it goes on from, and the one right output."""

    request: Request
    before: list[int]
    output: list[int]
    session: str | None
    said: list[int] = field(default_factory=list)
    aborted: bool = False


class World:
    """One run: the engine, its clients and what they know. `run` raises WentWrong."""

    def __init__(self, script: Script, log: Callable[[Event], None] | None = None) -> None:
        """`log` hears of every event."""
        self.script, self.config, self.clock = script, script.config, SimClock()
        self.shape = Shape(self.config.window_tokens, self.config.num_state_slots > 0)
        self.monitor, self._log = Monitor(self.config.header), log
        self.engine = Engine(self.config, self._make_executor, clock=self.clock, sink=self)
        self.histories: dict[str, list[int]] = {}
        self.live: dict[str, _Client] = {}
        self.steps = self.requests = 0
        self.ends: dict[str, int] = {}

    def emit(self, name: str, *args: Any) -> None:
        """The engine's events go to the monitor."""
        event = Event(self.monitor.count + 1, name, args)
        if self._log:
            self._log(event)
        self.monitor.feed(event)

    def _make_executor(self, tables: KvTables) -> SimulatedExecutor:
        self.executor = SimulatedExecutor(tables, self.script, self.clock, self._act)
        return self.executor

    def run(self) -> World:
        """The script to its end, then everything drained, closed and flushed; nothing may be left."""
        for happenings in self.script.steps:
            self._act(happenings)
            self._step()
        patience = (len(self.live) + 2) * (self.config.max_running + 1) * (self.config.max_context_tokens + 2)
        while self.engine.busy:
            self._step()
            patience -= 1
            if not patience:
                raise WentWrong(f"{len(self.live)} requests do not end: {[*self.live]}")
        self._close_all()
        return self

    def _act(self, happenings: Sequence[Happening]) -> None:
        for name, *args in happenings:
            try:
                getattr(self, name)(*args)
            except InvalidInput:
                continue  # refused: the session is not there, is busy or closing, or the prompt is too long

    # What clients do --------------------------------------------------------------------------------------------------

    def submit(self, prompt: list[int], new_tokens: int, priority: int) -> None:
        """Ask for a continuation."""
        self._ask(None, [], prompt, new_tokens, priority=priority)

    def turn(self, session: int, prompt: list[int], new_tokens: int, kept: float) -> None:
        """Ask for a session's next turn, going on from a share of its history."""
        name = f"s{session}"
        history = self.histories.get(name, [])
        length = len(history) if kept >= 1 else int(kept * len(history))
        self._ask(name, history[:length], prompt, new_tokens, session_id=name, rewind_to=length)

    def _ask(self, session: str | None, before: list[int], prompt: list[int], new_tokens: int, **how: Any) -> None:
        request = self.engine.submit(prompt, max_new_tokens=new_tokens, **how)
        whole = [*before, *prompt]
        self.live[request.id] = _Client(request, whole, continuation(whole, new_tokens, shape=self.shape), session)
        self.requests += 1

    def open(self, session: int) -> None:
        """Open a session."""
        self.engine.open_session(f"s{session}")
        self.histories[f"s{session}"] = []

    def close(self, session: int) -> None:
        """Close a session, in use or not."""
        self.engine.close_session(f"s{session}")

    def abort(self, pick: int) -> None:
        """Hang up on somebody, wherever it is."""
        names = [*self.live]
        if names:
            name = names[pick % len(names)]
            self.live[name].aborted = True
            self.engine.abort(name)

    def wait(self, seconds: float) -> None:
        """Nothing happens for a while."""
        self.clock.now_s += seconds

    def flush(self) -> None:
        """Empty the cache, where nobody runs."""
        self.engine.flush()

    # What must hold ---------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        for output in self.engine.step():
            self._hear(output)
        self.steps += 1
        if self.monitor.verdict:
            raise WentWrong(str(self.monitor.verdict))

    def _hear(self, output: StepOutput) -> None:
        client = self.live[output.request_id]
        if output.token is not None:
            client.said.append(output.token)
        if client.said != client.output[: len(client.said)]:
            raise WentWrong(f"request {output.request_id} said {client.said}, not {client.output}")
        if output.finish_reason:
            self._end(client, output.finish_reason)

    def _end(self, client: _Client, reason: FinishReason) -> None:
        del self.live[client.request.id]
        self.ends[reason] = self.ends.get(reason, 0) + 1
        whole = reason in (FinishReason.STOP, FinishReason.LENGTH)
        if whole and client.said != client.output:
            raise WentWrong(f"request {client.request.id} ended with {client.said}, not {client.output}")
        due = {
            FinishReason.ABORT: client.aborted,
            FinishReason.ERROR: client.request.id in self.executor.failed,
            FinishReason.TIMEOUT: self.config.limits.timeouts,
        }
        if not due.get(reason, True):
            raise WentWrong(
                f"request {client.request.id} ended with {reason}, and nobody asked: {client.request.error}"
            )
        if whole and client.session:
            self.histories[client.session] = client.before + client.output

    def _close_all(self) -> None:
        engine, cache = self.engine, self.engine.cache
        for name in [*cache.sessions.slots]:
            engine.close_session(name)
        engine.flush()
        self._step()
        seen = engine.observe()
        state = {**seen.relations, **seen.functions, "conflicts": seen.conflicts}
        verdict = self.monitor.verdict or compare(
            Event(self.monitor.count, "observe", (state,)), state, self.monitor.compiled
        )
        if verdict:
            raise WentWrong(str(verdict))
        pools = {"pages": cache.pages.full, "swa pages": cache.pages.swa, "state slots": cache.states.pool}
        for name, pool in pools.items():
            if pool.free_pages != pool.num_pages:
                raise WentWrong(f"{pool.free_pages} of {pool.num_pages} {name} are free when everything has ended")
        if len(cache.rows.free_rows) != self.config.geometry.num_rows:
            raise WentWrong("rows are missing when everything has ended")


def replay_file(path: Path, trace: Path | None = None) -> str:
    """Run a kept script, with its event log to `trace`; what is wrong with it in words, empty when nothing is.

    Raises InvalidInput when the file can't be read or holds no script.
    """
    try:
        script = Script.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: {error}; give the path of a kept script") from error
    with TraceWriter(trace, script.config.header) if trace else nullcontext() as log:
        try:
            World(script, (lambda event: log.emit(event.name, *event.args)) if log else None).run()
        except WentWrong as error:
            return str(error)
    return ""


# Scripts from a seed --------------------------------------------------------------------------------------------------


def random_script(seed: int, steps: int = 24) -> Script:
    """A small engine of any kind, clients that share beginnings, a device that is often late and sometimes fails."""
    draw = random.Random(seed)
    config = _random_config(draw)
    stems = [[draw.randrange(ALPHABET) for _ in range(config.max_context_tokens)] for _ in range(2)]
    happenings = [
        tuple(_happening(draw, config, stems) for _ in range(draw.choice([0, 1, 1, 2]))) for _ in range(steps)
    ]
    happenings[0] = (*(("open", session) for session in range(SESSIONS)), *happenings[0])
    passes: dict[int, dict[str, Any]] = {}
    for number in range(1, 3 * steps):
        dice = draw.random()
        if dice < 0.10:
            passes[number] = {"fails": draw.choice(["launch", "forward"])}
        elif dice < 0.25:
            passes[number] = {"late": draw.choice([0.05, 1.0, 30.0])}
        elif dice < 0.45:
            passes[number] = {"during": [_disturbance(draw, config, stems)]}
    return Script(config, tuple(happenings), passes)


def _random_config(draw: random.Random) -> EngineConfig:
    page_size = draw.choice([1, 2, 4])
    context = {1: 12, 2: 20, 4: 32}[page_size]
    rows, running = -(-context // page_size), draw.randint(1, 4)
    kind = draw.choice(["full", "full", "window", "window", "state"])
    window = draw.choice([1, 3, 6])
    timeouts = draw.random() < 0.3
    config = EngineConfig(
        page_size=page_size, num_pages=rows + draw.randint(0, rows), max_context_tokens=context, max_running=running,
        chunk_tokens=draw.choice([3, 8, 24]), num_rows=running + draw.randint(0, 2),
        policy=draw.choice(["first_come", "first_come", "longest_prefix", "priority"]),
        retraction=draw.choice(["youngest", "youngest", "length", "priority"]),
        overlap=kind != "state" and draw.random() < 0.7,
        waiting_timeout_s=20.0 if timeouts else None, running_timeout_s=50.0 if timeouts else None,
        session_timeout_s=15.0 if timeouts else None,
    )  # fmt: skip
    if kind == "window":
        least = min(rows, -(-window // page_size) + 2)
        return replace(config, window_tokens=window, num_swa_pages=least + draw.randint(0, rows))
    return replace(config, num_state_slots=running + draw.randint(0, 3)) if kind == "state" else config


def _happening(draw: random.Random, config: EngineConfig, stems: list[list[int]]) -> Happening:
    room = config.max_context_tokens
    new = draw.randint(1, room // 3)
    dice = draw.random()
    if dice < 0.5:
        return ("submit", draw.choice(stems)[: draw.randint(1, room - new)], new, draw.randrange(3))
    if dice < 0.8:
        return _turn(draw, room, stems)
    return _disturbance(draw, config, stems)


def _turn(draw: random.Random, room: int, stems: list[list[int]]) -> Happening:
    kept = draw.choice([1.0, 1.0, 1.0, 0.6, 0.3, 0.0])
    return (
        "turn",
        draw.randrange(SESSIONS),
        draw.choice(stems)[: draw.randint(1, room // 4)],
        draw.randint(1, 4),
        kept,
    )


def _disturbance(draw: random.Random, config: EngineConfig, stems: list[list[int]]) -> Happening:
    name = draw.choice(["abort", "abort", "abort", "close", "open", "turn", "wait", "flush"])
    if name == "turn":
        return _turn(draw, config.max_context_tokens, stems)
    if name == "flush":
        return (name,)
    return (name, draw.choice([1.0, 16.0]) if name == "wait" else draw.randrange(4))
