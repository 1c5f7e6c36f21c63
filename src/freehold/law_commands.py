"""The commands that read the law, prove it and search it: law, prove, search, explore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from freehold.spec.errors import InvalidInput

app = typer.Typer(add_completion=False)


@app.command("law")
def show_law(
    write: Annotated[Path | None, typer.Option("--write", help="Write the page here instead.")] = None,
    check: Annotated[Path | None, typer.Option("--check", help="Exit 1 when this page is not the law's.")] = None,
) -> None:
    """Print the law as Markdown: state, owners, places, operations, events, invariants, contracts, witnesses."""
    from freehold.spec.document import current, markdown
    from freehold.spec.law import law

    if write is not None and check is not None:
        raise InvalidInput("law writes a page or checks one: give --write or --check")
    if check is not None:
        if not current(law, check):
            typer.echo(f"{check} is not the page of this law: run `freehold law --write {check}`", err=True)
            raise typer.Exit(1)
    elif write is not None:
        _write(write, markdown(law))
    else:
        typer.echo(markdown(law), nl=False)


def _write(path: Path, words: str) -> None:
    try:
        path.write_text(words, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} can't be written: {error.strerror}") from error
