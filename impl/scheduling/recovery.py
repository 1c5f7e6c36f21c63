"""What is left to do when a step breaks off in the middle, or somebody's KV can't be trusted: end those concerned."""

from freehold.impl.memory import session_moves
from freehold.impl.scheduling.request import FinishReason, Request, StepOutput
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.spec.errors import FreeholdError, RuleBroken
from freehold.spec.state import End, Place


def end_everybody(scheduler: Scheduler, error: RuleBroken) -> list[StepOutput]:
    """A step broke off: every live request ends with the error, and what is in flight is waited for and forgotten.

    Each gives back what it can. What a structure in disorder doesn't take is left behind, for a quarantine to find.
    """
    while scheduler.flights:
        step = scheduler.flights.popleft()
        try:
            step.flight.result()
        except Exception as failure:  # the step failed too: its requests end here anyway
            error.add_note(f"a step in flight failed as well: {failure!r}")
        if step.loan:
            scheduler.cache.land(step.loan, End.FAILED)
    return [end_now(scheduler, request, error) for request in list(scheduler.queues.all())]


def end_now(scheduler: Scheduler, request: Request, error: FreeholdError) -> StepOutput:
    """One request ends with an error, whatever state its structures are in."""
    try:
        return scheduler.abandon(request, FinishReason.ERROR, error)
    except Exception as failure:  # not even its end can be told apart any more
        error.add_note(f"{request.id!r} could not give its KV back: {failure!r}")
        request.kv, request.error, request.finish_reason = None, error, FinishReason.ERROR
        if request.place is not Place.OUT:
            scheduler.queues.move(request, Place.OUT)
        if request.session and request.session.turn is request:
            scheduler.cache.sessions.unuse(request.session)
            session_moves.settle(scheduler.cache, request.session)
        return StepOutput(request.id, None, FinishReason.ERROR)
