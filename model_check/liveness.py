"""Progress by policy: which ones are proved to end every request, and what goes wrong with the others.

A case is a policy, a small scope in which to look for a lasso, and what must be found there. For a policy that is to
make progress both must agree: the rank is proved for any size, and no lasso is found in the scope.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from freehold.model_check.lasso import Kind, LassoReport, search_lasso
from freehold.model_check.progress import SEEDS_BY_PAGE_SIZE, ProgressProof, prove_progress
from freehold.model_check.report import Row
from freehold.model_check.scopes import Scope
from freehold.spec import policies
from freehold.spec.progress import ASSUMPTIONS, HELPS, RANK
from freehold.spec.scheduling import CONSTANTS, Group, Policy


@dataclass(frozen=True, slots=True)
class Case:
    """A policy, where to look for a lasso of it, and the kind that must be there; None when there must be none."""

    policy: Policy
    scope: Scope
    jobs: tuple[tuple[int, int], ...]
    expected: Kind | None = None
    leave_out: tuple[Group, ...] = ()


def small(pages: int, rows: int, requests: int, sessions: int = 0, page_size: int = 1, row_width: int = 0) -> Scope:
    """A scope with as many records as rows; rows as wide as the pool when `row_width` is 0."""
    sizes = {"Page": pages, "Row": rows, "Record": rows, "Request": requests}
    name = f"{pages} pages, {rows} rows, {requests} requests" + f", {sessions} session" * (sessions > 0)
    constants = {"page_size": page_size, "row_width": row_width or pages * page_size, **CONSTANTS}
    return Scope(name, sizes | {"Session": sessions} if sessions else sizes, constants)


NO_CACHE = (Group.CACHE,)
TWO_PAGES, SHORT = small(2, 2, 2), ((1, 1),)
CASES: tuple[Case, ...] = (
    Case(policies.FIRST_COME, small(3, 2, 2), ((1, 1), (2, 1))),
    Case(policies.FIRST_COME, small(2, 2, 2, page_size=2), ((1, 2), (2, 2))),
    Case(policies.FIRST_COME, small(2, 2, 2, sessions=1), SHORT),
    Case(policies.LONGEST_PREFIX, small(2, 2, 3), SHORT, leave_out=NO_CACHE),
    Case(policies.TIMEOUT, TWO_PAGES, SHORT),
    Case(policies.LONGEST_PREFIX_UNBOUNDED, small(2, 1, 2), SHORT, Kind.STARVATION),
    Case(policies.LAST_COME, small(2, 1, 2), SHORT, Kind.STARVATION),
    Case(policies.THRASHING, TWO_PAGES, SHORT, Kind.LIVELOCK, NO_CACHE),
    Case(policies.RETRACT_ANY, TWO_PAGES, SHORT, Kind.LIVELOCK, NO_CACHE),
    Case(policies.PINNED_SESSIONS, small(2, 2, 1, sessions=1), SHORT, Kind.DEADLOCK, NO_CACHE),
    Case(policies.NO_FIT_CHECK, small(2, 1, 2, row_width=3), ((2, 1),), Kind.DEADLOCK),
    Case(policies.WAITING_HOLDERS, small(3, 2, 2), ((2, 1),), Kind.DEADLOCK, NO_CACHE),
    Case(policies.NO_TIMEOUT, small(2, 1, 1), SHORT, Kind.HELD),
)


@dataclass(frozen=True, slots=True)
class LivenessReport:
    """What the proofs and the searches said, and what is not as it must be."""

    proofs: tuple[ProgressProof, ...]
    searches: tuple[tuple[Case, LassoReport], ...]
    gaps: tuple[str, ...]
    seconds: float

    def row(self) -> Row:
        """For the table of `make verify`."""
        obligations = sum(len(p.results) for p in self.proofs)
        states = sum(r.states for c, r in self.searches if c.expected is None)
        shown = [c.policy.name for c, r in self.searches if c.expected is not None and r.lasso is not None]
        figure = (
            f"{obligations} obligations over {len(RANK)} components and {len(HELPS)} helps; no lasso in {states:,} "
            f"states; {len(shown)} policies that get stuck each shown by a lasso"
        )
        names = "; ".join(p.policy.name for p in self.proofs)
        covered = f"every request ends, under {len(ASSUMPTIONS)} stated assumptions: {names}"
        return Row("progress", "proved", covered, figure, self.seconds, self.gaps)

    def __str__(self) -> str:
        """A line for each policy, then what is assumed."""
        lines = [
            f"{p.policy.name}: {'proved' if p.holds else 'NOT PROVED'} for any size ({len(p.results)} obligations)"
            for p in self.proofs
        ]
        for case, found in self.searches:
            lasso = found.lasso
            verdict = "no lasso" if lasso is None else f"{lasso.kind} ({len(lasso.stem)} + {len(lasso.loop)} steps)"
            lines.append(f"{case.policy.name}: {verdict} in {found.states:,} states ({case.scope.name})")
        return "\n".join([*lines, "assumed:", *(f"  {a.name}: {a.doc}" for a in ASSUMPTIONS)])


def check_liveness(
    seeds: Mapping[int, Sequence[int]] = SEEDS_BY_PAGE_SIZE,
    cases: Sequence[Case] = CASES,
    progress: Callable[[str], None] = lambda _: None,
    workers: int = 2,
) -> LivenessReport:
    """Prove each policy that some case expects to make progress, and search every case."""
    started = time.perf_counter()
    good = list({id(c.policy): c.policy for c in cases if c.expected is None}.values())
    proofs = prove_progress(good, seeds, workers, lambda done, all_: progress(f"rank: {done} of {all_}"))
    gaps = [
        f"{p.policy.name}: {f.name} (page size {f.page_size}): {', '.join(f.verdicts)}"
        for p in proofs
        for f in p.failures
    ]
    searches: list[tuple[Case, LassoReport]] = []
    for case in cases:
        progress(f"lassos of {case.policy.name}")
        found = search_lasso(case.policy, case.scope, case.jobs, leave_out=case.leave_out)
        searches.append((case, found))
        kind = found.lasso.kind if found.lasso is not None else None
        if kind is not case.expected:
            gaps.append(f"{case.policy.name}: {kind or 'no lasso'} where {case.expected or 'none'} is expected")
    return LivenessReport(tuple(proofs), tuple(searches), tuple(gaps), time.perf_counter() - started)
