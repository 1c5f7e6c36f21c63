"""The commands that read the law, prove it and search it: law, prove, search, explore."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from freehold.extras import import_extra
from freehold.instruments import announcing, counting
from freehold.spec.errors import InvalidInput

MODULE = "Freehold"
EXPLAINED = 3  # counterexamples that are printed; the rest is named

ScopeOption = Annotated[str, typer.Option("--scope", help="A named scope; an unknown name lists them.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

app = typer.Typer(add_completion=False)


def known(what: str, name: str, names: Iterable[str]) -> str:
    """The name, when it is one of them; else InvalidInput with those that look like it."""
    every = sorted(set(names))
    if name in every:
        return name
    near = difflib.get_close_matches(name, every, n=5, cutoff=0.5) or [n for n in every if name in n][:5]
    hint = f"near it: {', '.join(near)}" if near else f"there are: {', '.join(every)}"
    raise InvalidInput(f"no {what} is named {name!r}; {hint}")


@app.command("law")
def show_law(
    write: Annotated[
        Path | None, typer.Option("--write", help="Write the page to this file, or the module into this directory.")
    ] = None,
    check: Annotated[Path | None, typer.Option("--check", help="Exit 1 when this page is not the law's.")] = None,
    tla: Annotated[
        str | None, typer.Option("--tla", help="Print a TLA+ module of this scope, and what TLC needs.")
    ] = None,
) -> None:
    """Print the law as Markdown: state, owners, places, operations, events, invariants, contracts, witnesses."""
    from freehold.spec.document import current, markdown
    from freehold.spec.law import law

    if check is not None and (write is not None or tla is not None):
        raise InvalidInput("--check stands alone: it compares a page with the law")
    if tla is not None:
        _tla(tla, write)
    elif check is not None:
        if not current(law, check):
            typer.echo(f"{check} is not the page of this law: run `freehold law --write {check}`", err=True)
            raise typer.Exit(1)
    elif write is not None:
        _write(write, markdown(law))
    else:
        typer.echo(markdown(law), nl=False)


def _tla(scope: str, into: Path | None) -> None:
    from freehold.spec.law import law
    from freehold.spec.tla import export

    within = import_extra("freehold.model_check.scopes", "check").scope_named(scope)
    found = export(within.law(law), MODULE, within.sizes, within.constants, within.numbers)
    if into is None:
        typer.echo(f"{found.module}\n\\* {found.name}.cfg\n\n{found.config}", nl=False)
        return
    _write(into / f"{found.name}.tla", found.module)
    _write(into / f"{found.name}.cfg", found.config)


def _write(path: Path, words: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(words, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} can't be written: {error.strerror}") from error


@app.command()
def prove(
    only: Annotated[
        str | None, typer.Option("--only", help="An event, an operation, an invariant, a contract or a lemma.")
    ] = None,
    waiver: Annotated[
        str | None, typer.Option("--waive", help="What the law loses under this waiver, like W3.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove the law by induction, for any number of pages and requests; exit 1 when an obligation does not hold."""
    if waiver is not None:
        _judge(waiver, as_json)
        return
    module = import_extra("freehold.model_check.prove", "check")
    part = import_extra("freehold.model_check.prove_only", "check")
    if only is not None:
        known("event, operation or property", only, part.names())
    with counting("proof") as count:
        found = module.prove(progress=count) if only is None else part.prove_only(only, progress=count)
    if as_json:
        typer.echo(json.dumps(_proof(found), indent=2))
    else:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(found.count().items()))
        typer.echo(f"{len(found.results)} obligations ({kinds}), {len(found.failures)} open, {found.seconds:.0f} s")
        for failed in found.failures:
            typer.echo(f"open: {failed.name} (page size {failed.page_size}): {', '.join(failed.verdicts)}")
        _explain(found.failures)
    if found.failures:
        raise typer.Exit(1)


def _judge(name: str, as_json: bool) -> None:
    """Print what a waiver costs; a waiver is no gap, so the exit status is 0."""
    from freehold.spec.waivers import WAIVERS

    known("waiver", name, WAIVERS)
    with announcing() as announce:
        announce(f"proving the law under {name}, and looking for what breaks")
        found = import_extra("freehold.model_check.waivers", "check").judge(name)
    broken = [f"{c.subject} breaks {c.property}" for c in found.broken]
    if as_json:
        report = {
            "waiver": name, "accepts": found.what, "relaxed": list(found.relaxed), "broken": broken,
            "open": list(found.open), "seconds": found.seconds,
        }  # fmt: skip
        typer.echo(json.dumps(report, indent=2))
        return
    typer.echo(f"{name}: {found.what}")
    for title, names in (("relaxed", found.relaxed), ("broken", broken), ("open", found.open)):
        for line in names:
            typer.echo(f"  {title:8} {line}")
    for example in found.broken[:1]:
        typer.echo(f"\n{example}")


def _proof(found: Any) -> dict[str, Any]:
    return {
        "holds": not found.failures,
        "seconds": found.seconds,
        "obligations": [
            {
                "kind": r.kind, "name": r.name, "page_size": r.page_size, "verdicts": list(r.verdicts),
                "holds": r.holds, "seconds": r.seconds,
            }
            for r in found.results
        ],
    }  # fmt: skip


def _explain(failures: Any) -> None:
    refute = import_extra("freehold.model_check.refute", "check")
    law = import_extra("freehold.spec.law", "check").law
    for failed in failures[:EXPLAINED]:
        typer.echo(f"\n{refute.explain(law, failed.subject, failed.name)}")


@app.command()
def search(
    scope: ScopeOption = "ci",
    depth: Annotated[int, typer.Option("--depth", min=0, help="Operations in a trace, at most.")] = 8,
    witness: Annotated[
        str | None, typer.Option("--witness", help="Reach this state of the law instead of a broken rule.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Search for the shortest trace to a broken rule, by a SAT solver; exit 1 when there is one.

    With --witness, for the shortest trace to a state that must be reachable; exit 1 when there is none.
    """
    module = import_extra("freehold.model_check.search", "check")
    within = import_extra("freehold.model_check.scopes", "check").scope_named(scope)
    law = within.law(import_extra("freehold.spec.law", "check").law)
    if witness is not None:
        known("witness", witness, law.witnesses)
    with counting(f"depth, within {scope}") as count:
        count(0, depth)
        bounded = module.Search(law, within.sizes, within.constants)
        if witness is None:
            found = bounded.violation(depth, lambda done: count(done, depth))
        else:
            found = bounded.witness(witness, law.witnesses[witness].term, depth, lambda done: count(done, depth))
    reached = isinstance(found, module.Found)
    if as_json:
        typer.echo(json.dumps(_searched(found, str(within), reached), indent=2))
    elif reached:
        typer.echo(f"{within}: {found}")
    else:
        everywhere = getattr(found, "settled", None) is not None
        bound = ", nor within any number: no operation leads from all rules to a broken one" if everywhere else ""
        typer.echo(f"{within}: nothing within {depth} operations{bound}; {found.seconds:.1f} s")
    if reached == (witness is None):
        raise typer.Exit(1)


def _searched(found: Any, scope: str, reached: bool) -> dict[str, Any]:
    report: dict[str, Any] = {"scope": scope, "found": reached, "seconds": found.seconds}
    if reached:
        return report | {"property": found.property, "trace": [step.as_dict() for step in found.trace]}
    return report | {"depth": found.depth, "settled": found.settled}


@app.command()
def explore(
    scope: ScopeOption = "tiny",
    symmetry: Annotated[
        bool | None, typer.Option("--symmetry/--plain", help="Search each orbit once; default: where that is known.")
    ] = None,
    budget: Annotated[int, typer.Option("--budget", min=1, help="Stop at so many states.")] = 20_000_000,
    depth: Annotated[int | None, typer.Option("--depth", min=1, help="Stop behind so many operations.")] = None,
    memory: Annotated[float | None, typer.Option("--memory", min=0.1, help="Stop before so many GiB are used.")] = None,
    directory: Annotated[Path | None, typer.Option("--directory", help="Keep each level here.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from what the directory has.")] = False,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Threads; default: one a core.")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Search a scope of the law exhaustively; exit 1 with the shortest trace when a rule can be broken."""
    module = import_extra("freehold.model_check.explore", "check")
    law = import_extra("freehold.spec.law", "check").law
    sorted_ = module.symmetric(law, scope) if symmetry is None else symmetry
    with announcing() as announce:
        found = module.explore(
            law, scope, symmetry=module.Symmetry.SORTED if sorted_ else module.Symmetry.NONE,
            budget=budget, depth=depth, memory_bytes=None if memory is None else int(memory * (1 << 30)),
            directory=directory, resume=resume, workers=workers, device=device,
            progress=lambda p: announce(
                f"depth {p.depth}: {p.distinct:,} states, {p.frontier:,} new, {p.distinct / p.seconds:,.0f} a second"
            ),
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(_explored(found), indent=2))
    else:
        closed = "every reachable state was seen" if found.closed else "not closed"
        typer.echo(
            f"{found.name}: {found.distinct:,} states standing for {found.orbits_total:,}, {found.generated:,} steps, "
            f"depth {found.depth}, {found.states_per_second:,.0f} states/s, {found.state_bytes:.0f} bytes a state; "
            f"{closed}"
        )
        if found.violation is not None:
            typer.echo(str(found.violation))
    if found.violation is not None:
        raise typer.Exit(1)


def _explored(found: Any) -> dict[str, Any]:
    broken = found.violation
    return {
        "scope": found.name, "grain": str(found.grain), "symmetry": str(found.symmetry), "distinct": found.distinct,
        "stand_for": found.orbits_total, "generated": found.generated, "depth": found.depth, "closed": found.closed,
        "seconds": found.seconds, "states_per_second": found.states_per_second,
        "per_operation": dict(found.per_operation), "witnesses": dict(found.witnesses),
        "violation": None
        if broken is None
        else {
            "invariant": broken.invariant.name, "trace": [step.as_dict() for step in broken.trace],
            "odd": list(broken.odd),
        },
    }  # fmt: skip
