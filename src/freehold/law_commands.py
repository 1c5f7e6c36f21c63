"""The commands that read the law, prove it and search it: law, prove, search, explore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from freehold.extras import import_extra
from freehold.spec.errors import InvalidInput

MODULE = "Freehold"

app = typer.Typer(add_completion=False)


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
