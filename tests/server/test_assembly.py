"""A real engine from options: sizes that fit, refusals before the model is loaded, and a trace that the law accepts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from server.tiny_model import CHAT_TEMPLATE, CONTEXT_TOKENS, write_tiny_model

from freehold.impl.memory.events import ListSink
from freehold.impl.serving import assembly
from freehold.impl.serving.assembly import EngineOptions, load_engine
from freehold.impl.serving.console import PromptForm, Question, answer
from freehold.spec import trace
from freehold.spec.errors import InvalidInput, Unsupported
from freehold.spec.monitor import Monitor


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"page_size": 3}, "power of two"),
        ({"page_size": 0}, "power of two"),
        ({"num_pages": 127}, "at least 128 pages"),
        ({"max_running": 0}, "max_running"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
        ({"max_context_tokens": 1}, "max_context_tokens"),
        ({"policy": "random"}, "policy"),
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda"),
        ({"dtype": "int4"}, "dtype must be one of"),
        ({"trace": "/no/such/folder/trace.jsonl"}, "existing folder"),
        ({"trace": "/"}, "existing folder"),
    ],
)
def test_an_impossible_configuration_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        EngineOptions(**changes)


def test_a_gpu_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unsupported, match="finds no GPU"):
        EngineOptions(device="cuda")
    options = EngineOptions()
    assert (options.torch_device.type, options.torch_dtype) == ("cpu", torch.float32)


def test_the_pool_has_room_for_a_quarter_of_what_could_run() -> None:
    assert EngineOptions().engine_config(8192).num_pages == 4 * 128
    assert EngineOptions(max_running=1).engine_config(8192).num_pages == 128
    assert EngineOptions(max_running=8, page_size=1).engine_config(100).num_pages == 200
    assert EngineOptions(num_pages=500).engine_config(100).num_pages == 500


def test_the_models_own_limit_lowers_the_context(tiny: Path) -> None:
    with load_engine(EngineOptions(model=tiny, device="cpu", max_running=2)) as loaded:
        assert loaded.engine.config.max_context_tokens == CONTEXT_TOKENS
        assert loaded.model_name == "tiny"
        assert loaded.eos_token_ids == frozenset({0})
        assert loaded.tokenizer.decode(loaded.tokenizer.encode("Hi there!")) == "Hi there!"
        with pytest.raises(InvalidInput, match="not valid Unicode at character 1"):
            loaded.tokenizer.encode("a\udcff")


def test_an_answer_is_what_generate_says_and_its_trace_holds(tiny: Path, tmp_path: Path) -> None:
    path, sink = tmp_path / "trace.jsonl.gz", ListSink()
    options = EngineOptions(model=tiny, device="cpu", page_size=4, max_running=1, chunk_tokens=8, trace=path)
    with load_engine(options, sink) as loaded:
        prompt = loaded.tokenizer.encode("Tell me more!")
        text = "".join(answer(loaded, Question(prompt="Tell me more!")))
    header, events = trace.read(path)
    assert (header.page_size, header.rows, header.row_width) == (4, 2, CONTEXT_TOKENS)
    assert header.pages == CONTEXT_TOKENS // 4
    monitor, names = Monitor(header), []
    pages: set[int] = set()
    for event in events:
        assert monitor.feed(event) is None
        names.append(event.name)
        pages.update(event.args[1] if event.name == "acquire" else ())
    assert names == [event[0] for event in sink.events]
    assert pages == set(range(1, header.pages + 1))  # the last page has KV of its own too
    model: Any = loaded.weights.model
    model.set_attn_implementation("sdpa")
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=83, do_sample=False, pad_token_id=0)
    assert text == loaded.tokenizer.decode(out[0, len(prompt) :].tolist())
    assert text


def test_a_stop_text_or_a_reader_that_leaves_ends_the_answer_early(tiny: Path) -> None:
    with load_engine(EngineOptions(model=tiny, device="cpu", max_running=1)) as loaded:
        whole = "".join(answer(loaded, Question(prompt="Tell me", max_new_tokens=12)))
    with load_engine(EngineOptions(model=tiny, device="cpu", max_running=1)) as loaded:
        stopped = "".join(answer(loaded, Question(prompt="Tell me", max_new_tokens=12, stops=(whole[4:6],))))
        assert stopped == whole[: whole.index(whole[4:6])]
    with load_engine(EngineOptions(model=tiny, device="cpu", max_running=1)) as loaded:
        pieces = answer(loaded, Question(prompt="Tell me", max_new_tokens=50))
        assert next(pieces) == whole[0]
        pieces.close()  # type: ignore[attr-defined]
        assert not loaded.engine.busy
        assert loaded.engine.observe().relations["kv"] == set()


def test_a_chat_prompt_needs_a_template(tiny: Path, tmp_path: Path) -> None:
    with (
        load_engine(EngineOptions(model=tiny, device="cpu", max_running=1)) as loaded,
        pytest.raises(Unsupported, match="no chat template"),
    ):
        next(answer(loaded, Question(prompt="Hi", form=PromptForm.CHAT)))
    chatty = write_tiny_model(tmp_path / "chatty", CHAT_TEMPLATE)
    with load_engine(EngineOptions(model=chatty, device="cpu", max_running=1)) as loaded:
        assert loaded.tokenizer.decode(loaded.tokenizer.encode_chat("Hi")) == "[user] Hi [answer]"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stops": ("",)}, "empty"),
        ({"max_new_tokens": 0}, "max_tokens"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
    ],
)
def test_a_question_out_of_range_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Question(prompt="Hi", **changes)


def test_a_machine_without_room_is_told_what_to_lower_and_no_trace_is_left(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*args: object, **kwargs: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(assembly, "ModelRunner", no_room)
    path = tmp_path / "trace.jsonl"
    with pytest.raises(Unsupported, match="lower num_pages"):
        load_engine(EngineOptions(model=tiny, device="cpu", trace=path))
    assert not path.exists()
    with pytest.raises(InvalidInput, match="no model at"):
        load_engine(EngineOptions(model=tmp_path / "nothing", trace=path))
    assert not path.exists()
