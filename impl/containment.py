"""Containment: what happens to the engine when a rule is broken.

The monitor listens to every event. When it has a verdict, a policy says what follows:

    off     there is no monitor
    warn    the verdict is logged, once for each rule, and nothing else is touched
    dump    the last events go to a file with the verdict, the units concerned go under quarantine, and those whose KV
            can't be trusted are named, to be ended
    raise   the step ends with `InvariantBroken`

An event is told in the middle of a move, so nothing is raised or taken from there. What follows waits for `settle`,
which the engine calls between two steps, when its structures are whole; only the file is written at once, since a step
that broke a rule may not get there. Then the monitor goes on from what the structures say, so that it sees the next
breach and not the same one again.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from freehold.impl.damage import UNIT_NAMES, Damage, Units, as_logged, assess, law_state
from freehold.impl.memory.events import EventSink, NullSink
from freehold.impl.observe import Observation, observe
from freehold.impl.scheduling.scheduler import Scheduler
from freehold.spec.errors import InvalidInput, RuleBroken
from freehold.spec.monitor import Monitor
from freehold.spec.observed import compare
from freehold.spec.state import POOLS
from freehold.spec.trace import Event, Header, TraceWriter
from freehold.spec.verdict import Verdict

RING_EVENTS = 4096
MAX_DUMPS = 16
_PROMPT_BREACHES = 4  # of one rule, after which the monitor comes back at once; then it waits, twice as long each time
_LONGEST_WAIT_STEPS = 1024
_ROUNDS = 3  # of quarantine after one breach
_log = logging.getLogger(__name__)


class Policy(StrEnum):
    """What follows a broken rule."""

    OFF = "off"
    WARN = "warn"
    DUMP = "dump"
    RAISE = "raise"


class InvariantBroken(RuleBroken):
    """A rule of the law was broken by the engine, whose structures are whole but wrong."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"the engine broke a rule of the law: {verdict}")
        self.verdict = verdict


class Withholds(Protocol):
    """A pool that can keep units from ever being given out again."""

    def withhold(self, units: set[int]) -> None:
        """Free ones leave the pool now, others when they are given back."""
        ...


def contain(
    header: Header,
    policy: Policy,
    *,
    directory: Path | None = None,
    ring_events: int = RING_EVENTS,
    observe_every: int = 0,
    waivers: tuple[str, ...] = (),
) -> EventSink:
    """The sink for a policy: a `Containment`, with its arguments and errors, or for `off` one that hears nothing."""
    if policy is Policy.OFF:
        return NullSink()
    return Containment(
        header, policy, directory=directory, ring_events=ring_events, observe_every=observe_every, waivers=waivers
    )


class Containment:
    """The monitor of one engine, with the last events, and what is under quarantine.

    count: events so far. breaches: how often each rule was broken. dumps: the files that were written.
    breach: the verdict that waits for `settle`. withheld: units under quarantine, by pool.
    """

    def __init__(
        self,
        header: Header,
        policy: Policy,
        *,
        directory: Path | None = None,
        ring_events: int = RING_EVENTS,
        observe_every: int = 0,
        waivers: tuple[str, ...] = (),
    ) -> None:
        """`directory`: where dumps go; it is made when the first one is written.

        `ring_events`: so many of the last events are kept. `observe_every`: steps between two looks at the engine's
        structures, which show what no event told (a leak); 0 for none, as a look takes time in proportion to the pools.
        Raises InvalidInput when `dump` has no directory, the ring has no room, or the policy is `off`.
        """
        if policy is Policy.OFF:
            raise InvalidInput("the policy `off` has no monitor: use `contain`")
        if policy is Policy.DUMP and directory is None:
            raise InvalidInput("the policy `dump` needs a directory for its files")
        if ring_events < 1 or observe_every < 0:
            raise InvalidInput("ring_events must be at least 1, and observe_every must not be negative")
        self.header, self.policy, self.directory, self.observe_every = header, policy, directory, observe_every
        self.monitor = Monitor(header, waivers)
        self.count = 0
        self.breach: Verdict | None = None
        self.breaches: Counter[str] = Counter()
        self.dumps: list[Path] = []
        self.withheld: defaultdict[str, set[int]] = defaultdict(set)
        self._suspects: defaultdict[str, set[int]] = defaultdict(set)
        self._ring: deque[tuple[str, tuple[object, ...]]] = deque(maxlen=ring_events)
        self._steps = self._wait_steps = 0

    def emit(self, name: str, *args: object) -> None:
        """An `EventSink`: the event goes to the ring and to the monitor. Never raises."""
        self.count += 1
        self._ring.append((name, args))
        monitor = self.monitor
        if monitor.verdict is None:
            try:
                monitor.emit(name, *args)
            except Exception as error:  # an engine in disorder may say what cannot even be read
                text = f"the event can be read ({error!r})"
                monitor.verdict = Verdict(name, text, self.count, f"{name}{args}", "order", "the scheduler", ())
            if monitor.verdict is not None:
                self._broken(monitor.verdict)

    def report(self, rule: str, text: str, suspects: Units) -> None:
        """Another check than the law's found units with wrong KV: a breach of `rule` like any other.

        Call it between two steps, before `settle`. `text`: what was expected and what was found; `suspects`: the
        units, at least one. Under `dump` whoever reads them is ended; they may be written again.
        """
        for name, units in suspects.items():
            self._suspects[name] |= units
        if self.breach is None:
            unit = next(f"{UNIT_NAMES[name]} {min(units)}" for name, units in suspects.items() if units)
            self.monitor.verdict = Verdict(rule, text, self.count, rule, "order", unit, ())
            self._broken(self.monitor.verdict)

    def settle(self, scheduler: Scheduler, pools: Mapping[str, Withholds], end: Callable[[Damage], None]) -> None:
        """Between two steps: what the policy wants of a breach, if there was one since the last time.

        `pools`: by their names in the law, `full`, `swa`, `state` and `row`; under `dump` the damaged units go under
        quarantine there. `end`: called under `dump`, it ends at once those whose KV can't be trusted.
        Raises InvariantBroken under `raise`, now and ever after.
        """
        self._steps += 1
        self._forget_returned()
        if self.breach is None and self.observe_every and self._steps % self.observe_every == 0:
            self._look(scheduler)
        if self.breach is None:
            return
        if self.policy is Policy.RAISE:
            raise InvariantBroken(self.breach)
        if self._wait_steps:
            self._wait_steps -= 1
            return
        try:
            if self.policy is Policy.DUMP:
                self._quarantine(scheduler, self.breach, pools, end)
            self._go_on(observe(scheduler))
        except Exception:  # structures so broken that they cannot be read; the engine may still serve some
            self._wait_steps = _LONGEST_WAIT_STEPS
            _log.exception("a breach could not be contained; the next try is in %d steps", self._wait_steps)

    def stopped(self, error: RuleBroken) -> None:
        """A guard of the engine itself broke a step off: that is a breach too, if the monitor saw none before."""
        if self.breach is None:
            text = str(error)
            self._broken(Verdict("guard", text, self.count, "a step of the engine", "order", "the engine", ()))

    # A breach ---------------------------------------------------------------------------------------------------------

    def _broken(self, verdict: Verdict) -> None:
        self.breach = verdict
        self.breaches[verdict.rule] += 1
        times = self.breaches[verdict.rule]
        if times > _PROMPT_BREACHES:
            self._wait_steps = min(2 ** (times - _PROMPT_BREACHES), _LONGEST_WAIT_STEPS)
        if self.policy is Policy.DUMP and (times == 1 or len(self.dumps) < MAX_DUMPS):
            self._dump(verdict)
        if times == 1:
            level = logging.WARNING if self.policy is Policy.WARN else logging.ERROR
            _log.log(level, "rule %s is broken (policy %s; told once)\n%s", verdict.rule, self.policy, verdict)

    def _dump(self, verdict: Verdict) -> None:
        """Write the ring and the verdict. A file is there whole or not at all; failing to write it stops nothing."""
        rule = re.sub(r"\W+", "_", verdict.rule)
        path = Path(self.directory or ".") / f"breach-{rule}-{verdict.event_number}.jsonl"
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_ring(part, self.header, self._ring, self.count, verdict)
            os.replace(part, path)
        except Exception:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            _log.exception("the events before a breach could not be written to %s", path)
        else:
            self.dumps.append(path)
            _log.error("the events before a breach of %s are in %s", verdict.rule, path)

    def _quarantine(
        self, scheduler: Scheduler, verdict: Verdict, pools: Mapping[str, Withholds], end: Callable[[Damage], None]
    ) -> None:
        """Withhold what is damaged and end those concerned. That may do more damage, at which nobody is surprised."""
        for _ in range(_ROUNDS):
            found = assess(observe(scheduler), self.header, verdict, self.withheld, self._suspects)
            damage = replace(found, units={name: units for name, units in found.units.items() if name in pools})
            self._suspects.clear()
            if not damage:
                return
            for name, units in damage.units.items():
                self.withheld[name] |= units
                pools[name].withhold(set(units))
            _log.error("breach of %s: %s", verdict.rule, damage)
            end(damage)

    # The monitor goes on ----------------------------------------------------------------------------------------------

    def _look(self, scheduler: Scheduler) -> None:
        """Hold the engine's structures against the events so far."""
        state = as_logged(observe(scheduler))
        if compare(Event(self.count + 1, "observe", (state,)), state, self.monitor.compiled):
            self.emit("observe", state)

    def _go_on(self, seen: Observation) -> None:
        """The monitor takes the observed state for the law's; the breach is over."""
        monitor = self.monitor
        monitor.compiled.load(law_state(seen, monitor.law, monitor.compiled.state()))
        monitor.count, monitor.verdict, self.breach = self.count, None, None
        self._suspects.clear()

    def _forget_returned(self) -> None:
        """Units under quarantine that came back are free by the law, but not for the engine: they leave the law too."""
        compiled = self.monitor.compiled
        for pool in POOLS:
            withheld = self.withheld.get(pool.name)
            if withheld:
                back = compiled.sets[pool.free.name] & withheld
                compiled.sets[pool.free.name] -= back
                for unit in back:
                    compiled.universe[pool.unit.__name__].pop(unit, None)


class _RingWriter(TraceWriter):
    """A log that begins somewhere, and ends with a verdict: without an end line, as it was cut off there."""

    def __init__(self, path: Path, header: Header, before: int, verdict: Verdict) -> None:
        super().__init__(path, header)
        self._count, self._verdict = before, verdict

    def close(self) -> None:
        self._write({"verdict": self._verdict.as_dict()})
        self._file.close()


def write_ring(
    path: Path, header: Header, events: Iterable[tuple[str, tuple[object, ...]]], last: int, verdict: Verdict
) -> None:
    """Events in the form of a log, the last of which has the number `last`, and behind them the verdict.

    `freehold check` reads it to the verdict if the first one has the number 1; if not, it says that the log was cut.
    """
    kept = list(events)
    with _RingWriter(path, header, last - len(kept), verdict) as writer:
        for name, args in kept:
            writer.emit(name, *args)
