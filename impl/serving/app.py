"""The HTTP application: health, models, completions, and who owns what."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from freehold.impl.serving.completion import CompletionRun, ServedModel, begin
from freehold.impl.serving.errors import NotFound, error_body, message_body, status_of
from freehold.impl.serving.loop import EngineLoop
from freehold.impl.serving.owners import owners_of
from freehold.impl.serving.protocol import (
    Choice,
    Completion,
    CompletionRequest,
    FinishReason,
    ModelCard,
    ModelList,
    StreamOptions,
    read_request,
)
from freehold.impl.serving.streams import AsyncUpdates
from freehold.spec.errors import FreeholdError

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"
_CLIENT_CLOSED_REQUEST = 499  # nobody reads it; the number that web servers log for this


def create_app(loop: EngineLoop, model: ServedModel) -> FastAPI:
    """An application that speaks for `model` and lets `loop` do the work; whoever made the loop closes it."""
    app = FastAPI(title="Freehold", openapi_url=None)
    started = int(time.time())

    def card() -> ModelCard:
        return ModelCard(id=model.model_name, created=started, max_model_len=loop.max_context_tokens)

    @app.get("/health")
    async def health() -> Response:
        if loop.unable:
            return _json({"status": "unable", "reason": loop.unable}, 503)
        return _json({"status": "ok"})

    @app.get("/v1/models")
    async def models() -> Response:
        return _json(ModelList(data=[card()]))

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        if name != model.model_name:
            raise NotFound(f"model {name!r} is not served here: see /v1/models", param="model", code="model_not_found")
        return _json(card())

    @app.get("/kv/owners")
    async def owners() -> Response:
        return _json(await asyncio.wrap_future(loop.call(owners_of)))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        asked = read_request(await request.body())
        run = begin(asked, model, loop.max_context_tokens)
        updates = AsyncUpdates(loop, run.jobs)
        if asked.stream:
            await updates.__aenter__()  # accepted before the status goes out; the response leaves it
            return EventStream(updates, _events(run, updates, asked, model.model_name))
        whole = await _while_connected(request.receive, _whole(run, updates, model.model_name))
        return whole if whole is not None else Response(status_code=_CLIENT_CLOSED_REQUEST)

    _handle_errors(app)
    return app


class EventStream(Response):
    """A body of server-sent events. It owns the updates from its creation on, and leaves them however it ends."""

    def __init__(self, updates: AsyncUpdates, events: AsyncIterator[bytes]) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._updates = updates
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client has gone."""
        try:
            await _while_connected(receive, self._send(send))
        except OSError:  # how some servers say that the client has gone
            return
        finally:
            await self._updates.__aexit__(None, None, None)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _whole(run: CompletionRun, updates: AsyncUpdates, model_name: str) -> Response:
    """The answer in one piece."""
    texts = [""] * len(run.answers)
    reasons: list[FinishReason | None] = [None] * len(run.answers)
    async with updates:
        async for piece in run.pieces(updates):
            texts[piece.number] += piece.text
            reasons[piece.number] = piece.finish_reason
    choices = [
        Choice(index=index, text=text, finish_reason=reason)
        for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
    ]
    return _json(
        Completion(id=run.id, created=run.created, model=model_name, choices=choices, usage=run.usage),
    )


async def _events(
    run: CompletionRun, updates: AsyncUpdates, asked: CompletionRequest, model_name: str
) -> AsyncIterator[bytes]:
    """The answer as events, one a piece. An error on the way is an event as well, as the status has gone out before."""
    options = asked.stream_options or StreamOptions()

    def event(choices: list[Choice], *, with_usage: bool) -> bytes:
        usage = run.usage if with_usage else None
        chunk = Completion(id=run.id, created=run.created, model=model_name, choices=choices, usage=usage)
        return b"data: " + _encode(chunk) + b"\n\n"

    try:
        async for number, text, reason in run.pieces(updates):
            choice = Choice(index=number, text=text, finish_reason=reason)
            yield event([choice], with_usage=options.continuous_usage_stats)
        if options.include_usage:
            yield event([], with_usage=True)
    except FreeholdError as error:
        yield b"data: " + error_body(error) + b"\n\n"
    yield _DONE


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None when the client goes first, and then `work` is cancelled and has ended."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _json(content: object, status: int = 200) -> Response:
    return Response(_encode(content), status, media_type="application/json")


def _handle_errors(app: FastAPI) -> None:
    """Every error leaves as an error object."""

    @app.exception_handler(FreeholdError)
    async def ours(request: Request, error: FreeholdError) -> Response:
        return Response(error_body(error), status_of(error), media_type="application/json")

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        body = message_body(f"{request.method} {request.url.path}: {error.detail}", kind="invalid_request_error")
        return Response(body, error.status_code, error.headers, media_type="application/json")

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        body = message_body("an unexpected error; the server's log has it", kind="server_error")
        return Response(body, 500, media_type="application/json")
