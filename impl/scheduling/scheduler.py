"""The scheduler: one step of continuous batching, as a function of its ports.

A step ends, plans, takes, launches and lands, in this order:

    end       requests that were asked to end or ran out of time, wherever they are; sessions that idled too long
    plan      one token for every running request, a chunk for parked prefills, oldest first
    make room land what is in flight, evict from the tree, reclaim idle sessions, retract, until the plan fits
    admit     waiting requests, while their next chunk fits beside what those who run are likely to need
    launch    one forward pass for decodes and chunks together
    land      the pass before it, or with no overlap this one: commit, publish, sample, finish or park

With overlap one pass is in flight between two steps. Whoever ends meanwhile gives its KV back at once, and the loan of
that pass keeps its pages until the fence.

Between two steps a request is OUT, WAITING, PARKED or RUNNING, or in PREFILL while its chunk is in flight.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from freehold.impl.memory import session_moves
from freehold.impl.memory.cache import KvCache, Need
from freehold.impl.memory.flights import StepLoan
from freehold.impl.memory.record import KvRecord, record_of
from freehold.impl.memory.tree_node import Match
from freehold.impl.scheduling.batch import Plan, forward_batch
from freehold.impl.scheduling.flight import Landed
from freehold.impl.scheduling.limits import Limits
from freehold.impl.scheduling.policy import AdmissionPolicy, FirstCome, VictimKey, victim, youngest
from freehold.impl.scheduling.ports import Clock, Executor, Flight, ForwardBatch
from freehold.impl.scheduling.pressure import Pressure
from freehold.impl.scheduling.queues import Queues
from freehold.impl.scheduling.request import FinishReason, Request, StepOutput
from freehold.spec.arithmetic import floor_to_page, new_pages
from freehold.spec.errors import FreeholdError, InvalidInput, RuleBroken
from freehold.spec.state import End, Place


class ExecutionFailed(FreeholdError):
    """The forward step of a request raised, or answered nonsense; the request was aborted and holds nothing."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Launched:
    """A forward step that was launched: who had a share, in which record, and up to which token it is written then."""

    batch: ForwardBatch
    shares: tuple[tuple[Request, KvRecord, int], ...]
    flight: Flight
    loan: StepLoan | None


class Scheduler:
    """Decides who computes what, and when KV is taken, kept and given back. All of it goes through `cache`.

    queues: every live request, by place. flights: the forward steps that have not landed, the oldest first.
    departed: the requests that left during the last step, for the caller to read; they hold nothing.
    """

    def __init__(
        self,
        cache: KvCache,
        executor: Executor,
        clock: Clock,
        limits: Limits,
        *,
        policy: AdmissionPolicy | None = None,
        gives_way: VictimKey = youngest,
    ) -> None:
        """`policy`: who is admitted first; `gives_way`: who is retracted first. The defaults are proved to get on."""
        self.cache, self.executor, self.clock, self.limits = cache, executor, clock, limits
        self.policy, self.gives_way = policy or FirstCome(), gives_way
        self.pressure = Pressure(cache.geometry)
        self.queues = Queues(cache.sink)
        self.departed: list[Request] = []
        self.flights: deque[Launched] = deque()
        self._aborts: list[Request] = []
        self._arrivals = count()
        cache.states.copy = executor.copy_states

    # From outside -----------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """The request waits from now on; a turn becomes its session's live one.

        Raises InvalidInput when its name is taken by a live request, or its session has a live turn or is closing.
        """
        if self.queues.find(request.id):
            raise InvalidInput(f"request {request.id!r} is live already: choose another name")
        if request.session:
            self.cache.sessions.use(request.session, request)
        request.arrival = next(self._arrivals)
        request.arrived_s = self.clock.now()
        self.queues.move(request, Place.WAITING)

    def abort(self, request_id: str) -> None:
        """The request ends at the top of the next step. Asking again, or for one that is not live, changes nothing."""
        if request := self.queues.find(request_id):
            self._aborts.append(request)

    def step(self) -> list[StepOutput]:
        """One step: at most one forward pass is launched. Says what every request that moved on has got.

        Requests whose forward pass raises leave with `ExecutionFailed`; the others go on with the next step.
        """
        self.departed = []
        outputs = self._end_early()
        plan = self._plan()
        if self.flights and not (self._surely_fits(plan) or self.cache.can_take(self._need(plan))):
            outputs += self._land()  # nobody gives way for pages that come free with the next fence
            plan = self._plan()
        retracted = self._make_room(plan)
        self._take(plan)
        if not retracted:  # a newcomer would take the pages for which someone just gave way
            self._admit(plan)
        if plan:
            self._launch(plan)
        elif not self.flights and self.queues:
            raise RuleBroken("requests are live but none can go on: pages or rows have leaked")
        while self.flights and (not plan or len(self.flights) > self.limits.steps_ahead):
            outputs += self._land()
        self.cache.sink.emit("mark", "step")
        if not self.queues and not self.flights:
            self.cache.sink.emit("mark", "quiescent")
        return outputs

    # Plan and take ----------------------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        """What those who hold KV would compute: decodes, then chunks of those in prefill, while the budget lasts."""
        plan: Plan = {
            request: 1
            for request in self.queues.running.values()
            if record_of(request).allocated_tokens < request.limit_tokens - 1  # the last token is never written
        }
        chunks, budget = {}, self.limits.chunk_tokens
        for request in sorted(self._in_prefill(), key=lambda request: request.arrival):
            start = record_of(request).allocated_tokens
            if start == request.length_tokens:  # its last chunk is in flight
                if start < request.limit_tokens - 1:
                    plan[request] = 1
            elif budget:
                chunks[request] = self._chunk(request, start, budget)
                budget -= chunks[request]
        plan.update(chunks)
        return plan

    def _in_prefill(self) -> Iterator[Request]:
        yield from self.queues.parked.values()
        yield from self.queues.prefill.values()

    def _chunk(self, request: Request, start: int, budget: int) -> int:
        """Tokens of the request's next chunk; with recurrent states it ends at a page, where a checkpoint can hang."""
        tokens = min(budget, request.length_tokens - start, self.limits.longest_chunk_tokens)
        if self.cache.states.used:
            aligned = floor_to_page(start + tokens, self.cache.page_size) - start
            return aligned if aligned > 0 else tokens
        return tokens

    def _make_room(self, plan: Plan) -> bool:
        """Somebody gives way until the plan fits; says whether anyone did. The oldest stays and gets on."""
        if self._surely_fits(plan):
            return False
        retracted = False
        while not self.cache.make_room(self._need(plan)):
            request = victim(self.queues.holders(), self.gives_way)
            plan.pop(request, None)
            self._retract(request)
            retracted = True
        if retracted:
            self.pressure.somebody_gave_way()
        return retracted

    def _surely_fits(self, plan: Plan) -> bool:
        """Whether there is a free page for each token: no token needs more than one."""
        return sum(plan.values()) <= self.cache.free_pages

    def _need(self, plan: Plan) -> Need:
        total, page_size = 0, self.cache.page_size
        for request, tokens in plan.items():
            allocated = record_of(request).allocated_tokens
            total += new_pages(allocated, allocated + tokens, page_size)
        return Need(total, total)

    def _take(self, plan: Plan) -> None:
        """Every request of the plan gets the room for its share; the parked resume."""
        growth = []
        for request, tokens in plan.items():
            if request.place is Place.PARKED:
                self.queues.move(request, Place.PREFILL)
            growth.append((record_of(request), tokens))
        self.cache.extend(growth)

    # Admission --------------------------------------------------------------------------------------------------------

    def _admit(self, plan: Plan) -> None:
        """Waiting requests join the plan, until one does not fit."""
        self.pressure.step_went_well()
        chunks = sum(tokens for request, tokens in plan.items() if request.place is Place.PREFILL)
        budget, seats = self.limits.chunk_tokens - chunks, self.limits.max_running - self.queues.count_holders()
        if budget <= 0 or seats <= 0 or not self.queues.waiting:
            return
        reserved = [self.pressure.reserve(request) for request in self.queues.holders()]
        for request in self.policy.candidates(self.queues.waiting, seats, self.cache):
            if budget <= 0 or not (chunk := self._start(request, budget, reserved)):
                return
            plan[request] = chunk
            budget -= chunk
            reserved.append(self.pressure.reserve(request))

    def _start(self, request: Request, budget: int, reserved: Sequence[Need]) -> int:
        """Admit the request and take room for its first chunk, of at most `budget` tokens; 0 when it does not fit.

        It builds on what its session saved, or else on what the tree has; at least one token is left to compute. It
        fits when there is room for its chunk, and beside others for what everybody is likely to need behind it.
        """
        slot, cache = request.session, self.cache
        saved = slot if slot and slot.kv else None
        if saved:
            match, start = None, cache.usable_tokens(record_of(saved), request.kept_tokens)
        else:
            match = self._match(request)
            start = match.matched_tokens
        chunk = self._chunk(request, start, budget)
        need = new_pages(start, start + chunk, cache.page_size)
        ahead = [*reserved, self.pressure.between(start + chunk, request)] if reserved else []
        wanted = Need(need + sum(each.pages for each in ahead), need + sum(each.halves for each in ahead))
        if not cache.make_room(wanted, sparing_match=match, sparing_slot=slot):
            if saved and not reserved and not self.flights:
                cache.release(saved)  # it is alone, and what it goes back behind is in its own way
                return self._start(request, budget, reserved)
            return 0
        if saved:
            kv = session_moves.resume(cache, saved, request.kept_tokens)
        elif match and (not cache.states.used or cache.make_room_for_state(match)):
            kv = cache.admit(request, match)
        else:
            return 0
        self.queues.move(request, Place.PREFILL)
        cache.extend([(kv, chunk)])
        return chunk

    def _match(self, request: Request) -> Match:
        """What the tree has for the request; nothing where its checkpoint takes the only slot that it could have."""
        match = self.cache.match(request.tokens(0, request.length_tokens - 1))
        if self.cache.states.used and match.matched_tokens and not self.cache.make_room_for_state(match):
            return self.cache.match(request.tokens(0, 0))
        return match

    # Launch and land --------------------------------------------------------------------------------------------------

    def _launch(self, plan: Plan) -> None:
        """The plan's forward step sets out."""
        shares = [(record_of(request), tokens) for request, tokens in plan.items()]
        loan = self.cache.launch(shares) if self.limits.steps_ahead else None
        batch = forward_batch(plan)
        try:
            flight = self.executor.launch(batch)
        except Exception as error:  # it could not even start: it ends as one that failed
            flight = Landed(None, error)
        ends = [(request, kv, kv.allocated_tokens) for request, (kv, _) in zip(plan, shares, strict=True)]
        self.flights.append(Launched(batch, tuple(ends), flight, loan))

    def _land(self) -> list[StepOutput]:
        """Wait for the oldest step in flight. What it wrote counts for those who hold its records still."""
        step = self.flights.popleft()
        try:
            tokens = step.flight.result()
            _check(step.batch, tokens)
        except Exception as error:
            if step.loan:
                self.cache.land(step.loan, End.FAILED)
            return self._fail(step, error)
        if step.loan:
            self.cache.land(step.loan, End.DONE)
        landed = [
            (request, kv, end, token)
            for (request, kv, end), token in zip(step.shares, tokens, strict=True)
            if request.kv is kv
        ]
        self.cache.commit([(kv, end) for _, kv, end, _ in landed])
        outputs = []
        for request, kv, _, token in landed:
            self._settle(request, kv)
            if token is not None:
                outputs.append(self._append(request, token))
        return outputs

    def _fail(self, step: Launched, error: Exception) -> list[StepOutput]:
        """Whoever holds a record into which the step wrote ends, and only they."""
        failure = ExecutionFailed(f"the forward step failed, and its requests were aborted: {error!r}")
        failure.__cause__ = error
        records = {id(kv) for _, kv, _ in step.shares}
        hit = [request for request in self.queues.holders() if id(request.kv) in records]
        for request in hit:
            if record_of(request).state is not None:  # the step may have taken it along, any part of the way
                self.cache.release(request)
        return [self.abandon(request, FinishReason.ERROR, failure) for request in hit]

    def _settle(self, request: Request, kv: KvRecord) -> None:
        """What the step computed is written. A chunk is published; its request parks, or runs if it was the last."""
        if request.place is Place.PREFILL:
            self._publish(request)
            self.cache.checkpoint(kv)
            if kv.committed_tokens == request.length_tokens:
                self.queues.move(request, Place.RUNNING)
            elif kv.committed_tokens == kv.allocated_tokens:  # nothing of it is in flight
                self.queues.move(request, Place.PARKED)
        if self.cache.pages.windowed:
            self.cache.slide(kv)

    def _append(self, request: Request, token: int) -> StepOutput:
        if request.first_token_s is None:
            request.first_token_s = self.clock.now()
        reason = request.append(token)
        if reason:
            self._finish(request, reason)
        return StepOutput(request.id, token, reason)

    def _publish(self, request: Request) -> None:
        """The whole pages that the request has written go to the tree, if it shares them."""
        kv = request.kv
        if request.publishes and kv:
            self.cache.publish(kv, request.tokens(kv.published_tokens, kv.committed_tokens))

    # Give back --------------------------------------------------------------------------------------------------------

    def _retract(self, request: Request) -> None:
        """All KV of the request goes back. It keeps its tokens, and waits to compute them again."""
        self.cache.release(request)
        self.queues.move(request, Place.WAITING)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """The request is complete: a turn's KV goes to its session, any other's to the tree and the free stack."""
        if request.session:
            session_moves.save(self.cache, request.session, request.tokens(0, request.length_tokens))
        else:
            self._publish(request)
            self.cache.donate(record_of(request))
            self.cache.release(request)
        self._leave(request, reason)

    def abandon(self, request: Request, reason: FinishReason, error: FreeholdError | None = None) -> StepOutput:
        """The request ends unfinished: what it wrote goes back, what its session had saved before goes to the slot."""
        request.error = error
        if request.session:
            session_moves.abandon(self.cache, request.session)
        elif request.kv:
            self.cache.release(request)
        self._leave(request, reason)
        return StepOutput(request.id, None, reason)

    def _leave(self, request: Request, reason: FinishReason) -> None:
        """The request, which holds nothing any more, is out; a session that waited for its end closes."""
        request.finish_reason, request.finished_s = reason, self.clock.now()
        if request.session:
            self.cache.sessions.unuse(request.session)
            request.session.idle_since_s = request.finished_s
        self.queues.move(request, Place.OUT)
        self.departed.append(request)
        if request.session:
            session_moves.settle(self.cache, request.session)

    def _end_early(self) -> list[StepOutput]:
        """Whoever was aborted or ran out of time ends, and every session that nobody used for too long."""
        asked, self._aborts = self._aborts, []
        outputs = [self.abandon(r, FinishReason.ABORT) for r in dict.fromkeys(asked) if r.place is not Place.OUT]
        if self.limits.timeouts:
            now = self.clock.now()
            late = [request for request in self.queues.all() if self.limits.is_late(request, now)]
            outputs += [self.abandon(request, FinishReason.TIMEOUT) for request in late]
            for slot in [slot for slot in self.cache.sessions.slots.values() if self.limits.is_idle(slot, now)]:
                session_moves.close_session(self.cache, slot)
        return outputs


def _check(batch: ForwardBatch, tokens: list[int | None]) -> None:
    """Raises ValueError when the executor's answer does not fit its batch."""
    if len(tokens) != len(batch.items):
        raise ValueError(f"{len(tokens)} answers came back for {len(batch.items)} items")
    for item, token in zip(batch.items, tokens, strict=True):
        if item.samples and token is None:
            raise ValueError(f"no token came back for request {item.request_id!r}")
