"""Does the real engine refine the law? Hypothesis writes programs for the real scheduler, and every check looks on.

The pools, the tree, the sessions and the scheduler are the engine's own; only the model is replaced, by an executor
that computes with what the pages hold. Hypothesis composes the verbs. What fails is kept as a program and shrunk as
one: in seconds, and without sliding from one kind of violation to another.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from freehold.impl.engine import EngineConfig
from freehold.model_check.coverage import Coverage
from freehold.model_check.harness import Checked
from freehold.model_check.probe import Probe
from freehold.model_check.programs import (
    ALPHABET,
    POLICIES,
    RETRACTIONS,
    SESSIONS,
    VARIANTS,
    WINDOWS,
    Program,
    Verb,
    do,
    run_program,
    shrunk,
)
from freehold.model_check.scenes import SCENES
from freehold.model_check.watch import Violated, Violation
from freehold.spec.arithmetic import ceil_pages
from freehold.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Profile:
    """How much to run: so many programs of so many verbs. `seed` None is the same run every time."""

    name: str
    examples: int
    verbs: int
    seed: int | None = None


CI = Profile("ci", examples=200, verbs=50)
PROFILES = {profile.name: profile for profile in (CI, Profile("deep", examples=4000, verbs=80))}


@dataclass(slots=True)
class Record:
    """What all programs of a run did. `failed` is the first that failed."""

    verbs: int = 0
    steps: int = 0
    examples: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    probe: Probe = field(default_factory=Probe)
    failed: tuple[Program, Violation] | None = None


@dataclass(frozen=True, slots=True)
class RefinementReport:
    """verbs: steps of the machine; steps: of the engine; examples: programs; events: those that moved something."""

    profile: str
    verbs: int
    steps: int
    examples: int
    coverage: Coverage
    seconds: float
    violation: Violation | None
    program: Program | None

    @property
    def events(self) -> int:
        return self.coverage.moves


tokens = st.integers(0, ALPHABET - 1)
sessions = st.integers(0, SESSIONS - 1)
# A prompt of any length from few choices: long ones cost Hypothesis no more than short ones, and many begin alike.
fresh_prompts = st.builds(
    lambda motif, length: (motif * length)[:length],
    st.lists(tokens, min_size=1, max_size=3),
    st.integers(1, 40),
)
new_tokens = st.integers(1, 12)
priorities = st.integers(0, 2)
stops = st.sampled_from([-1, -1, -1, 0, 3])


backs = st.sampled_from([-1, -1, -1, 0, 1, 2, 4, 8])
some_time = st.sampled_from([None, None, 2])


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    """Pools from one request's size to two, of every kind of engine: they evict, reclaim and retract all the time."""
    page_size, context = draw(st.sampled_from([(1, 12), (2, 20), (4, 24), (4, 40), (16, 64)]))
    row_pages = ceil_pages(context, page_size)
    max_running = draw(st.sampled_from([4, 3, 2, 1]))
    plain = EngineConfig(
        page_size=page_size,
        num_pages=row_pages + draw(st.integers(0, row_pages)),
        max_context_tokens=context,
        max_running=max_running,
        chunk_tokens=draw(st.sampled_from([2, 5, 8, 64])),
        num_rows=max_running + draw(st.integers(0, 3)),
        policy=draw(st.sampled_from(POLICIES)),
        retraction=draw(st.sampled_from(RETRACTIONS)),
        waiting_timeout_s=draw(some_time),
        running_timeout_s=draw(some_time),
        session_timeout_s=draw(some_time),
    )
    variant = draw(st.sampled_from(VARIANTS))
    return variant.give(plain, draw(st.sampled_from(WINDOWS)), draw(st.integers(0, row_pages)), draw(st.integers(0, 4)))


class EngineMachine(RuleBasedStateMachine):
    """One engine, its clients, and whatever they may do to it. Each rule is one verb of a program."""

    record: ClassVar[Record]
    prompts: Bundle[list[int]] = Bundle("prompts")

    def __init__(self) -> None:
        super().__init__()
        self.verbs: list[Verb] = []
        self.failed = False
        self.record.examples += 1

    @initialize(config=configs())
    def begin(self, config: EngineConfig) -> None:
        self.config = config
        self.checked = Checked(config, probe=self.record.probe)

    @rule(target=prompts, prompt=fresh_prompts, new=new_tokens, publishes=st.booleans(), stop=stops, urgent=priorities)
    def submit(self, prompt: list[int], new: int, publishes: bool, stop: int, urgent: int) -> list[int]:
        prompt = prompt[: max(1, self.config.max_context_tokens - new)]
        self.do("submit", prompt, new, publishes, stop, urgent)
        return prompt

    @rule(
        target=prompts, stem=prompts, shared=st.integers(1, 40), tail=st.lists(tokens, max_size=4), new=new_tokens,
        publishes=st.booleans(), stop=stops, copies=st.integers(1, 2),
    )  # fmt: skip
    def submit_alike(
        self, stem: list[int], shared: int, tail: list[int], new: int, publishes: bool, stop: int, copies: int
    ) -> list[int]:
        """A prompt that begins as an earlier one; or twins, who compute the same pages and publish them both."""
        prompt = (stem[:shared] + tail)[: max(1, self.config.max_context_tokens - new)]
        for _ in range(copies):
            self.do("submit", prompt, new, publishes, stop, 0)
        return prompt

    @rule(
        session=sessions, prompt=prompts, length=st.integers(1, 6), new=st.integers(1, 4), stop=stops,
        steps=st.sampled_from([1, 2, 0]), closes=st.sampled_from([False, False, False, True]),
        turns=st.integers(1, 2), back=backs,
    )  # fmt: skip
    def turn(
        self,
        session: int,
        prompt: list[int],
        length: int,
        new: int,
        stop: int,
        steps: int,
        closes: bool,
        turns: int,
        back: int,
    ) -> None:
        """Turns, with 0 steps for all that they need, or closed under way; refused while another one is live.

        They go on from the end of their session, or further back.
        """
        if f"s{session}" not in self.checked.talks:
            self.do("open", session)
        for _ in range(turns):
            self.do("turn", session, prompt[:length], new, stop, back)
            if closes:
                self.do("close", session)
            self.do(*(("step", steps) if steps else ("drain",)))

    @rule(
        session=sessions, prompt=prompts, length=st.integers(1, 6), saved=st.booleans(), closes=st.booleans(),
        steps=st.integers(0, 1), back=backs,
    )  # fmt: skip
    def hang_up(
        self, session: int, prompt: list[int], length: int, saved: bool, closes: bool, steps: int, back: int
    ) -> None:
        """A turn whose client goes away while it waits or at its start, in a session that has KV or has none."""
        if not saved and f"s{session}" in self.checked.talks:
            self.do("close", session)
        if f"s{session}" not in self.checked.talks:
            self.do("open", session)
        if saved:
            self.do("turn", session, prompt[:1], 1, -1, -1)
            self.do("drain")
        self.do("turn", session, prompt[:length], 4, -1, back)
        if steps:
            self.do("step", steps)
        if closes:
            self.do("close", session)
        self.do("abort", -1)
        self.do("step", 1)

    @rule(session=sessions, prompt=prompts, length=st.integers(1, 24), new=st.integers(1, 3), back=st.integers(1, 12))
    def go_back(self, session: int, prompt: list[int], length: int, new: int, back: int) -> None:
        """A session begins on a prefix that others have published, and its second turn goes back, perhaps into it."""
        prompt = prompt[: min(length, self.config.max_context_tokens - 8)]
        if f"s{session}" not in self.checked.talks:
            self.do("open", session)
        self.do("submit", prompt, 1, True, -1, 0)
        self.do("drain")
        self.do("turn", session, prompt, new, -1, -1)
        self.do("drain")
        self.do("turn", session, prompt[:1], 1, -1, back)
        self.do("step", 2)

    @rule(length=st.integers(1, 6), publishes=st.booleans(), last=st.sampled_from([0, 12, 16, 20]))
    def crowd(self, length: int, publishes: bool, last: int) -> None:
        """As many as may run, which together outgrow the pool: somebody has to give way.

        With a `last` one whose prompt is so long, that may happen between two of its chunks.
        """
        new = self.config.max_context_tokens * 2 // 3 - length
        for token in range(self.config.max_running - bool(last)):
            self.do("submit", [token % ALPHABET] * length, new, publishes, -1, token)
        if last:
            self.do("step", 2)
            self.do("submit", [0] * min(last, self.config.max_context_tokens - 2), 2, publishes, -1, 0)
        self.do("step", new)

    @rule(pick=st.integers(0, 5))
    def abort(self, pick: int) -> None:
        self.do("abort", pick)

    @rule(
        what=st.sampled_from(["open", "close", "abort_in_forward", "fail", "too long", "drain", "flush", "wait"]),
        pick=sessions,
    )
    def disturb(self, what: str, pick: int) -> None:
        """What happens less often, so that requests live long enough to get into each other's way."""
        match what:
            case "abort_in_forward":
                self.do(what, pick)
                self.do("step", 1)
            case "fail":
                self.do(what)
                self.do("step", 1)
            case "too long":
                self.do("submit", [0] * self.config.max_context_tokens, 1, True, -1, 0)
            case "flush" if pick:
                self.do("drain")
                self.do("step", 1)
                self.do(what)
            case "drain" | "flush":
                self.do(what)
            case _:
                self.do(what, pick)

    @rule()
    def step(self) -> None:
        self.do("step", 1)

    @rule(steps=st.integers(2, 6))
    def several_steps(self, steps: int) -> None:
        self.do("step", steps)

    def do(self, *verb: Any) -> None:
        """One verb with all checks; what fails is kept as a program."""
        self.verbs.append(verb)
        self.record.verbs += 1
        self._watched(lambda: do(self.checked, verb))

    def teardown(self) -> None:
        """Everything ends, and nothing is left but the tree."""
        if not hasattr(self, "checked"):
            return
        if not self.failed:
            self._watched(self.checked.finish)
        self.record.steps += self.checked.steps
        self.record.coverage.update(self.checked.watch.coverage)

    def _watched(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Violated as violated:
            self.failed = True
            if self.record.failed is None:
                self.record.failed = Program(self.config, tuple(self.verbs)), violated.violation
            raise


def _play(record: Record) -> None:
    """The scenes, which Hypothesis would rarely come to, before its own programs."""
    for scene in SCENES.values():
        run = run_program(scene)
        record.verbs += len(scene.verbs)
        record.steps += run.steps
        record.examples += 1
        record.coverage.update(run.coverage)
        if run.violation and record.failed is None:
            record.failed = scene, run.violation


def refine(profile: Profile | str = CI) -> RefinementReport:
    """Run the machine; the report has the shrunk program of a violation. Raises InvalidInput for an unknown name."""
    if isinstance(profile, str):
        if profile not in PROFILES:
            raise InvalidInput(f"unknown profile {profile!r}; known are {', '.join(PROFILES)}")
        profile = PROFILES[profile]
    started, record = time.perf_counter(), Record()
    machine = cast(type[EngineMachine], type("EngineMachine", (EngineMachine,), {"record": record}))
    if profile.seed is not None:
        machine = hypothesis.seed(profile.seed)(machine)
    settings = hypothesis.settings(
        max_examples=profile.examples,
        stateful_step_count=profile.verbs,
        derandomize=profile.seed is None,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    _play(record)
    if record.failed is None:
        with contextlib.suppress(Violated):  # which `record` has kept
            run_state_machine_as_test(machine, settings=settings)
    record.coverage.refused |= record.probe.refused
    program, violation = shrunk(*record.failed) if record.failed else (None, None)
    return RefinementReport(
        profile.name, record.verbs, record.steps, record.examples, record.coverage,
        time.perf_counter() - started, violation, program,
    )  # fmt: skip
