"""The command that hunts the public bugs of the bank: bugs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from freehold.extras import import_extra
from freehold.instruments import counting
from freehold.spec.errors import InvalidInput

app = typer.Typer(add_completion=False)


@app.command()
def bugs(
    only: Annotated[
        str | None, typer.Option("--only", help="A class, A to O, or a part of owner/repository#number.")
    ] = None,
    search: Annotated[bool, typer.Option("--search", help="Ask the bounded search, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    write: Annotated[Path | None, typer.Option("--write", help="Write the page of the matrix to this file.")] = None,
    check: Annotated[Path | None, typer.Option("--check", help="Exit 1 when this page is not the matrix's.")] = None,
) -> None:
    """Find each public bug of the bank in a changed law, and nothing in the law as it is; exit 1 on any gap."""
    bank = import_extra("freehold.model_check.bugs.bank", "check")
    module = import_extra("freehold.model_check.bugs.hunt", "check")
    document = import_extra("freehold.model_check.bugs.document", "check")
    if only is not None and (write is not None or check is not None):
        raise InvalidInput("the page is of all bugs: leave out --only")
    wanted = bank.bugs_named(only)
    asked = tuple(i for i in module.Instrument if search or i is not module.Instrument.SEARCH)
    with counting("bugs") as count:
        found = module.matrix(wanted, asked, progress=count)
    page = document.markdown(found)
    if write is not None:
        _write(write, page)
    if as_json:
        typer.echo(json.dumps(_report(found), indent=2))
    else:
        _show(found, asked, with_traces=only is not None)
    stale = check is not None and page != _read(check)
    if stale:
        typer.echo(f"{check} is not the page of these bugs: run `{document.COMMAND}`", err=True)
    if found.gaps or stale:
        raise typer.Exit(1)


def _show(found: Any, asked: tuple[Any, ...], with_traces: bool) -> None:
    console = Console(width=None if Console().is_terminal else 160)
    table = Table("class", "bug", *map(str, asked), title="Public bugs: steps until found, and seconds")
    for row in found.rows:
        table.add_row(row.kind, row.reference, *(_cell(row.by(i)) for i in asked))
    console.print(table)
    for row in found.rows if with_traces else ():
        console.print(f"{row.reference}: {row.title}", markup=False, highlight=False)
        for number, (operation, events) in enumerate(row.trace, start=1):
            typer.echo(f"  {number}. {operation}\n       {' · '.join(events)}")
        for finding in row.findings:
            typer.echo(f"  {finding.instrument}: {finding.says}")
        typer.echo(f"  the law as it is: nothing in {row.clean}" if row.clean else "")
    counts = ", ".join(f"{i} {found.found_by(i)}" for i in asked)
    typer.echo(f"{len(found.rows)} bugs in {found.seconds:.0f} s; found by {counts}; {len(found.gaps)} gaps")
    for gap in found.gaps:
        typer.echo(f"gap: {gap}")


def _cell(finding: Any) -> str:
    if finding is None:
        return ""
    return f"{'-' if finding.steps is None else finding.steps}  [dim]{finding.seconds:.1f}[/]"


def _report(found: Any) -> dict[str, Any]:
    return {
        "holds": not found.gaps,
        "seconds": round(found.seconds, 1),
        "gaps": list(found.gaps),
        "bugs": [
            {
                "reference": r.reference, "class": r.kind, "title": r.title, "budget": r.budget,
                "trace": [{"operation": operation, "events": list(events)} for operation, events in r.trace],
                "the law as it is": r.clean, "gap": r.gap or None,
                "instruments": {
                    str(f.instrument): {"steps": f.steps, "says": f.says, "seconds": round(f.seconds, 2)}
                    for f in r.findings
                },
            }
            for r in found.rows
        ],
    }  # fmt: skip


def _write(path: Path, words: str) -> None:
    try:
        path.write_text(words, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} can't be written: {error.strerror}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {error.strerror}") from error
