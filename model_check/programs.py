"""Programs for an engine: a configuration and a list of verbs, as plain data that a file can hold.

    {"config": {"page_size": 4, …}, "verbs": [["submit", [0, 1, 1], 3, true, -1, 0], ["step", 2], ["drain"]]}

Whatever finds a failure hands it on as a program, so that one small interpreter replays what Hypothesis, a seed or a
person has written. The engine and its executor are deterministic: the same program does the same every time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from freehold.impl.engine import EngineConfig, Policy, Retraction
from freehold.model_check.coverage import Coverage
from freehold.model_check.harness import Checked
from freehold.model_check.watch import ALL, Check, Violated, Violation
from freehold.spec.arithmetic import ceil_pages
from freehold.spec.errors import InvalidInput
from freehold.spec.trace import Event

Verb = tuple[Any, ...]
"""A method of `Checked` and its arguments."""

# The verbs with the types of their arguments.
VERBS: dict[str, tuple[type, ...]] = {
    "submit": (list, int, bool, int, int),
    "turn": (int, list, int, int, int),
    "open": (int,),
    "close": (int,),
    "abort": (int,),
    "abort_in_forward": (int,),
    "fail": (),
    "flush": (),
    "wait": (int,),
    "step": (int,),
    "drain": (),
}
SESSIONS = 3
ALPHABET = 3
POLICIES: tuple[Policy, ...] = get_args(Policy)
RETRACTIONS: tuple[Retraction, ...] = get_args(Retraction)


class Variant(NamedTuple):
    """What kind of engine a program is for: with a sliding window, one step ahead, with recurrent states."""

    window: bool = False
    ahead: bool = False
    states: bool = False

    def give(self, config: EngineConfig, window_tokens: int, more_halves: int, more_slots: int) -> EngineConfig:
        """`config` with these pools, each as small as it can be or larger by so many units."""
        config = replace(config, overlap=self.ahead)
        if self.window:
            geometry = config.geometry
            least = min(geometry.row_pages, ceil_pages(window_tokens, config.page_size) + 2)
            config = replace(config, window_tokens=window_tokens, num_swa_pages=least + more_halves)
        if self.states:
            config = replace(config, num_state_slots=config.max_running + more_slots)
        return config


# A state cannot be ahead of its tokens, so no engine has both.
VARIANTS = (
    Variant(),
    Variant(window=True, ahead=True),
    Variant(states=True),
    Variant(ahead=True),
    Variant(window=True),
    Variant(window=True, states=True),
)
WINDOWS = (1, 2, 3, 5, 8)


class BadProgram(InvalidInput):
    """A file that holds no program; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to do with which engine. After its last verb everything is drained, closed and looked at again."""

    config: EngineConfig
    verbs: tuple[Verb, ...]

    def to_json(self) -> str:
        return json.dumps({"config": asdict(self.config), "verbs": [list(verb) for verb in self.verbs]})

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Raises BadProgram when the text is no program."""
        try:
            data = json.loads(text)
            config, verbs = EngineConfig(**data["config"]), tuple(tuple(verb) for verb in data["verbs"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadProgram(f"not a program: an object with config and verbs was expected ({error})") from error
        for verb in verbs:
            _check(verb)
        return cls(config, verbs)

    @classmethod
    def load(cls, path: Path | str) -> Program:
        """Raises BadProgram when the file can't be read or holds no program."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadProgram(f"{path}: {error}; give the path of a program file") from error


def _check(verb: Verb) -> None:
    name, *args = verb or ("",)
    if not isinstance(name, str) or name not in VERBS:
        raise BadProgram(f"unknown verb {name!r}; known are {', '.join(VERBS)}")
    if tuple(type(arg) for arg in args) != VERBS[name]:
        raise BadProgram(f"{name} takes ({', '.join(t.__name__ for t in VERBS[name])}), not {args}")
    for arg in args:
        if isinstance(arg, list) and not all(type(token) is int and 0 <= token < 2**31 for token in arg):
            raise BadProgram(f"{name}: a prompt is a list of token ids, not {arg}")


@dataclass(frozen=True, slots=True)
class Run:
    """What a program did. `state` is what the engine truly looked like when a check failed."""

    violation: Violation | None
    steps: int
    events: tuple[Event, ...]
    coverage: Coverage
    state: dict[str, Any] | None


def run_program(program: Program, checks: frozenset[Check] = ALL) -> Run:
    """Do it, with the given checks after each verb."""
    checked, violation, state = Checked(program.config, checks), None, None
    try:
        for verb in program.verbs:
            do(checked, verb)
        checked.finish()
    except Violated as violated:
        violation = violated.violation
        if violation.check is Check.OBSERVE and violation.verdict:
            state = dict(checked.observed())
    return Run(violation, checked.steps, tuple(checked.watch.events), checked.watch.coverage, state)


def do(checked: Checked, verb: Verb) -> None:
    """One verb. Raises Violated."""
    name, *args = verb
    getattr(checked, name)(*args)


# Programs from a seed -------------------------------------------------------------------------------------------------


def random_program(seed: int, length: int) -> Program:
    """A program of `length` verbs over a small pool, with few tokens and many shared beginnings.

    The kinds of engines take turns, seed by seed.
    """
    draw = random.Random(seed)
    config = _random_config(draw, VARIANTS[seed % len(VARIANTS)])
    stems = [[draw.randrange(ALPHABET) for _ in range(config.max_context_tokens)] for _ in range(2)]
    verbs: list[Verb] = [("open", session) for session in range(SESSIONS)]
    while len(verbs) < length:
        verbs += _random_verbs(draw, config, stems)
    return Program(config, tuple(verbs))


def _random_config(draw: random.Random, variant: Variant) -> EngineConfig:
    page_size = draw.choice([1, 2, 4, 16])
    context = {1: 12, 2: 20, 4: 32, 16: 64}[page_size]
    row_pages = ceil_pages(context, page_size)
    max_running = draw.randint(2, 4)
    plain = EngineConfig(
        page_size=page_size,
        num_pages=row_pages + draw.randint(0, row_pages),
        max_context_tokens=context,
        max_running=max_running,
        chunk_tokens=draw.choice([3, 5, 8, 24]),
        num_rows=max_running + draw.randint(0, 3),
        policy=draw.choice(POLICIES),
        retraction=draw.choice(RETRACTIONS),
        waiting_timeout_s=draw.choice([None, None, 2]),
        running_timeout_s=draw.choice([None, None, 3]),
        session_timeout_s=draw.choice([None, None, 2]),
    )
    return variant.give(plain, draw.choice(WINDOWS), draw.randint(0, row_pages), draw.randint(0, 4))


def _random_verbs(draw: random.Random, config: EngineConfig, stems: Sequence[list[int]]) -> list[Verb]:
    """A verb; or a turn whose session is closed, or a request that is aborted, before it can have ended; or a scene."""
    room = config.max_context_tokens
    new = draw.randint(1, room // 2)
    stop = draw.choice([-1, -1, 0, 2])
    dice = draw.random()
    if dice < 0.05:
        return _crowd(draw, config) if draw.random() < 0.5 else _conversation(draw, stems)
    if dice < 0.30:
        tail = [draw.randrange(ALPHABET) for _ in range(draw.randint(0, 2))]
        prompt = [*draw.choice(stems)[: draw.randint(1, room - new - len(tail))], *tail]
        asks: Verb = ("submit", prompt, new, draw.random() < 0.6, stop, draw.randrange(3))
        return [asks, ("step", 1), ("abort", draw.randrange(4))] if draw.random() < 0.2 else [asks]
    if dice < 0.48:
        session, prompt = draw.randrange(SESSIONS), draw.choice(stems)[: draw.randint(1, room // 4)]
        asks = ("turn", session, prompt, min(new, room // 6), stop, draw.choice([-1, -1, -1, 0, 1, 3, 6]))
        return [asks, ("step", 1), ("close", session)] if draw.random() < 0.2 else [asks]
    if dice < 0.86:
        return [("step", draw.choice([1, 1, 2, 3]))]
    rare = draw.choice(
        ["open", "open", "open", "close", "abort", "abort_in_forward", "fail", "drain", "wait", "wait", "flush"]
    )
    if rare == "flush" and draw.random() < 0.5:
        return [("drain",), ("step", 1), ("flush",)]
    return [(rare,) if not VERBS[rare] else (rare, draw.randrange(SESSIONS))]


def _crowd(draw: random.Random, config: EngineConfig) -> list[Verb]:
    """As many as may run, which together outgrow the pool: somebody has to give way."""
    room, shares = config.max_context_tokens, draw.random() < 0.5
    asks: list[Verb] = [
        ("submit", [token % ALPHABET] * draw.randint(1, 4), room * 2 // 3, shares, -1, draw.randrange(3))
        for token in range(config.max_running)
    ]
    return [*asks, ("step", room // 3), ("abort", draw.randrange(4)), ("step", room // 3)]


def _conversation(draw: random.Random, stems: Sequence[list[int]]) -> list[Verb]:
    """A prefix that others have published, a session that begins on it, and a turn that goes back, perhaps into it."""
    session, prompt = draw.randrange(SESSIONS), draw.choice(stems)[: draw.randint(1, 8)]
    return [
        ("submit", prompt, 1, True, -1, 0), ("open", session), ("drain",), ("turn", session, prompt, 2, -1, -1),
        ("drain",), ("turn", session, prompt[:2], 3, -1, draw.randint(0, 8)), ("step", draw.randint(0, 4)),
    ]  # fmt: skip


# Smaller programs -----------------------------------------------------------------------------------------------------


def shrunk(program: Program, violation: Violation, attempts: int = 1000) -> tuple[Program, Violation]:
    """A smaller program with the same violation, seen by the same check, and that violation.

    Verbs go, in halves and then one by one; numbers and prompts get smaller. Ends when nothing smaller fails, or after
    so many attempts.
    """
    candidates = _smaller(program)
    while attempts and (candidate := next(candidates, None)):
        attempts -= 1
        found = run_program(candidate).violation
        if found and found.same_as(violation):
            program, violation = candidate, found
            candidates = _smaller(program)
    return program, violation


def _smaller(program: Program) -> Iterator[Program]:
    verbs = program.verbs
    size = len(verbs)
    while size:
        for start in range(0, len(verbs), size):
            yield replace(program, verbs=verbs[:start] + verbs[start + size :])
        size //= 2
    for index, (name, *args) in enumerate(verbs):
        for position, arg in enumerate(args):
            for less in _less(arg):
                verb = (name, *args[:position], less, *args[position + 1 :])
                yield replace(program, verbs=(*verbs[:index], verb, *verbs[index + 1 :]))


def _less(arg: Any) -> Iterator[Any]:
    match arg:
        case list() if len(arg) > 1:
            yield from (arg[: len(arg) // 2], arg[:-1], arg[1:])
        case bool():
            return
        case int() if arg > 1:
            yield from (1, arg // 2, arg - 1) if arg > 2 else (1,)
