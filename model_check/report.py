"""What an instrument says, and the one table that `make verify` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One instrument's result.

    kind: how strong it is: proved (any size), searched (a scope), tested (so many runs), watched (one run).
    gaps: what is wrong, a line each; empty when all is well.
    """

    instrument: str
    kind: str
    covered: str
    figure: str
    seconds: float
    gaps: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.gaps


@dataclass(frozen=True, slots=True)
class Planted:
    """One fault that was put in on purpose, and who saw it."""

    where: str
    fault: str
    caught_by: str
    after: str


@dataclass(slots=True)
class Report:
    rows: list[Row] = field(default_factory=list)
    planted: list[Planted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return all(r.holds for r in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "holds": self.holds,
            "instruments": [
                {"instrument": r.instrument, "kind": r.kind, "covered": r.covered, "figure": r.figure,
                 "seconds": round(r.seconds, 1), "gaps": list(r.gaps)}
                for r in self.rows
            ],
            "planted": [
                {"where": p.where, "fault": p.fault, "caught_by": p.caught_by, "after": p.after} for p in self.planted
            ],
            "notes": self.notes,
        }  # fmt: skip


def show(report: Report, console: Console) -> None:
    """The planted faults, the notes, and the table, in this order: the verdict comes last."""
    if report.planted:
        console.print(_planted_table(report.planted))
    for note in report.notes:
        console.print(note)
    console.print(_main_table(report.rows))
    for row in report.rows:
        for gap in row.gaps:
            console.print(f"[bold red]gap[/] in {row.instrument}: {gap}", highlight=False)


def _main_table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Freehold: who owns this page, and can that ever go wrong?")
    for name, justify in (("instrument", "left"), ("", "left"), ("what it covered", "left"), ("figure", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        verdict = "[green]holds[/]" if row.holds else f"[bold red]{len(row.gaps)} gap{'s' * (len(row.gaps) > 1)}[/]"
        table.add_row(row.instrument, row.kind, row.covered, row.figure, f"{row.seconds:.0f} s", verdict)
    return table


def _planted_table(planted: Iterable[Planted]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Planted faults")
    for name in ("where", "fault", "caught by", "after"):
        table.add_column(name, overflow="fold")
    for p in planted:
        table.add_row(p.where, p.fault, p.caught_by, p.after)
    return table
