"""Text to tokens and back, as serving needs it."""

from collections.abc import Sequence
from typing import Any, Protocol

from freehold.spec.errors import InvalidInput, Unsupported


class Tokenizer(Protocol):
    """What the server needs of a tokenizer. It is used from one thread only."""

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`. Raises InvalidInput for text that is not valid Unicode."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a token sequence, without control tokens."""
        ...


class ModelTokenizer:
    """A `Tokenizer` over one of transformers, with the model's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer  # transformers' classes are untyped here

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`, with what the model wants at its start. Raises InvalidInput for broken Unicode."""
        return self._encode(text, add_special_tokens=True)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a token sequence, without control tokens."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works."""
        return self._tokenizer.chat_template is not None

    def encode_chat(self, message: str) -> list[int]:
        """The token ids of a conversation that starts with the user's `message`, up to where the model answers.

        Raises Unsupported for a model without a chat template, InvalidInput for broken Unicode.
        """
        if not self.has_chat_template:
            raise Unsupported("the model has no chat template: give it raw text to continue instead (--raw)")
        messages = [{"role": "user", "content": message}]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self._encode(text, add_special_tokens=False)  # the template has them already

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"the text is not valid Unicode at character {error.start}: give it as UTF-8") from error
        ids: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        return ids
