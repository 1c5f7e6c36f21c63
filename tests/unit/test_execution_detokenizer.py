"""Streaming text equals decoding everything at once, and no half character is ever shown."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from freehold.impl.execution.detokenizer import Detokenizer

TEXTS = st.text(alphabet=st.sampled_from("a é€😀ﷺ\u0301\n漢 \ufffd"), max_size=40)


def split_bytes(content: bytes, borders: Sequence[int]) -> list[bytes]:
    """Tokens of a byte-level vocabulary: `content` cut anywhere."""
    cuts = sorted({0, len(content), *(border % (len(content) + 1) for border in borders)})
    return [content[start:stop] for start, stop in pairwise(cuts)]


class Decoder:
    """Decodes token numbers as byte-level tokenizers do, and knows the whole text."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens

    def __call__(self, token_ids: Sequence[int]) -> str:
        return b"".join(self.tokens[i] for i in token_ids).decode("utf-8", errors="replace")


def in_chunks(count: int, sizes: Sequence[int]) -> list[list[int]]:
    chunks: list[list[int]] = []
    start = 0
    for size in [*sizes, count]:
        chunks.append(list(range(start, min(count, start + size))))
        start = min(count, start + size)
    return chunks


@given(TEXTS, st.lists(st.integers(0, 200), max_size=60), st.lists(st.integers(0, 4), max_size=30))
@settings(max_examples=300, deadline=None)
def test_pieces_join_to_the_text_and_each_is_whole(text: str, borders: list[int], sizes: list[int]) -> None:
    tokens = split_bytes(text.encode(), borders)
    detokenizer = Detokenizer(Decoder(tokens))
    shown = ""
    for chunk in in_chunks(len(tokens), sizes):
        shown += detokenizer.push(chunk)
        assert text.startswith(shown)
    assert shown + detokenizer.flush() == text


@given(st.lists(st.binary(min_size=1, max_size=3), max_size=40), st.lists(st.integers(0, 4), max_size=30))
@settings(max_examples=300, deadline=None)
def test_broken_bytes_join_to_what_decoding_all_at_once_gives(tokens: list[bytes], sizes: list[int]) -> None:
    decoder = Decoder(tokens)
    detokenizer = Detokenizer(decoder)
    shown = "".join(detokenizer.push(chunk) for chunk in in_chunks(len(tokens), sizes))
    assert shown + detokenizer.flush() == decoder(range(len(tokens)))


def test_a_character_over_four_tokens_comes_out_once_it_is_whole() -> None:
    tokens = [bytes([byte]) for byte in "😀!".encode()]
    detokenizer = Detokenizer(Decoder(tokens))
    assert [detokenizer.push([i]) for i in range(5)] == ["", "", "", "😀", "!"]
    assert detokenizer.flush() == ""


def test_a_text_that_depends_on_the_left_neighbour_keeps_its_spaces() -> None:
    """Sentence-piece decoders drop the space before the first word of whatever they are given."""

    def decode(token_ids: Sequence[int]) -> str:
        return "".join(" word" for _ in token_ids).removeprefix(" ")

    detokenizer = Detokenizer(decode)
    assert [detokenizer.push([1]) for _ in range(3)] == ["word", " word", " word"]


def test_the_window_stays_short() -> None:
    seen: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        seen.append(len(token_ids))
        return "x" * len(token_ids)

    detokenizer = Detokenizer(decode)
    for token in range(1000):
        detokenizer.push([token])
    assert max(seen) == 2


def test_flush_twice_gives_the_rest_once() -> None:
    detokenizer = Detokenizer(Decoder(["€".encode()[:2]]))
    assert detokenizer.push([0]) == ""
    assert (detokenizer.flush(), detokenizer.flush()) == ("\ufffd", "")
