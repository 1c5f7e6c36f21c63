"""A watched run of the real thing: SmolLM2 under the scheduler, every event checked, every token compared.

Requests that share a prefix are batched in a pool that is too small for all of them, so some are retracted and computed
again; one is aborted while it runs; a session takes three turns. Greedy tokens must equal those of transformers'
`generate` on the same weights, and at the end nothing may be held but by the prefix tree.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.execution.weights import LoadedModel, load_model
from freehold.spec.monitor import Monitor
from freehold.spec.observed import compare
from freehold.spec.state import Place
from freehold.spec.trace import Event, Header

SYSTEM = (
    "You are a careful librarian. A page belongs to one reader at a time, and a page that nobody reads stands on the "
    "shelf. Answer in one sentence."
)
QUESTIONS = (
    "Who owns a page?",
    "Name three colours.",
    "What is the capital of France?",
    "Count from one to five.",
    "Why is the sky blue?",
    "What do cats eat?",
)
TURNS = ("My name is Ada.", "I like graphs and trees.", "What is my name?")
NEW_TOKENS = 10


@dataclass(frozen=True, slots=True)
class ServingReport:
    """What was served and watched. `problems` is empty when all is well."""

    requests: int
    tokens: int
    events: int
    retracts: int
    prefix_hit_pages: int
    steps: int
    seconds: float
    problems: tuple[str, ...]


class Watch:
    """An event sink: the monitor, and counts of what a reader wants to know about the run."""

    def __init__(self, header: Header) -> None:
        self.monitor = Monitor(header)
        self.events: Counter[str] = Counter()
        self.places: dict[str, Place] = {}
        self.retracts = 0
        self.hit_pages = 0

    def emit(self, name: str, *args: Any) -> None:
        self.events[name] += 1
        if name == "place":
            request, place = args
            self.retracts += place is Place.WAITING and self.places.get(request, Place.OUT) >= Place.PREFILL
            self.places[request] = place
        if name == "attach":
            self.hit_pages += len(args[1])
        self.monitor.emit(name, *args)


def serve_watched(announce: Callable[[str], None] = lambda _: None) -> ServingReport:
    """Load the bundled model and serve the scene, with everything checked after every step."""
    announce("loading SmolLM2-135M-Instruct")
    loaded = load_model(dtype=torch.float32)
    started = time.perf_counter()
    prompts = [_chat(loaded, f"{SYSTEM} {q}") for q in QUESTIONS]
    announce("asking transformers for the reference tokens")
    expected = [reference(loaded, p, NEW_TOKENS) for p in prompts]
    turns = [loaded.tokenizer(t, add_special_tokens=False)["input_ids"] for t in TURNS]
    spoken: list[int] = []
    for turn in turns:  # a session is one growing sequence
        spoken += turn
        spoken += reference(loaded, spoken, NEW_TOKENS)
    run = _Run(loaded)
    announce(f"serving {len(prompts)} requests, one abort and a session of {len(turns)} turns")
    problems = run.batch(prompts, expected)
    problems += run.session(turns, spoken)
    problems += run.end()
    if not run.watch.retracts:
        problems.append("no request was retracted: the pool was not small enough to show it")
    if not run.watch.hit_pages:
        problems.append("no prefix was shared")
    return ServingReport(
        len(prompts) + 1 + len(turns), run.tokens, run.watch.monitor.count, run.watch.retracts,
        run.watch.hit_pages, run.steps, time.perf_counter() - started, tuple(problems),
    )  # fmt: skip


def reference(loaded: LoadedModel, prompt: list[int], new_tokens: int) -> list[int]:
    """Greedy continuation by transformers alone, end-of-text included."""
    model: Any = loaded.model
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False,
            eos_token_id=sorted(loaded.eos_token_ids), pad_token_id=0,
        )  # fmt: skip
    return [int(t) for t in out[0, len(prompt) :]]


def _chat(loaded: LoadedModel, text: str) -> list[int]:
    text = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    return [int(t) for t in loaded.tokenizer(text, add_special_tokens=False)["input_ids"]]


class _Run:
    """The engine under watch."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.config = EngineConfig(
            page_size=4, num_pages=34, max_context_tokens=128, max_running=6, chunk_tokens=48, policy="first_come"
        )
        self.stops = sorted(loaded.eos_token_ids)
        self.watch = Watch(self.config.header)
        self.engine = Engine(
            self.config,
            lambda tables: ModelRunner(loaded.model, tables, page_size=self.config.page_size),
            sink=self.watch,
        )
        self.steps = 0
        self.tokens = 0

    def batch(self, prompts: list[list[int]], expected: list[list[int]]) -> list[str]:
        """All prompts at once, and one more that is aborted while it runs."""
        requests = [self.engine.submit(p, max_new_tokens=NEW_TOKENS, stop_ids=self.stops) for p in prompts]
        doomed = self.engine.submit(prompts[0][:-2], max_new_tokens=NEW_TOKENS, request_id="doomed")
        problems: list[str] = []
        while self.engine.busy:
            problems += self._step()
            if doomed.place is Place.RUNNING and len(doomed.output) == 2:
                self.engine.abort(doomed.id)
        if doomed.finish_reason != "abort":
            problems.append(f"the request to abort ended with {doomed.finish_reason}")
        for question, request, wanted in zip(QUESTIONS, requests, expected, strict=True):
            if request.output != wanted:
                problems.append(f"{question!r}: {request.output} is not what transformers says, {wanted}")
        return problems

    def session(self, turns: list[list[int]], expected: list[int]) -> list[str]:
        """Turns of one session: the tokens of all of them are one sequence."""
        name = self.engine.open_session()
        problems: list[str] = []
        said: list[int] = []
        for turn in turns:
            request = self.engine.submit(turn, max_new_tokens=NEW_TOKENS, session_id=name, stop_ids=self.stops)
            while self.engine.busy:
                problems += self._step()
            said += turn + request.output
        if said != expected:
            problems.append("the session's tokens are not those of one long sequence")
        self.engine.close_session(name)
        return problems

    def end(self) -> list[str]:
        """Nothing is held any more, except by the tree."""
        relations = self.engine.observe().relations
        held = [name for name in ("kv", "slot_kv", "owns", "locks", "row_of", "turn", "opened") if relations[name]]
        pages = len(relations["free"]) + len(relations["in_tree"])
        problems = [f"{name} is not empty at the end: {relations[name]}" for name in held]
        if pages != self.config.num_pages:
            problems.append(f"{self.config.num_pages} pages went in, {pages} came out")
        return problems

    def _step(self) -> list[str]:
        self.tokens += sum(o.token is not None for o in self.engine.step())
        self.steps += 1
        seen = self.engine.observe()
        state = {**seen.relations, **seen.functions, "conflicts": seen.conflicts}
        monitor = self.watch.monitor
        verdict = monitor.verdict or compare(Event(monitor.count, "observe", (state,)), state, monitor.compiled)
        return [str(verdict)] if verdict is not None else []
