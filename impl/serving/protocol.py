"""OpenAI's completions, as far as served: what comes in, what goes out.

https://platform.openai.com/docs/api-reference/completions; `top_k`, `stop_token_ids`, `ignore_eos` and
`continuous_usage_stats` are extensions that other servers have under the same names.
"""

from typing import Any, Literal

import msgspec

from freehold.impl.serving.errors import BadRequest

Prompt = str | list[str | int | list[int]]
FinishReason = Literal["stop", "length"]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """include_usage: one more chunk at the end, with the usage. continuous_usage_stats: usage so far in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/completions`. Null means the default everywhere.

    The fields from `n` on are known, but served only at the value that changes nothing; see `NEUTRAL`.
    `user` names who asks; no answer depends on it.
    """

    prompt: Prompt
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | bool | None = None
    suffix: str | None = None
    logit_bias: dict[str, float] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_p: float | None = None
    min_tokens: int | None = None


NEUTRAL: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "echo": False,
    "logprobs": None,
    "suffix": None,
    "logit_bias": {},
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_p": 0,
    "min_tokens": 0,
}
"""The only value, besides null, of each field that this server knows but does not do."""

_decoder = msgspec.json.Decoder(CompletionRequest)


def read_request(body: bytes) -> CompletionRequest:
    """The request in a body. Raises BadRequest for anything else, and for what is not served; nothing is ignored."""
    try:
        request = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is no completion request that is served here: {error}") from error
    for name, value in NEUTRAL.items():
        given = getattr(request, name)
        if given is not None and (given != value or value is None):
            accepted = "null" if value is None else msgspec.json.encode(value).decode()
            raise BadRequest(f"{name} is not served: leave it out or give {accepted}", param=name)
    if request.stream_options and not request.stream:
        raise BadRequest("stream_options goes with stream: true only", param="stream_options")
    return request


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """cached_tokens: prompt tokens whose KV was there already."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, or a piece of it."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishReason | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or one chunk of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One served model. max_model_len: the longest that prompt and output can be together, in tokens."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["freehold"] = "freehold"
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
