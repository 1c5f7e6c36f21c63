"""All instruments, one after the other, and one table.

Each instrument is a function from a progress callback to a `Row`. A gap in any of them makes the run fail; an
instrument that raises is a gap too, and the others still run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from freehold.model_check import (
    campaign,
    contracts,
    corrupt,
    engine_faults,
    mutate,
    prove,
    refinement,
    serving_run,
    waivers,
)
from freehold.model_check.bugs import hunt
from freehold.model_check.explore import Result, Symmetry, explore
from freehold.model_check.explore_concrete import explore_concrete
from freehold.model_check.liveness import check_liveness
from freehold.model_check.refute import explain
from freehold.model_check.report import Planted, Report, Row
from freehold.model_check.scopes import SCOPES, Scope, constants, scope
from freehold.model_check.search import Found, Search
from freehold.model_check.steps import listing
from freehold.model_check.successors import Grain
from freehold.spec.law import law
from freehold.spec.policies import THRASHING, WAITING_HOLDERS
from freehold.spec.variant import edit, variant
from freehold.spec.waivers import WAIVERS

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Depth:
    """How far each instrument goes.

    scopes: searched to their end. partly, large: scopes and the numbers of states at which their searches may stop.
    bounded: a scope and a depth in operations. mutants: how many beside the plain faults; None for all.
    """

    seeds: Mapping[int, Sequence[int]]
    progress_seeds: Mapping[int, Sequence[int]]
    core: str
    scopes: Sequence[str]
    partly: Sequence[tuple[str, int]]
    large: tuple[str, int]
    bounded: tuple[str, int]
    mutants: int | None
    waivers: Sequence[str]
    refinement_profile: str
    scenarios: int


POOL_SCOPES = ("window", "ahead", "state", "recurrent", "host", "both")
DEPTHS: Mapping[str, Depth] = {
    "ci": Depth(
        seeds=prove.SEEDS_BY_PAGE_SIZE,
        progress_seeds={1: (0,), 16: prove.SEEDS},
        core="ci",
        scopes=POOL_SCOPES,
        partly=(("tier", 500_000),),
        large=("flight", 5_000_000),
        bounded=("wide", 12),
        mutants=200,
        waivers=("W1", "W3"),
        refinement_profile="ci",
        scenarios=5_000,
    ),
    "deep": Depth(
        seeds={size: range(10) for size in (1, 2, 4, 16, 64)},
        progress_seeds=prove.SEEDS_BY_PAGE_SIZE,
        core="ci",
        scopes=POOL_SCOPES,
        partly=(("tier", 20_000_000),),
        large=("flight", 50_000_000),
        bounded=("wide", 12),
        mutants=None,
        waivers=tuple(WAIVERS),
        refinement_profile="deep",
        scenarios=100_000,
    ),
}


SHOWN = (THRASHING, WAITING_HOLDERS)  # policies whose lasso is printed: a livelock and a deadlock
EXPLAINED = 3  # unproved obligations whose counterexample is printed
ONE = {"Page": 1, "Row": 1, "Record": 1, "Request": 1, "Loan": 1}
# Scopes that both the vector and the concrete reading can reach to the end.
COMPARED = (
    (
        Grain.OPERATIONS,
        scope("two pages", pages=2, rows=1, records=1, requests=1, sessions=1, page_size=2, row_width=4),
    ),
    (Grain.EVENTS, scope("one page", pages=1, rows=1, records=1, requests=1, sessions=1, page_size=1, row_width=1)),
    (Grain.OPERATIONS, Scope("one in flight", {**ONE, "Session": 1, "SwaPage": 1}, constants(1, 1, window=1))),
    (Grain.OPERATIONS, Scope("one copy", {**ONE, "HostPage": 1}, constants(1, 1))),
)


@dataclass(slots=True)
class Verification:
    """One run; `announce` is told what goes on."""

    depth: Depth
    announce: Announce = lambda _: None
    report: Report = field(default_factory=Report)
    reached: set[str] = field(default_factory=set)

    def run(self) -> Report:
        for instrument in (
            self.page_arithmetic,
            self.unbounded_proof,
            self.law_faults,
            self.needed_invariants,
            self.public_bugs,
            self.waived_law,
            self.bounded_search,
            self.exhaustive_search,
            self.large_search,
            self.pools_search,
            self.readings,
            self.progress,
            self.real_scheduler,
            self.engine_faults,
            self.simulated_world,
            self.real_model,
        ):
            started = time.perf_counter()
            title = instrument.__name__.replace("_", " ")
            self.announce(f"{title} …")
            try:
                row = instrument()
            except Exception as error:  # a broken instrument must not hide what the others have to say
                spent = time.perf_counter() - started
                row = Row(title, "", "did not run to its end", "", spent, (f"{type(error).__name__}: {error}",))
            self.report.rows.append(row)
            self.announce(f"{title}: {'holds' if row.holds else 'GAPS'} ({row.figure}, {row.seconds:.0f} s)")
        return self.report

    # The law ---------------------------------------------------------------------------------------------------------

    def page_arithmetic(self) -> Row:
        found = contracts.check()
        figure = f"{found.confirmed} of {found.conditions} contracts confirmed over all paths"
        return Row("CrossHair", "proved", "page arithmetic, all integers", figure, found.seconds, found.problems)

    def unbounded_proof(self) -> Row:
        found = prove.prove(self.depth.seeds, progress=self._share("proof"))
        count = found.count()
        gaps = [f"{r.name} (page size {r.page_size}): {', '.join(r.verdicts)}" for r in found.failures]
        self.report.notes += [explain(law, r.subject, r.name) for r in found.failures[:EXPLAINED]]
        covered = (
            f"{len(law.actions)} events, {len(law.operations)} operations, {len(law.invariants)} invariants, "
            f"{len(law.contracts)} contracts; any number of pages and requests"
        )
        figure = (
            f"{len(found.results)} obligations ({', '.join(f'{n} {k}' for k, n in sorted(count.items()))}), "
            f"page size {', '.join(f'{size} with {len(s)} seeds' for size, s in self.depth.seeds.items())}"
        )
        return Row("Z3 induction", "proved", covered, figure, found.seconds, tuple(gaps))

    def law_faults(self) -> Row:
        found = mutate.mutate(self.depth.mutants, plain=True, progress=self._share("law faults"))
        gaps = [f"nobody sees: {v.mutant} ({', '.join((*v.shown, *v.by))})" for v in found.survivors]
        sole = found.sole_witness()
        gaps += [f"contract that sees no fault of its own: {name}" for name in law.contracts if name not in sole]
        by_event: dict[str, list[mutate.Verdict]] = {}
        for verdict in (v for v in found.verdicts if v.dropped):
            by_event.setdefault(verdict.mutant.split(":")[0], []).append(verdict)
        for event, seen in by_event.items():
            who = ", ".join(name for name, _ in Counter(p for v in seen for p in v.by).most_common(2))
            self.report.planted.append(
                Planted("law", f"{event}: a guard or an effect dropped, {len(seen)} of them", f"Z3: {who}", "1")
            )
        drawn = "all" if self.depth.mutants is None else f"all plain faults and {self.depth.mutants} others, seed 0,"
        covered = (
            f"{drawn} of the small changes to a guard clause, an effect or a step of an event or operation: dropped, "
            "negated, and/or, quantifiers and comparisons exchanged, swapped, shifted"
        )
        return Row("law faults", "searched", covered, found.summary(), found.seconds, tuple(gaps))

    def needed_invariants(self) -> Row:
        found = corrupt.ablate(progress=self._share("ablation"))
        gaps = [f"could be switched off unseen: {name}" for name in found.idle]
        figure = f"{len(found.corruptions) - len(found.idle)} of {len(found.corruptions)} invariants are the only one"
        covered = "for each invariant a corrupted fact, or two, that it alone sees"
        return Row("ablation", "searched", covered, figure, found.seconds, tuple(gaps))

    def public_bugs(self) -> Row:
        found = hunt.matrix(progress=self._share("public bugs"))
        counts = ", ".join(f"{found.found_by(i)} by {i}" for i in hunt.ASKED if i is not hunt.Instrument.EXPLORE)
        figure = f"{found.found_by(hunt.Instrument.EXPLORE)} of {len(found.rows)} found by a search, {counts}"
        covered = "bugs of serving engines as changed laws, a small scope each, where the law as it is has to be clean"
        return Row("public bugs", "searched", covered, figure, found.seconds, found.gaps)

    def waived_law(self) -> Row:
        started = time.perf_counter()
        found = [waivers.judge(name) for name in self.depth.waivers]
        gaps = [f"{w.name} leaves open: {name}" for w in found for name in w.open]
        costs = "; ".join(f"{w.name} breaks {', '.join(dict.fromkeys(c.property for c in w.broken))}" for w in found)
        covered = "the law under a named waiver: what is not kept any more, each with a counterexample that replays"
        return Row("waivers", "proved", covered, costs, time.perf_counter() - started, tuple(gaps))

    def bounded_search(self) -> Row:
        name, depth = self.depth.bounded
        within = SCOPES[name]
        sizes = {**within.sizes, "SwaPage": 3, "StateSlot": 2, "HostPage": 2, "Loan": 2}
        search = Search(law, sizes, within.constants)
        found = search.violation(depth, progress=lambda d: self.announce(f"bounded search: depth {d} of {depth}"))
        gaps = [f"{found.property}: {'; '.join(map(str, found.trace))}"] if isinstance(found, Found) else []
        how = "" if isinstance(found, Found) or found.settled is None else (
            f" (unrolled to {found.settled}; from there no operation breaks a rule from any state that keeps them all)"
        )  # fmt: skip
        example = Search(variant(law, edit("acquire", drop="each page is free"))).violation(6)
        shortest = "nothing"
        if isinstance(example, Found):
            shortest = f"in {len(example.trace)}"
            self.report.notes.append(
                f"Shortest counterexample when [bold]acquire[/] does not ask whether a page is free "
                f"(breaks {example.property}):\n{listing(example.trace)}\n"
            )
        else:
            gaps.append("the search does not find the double allocation that was planted")
        covered = ", ".join(f"{n} {s.lower()}{'s' * (n > 1)}" for s, n in search.scope.items())
        figure = f"no violation within {depth} operations{how}; planted double allocation found {shortest}"
        return Row("Z3 bounded search", "searched", covered, figure, found.seconds + example.seconds, tuple(gaps))

    def exhaustive_search(self) -> Row:
        """The core scope, plainly and by orbits."""
        plain = self._explore(self.depth.core)
        sorted_ = self._explore(self.depth.core, Symmetry.SORTED)
        gaps = self._closed(plain) + self._closed(sorted_)
        if sorted_.orbits_total != plain.distinct:
            gaps.append(f"orbits stand for {sorted_.orbits_total} states, the plain search found {plain.distinct}")
        figure = (
            f"{plain.distinct:,} states, {plain.generated:,} steps, depth {plain.depth}; {sorted_.distinct:,} orbits "
            f"sum to {sorted_.orbits_total:,}"
        )
        covered = str(SCOPES[self.depth.core])
        return Row("exhaustive search", "searched", covered, figure, plain.seconds + sorted_.seconds, tuple(gaps))

    def pools_search(self) -> Row:
        """A scope for each pool; all scopes together have to reach every witness and take every operation."""
        found = [self._explore(name) for name in self.depth.scopes]
        gaps = [gap for each in found for gap in self._closed(each)]
        begun = [self._explore(name, budget=budget) for name, budget in self.depth.partly]
        gaps += [str(each.violation) for each in begun if each.violation is not None]
        gaps += [f"no state of any scope shows {name}" for name in law.witnesses if name not in self.reached]
        gaps += [f"operation never possible in any scope: {n}" for n in law.operations if n not in self.reached]
        counts = "; ".join(f"{r.name} {r.distinct:,}" for r in found)
        counts += "".join(f"; {r.name} {r.distinct:,} (not closed)" for r in begun)
        found += begun
        figure = f"{counts} states; {len(law.witnesses)} witnesses and {len(law.operations)} operations reached"
        covered = "; ".join(str(SCOPES[r.name]) for r in found)
        return Row("search by pools", "searched", covered, figure, sum(r.seconds for r in found), tuple(gaps))

    def large_search(self) -> Row:
        """As many states as were asked for, in a scope with a window, a session, loans and eviction."""
        name, enough = self.depth.large
        found = self._explore(name, budget=enough)
        gaps = [] if found.violation is None else [str(found.violation)]
        gaps += [] if found.distinct >= enough or found.closed else [f"it ended at {found.distinct:,} states"]
        figure = (
            f"{found.distinct:,} states, {found.generated:,} steps, depth {found.depth}, "
            f"{'closed' if found.closed else 'not closed'}; {found.states_per_second:,.0f} distinct and "
            f"{found.steps_per_second:,.0f} generated a second, {found.state_bytes:.0f} bytes a state"
        )
        return Row("large search", "searched", str(SCOPES[name]), figure, found.seconds, tuple(gaps))

    def _explore(self, name: str, symmetry: Symmetry = Symmetry.NONE, budget: int = 20_000_000) -> Result:
        found = explore(
            law, name, symmetry=symmetry, budget=budget,
            progress=lambda p: self.announce(f"scope {name}: depth {p.depth}, {p.distinct:,} states"),
        )  # fmt: skip
        self.reached.update(w for w, depth in found.witnesses.items() if depth is not None)
        self.reached.update(o for o, taken in found.per_operation.items() if taken)
        return found

    def _closed(self, found: Result) -> list[str]:
        gaps = [] if found.violation is None else [str(found.violation)]
        return gaps + ([] if found.closed else [f"the search of {found.name} did not close"])

    def readings(self) -> Row:
        started = time.perf_counter()
        gaps, counts = [], []
        for grain, within in COMPARED:
            ours, plain = explore(law, within, grain=grain), explore_concrete(law, within, grain=grain)
            counts.append(f"{ours.distinct:,} states and {ours.generated:,} steps by {grain}")
            if (ours.distinct, ours.generated, ours.depth) != (plain.distinct, plain.generated, plain.depth):
                gaps.append(f"ground and concrete differ by {grain}: {ours.distinct} and {plain.distinct} states")
        covered = f"concrete and ground, {' and '.join(str(s) for _, s in COMPARED)}"
        figure = f"equal counts: {', '.join(counts)}"
        return Row("readings agree", "searched", covered, figure, time.perf_counter() - started, tuple(gaps))

    def progress(self) -> Row:
        found = check_liveness(self.depth.progress_seeds, progress=self.announce)
        self.report.notes.append(f"Progress, policy by policy:\n{found}\n")
        self.report.notes += [f"{case.policy.doc}\n{r.lasso}\n" for case, r in found.searches if case.policy in SHOWN]
        return found.row()

    # The engine ------------------------------------------------------------------------------------------------------

    def real_scheduler(self) -> Row:
        found = refinement.refine(self.depth.refinement_profile)
        gaps = [str(found.violation)] if found.violation is not None else []
        figure = f"{found.steps:,} steps in {found.examples} examples, {found.events:,} events replayed"
        covered = "the real scheduler, pools, tree and sessions against the law, true tensors compared after each step"
        return Row("Hypothesis machine", "tested", covered, figure, found.seconds, tuple(gaps))

    def engine_faults(self) -> Row:
        found = engine_faults.plant_all()
        gaps = [f"nobody sees: {r.fault}" for r in found.results if r.caught_by is None]
        gaps += [f"check that sees no fault of its own: {check}" for check, only in found.sole.items() if not only]
        for r in found.results:
            self.report.planted.append(Planted("engine", r.fault, str(r.caught_by), f"{r.steps} steps"))
        caught = sum(r.caught_by is not None for r in found.results)
        covered = "faults planted in the engine; each check switched off in turn"
        return Row(
            "engine faults", "tested", covered, f"{caught} of {len(found.results)} caught, no idle check among "
            f"{len(found.sole)}", found.seconds, tuple(gaps),
        )  # fmt: skip

    def simulated_world(self) -> Row:
        found = campaign.campaign(range(self.depth.scenarios), progress=self._share("scenarios"))
        gaps = [f"seed {failure.seed}: {failure.text}\n{failure.script.to_json()}" for failure in found.failures]
        covered = (
            "failing and late forwards, aborts at every place, sessions closed and expired in use, full pools: no unit "
            "lost, no wrong token, nobody stuck"
        )
        figure = (
            f"{found.scenarios:,} scenarios, {found.requests:,} requests, {found.steps:,} steps, "
            f"{found.steps / found.core_s:,.0f} a second and core"
        )
        return Row("simulated world", "tested", covered, figure, found.seconds, tuple(gaps))

    def real_model(self) -> Row:
        found = serving_run.serve_watched(self.announce)
        covered = (
            "SmolLM2-135M: batched, prefix-sharing, three session turns, retract, abort; monitor on, tokens equal to "
            "transformers'"
        )
        figure = (
            f"{found.requests} requests, {found.tokens} tokens, {found.events:,} events checked, "
            f"{found.retracts} retracts, {found.prefix_hit_pages} pages hit"
        )
        return Row("serving, watched", "watched", covered, figure, found.seconds, found.problems)

    def _share(self, what: str) -> Callable[[int, int], None]:
        return lambda done, all_: self.announce(f"{what}: {done} of {all_}")
