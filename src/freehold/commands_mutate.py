"""`freehold mutate`: run it, print it, and say by the exit code whether every mutant is accounted for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from freehold.model_check.mutate import MutationReport, Verdict, mutate


def run(size: int | None, seed: int, only: str, as_json: bool, progress: Callable[[int, int], None]) -> int:
    """Try the chosen mutants of the law; 0 when each is killed or proved equivalent, else 1."""
    report = mutate(size, seed, only, progress=progress)
    if as_json:
        typer.echo(json.dumps(as_dict(report), indent=2, ensure_ascii=False))
    else:
        show(report, Console(width=None if Console().is_terminal else 160))
    return 1 if report.survivors else 0


def as_dict(report: MutationReport) -> dict[str, Any]:
    """For `--json`: the counts, and each mutant with who sees it."""
    return {
        "holds": not report.survivors,
        "tried": len(report.verdicts),
        "mutants": report.total,
        "seconds": round(report.seconds, 1),
        "killers": dict(report.counts().most_common()),
        "only_by_example": dict(report.sorts().most_common()),
        "verdicts": [
            {"mutant": v.mutant, "killer": v.killer, "by": list(v.by), "shown": list(v.shown)} for v in report.verdicts
        ],
    }


def show(report: MutationReport, console: Console) -> None:
    """Counts by killer, then what needs a reader: equivalents, what only examples see, survivors."""
    table = Table("seen by", "mutants", "share", box=box.SIMPLE_HEAD, title="Who sees a small change of the law?")
    for killer, count in report.counts().most_common():
        table.add_row(killer, str(count), f"{count / len(report.verdicts):.1%}")
    console.print(table)
    _list(console, "proved equivalent, for any size", report.equivalents)
    _list(console, "seen by examples only: no rule speaks for them", report.by_example)
    _list(console, "survivors", report.survivors)
    console.print(f"{report.summary()}, {report.seconds:.0f} s", highlight=False, markup=False)


def _list(console: Console, title: str, verdicts: Iterable[Verdict]) -> None:
    lines = [f"  {', '.join(v.shown) + ': ' if v.shown else ''}{v.mutant}" for v in verdicts]
    if lines:
        console.print(f"{title} ({len(lines)}):", "\n".join(lines), sep="\n", highlight=False, markup=False)
