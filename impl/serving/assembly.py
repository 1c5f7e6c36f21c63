"""Puts a real engine together: model, tokenizer, cache sizes, device and trace, from one set of options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import get_args

import torch

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.execution.weights import LoadedModel, load_model
from freehold.impl.memory.events import EventSink
from freehold.impl.serving.choices import Device, Dtype, Policy
from freehold.impl.serving.tokenizer import ModelTokenizer
from freehold.spec.arithmetic import ceil_pages
from freehold.spec.errors import InvalidInput, Unsupported
from freehold.spec.trace import Header, TraceWriter

BUNDLED_NAME = "SmolLM2-135M-Instruct"
# A pool for every running request at full length would mostly lie idle; one for a quarter of that retracts seldom.
_CONTEXT_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What a person can choose about an engine. Raises InvalidInput or Unsupported for what could never run.

    model: a GGUF file or a Hugging Face directory; None for the bundled SmolLM2-135M-Instruct.
    device, dtype: "auto" takes a GPU and bfloat16 where there is one, else the CPU and float32.
    page_size: tokens in a page, a power of two.
    num_pages: pages in the pool; None for a quarter of what `max_running` full contexts need, but at least one context.
    max_running: requests that may hold KV at once.
    max_context_tokens: the longest that prompt and output can be together; the model's own limit lowers it.
    chunk_tokens: prefill tokens in one step, over all requests.
    policy: who is admitted first.
    trace: where the event log goes; None for none. Read it with `freehold check`.
    """

    model: str | Path | None = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    page_size: int = 16
    num_pages: int | None = None
    max_running: int = 16
    max_context_tokens: int = 2048
    chunk_tokens: int = 512
    policy: Policy = "first_come"
    trace: str | Path | None = None

    def __post_init__(self) -> None:
        for name, value, known in (("device", self.device, Device), ("dtype", self.dtype, Dtype)):
            if value not in get_args(known):
                raise InvalidInput(f"{name} must be one of {', '.join(get_args(known))}, not {value!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise Unsupported("device 'cuda': torch finds no GPU here; take 'cpu', or install a torch built for it")
        _ = self.engine_config(self.max_context_tokens)  # checks the sizes
        if self.trace is not None and (Path(self.trace).is_dir() or not Path(self.trace).parent.is_dir()):
            raise InvalidInput(f"the trace cannot go to {self.trace}: give the path of a file in an existing folder")

    def engine_config(self, context_tokens: int) -> EngineConfig:
        """The engine's sizes with a model whose own limit is `context_tokens`. Raises InvalidInput as EngineConfig."""
        context_tokens = min(self.max_context_tokens, context_tokens)
        if self.page_size < 1:
            raise InvalidInput(f"page_size must be a power of two (1, 2, 4, ...), not {self.page_size}")
        contexts = max(1, self.max_running // _CONTEXT_SHARE)
        automatic = contexts * max(1, ceil_pages(max(context_tokens, 0), self.page_size))
        return EngineConfig(
            page_size=self.page_size,
            num_pages=automatic if self.num_pages is None else self.num_pages,
            max_context_tokens=context_tokens,
            max_running=self.max_running,
            chunk_tokens=self.chunk_tokens,
            policy=self.policy,
        )

    @property
    def torch_device(self) -> torch.device:
        """The device, with "auto" decided."""
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(automatic if self.device == "auto" else self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of weights and KV, with "auto" decided."""
        automatic = "bfloat16" if self.torch_device.type == "cuda" else "float32"
        dtype: torch.dtype = getattr(torch, automatic if self.dtype == "auto" else self.dtype)
        return dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An engine with a real model, ready to run. Close it, or use it as a context manager, to end its trace.

    model_name: for people and for `/v1/models`. eos_token_ids: tokens that end an answer.
    weights: the model that the engine has taken for its own. trace: the open event log, if one was asked for.
    """

    engine: Engine
    tokenizer: ModelTokenizer
    model_name: str
    eos_token_ids: frozenset[int]
    vocabulary_tokens: int
    weights: LoadedModel
    trace: TraceWriter | None

    def close(self) -> None:
        """The trace gets its end line. Raises InvalidInput when it cannot be written."""
        if self.trace:
            try:
                self.trace.close()
            except OSError as error:
                raise InvalidInput(f"the trace could not be finished ({error}): make room and run again") from error

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Tee:
    """An event sink that passes everything on to several."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def emit(self, name: str, *args: object) -> None:
        """Every sink hears of the event, in order."""
        for sink in self._sinks:
            sink.emit(name, *args)


def load_engine(options: EngineOptions, sink: EventSink | None = None) -> Loaded:
    """Load the model, allocate its caches and open the trace; `sink` hears of the same events.

    Raises InvalidInput for a missing or broken model, Unsupported for one that is not served or does not fit this
    machine. Where it raises, no trace file is left behind.
    """
    weights = load_model(options.model, dtype=options.torch_dtype)
    config = options.engine_config(weights.context_tokens)
    trace = _open_trace(options.trace, config)
    sinks = [each for each in (trace, sink) if each is not None]
    try:
        engine = _build(options, config, weights, sinks[0] if len(sinks) == 1 else Tee(*sinks) if sinks else None)
    except BaseException:
        if trace and options.trace:
            trace.close()
            Path(options.trace).unlink()
        raise
    return Loaded(
        engine=engine,
        tokenizer=ModelTokenizer(weights.tokenizer),
        model_name=BUNDLED_NAME if options.model is None else weights.name,
        eos_token_ids=weights.eos_token_ids,
        vocabulary_tokens=weights.vocabulary_tokens,
        weights=weights,
        trace=trace,
    )


def _open_trace(path: str | Path | None, config: EngineConfig) -> TraceWriter | None:
    if path is None:
        return None
    geometry = config.geometry
    header = Header(
        page_size=geometry.page_size,
        pages=geometry.num_pages,
        rows=geometry.num_rows,
        row_width=geometry.max_context_tokens,
    )
    return TraceWriter(path, header)


def _build(options: EngineOptions, config: EngineConfig, weights: LoadedModel, sink: EventSink | None) -> Engine:
    def runner(page_table: torch.Tensor) -> ModelRunner:
        return ModelRunner(
            weights.model,
            page_table,
            num_pages=config.num_pages + 1,  # page 0 is padding
            page_size=config.page_size,
            device=options.torch_device,
        )

    try:
        return Engine(config, runner, sink=sink)
    except (RuntimeError, MemoryError) as error:
        raise Unsupported(
            f"{options.torch_device} has no room for the model and {config.num_pages} pages of {config.page_size} "
            f"tokens: lower num_pages, max_running or max_context_tokens ({error})"
        ) from error
