"""Part of the proof: what is about one event, operation or property, found by its name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from freehold.model_check.obligations import Obligation, Obligations
from freehold.model_check.prove import SEEDS_BY_PAGE_SIZE, ProofReport, Proved, ask, reading
from freehold.spec.errors import InvalidInput
from freehold.spec.law import law


def names() -> tuple[str, ...]:
    """Everything that a part of the proof is about: events, operations, kinds of obligation, properties."""
    kinds = ("initial", "lemma", "theorem", "quiescent")
    return (*kinds, *law.actions, *law.operations, *law.invariants, *law.lemmas, *law.contracts)


def prove_only(
    name: str,
    seeds: Mapping[int, Sequence[int]] = SEEDS_BY_PAGE_SIZE,
    progress: Callable[[int, int], None] | None = None,
) -> ProofReport:
    """Discharge the obligations that the name is about; `progress` is told (done, in all).

    An invariant means the obligation of each event or operation to keep it. InvalidInput when nothing has the name.
    """
    started = time.perf_counter()
    if name not in names():
        raise InvalidInput(f"nothing to prove is named {name!r}")
    asked = [(size, s, o) for size in seeds for s, o in about(name, Obligations(reading(size), law))]
    results: list[Proved] = []
    for done, (size, subject, obligation) in enumerate(asked, start=1):
        began = time.perf_counter()
        verdicts = tuple(ask(obligation, seed) for seed in seeds[size])
        spent = time.perf_counter() - began
        results.append(Proved(obligation.kind, subject, obligation.name, size, verdicts, spent))
        if progress is not None:
            progress(done, len(asked))
    return ProofReport(tuple(results), time.perf_counter() - started)


def about(name: str, obligations: Obligations) -> Iterator[tuple[str, Obligation]]:
    """The obligations that a name is about, each with its subject."""
    contract = law.contracts.get(name)
    for subject in obligations.subjects():
        own = subject.removeprefix("operation ") == name
        if own or contract is None or contract.group == subject:
            yield from ((subject, o) for o in obligations.of(subject) if own or o.claim == name)
