"""`/v1/completions`: what is asked for comes back, whole and streamed, and what is not served is refused."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from server.harness import Served, serving

from freehold.impl.scheduling.ports import Sampling


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def test_a_whole_answer(served: Served) -> None:
    answer = served.complete("abc", model="counting", max_tokens=4, user="someone")
    assert answer["choices"] == [{"index": 0, "text": "defg", "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["total_tokens"] == 7
    assert (answer["object"], answer["model"]) == ("text_completion", "counting")
    assert answer["id"].startswith("cmpl-")


def test_sixteen_tokens_unless_told_otherwise_or_less_where_the_context_ends(served: Served) -> None:
    assert len(served.text([1] * 50)) == 16
    assert len(served.text([1] * 120)) == 8
    assert len(served.text([1] * 127)) == 1


def test_a_token_that_ends_the_answer_is_counted_but_not_shown(served: Served) -> None:
    answer = served.complete("x")
    assert answer["choices"][0] == {"index": 0, "text": "yz", "logprobs": None, "finish_reason": "stop"}
    assert answer["usage"]["completion_tokens"] == 3
    assert served.text("x", ignore_eos=True, max_tokens=4) == "yz{|"
    assert served.text("a", stop_token_ids=[ord("e")]) == "bcd"
    assert served.text("w", stop_token_ids=[ord("|")], ignore_eos=True) == "xyz{"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["cd"]),
        (["ab", "p", "abab"], ["cd", "qr", "cd"]),
        ([97, 98], ["cd"]),
        ([[97, 98], [112]], ["cd", "qr"]),
    ],
)
def test_every_form_of_prompt(served: Served, prompt: Any, texts: list[str]) -> None:
    choices = served.complete(prompt, max_tokens=2)["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(texts)))
    assert [choice["text"] for choice in choices] == texts
    streamed = [""] * len(texts)
    for event in served.events(prompt, max_tokens=2):
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert streamed == texts


def test_a_streamed_answer_has_a_chunk_for_each_token(served: Served) -> None:
    events = served.events("abc", max_tokens=3)
    assert [event["choices"][0]["text"] for event in events] == ["d", "e", "f"]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "length"]
    assert [event["usage"] for event in events] == [None, None, None]
    assert len({event["id"] for event in events}) == 1


def test_a_streamed_answer_can_tell_its_usage(served: Served) -> None:
    *chunks, last = served.events("abc", max_tokens=2, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks] == [None, None]
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 5
    events = served.events("abc", max_tokens=2, stream_options={"continuous_usage_stats": True})
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2]


@pytest.mark.parametrize(
    ("stop", "texts", "reason"),
    [
        ("ef", ["b", "c", "d", ""], "stop"),
        (["ey", "hz", "gh"], ["b", "c", "d", "ef", ""], "stop"),
        (["bcdefgi"], ["bcdefgh"], "length"),
        (["defg", "ef"], ["b", "c", "d"], "stop"),
        ([], ["b", "c", "d", "e", "f", "g", "h"], "length"),
    ],
)
def test_stop_strings_are_held_back_across_chunks(served: Served, stop: Any, texts: list[str], reason: str) -> None:
    events = served.events("a", max_tokens=7, stop=stop)
    assert [event["choices"][0]["text"] for event in events] == texts
    assert events[-1]["choices"][0]["finish_reason"] == reason
    whole = served.complete("a", max_tokens=7, stop=stop)["choices"][0]
    assert (whole["text"], whole["finish_reason"]) == ("".join(texts), reason)


def test_a_prompt_that_came_before_is_cached(served: Served) -> None:
    prompt = [7, 3] * 9
    counts = [served.complete(prompt, max_tokens=2)["usage"]["prompt_tokens_details"] for _ in range(2)]
    assert counts == [{"cached_tokens": 0}, {"cached_tokens": 16}]
    last = served.events(prompt, max_tokens=2, stream_options={"include_usage": True})[-1]
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}


def test_sampling_reaches_the_executor(served: Served) -> None:
    def sampling(**fields: Any) -> Sampling:
        assert served.post(prompt="a", max_tokens=1, **fields).status_code == 200
        return served.executor.batches[-1].items[0].sampling

    assert sampling() == Sampling(temperature=1.0)
    assert sampling(temperature=0.5, top_p=0.9, top_k=5, seed=7) == Sampling(
        temperature=0.5, top_p=0.9, top_k=5, seed=7
    )
    assert sampling(top_k=-1, temperature=0) == Sampling()


def test_fields_at_the_value_that_changes_nothing_are_taken(served: Served) -> None:
    neutral: dict[str, Any] = {
        "n": 1, "best_of": 1, "echo": False, "logprobs": None, "suffix": None, "logit_bias": {}, "min_tokens": 0,
        "frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0, "stop": None,
        "max_tokens": None, "seed": None, "stream": False, "stream_options": None,
    }  # fmt: skip
    assert served.text("abc", **neutral) == "defghijklmnopqrs"


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, None, "prompt"),
        ({"prompt": 5}, None, "prompt"),
        ({"prompt": "a", "colour": 1}, None, "colour"),
        ({"prompt": "a", "max_tokens": "4"}, None, "max_tokens"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "at least 1"),
        ({"prompt": "a", "max_tokens": 128}, "max_tokens", "lower max_tokens"),
        ({"prompt": [1] * 128}, "prompt", "shorten the prompt"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "1 to 256 prompts"),
        ({"prompt": [[1], []]}, "prompt", "empty"),
        ({"prompt": [[1]] * 257}, "prompt", "1 to 256 prompts"),
        ({"prompt": ["a", 5]}, "prompt", "mixes kinds"),
        ({"prompt": [5, "a"]}, "prompt", "mixes kinds"),
        ({"prompt": [[5], 5]}, "prompt", "mixes kinds"),
        ({"prompt": [5, 128]}, "prompt", "[0, 128)"),
        ({"prompt": [-1]}, "prompt", "[0, 128)"),
        ({"prompt": "a", "stop_token_ids": [128]}, "stop_token_ids", "[0, 128)"),
        ({"prompt": "a", "temperature": -1}, "temperature", "0 or more"),
        ({"prompt": "a", "top_p": 0}, "top_p", "above 0"),
        ({"prompt": "a", "top_p": 1.5}, "top_p", "at most 1"),
        ({"prompt": "a", "top_k": -2}, "top_k", "at least 1"),
        ({"prompt": "a", "stop": ["x", ""]}, "stop", "empty"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"prompt": "a", "stream": True, "stream_options": {"other": 1}}, None, "other"),
        ({"prompt": "a", "n": 2}, "n", "not served"),
        ({"prompt": "a", "best_of": 2}, "best_of", "not served"),
        ({"prompt": "a", "echo": True}, "echo", "not served"),
        ({"prompt": "a", "logprobs": 0}, "logprobs", "give null"),
        ({"prompt": "a", "suffix": ""}, "suffix", "not served"),
        ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias", "not served"),
        ({"prompt": "a", "frequency_penalty": 0.1}, "frequency_penalty", "not served"),
        ({"prompt": "a", "presence_penalty": -0.1}, "presence_penalty", "not served"),
        ({"prompt": "a", "repetition_penalty": 1.1}, "repetition_penalty", "not served"),
        ({"prompt": "a", "min_p": 0.1}, "min_p", "not served"),
        ({"prompt": "a", "min_tokens": 1}, "min_tokens", "not served"),
    ],
)
def test_what_is_not_served_is_refused(served: Served, body: Any, param: str | None, says: str) -> None:
    response = served.post(**body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert says in error["message"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"prompt": "\xff"}', b"[" * 100_000])
def test_a_body_that_is_no_request_is_refused(served: Served, content: bytes) -> None:
    response = served.client.post("/v1/completions", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_another_model_is_not_found(served: Served) -> None:
    response = served.post(prompt="a", model="other")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "'counting'" in response.json()["error"]["message"]


def test_many_at_once_in_a_pool_too_small_for_all_get_their_own_answers() -> None:
    with serving(num_pages=33) as served, ThreadPoolExecutor(12) as threads:
        prompts = [[97 + i, *range(i, i + 4)] for i in range(12)]
        answers = list(threads.map(lambda ids: served.text(ids, max_tokens=110, ignore_eos=True), prompts))
        moves = len({item.request_id for batch in served.executor.batches for item in batch.items})
        restarts = sum(item.start_tokens == 0 for batch in served.executor.batches for item in batch.items)
    expected = ["".join(chr((ids[-1] + 1 + step) % 128) for step in range(110)) for ids in prompts]
    assert answers == expected
    assert moves == 12
    assert restarts > 12  # some were retracted
