"""The real engine under every check, one verb at a time.

`Checked` is a client that knows what must come out: it keeps its own idea of every conversation, of every right token
and of what must be refused. After each verb it holds the engine against that and against the law, by five checks that
can be switched off one by one; a run in which each catches something that no other does shows that none is decoration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import ForwardBatch
from freehold.impl.scheduling.request import FinishReason, StepOutput
from freehold.model_check.clients import Asked, Talk
from freehold.model_check.content import ContentExecutor, Shape, continuation, right_kv, wrong_row, wrong_tree
from freehold.model_check.probe import Probe
from freehold.model_check.stuck import within
from freehold.model_check.watch import ALL, Check, Violated, Violation, Watch
from freehold.spec.errors import InvalidInput
from freehold.spec.monitor import falsifier
from freehold.spec.observed import compare
from freehold.spec.state import Place
from freehold.spec.trace import Event
from freehold.spec.verdict import Verdict, describe

PATIENCE_S = 10.0
"""How long the engine may take for one verb, which needs some milliseconds: only who loops for ever takes so long."""
_HELD = ("owns", "locks", "maps", "row_of", "kv", "slot_kv", "turn", "peer", "claims", "state", "snapshot", "lent")
_LEFT = ("opened", "closing", "in_tree", "out", "held", "swa_held", "slot_held")


class DeviceLost(RuntimeError):
    """The failure that a program plants in a forward pass."""


class ProgramClock:
    """A `Clock` that stands still until a program waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        """Seconds since the start."""
        return self.seconds


class Checked:
    """An engine, its clients and its checks. Each verb raises `Violated` when a check fails after it."""

    def __init__(self, config: EngineConfig, checks: frozenset[Check] = ALL, probe: Probe | None = None) -> None:
        self.config, self.checks = config, checks
        self.shape = Shape(config.window_tokens, config.num_state_slots > 0)
        self.watch = Watch(config.header, checks, probe)
        self.clock = ProgramClock()
        self.engine = Engine(config, self._make_executor, clock=self.clock, sink=self.watch)
        self.live: dict[str, Asked] = {}
        self.talks: dict[str, Talk] = {}
        self.steps = 0
        self._names = count(1)
        self._disturb: Callable[[ForwardBatch], None] | None = None
        self._failed = self._stopped = False
        self._due: dict[str, tuple[Asked, FinishReason]] = {}
        self._oldest, self._oldest_steps = "", 0

    @property
    def patience_steps(self) -> int:
        """Steps in which the oldest live request must leave, where the policy is first come.

        Of those that hold KV the oldest never gives way and gets a token a step, so it leaves in `max_context_tokens`
        steps; the oldest of all may have to wait for so many, each in turn, as may run at once.
        """
        return (self.config.max_running + 1) * (self.config.max_context_tokens + 1)

    # Verbs -----------------------------------------------------------------------------------------------------------

    def submit(self, prompt: list[int], max_new_tokens: int, publishes: bool, stop: int, priority: int) -> None:
        """Ask for the continuation of `prompt`; `stop` says which right output token is a stop id, -1 for none."""
        self._ask(prompt, max_new_tokens, stop, publishes=publishes, priority=priority)

    def turn(self, session: int, prompt: list[int], max_new_tokens: int, stop: int, back: int) -> None:
        """Ask for the next turn of a session, which first goes back by `back` tokens; -1 to go on from its end.

        Refused where it isn't open, is closing, busy, has fewer tokens than that, or its context is full.
        """
        self._ask(prompt, max_new_tokens, stop, session=f"s{session}", back=back)

    def open(self, session: int) -> None:
        """Open a session; refused when it is open."""
        name = f"s{session}"
        refused = name in self.talks
        if self._do(lambda: self.engine.open_session(name), refused):
            self.talks[name] = Talk(idle_since_s=self.clock.seconds)
        self._look()

    def close(self, session: int) -> None:
        """Close a session; refused when it is not open. A live turn goes on to its end."""
        name = f"s{session}"
        talk = self.talks.get(name)
        self._do(lambda: self.engine.close_session(name), refused=talk is None)
        if talk:
            talk.closing = True
            self._forget(talk)
        self._look()

    def abort(self, pick: int) -> None:
        """Abort a live request, wherever it is; somebody unknown when there is none."""
        names = [*self.live] or ["nobody"]
        self._hang_up(names[pick % len(names)])
        self._look()

    def abort_in_forward(self, pick: int) -> None:
        """Abort one of the next forward pass while it runs."""
        self._disturb = lambda batch: self._hang_up(batch.items[pick % len(batch.items)].request_id)

    def fail(self) -> None:
        """The next forward pass raises."""

        def raises(batch: ForwardBatch) -> None:
            self._failed = True
            raise DeviceLost("the device is gone")

        self._disturb = raises

    def flush(self) -> None:
        """Empty the prefix tree, and what idle sessions saved; refused while a request holds KV or is in flight."""
        state = self.watch.monitor.compiled
        busy = bool(state.pairs["kv"].by_first or state.sets.get("out"))
        self._do(self.engine.flush, busy)
        self._look()

    def wait(self, seconds: int) -> None:
        """Time passes; who has none left ends with the next step."""
        self.clock.seconds += seconds

    def step(self, steps: int) -> None:
        """So many steps of the engine, each with all checks."""
        for _ in range(steps):
            self._failed = False
            self._due, expired = self._ends_due(), self._sessions_due()
            outputs = self._do(self.engine.step)
            self.steps += 1
            for name in expired:
                del self.talks[name]
            left = self._settle(outputs or [])
            self._look(left)

    def drain(self) -> None:
        """Step until no request is live. With nobody new coming, each policy must let all of them end."""
        patience = (len(self.live) + 1) * self.patience_steps
        while self.live and patience and not self._stopped:
            self.step(1)
            patience -= 1
        if self.live and not self._stopped:
            self._report(Check.PROGRESS, f"requests {', '.join(self.live)} never left, with nobody new coming")

    def finish(self) -> None:
        """Drain, close every session, flush, and see that nothing is held."""
        self.drain()
        for name in [*self.talks]:
            self.close(int(name[1:]))
        self.step(1)
        if self.live:
            return  # nobody minds that they don't leave, so they may hold
        self.flush()
        state = self.watch.monitor.compiled
        held = [name for name in _HELD if (pairs := state.pairs.get(name)) and pairs.by_first]
        held += [name for name in _LEFT if state.sets.get(name)]
        if held:
            self._report(Check.MARKS, f"everything has ended, but there is still {', '.join(held)}")

    # How a verb is done ----------------------------------------------------------------------------------------------

    def _make_executor(self, tables: KvTables) -> ContentExecutor:
        self.executor = ContentExecutor(tables, self.config.page_size, self.shape, self.config.num_state_slots)
        self.executor.before = self._before_forward
        return self.executor

    def _before_forward(self, batch: ForwardBatch) -> None:
        disturb, self._disturb = self._disturb, None
        if disturb:
            disturb(batch)

    def _do(self, verb: Callable[[], Any], refused: bool = False) -> Any:
        """The verb's answer, or None where it was refused as it must be. An engine that raised is not asked again."""
        if self._stopped:
            return None
        try:
            with within(PATIENCE_S):
                answer = verb()
        except Exception as error:
            if not (refused and isinstance(error, InvalidInput)):
                self._stopped = True
                self._report_event()
                self._report(Check.PROGRESS, f"{type(error).__name__}: {error}")
            return None
        if refused:
            self._report_event()
            self._report(Check.PROGRESS, f"{answer!r} came back where a refusal was due")
        return answer

    def _ask(
        self,
        prompt: list[int],
        max_new_tokens: int,
        stop: int,
        *,
        session: str | None = None,
        back: int = -1,
        publishes: bool = True,
        priority: int = 0,
    ) -> None:
        talk = self.talks.get(session) if session else None
        history = talk.history if talk else []
        kept = len(history) - max(0, back)
        whole = [*history[: max(0, kept)], *prompt]
        refused = bool(session) and (talk is None or talk.closing or talk.turn is not None or kept < 0)
        refused |= not prompt or len(whole) + max_new_tokens > self.config.max_context_tokens
        output = [] if refused else continuation(whole, max_new_tokens, shape=self.shape)
        stop_ids = [output[stop % len(output)]] if output and stop >= 0 else []
        name = f"r{next(self._names)}"
        request = self._do(
            lambda: self.engine.submit(
                prompt, request_id=name, max_new_tokens=max_new_tokens, stop_ids=stop_ids,
                session_id=session, rewind_to=None if back < 0 else kept, publishes=publishes, priority=priority,
            ),
            refused,
        )  # fmt: skip
        if request and not refused:
            output = continuation(whole, max_new_tokens, stop_ids, self.shape)
            asked = self.live[name] = Asked(request, whole, output, talk, right_kv(whole + output), self.clock.seconds)
            if talk:
                talk.turn = asked
        self._look()

    def _hang_up(self, name: str) -> None:
        if name in self.live:
            self.live[name].aborted = True
        self.engine.abort(name)

    def _ends_due(self) -> dict[str, tuple[Asked, FinishReason]]:
        """Who must end at the top of the next step, and why: its client hung up, or its time is over."""
        due = {}
        for name, asked in self.live.items():
            if asked.aborted:
                due[name] = asked, FinishReason.ABORT
            elif self._is_late(name, asked):
                due[name] = asked, FinishReason.TIMEOUT
        return due

    def _is_late(self, name: str, asked: Asked) -> bool:
        age, config = self.clock.seconds - asked.since_s, self.config
        waits = self.watch.monitor.compiled.values["place"].get(name) == Place.WAITING and not asked.streamed
        limits = [config.running_timeout_s, config.waiting_timeout_s if waits else None]
        return any(limit is not None and age > limit for limit in limits)

    def _sessions_due(self) -> list[str]:
        """Sessions without a live turn whose time is over."""
        limit, now = self.config.session_timeout_s, self.clock.seconds
        if limit is None:
            return []
        return [name for name, talk in self.talks.items() if talk.turn is None and now - talk.idle_since_s > limit]

    def _settle(self, outputs: list[StepOutput]) -> list[Asked]:
        """Take what a step said; those who left with it."""
        for output in outputs:
            if output.token is not None and output.request_id in self.live:
                self.live[output.request_id].streamed.append(output.token)
        left = [asked for asked in self.live.values() if asked.request.finish_reason]
        for asked in left:
            del self.live[asked.request.id]
            if asked.talk:
                asked.talk.turn, asked.talk.idle_since_s = None, self.clock.seconds
                if asked.request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                    asked.talk.history = asked.prompt + asked.output
                self._forget(asked.talk)
        return left

    def _forget(self, talk: Talk) -> None:
        if talk.closing and talk.turn is None:
            self.talks = {name: other for name, other in self.talks.items() if other is not talk}

    # Checks ----------------------------------------------------------------------------------------------------------

    def _look(self, left: list[Asked] | None = None) -> None:
        self._report_event()
        if Check.MARKS in self.checks:
            self._look_at_invariants()
        if Check.OBSERVE in self.checks:
            self._look_at_tensors()
        for check, problems in (
            (Check.CONTENT, self._wrong_content(left or [])),
            (Check.PROGRESS, self._no_progress(left or [])),
        ):
            if check in self.checks:
                try:
                    with within(PATIENCE_S):
                        problem = next(problems, None)
                except Exception as error:  # structures so broken that they can't even be read
                    problem = f"cannot be read: {type(error).__name__}: {error}"
                if problem:
                    self._report(check, problem)

    def _report(self, check: Check, text: str, verdict: Verdict | None = None) -> None:
        if check in self.checks:
            raise Violated(Violation(check, text, verdict, len(self.watch.events)))

    def _report_event(self) -> None:
        violation = self.watch.violation()
        if violation:
            raise Violated(violation)

    def _look_at_invariants(self) -> None:
        compiled = self.watch.monitor.compiled
        for name, prop in self.watch.monitor.law.invariants.items():
            if prop.group in ("always", "step") and not compiled.properties[name]():
                state, event = compiled.state(), self._next_event("mark", "step")
                verdict = describe(name, prop.doc, event, prop.term, falsifier(prop.term, {}, state), {}, state)
                self._report(Check.MARKS, prop.doc, verdict)

    def _look_at_tensors(self) -> None:
        event = self._next_event("observe", {})
        try:
            with within(PATIENCE_S):
                verdict = compare(event, self.observed(), self.watch.monitor.compiled)
        except Exception as error:  # structures so broken that they can't even be read
            self._report(Check.OBSERVE, f"cannot be observed: {type(error).__name__}: {error}")
        else:
            if verdict:
                self._report(Check.OBSERVE, verdict.clause, verdict)

    def _next_event(self, name: str, arg: Any) -> Event:
        """What would show it in the log, if it came next."""
        return Event(len(self.watch.events) + 1, name, (arg,))

    def observed(self) -> Mapping[str, Any]:
        """The engine's true state, in the form of the log's `observe` event."""
        seen = self.engine.observe()
        return {**seen.relations, **seen.functions, "conflicts": seen.conflicts}

    def _wrong_content(self, left: list[Asked]) -> Iterator[str]:
        cache = self.engine.cache
        for asked in (*self.live.values(), *left):
            if wrong := asked.wrong():
                yield wrong
        held = [(f"request {name}", asked.request.kv, asked.kv) for name, asked in self.live.items()]
        for name, talk in self.talks.items():
            slot = cache.sessions.slots.get(name)
            held.append((f"session {name}", slot.kv if slot else None, right_kv(talk.history)))
        for holder, kv, right in held:
            if kv and (
                wrong := wrong_row(self.executor, cache.rows.page_table[kv.row].numpy(), kv.committed_tokens, right)
            ):
                yield f"{holder}: {wrong}"
        yield from wrong_tree(self.executor, cache.tree.root)

    def _no_progress(self, left: list[Asked]) -> Iterator[str]:
        for asked in left:
            reason = asked.request.finish_reason
            if reason in (FinishReason.ABORT, FinishReason.TIMEOUT) and asked.request.id not in self._due:
                yield f"request {asked.request.id} ended by {reason}, and neither its client nor its time wanted that"
            if reason is FinishReason.ERROR and not self._failed:
                yield f"request {asked.request.id} ended with {asked.request.error!r}"
        for asked, reason in self._due.values():
            if asked.request.finish_reason is not reason:
                yield f"request {asked.request.id} was to end by {reason} with this step, and did not"
        if self.engine.cache.sessions.slots.keys() != self.talks.keys():
            yield f"the open sessions are {[*self.engine.cache.sessions.slots]}, and should be {[*self.talks]}"
        if self.config.policy != "first_come":
            return
        oldest = next(iter(self.live), "")
        if oldest != self._oldest:
            self._oldest, self._oldest_steps = oldest, self.steps
        if oldest and self.steps - self._oldest_steps > self.patience_steps:
            yield f"request {oldest}, the oldest one, did not leave in {self.patience_steps} steps"
