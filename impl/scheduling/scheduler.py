"""The scheduler: one step of continuous batching, as a function of its ports.

A step plans, takes, runs and settles, in this order:

    abort     requests that were asked to end, end, wherever they are
    plan      one token for every running request, a chunk for parked prefills, oldest first
    make room evict from the tree, reclaim idle sessions, retract the youngest, until the plan fits
    admit     waiting requests, while their next chunk and one more decode step of everybody fit
    run       one forward pass for decodes and chunks together
    settle    commit, publish, sample, finish or park

Between two steps a request is OUT, WAITING, PARKED or RUNNING; PREFILL is where it is while a step computes its chunk.
"""

from itertools import count

from freehold.impl.memory.cache import KvCache
from freehold.impl.scheduling.batch import Plan, forward_batch
from freehold.impl.scheduling.policy import AdmissionPolicy, FirstCome, youngest
from freehold.impl.scheduling.ports import Clock, Executor, ForwardBatch
from freehold.impl.scheduling.queues import Queues
from freehold.impl.scheduling.request import FinishReason, Request, StepOutput
from freehold.spec.arithmetic import new_pages
from freehold.spec.errors import FreeholdError, InvalidInput, RuleBroken
from freehold.spec.state import Place


class ExecutionFailed(FreeholdError):
    """The forward step of a request raised, or answered nonsense; the request was aborted and holds nothing."""

    exit_code = 1


class Scheduler:
    """Decides who computes what, and when KV is taken, kept and given back. All of it goes through `cache`.

    queues: every live request, by place.
    departed: the requests that left during the last step, for the caller to read; they hold nothing.
    """

    def __init__(
        self,
        cache: KvCache,
        executor: Executor,
        clock: Clock,
        *,
        max_running: int,
        chunk_tokens: int,
        policy: AdmissionPolicy | None = None,
    ) -> None:
        """`max_running`: requests that may hold KV at once; `chunk_tokens`: prefill tokens in one step."""
        self.cache = cache
        self.executor = executor
        self.clock = clock
        self.max_running = max_running
        self.chunk_tokens = chunk_tokens
        self.policy = policy or FirstCome()
        self.queues = Queues(cache.sink)
        self.departed: list[Request] = []
        self._aborts: list[str] = []
        self._arrivals = count()

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
        self._aborts.append(request_id)

    def step(self) -> list[StepOutput]:
        """One step: at most one forward pass. Says what every request that moved on has got.

        Requests whose forward pass raises leave with `ExecutionFailed`; the others go on with the next step.
        """
        self.departed = []
        outputs = self._abort_asked()
        plan = self._plan()
        retracted = self._make_room(plan)
        self._take(plan)
        if not retracted:  # a newcomer would take the pages for which someone just gave way
            self._admit(plan)
        if plan:
            outputs += self._run(plan)
        elif self.queues:
            raise RuleBroken("requests are live but none can go on: pages or rows have leaked")
        self.cache.sink.emit("mark", "step")
        if not self.queues:
            self.cache.sink.emit("mark", "quiescent")
        return outputs

    # Plan and take ----------------------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        """What those who hold KV would compute: decodes, then chunks of the parked, while the budget lasts."""
        plan = dict.fromkeys(self.queues.running.values(), 1)
        budget = self.chunk_tokens
        for request in sorted(self.queues.parked.values(), key=lambda request: request.arrival):
            if not budget:
                break
            assert request.kv is not None
            plan[request] = min(budget, request.length_tokens - request.kv.committed_tokens)
            budget -= plan[request]
        return plan

    def _make_room(self, plan: Plan) -> bool:
        """Retract the youngest until the plan fits; says whether anyone was. The oldest stays and gets on."""
        if sum(plan.values()) <= self.cache.free_pages:  # no token needs more than one page
            return False
        retracted = False
        while not self.cache.make_room(self._pages(plan)):
            request = youngest(self.queues.holders())
            plan.pop(request, None)
            self._retract(request)
            retracted = True
        return retracted

    def _pages(self, plan: Plan) -> int:
        total, page_size = 0, self.cache.page_size
        for request, tokens in plan.items():
            kv = request.kv
            assert kv is not None
            total += new_pages(kv.allocated_tokens, kv.allocated_tokens + tokens, page_size)
        return total

    def _take(self, plan: Plan) -> None:
        """Every request of the plan gets the room for its share; the parked resume."""
        growth = []
        for request, tokens in plan.items():
            if request.place is Place.PARKED:
                self.queues.move(request, Place.PREFILL)
            assert request.kv is not None
            growth.append((request.kv, tokens))
        self.cache.extend(growth)

    def _admit(self, plan: Plan) -> None:
        """Waiting requests join the plan, until one does not fit."""
        budget = self.chunk_tokens - sum(plan[request] for request in self.queues.prefill.values())
        seats = self.max_running - self.queues.count_holders()
        if not (budget and seats and self.queues.waiting):
            return
        for request in self.policy.candidates(self.queues.waiting, seats, self.cache):
            if not budget or not (chunk := self._start(request, budget)):
                return
            plan[request] = chunk
            budget -= chunk

    def _start(self, request: Request, budget: int) -> int:
        """Admit the request and take room for its first chunk, of at most `budget` tokens; 0 when it does not fit.

        It builds on what its session saved, or else on what the tree has; at least one token is left to compute. It
        fits when, behind its chunk, there is room for one more decode step of everybody.
        """
        slot, cache = request.session, self.cache
        match = None
        if slot and slot.kv:
            start = slot.kv.committed_tokens
        else:
            match = cache.match(request.tokens(0, request.length_tokens - 1))
            start = match.matched_tokens
        chunk = min(budget, request.length_tokens - start)
        ahead = min(start + chunk + 1, request.limit_tokens - 1)  # the last token of a request is never written
        pages = new_pages(start, ahead, cache.page_size) + len(self.queues.running) + len(self.queues.prefill)
        if not cache.make_room(pages, sparing_match=match, sparing_slot=slot):
            return 0
        if match:
            kv = cache.admit(request, match)
        else:
            assert slot
            kv = cache.lend(slot)
        self.queues.move(request, Place.PREFILL)
        cache.extend([(kv, chunk)])
        return chunk

    # Run and settle ---------------------------------------------------------------------------------------------------

    def _run(self, plan: Plan) -> list[StepOutput]:
        """Run the plan. What was computed is committed; if that fails, the plan's requests end, and only they."""
        batch = forward_batch(plan)
        try:
            tokens = self.executor.execute(batch)
            _check(batch, tokens)
        except Exception as error:
            failure = ExecutionFailed(f"the forward step failed, and its requests were aborted: {error!r}")
            failure.__cause__ = error
            return [self._abandon(request, FinishReason.ERROR, failure) for request in plan]
        outputs = []
        for request, token in zip(plan, tokens, strict=True):
            self._commit(request)
            if request.place is Place.RUNNING and token is not None:
                outputs.append(self._append(request, token))
        return outputs

    def _commit(self, request: Request) -> None:
        """What the step computed is written. A chunk is published; its request parks, or runs if it was the last."""
        kv = request.kv
        assert kv is not None
        self.cache.commit(kv)
        if request.place is Place.PREFILL:
            self._publish(request)
            whole = kv.committed_tokens == request.length_tokens
            self.queues.move(request, Place.RUNNING if whole else Place.PARKED)

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
            self.cache.save(request.session, request.tokens(0, request.length_tokens))
        else:
            self._publish(request)
            self.cache.release(request)
        self._leave(request, reason)

    def _abandon(self, request: Request, reason: FinishReason, error: FreeholdError | None = None) -> StepOutput:
        """The request ends unfinished: what it wrote goes back, what its session had saved before goes to the slot."""
        request.error = error
        if request.session:
            self.cache.abandon(request.session)
        elif request.kv:
            self.cache.release(request)
        self._leave(request, reason)
        return StepOutput(request.id, None, reason)

    def _leave(self, request: Request, reason: FinishReason) -> None:
        """The request, which holds nothing any more, is out; a session that waited for its end closes."""
        request.finish_reason = reason
        request.finished_s = self.clock.now()
        if request.session:
            self.cache.sessions.unuse(request.session)
        self.queues.move(request, Place.OUT)
        self.departed.append(request)
        if request.session:
            self.cache.settle(request.session)

    def _abort_asked(self) -> list[StepOutput]:
        asked, self._aborts = self._aborts, []
        live = (self.queues.find(request_id) for request_id in asked)
        return [self._abandon(request, FinishReason.ABORT) for request in live if request]


def _check(batch: ForwardBatch, tokens: list[int | None]) -> None:
    """Raises ValueError when the executor's answer does not fit its batch."""
    if len(tokens) != len(batch.items):
        raise ValueError(f"{len(tokens)} answers came back for {len(batch.items)} items")
    for item, token in zip(batch.items, tokens, strict=True):
        if item.samples and token is None:
            raise ValueError(f"no token came back for request {item.request_id!r}")
