"""Puts a real engine together: model, tokenizer, cache sizes, device and trace, from one set of options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import get_args

import torch

from freehold.impl import containment
from freehold.impl.containment import Containment
from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.execution.canary import Canary
from freehold.impl.execution.canary_runner import CanaryRunner
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.execution.model_shape import ModelShape, model_shape
from freehold.impl.execution.poison import poison, poison_states
from freehold.impl.execution.stream import StreamExecutor
from freehold.impl.execution.weights import LoadedModel, load_model
from freehold.impl.execution.worker import Worker
from freehold.impl.memory.cache import KvCache
from freehold.impl.memory.events import EventSink
from freehold.impl.memory.tables import KvTables
from freehold.impl.scheduling.ports import Executor
from freehold.impl.serving.choices import Device, Dtype, KvCheck, OnBreach, Policy, Retraction
from freehold.impl.serving.tokenizer import ModelTokenizer
from freehold.spec.arithmetic import ceil_pages
from freehold.spec.errors import InvalidInput, Unsupported
from freehold.spec.trace import TraceWriter

BUNDLED_NAME = "SmolLM2-135M-Instruct"
# A pool for every running request at full length would mostly lie idle; one for a quarter of that retracts seldom.
_CONTEXT_SHARE = 4
# A look at the structures shows what no event told, in time proportional to the pools.
_STEPS_BETWEEN_LOOKS = 256


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
    policy, retraction: who is admitted first, and who gives way first when pages run out.
    num_swa_pages: of a model with a sliding window; None for the windows of `max_running` requests and a chunk.
    num_state_slots: of a model with recurrent states; None for one each running request and as many checkpoints.
    overlap: whether the scheduler runs one step ahead of the forward pass; a model with recurrent states never does.
    waiting_timeout_s, running_timeout_s, session_timeout_s: None for ever.
    on_breach: what follows a broken rule of the law; "dump" needs `dump_directory`.
    kv_check: "canary" marks each slot and verifies the marks before each read, "poison" fills what is free with NaN.
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
    retraction: Retraction = "youngest"
    num_swa_pages: int | None = None
    num_state_slots: int | None = None
    overlap: bool = True
    waiting_timeout_s: float | None = None
    running_timeout_s: float | None = None
    session_timeout_s: float | None = None
    on_breach: OnBreach = "off"
    dump_directory: str | Path | None = None
    kv_check: KvCheck = "off"
    trace: str | Path | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("device", self.device, Device), ("dtype", self.dtype, Dtype), ("on_breach", self.on_breach, OnBreach),
            ("kv_check", self.kv_check, KvCheck),
        ):  # fmt: skip
            if value not in get_args(known):
                raise InvalidInput(f"{name} must be one of {', '.join(get_args(known))}, not {value!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise Unsupported("device 'cuda': torch finds no GPU here; take 'cpu', or install a torch built for it")
        if self.on_breach == "dump" and self.dump_directory is None:
            raise InvalidInput("on_breach 'dump' writes files: name their folder with dump_directory")
        _ = self.engine_config(self.max_context_tokens)  # checks the sizes
        if self.trace is not None and (Path(self.trace).is_dir() or not Path(self.trace).parent.is_dir()):
            raise InvalidInput(f"the trace cannot go to {self.trace}: give the path of a file in an existing folder")

    def engine_config(self, context_tokens: int, window_tokens: int = 0, recurrent: bool = False) -> EngineConfig:
        """The engine's sizes with a model whose own limit is `context_tokens`. Raises InvalidInput as EngineConfig.

        window_tokens: that its sliding layers look back on; recurrent: whether it keeps recurrent states.
        """
        context_tokens = min(self.max_context_tokens, context_tokens)
        if self.page_size < 1:
            raise InvalidInput(f"page_size must be a power of two (1, 2, 4, ...), not {self.page_size}")
        contexts = max(1, self.max_running // _CONTEXT_SHARE)
        automatic = contexts * max(1, ceil_pages(max(context_tokens, 0), self.page_size))
        window_pages = self.max_running * (ceil_pages(window_tokens, self.page_size) + 2)
        swa_pages = window_pages + ceil_pages(max(self.chunk_tokens, 0), self.page_size)
        state_slots = 2 * self.max_running
        return EngineConfig(
            page_size=self.page_size,
            num_pages=automatic if self.num_pages is None else self.num_pages,
            max_context_tokens=context_tokens,
            max_running=self.max_running,
            chunk_tokens=self.chunk_tokens,
            policy=self.policy,
            retraction=self.retraction,
            window_tokens=window_tokens,
            num_swa_pages=(swa_pages if self.num_swa_pages is None else self.num_swa_pages) if window_tokens else 0,
            num_state_slots=(state_slots if self.num_state_slots is None else self.num_state_slots) if recurrent else 0,
            overlap=self.overlap and not recurrent,
            waiting_timeout_s=self.waiting_timeout_s,
            running_timeout_s=self.running_timeout_s,
            session_timeout_s=self.session_timeout_s,
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
    executor: Executor

    def close(self) -> None:
        """The forward thread ends, and the trace gets its end line. Raises InvalidInput when it cannot be written."""
        if isinstance(self.executor, Worker):
            self.executor.close()
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
    shape = model_shape(weights.model.config)
    config = options.engine_config(weights.context_tokens, shape.window_tokens, shape.recurrent)
    trace = None if options.trace is None else TraceWriter(options.trace, config.header)
    contained = _containment(options, config)
    sinks = [each for each in (trace, contained, sink) if each is not None]
    try:
        build = _Build(options, config, weights, shape)
        engine = build.engine(sinks[0] if len(sinks) == 1 else Tee(*sinks) if sinks else None, contained)
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
        executor=engine.scheduler.executor,
    )


def _containment(options: EngineOptions, config: EngineConfig) -> Containment | None:
    if options.on_breach == "off":
        return None
    directory = None if options.dump_directory is None else Path(options.dump_directory)
    return Containment(
        config.header, containment.Policy(options.on_breach), directory=directory, observe_every=_STEPS_BETWEEN_LOOKS
    )


@dataclass(frozen=True, slots=True)
class _Build:
    options: EngineOptions
    config: EngineConfig
    weights: LoadedModel
    shape: ModelShape

    def engine(self, sink: EventSink | None, contained: Containment | None) -> Engine:
        """Raises Unsupported when the machine has no room."""
        runners: list[ModelRunner] = []

        def executor(tables: KvTables) -> Executor:
            runners.append(self.runner(tables))
            return self.in_flight(runners[0], tables)

        try:
            engine = Engine(self.config, executor, sink=sink, containment=contained)
        except (RuntimeError, MemoryError) as error:
            raise Unsupported(
                f"{self.options.torch_device} has no room for the model and {self.config.num_pages} pages of "
                f"{self.config.page_size} tokens: lower num_pages, max_running or max_context_tokens ({error})"
            ) from error
        if self.options.kv_check == "poison":
            engine.after_step = partial(poison_free, runners[0])
        return engine

    def runner(self, tables: KvTables) -> ModelRunner:
        """The model over its caches."""
        return ModelRunner(
            self.weights.model, tables, page_size=self.config.page_size, device=self.options.torch_device,
            num_state_slots=self.config.num_state_slots,
        )  # fmt: skip

    def in_flight(self, runner: ModelRunner, tables: KvTables) -> Executor:
        """The runner as an executor whose steps are over at once, or run on a thread or a stream."""
        if self.options.kv_check == "canary":
            canary = Canary(tables, self.config.page_size, self.shape.window_tokens)
            behind = CanaryRunner(runner, canary)
            return Worker(behind) if self.config.overlap else behind
        if not self.config.overlap:
            return runner
        return StreamExecutor(runner) if self.options.torch_device.type == "cuda" else Worker(runner)


def poison_free(runner: ModelRunner, cache: KvCache) -> None:
    """Fill every page and every state slot that is free now with NaN, so that whoever reads it shows."""
    full, swa, slots = cache.pages.full, cache.pages.swa, cache.states.pool
    poison(runner.storage, full.stack[: full.free_pages], swa.stack[: swa.free_pages])
    if runner.states is not None:
        poison_states(runner.states, slots.stack[: slots.free_pages])
