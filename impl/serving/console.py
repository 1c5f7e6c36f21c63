"""One answer on a terminal."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from freehold.impl.scheduling.ports import Sampling
from freehold.impl.scheduling.request import FinishReason
from freehold.impl.serving.assembly import Loaded
from freehold.impl.serving.loop import EngineLoop, Job
from freehold.impl.serving.streams import blocking_updates
from freehold.impl.serving.text import TextStream
from freehold.spec.errors import InvalidInput

DEFAULT_NEW_TOKENS = 128


class PromptForm(Enum):
    """How a prompt is put to the model: as a question in its chat template, as text to continue, or as it can."""

    AUTO = auto()
    CHAT = auto()
    RAW = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a person asks for. Raises InvalidInput for values out of range.

    max_new_tokens: None for DEFAULT_NEW_TOKENS, or fewer where the context ends before.
    seed: None for draws that are the same in every run, as there is one request only, with one name.
    """

    prompt: str
    form: PromptForm = PromptForm.AUTO
    max_new_tokens: int | None = None
    stops: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        if "" in self.stops:
            raise InvalidInput("a stop text is empty: the answer would end at once")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise InvalidInput(f"max_tokens must be at least 1, not {self.max_new_tokens}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InvalidInput(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k < 0:
            raise InvalidInput(f"top_k must be 0 or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise InvalidInput(f"top_p must be above 0 and at most 1, not {self.top_p}")

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, seed=self.seed)


def answer(loaded: Loaded, question: Question) -> Iterator[str]:
    """The answer's text, piece by piece.

    Raises InvalidInput for a prompt that is empty or too long, and what ended the request if it failed. However it
    ends, the engine is idle afterwards.
    """
    tokenizer = loaded.tokenizer
    chats = question.form is PromptForm.CHAT or (question.form is PromptForm.AUTO and tokenizer.has_chat_template)
    prompt = tokenizer.encode_chat(question.prompt) if chats else tokenizer.encode(question.prompt)
    room = loaded.engine.config.max_context_tokens - len(prompt)
    job = Job(
        request_id="answer",
        prompt=prompt,
        max_new_tokens=question.max_new_tokens or min(DEFAULT_NEW_TOKENS, max(room, 1)),
        stop_ids=loaded.eos_token_ids,
        sampling=question.sampling,
    )
    text = TextStream(tokenizer.decode, question.stops)
    with EngineLoop(loaded.engine) as loop:
        for update in blocking_updates(loop, job):
            if update.error:
                raise update.error
            if update.token is not None and update.finish_reason is not FinishReason.STOP:
                yield text.push(update.token)
            if text.stopped:
                return
        yield text.flush()
