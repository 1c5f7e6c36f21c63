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
from freehold.model_check.watch import ALL, Check, Violated, Violation, Watch
from freehold.spec.errors import InvalidInput
from freehold.spec.monitor import falsifier
from freehold.spec.observed import compare
from freehold.spec.trace import Event
from freehold.spec.verdict import Verdict, describe


class DeviceLost(RuntimeError):
    """The failure that a program plants in a forward pass."""


class Checked:
    """An engine, its clients and its checks. Each verb raises `Violated` when a check fails after it."""

    def __init__(self, config: EngineConfig, checks: frozenset[Check] = ALL) -> None:
        self.config, self.checks = config, checks
        self.shape = Shape(config.window_tokens, config.num_state_slots > 0)
        self.watch = Watch(config.header, checks)
        self.engine = Engine(config, self._make_executor, sink=self.watch)
        self.live: dict[str, Asked] = {}
        self.talks: dict[str, Talk] = {}
        self.steps = 0
        self._names = count(1)
        self._disturb: Callable[[ForwardBatch], None] | None = None
        self._failed = self._stopped = False
        self._due: list[Asked] = []
        self._oldest, self._oldest_steps = "", 0

    @property
    def patience_steps(self) -> int:
        """Steps in which the oldest live request must leave.

        Of those that hold KV the oldest never gives way and gets a token a step, so it leaves in `max_context_tokens`
        steps; the oldest of all may have to wait for so many, each in turn, as may run at once.
        """
        return (self.config.max_running + 1) * (self.config.max_context_tokens + 1)

    # Verbs -----------------------------------------------------------------------------------------------------------

    def submit(self, prompt: list[int], max_new_tokens: int, publishes: bool, stop: int) -> None:
        """Ask for the continuation of `prompt`; `stop` says which right output token is a stop id, -1 for none."""
        self._ask(prompt, max_new_tokens, stop, None, publishes)

    def turn(self, session: int, prompt: list[int], max_new_tokens: int, stop: int) -> None:
        """Ask for the next turn of a session; refused where it isn't open, is closing, busy, or its context is full."""
        self._ask(prompt, max_new_tokens, stop, f"s{session}", True)

    def open(self, session: int) -> None:
        """Open a session; refused when it is open."""
        name = f"s{session}"
        refused = name in self.talks
        if self._do(lambda: self.engine.open_session(name), refused):
            self.talks[name] = Talk()
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

    def step(self, steps: int) -> None:
        """So many steps of the engine, each with all checks."""
        for _ in range(steps):
            self._failed = False
            self._due = [asked for asked in self.live.values() if asked.aborted]
            outputs = self._do(self.engine.step)
            self.steps += 1
            left = self._settle(outputs or [])
            self._look(left)

    def drain(self) -> None:
        """Step until no request is live."""
        patience = (len(self.live) + 1) * self.patience_steps
        while self.live and patience and not self._stopped:
            self.step(1)
            patience -= 1

    def finish(self) -> None:
        """Drain, close every session, and see that nothing is held but by the tree."""
        self.drain()
        for name in [*self.talks]:
            self.close(int(name[1:]))
        self.step(1)
        if self.live:
            return  # nobody minds that they don't leave, so they may hold
        state = self.watch.monitor.compiled
        pairs = ("owns", "locks", "maps", "row_of", "kv", "slot_kv", "turn")
        held = [name for name in pairs if state.pairs[name].by_first]
        held += [name for name in ("opened", "closing") if state.sets[name]]
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
        """The verb's answer, or None where it was refused as it must be."""
        try:
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

    def _ask(self, prompt: list[int], max_new_tokens: int, stop: int, session: str | None, publishes: bool) -> None:
        talk = self.talks.get(session) if session else None
        whole = [*(talk.history if talk else ()), *prompt]
        refused = bool(session) and (talk is None or talk.closing or talk.turn is not None)
        refused |= not prompt or len(whole) + max_new_tokens > self.config.max_context_tokens
        output = [] if refused else continuation(whole, max_new_tokens, shape=self.shape)
        stop_ids = [output[stop % len(output)]] if output and stop >= 0 else []
        name = f"r{next(self._names)}"
        request = self._do(
            lambda: self.engine.submit(
                prompt, request_id=name, max_new_tokens=max_new_tokens, stop_ids=stop_ids,
                session_id=session, publishes=publishes,
            ),
            refused,
        )  # fmt: skip
        if request and not refused:
            output = continuation(whole, max_new_tokens, stop_ids, self.shape)
            asked = self.live[name] = Asked(request, whole, output, talk, right_kv(whole + output))
            if talk:
                talk.turn = asked
        self._look()

    def _hang_up(self, name: str) -> None:
        if name in self.live:
            self.live[name].aborted = True
        self.engine.abort(name)

    def _settle(self, outputs: list[StepOutput]) -> list[Asked]:
        """Take what a step said; those who left with it."""
        for output in outputs:
            if output.token is not None and output.request_id in self.live:
                self.live[output.request_id].streamed.append(output.token)
        left = [asked for asked in self.live.values() if asked.request.finish_reason]
        for asked in left:
            del self.live[asked.request.id]
            if asked.talk:
                asked.talk.turn = None
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
            if reason is FinishReason.ABORT and not asked.aborted:
                yield f"request {asked.request.id} was aborted, and nobody asked for it"
            if reason is FinishReason.ERROR and not self._failed:
                yield f"request {asked.request.id} ended with {asked.request.error!r}"
        for asked in self._due:
            if asked.request.finish_reason is None:
                yield f"request {asked.request.id} was to be aborted with this step, and is still there"
        oldest = next(iter(self.live), "")
        if oldest != self._oldest:
            self._oldest, self._oldest_steps = oldest, self.steps
        if oldest and self.steps - self._oldest_steps > self.patience_steps:
            yield f"request {oldest}, the oldest one, did not leave in {self.patience_steps} steps"
