"""Text is handed out as soon as, and only when, no stop string can take it back."""

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from freehold.impl.serving.text import TextStream


def decode(token_ids: Sequence[int]) -> str:
    return "".join(map(chr, token_ids))


def until_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string to be complete; of those complete at once, before the longest."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


@settings(max_examples=300, derandomize=True)
@example("ab", ["ab", "b"])
@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_what_comes_out_is_the_text_before_the_first_stop(text: str, stops: list[str]) -> None:
    stream = TextStream(decode, stops)
    expected = until_stop(text, stops)
    out = ""
    for position, character in enumerate(text):
        out += stream.push(ord(character))
        assert expected.startswith(out)
        if not stream.stopped:
            held = text[: position + 1].removeprefix(out)
            assert all(not held[:-1].startswith(stop) for stop in stops)
            assert not held or any(stop.startswith(held) for stop in stops)
    assert out + stream.flush() == expected
    assert stream.stopped == (expected != text)
    assert stream.flush() == ""


def test_a_stop_inside_a_long_token_cuts_it() -> None:
    words = ["Hello wor", "ld! And", " more"]
    stream = TextStream(lambda ids: "".join(words[i] for i in ids), ["world"])
    assert stream.push(0) == "Hello "
    assert stream.push(1) == ""
    assert stream.stopped
    assert stream.push(2) == ""


def test_what_was_held_back_comes_at_the_end() -> None:
    stream = TextStream(decode, ["abc"])
    assert [stream.push(ord(character)) for character in "xab"] == ["x", "", ""]
    assert stream.flush() == "ab"
    assert not stream.stopped
