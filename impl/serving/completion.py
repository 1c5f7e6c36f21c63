"""One completion: checked, turned into jobs, and put together again from their updates."""

import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from uuid import uuid4

from freehold.impl.scheduling.ports import Sampling
from freehold.impl.scheduling.request import FinishReason as EngineReason
from freehold.impl.serving.errors import BadRequest, NotFound
from freehold.impl.serving.loop import Job, Update
from freehold.impl.serving.protocol import CompletionRequest, FinishReason, Prompt, PromptTokensDetails, Usage
from freehold.impl.serving.streams import AsyncUpdates
from freehold.impl.serving.text import TextStream
from freehold.impl.serving.tokenizer import Tokenizer
from freehold.spec.errors import RuleBroken

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 256


class ServedModel(Protocol):
    """What a server says in the name of; `assembly.Loaded` is one."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def model_name(self) -> str: ...
    @property
    def eos_token_ids(self) -> frozenset[int]: ...
    @property
    def vocabulary_tokens(self) -> int: ...


class Piece(NamedTuple):
    """More text of one choice, or its end, or both. number: of the choice."""

    number: int
    text: str
    finish_reason: FinishReason | None


@dataclass(slots=True)
class Answer:
    """One choice as it grows."""

    number: int
    job: Job
    text: TextStream
    completion_tokens: int = 0
    cached_tokens: int = 0

    def take(self, update: Update) -> Piece:
        """The piece that an update brings. Raises the error with which the job ended, or RuleBroken for a mute update.

        A token that ends the answer is counted, but is no part of its text.
        """
        if update.error:
            raise update.error
        if update.token is None:
            raise RuleBroken(f"request {update.request_id!r} ended without a token and without an error")
        self.completion_tokens += 1
        self.cached_tokens = update.cached_tokens
        text = "" if update.finish_reason is EngineReason.STOP else self.text.push(update.token)
        if update.finish_reason:
            text += self.text.flush()
        if self.text.stopped or update.finish_reason is EngineReason.STOP:
            return Piece(self.number, text, "stop")
        return Piece(self.number, text, "length" if update.finish_reason else None)


@dataclass(frozen=True, slots=True)
class CompletionRun:
    """A completion that is being answered. answers: by the name of their jobs, one for each prompt."""

    id: str
    created: int
    answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def jobs(self) -> list[Job]:
        """What the engine has to do, in the order of the prompts."""
        return [answer.job for answer in self.answers.values()]

    @property
    def usage(self) -> Usage:
        """Tokens up to now."""
        answers = self.answers.values()
        prompt = sum(len(answer.job.prompt) for answer in answers)
        completion = sum(answer.completion_tokens for answer in answers)
        cached = sum(answer.cached_tokens for answer in answers)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )

    async def pieces(self, updates: AsyncUpdates) -> AsyncIterator[Piece]:
        """Every piece as it comes. What ends by a stop string is dropped from the engine."""
        async for update in updates:
            piece = self.answers[update.request_id].take(update)
            if piece.finish_reason and not update.finish_reason:
                updates.drop(update.request_id)
            if piece.text or piece.finish_reason:
                yield piece


def begin(request: CompletionRequest, model: ServedModel, max_context_tokens: int) -> CompletionRun:
    """The jobs of a request. Raises BadRequest for values out of range, NotFound for another model."""
    if request.model is not None and request.model != model.model_name:
        raise NotFound(
            f"model {request.model!r} is not served here, {model.model_name!r} is: see /v1/models",
            param="model",
            code="model_not_found",
        )
    prompts = _prompts(request.prompt, model)
    sampling, stops, stop_ids = _sampling(request), _stops(request), _stop_ids(request, model)
    run = CompletionRun(f"cmpl-{uuid4().hex}", int(time.time()))
    for number, prompt in enumerate(prompts):
        job = Job(
            request_id=f"{run.id}-{number}",
            prompt=prompt,
            max_new_tokens=_new_tokens(request.max_tokens, len(prompt), max_context_tokens),
            stop_ids=stop_ids,
            sampling=sampling,
        )
        run.answers[job.request_id] = Answer(number, job, TextStream(model.tokenizer.decode, stops))
    return run


def _prompts(prompt: Prompt, model: ServedModel) -> list[list[int]]:
    """Token ids of each prompt."""
    match prompt:
        case str():
            prompts = [model.tokenizer.encode(prompt)]
        case [str(), *_]:
            prompts = [model.tokenizer.encode(text) for text in prompt if isinstance(text, str)]
        case [int(), *_]:
            prompts = [[token for token in prompt if isinstance(token, int)]]
        case _:
            prompts = [ids for ids in prompt if isinstance(ids, list)]
    if isinstance(prompt, list) and len({type(part) for part in prompt}) > 1:
        raise BadRequest(
            "prompt mixes kinds: give texts only, token ids only, or lists of token ids only", param="prompt"
        )
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise BadRequest(f"give 1 to {MAX_PROMPTS} prompts in one request, not {len(prompts)}", param="prompt")
    for ids in prompts:
        if not ids:
            raise BadRequest("a prompt is empty: give at least one token", param="prompt")
        _check_token_ids(ids, model, "prompt")
    return prompts


def _new_tokens(asked: int | None, prompt_tokens: int, max_context_tokens: int) -> int:
    room = max_context_tokens - prompt_tokens
    if asked is not None and asked < 1:
        raise BadRequest(f"max_tokens must be at least 1, not {asked}", param="max_tokens")
    if room < (asked or 1):
        raise BadRequest(
            f"the prompt has {prompt_tokens} tokens and max_tokens is {asked or 1}, but the context holds "
            f"{max_context_tokens}: shorten the prompt or lower max_tokens",
            param="prompt" if room < 1 else "max_tokens",
            code="context_length_exceeded",
        )
    return asked or min(DEFAULT_MAX_TOKENS, room)


def _sampling(request: CompletionRequest) -> Sampling:
    temperature = 1.0 if request.temperature is None else request.temperature
    top_p = 1.0 if request.top_p is None else request.top_p
    top_k = 0 if request.top_k is None else request.top_k
    if not (math.isfinite(temperature) and temperature >= 0):
        raise BadRequest(f"temperature must be 0 or more, not {temperature}", param="temperature")
    if not 0 < top_p <= 1:
        raise BadRequest(f"top_p must be above 0 and at most 1, not {top_p}", param="top_p")
    if top_k < -1:
        raise BadRequest(f"top_k must be at least 1, or 0 or -1 for all tokens, not {top_k}", param="top_k")
    return Sampling(temperature=temperature, top_p=top_p, top_k=max(top_k, 0), seed=request.seed)


def _stops(request: CompletionRequest) -> list[str]:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if "" in stops:
        raise BadRequest("a stop string is empty: every answer would end at once", param="stop")
    return stops


def _stop_ids(request: CompletionRequest, model: ServedModel) -> frozenset[int]:
    asked = request.stop_token_ids or []
    _check_token_ids(asked, model, "stop_token_ids")
    return frozenset(asked) if request.ignore_eos else model.eos_token_ids | frozenset(asked)


def _check_token_ids(ids: Sequence[int], model: ServedModel, param: str) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < model.vocabulary_tokens):
        raise BadRequest(f"token ids in {param} must lie in [0, {model.vocabulary_tokens})", param=param)
