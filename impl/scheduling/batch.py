"""What a step computes: a share for each request, and the forward batch that says it to the executor."""

from freehold.impl.memory.record import record_of
from freehold.impl.scheduling.ports import PENDING, BatchItem, ForwardBatch
from freehold.impl.scheduling.request import Request

Plan = dict[Request, int]
"""New tokens of each request in this step: one of a decode, a chunk of a prefill. Decodes come first."""


def forward_batch(plan: Plan) -> ForwardBatch:
    """The plan in the executor's words. Every request holds a record, the end of whose room is its share."""
    return ForwardBatch(items=tuple(_item(request, tokens) for request, tokens in plan.items()))


def _item(request: Request, tokens: int) -> BatchItem:
    kv = record_of(request)
    start = kv.allocated_tokens - tokens
    known = start < request.length_tokens  # else the step in flight samples it
    return BatchItem(
        request_id=request.id,
        token_ids=request.token_ids(start, start + tokens) if known else (PENDING,),
        start_tokens=start,
        row=kv.row,
        samples=start + tokens >= request.length_tokens,
        sampling=request.sampling,
        prefix=request.tokens(0, start),
        state_slot=kv.state or 0,
    )
