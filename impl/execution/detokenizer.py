"""Text from tokens as they come, never half a character.

A tokenizer decodes a *sequence*: a character may span tokens, and a token's text may depend on its left
neighbour. So each step decodes a short window twice, with and without the new tokens, and hands out the
difference: the scheme of two offsets (window start, read end) that streaming servers use. Both move only when
the window's text ends in a whole character.
"""

from collections.abc import Callable, Sequence

# What a decoder puts for bytes that are no character, or not yet one.
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text of one growing token sequence.

    Everything handed out by `push` and `flush`, joined, equals `decode` of all tokens, for decoders that turn
    tokens into bytes and these into text (byte-level BPE, byte fallback).
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """`decode`: text of a token sequence, as `tokenizer.decode` gives it."""
        self._decode = decode
        self._window: list[int] = []
        self._read = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Take new tokens; return the text that they complete, possibly none."""
        self._window.extend(token_ids)
        known = self._decode(self._window[: self._read])
        text = self._decode(self._window)
        if len(text) <= len(known) or text.endswith(_REPLACEMENT):
            return ""
        del self._window[: self._read]
        self._read = len(self._window)
        return text[len(known) :]

    def flush(self) -> str:
        """What is left at the end, with a replacement character for an unfinished one."""
        known = self._decode(self._window[: self._read])
        text = self._decode(self._window)
        self._read = len(self._window)
        return text[len(known) :]
