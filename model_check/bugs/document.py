"""The detection matrix as a page: which public bug is found by whom, and the shortest trace that shows it.

It says nothing of times, so that it is the same on every machine; `freehold bugs` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from freehold.model_check.bugs.bank import KINDS
from freehold.model_check.bugs.bug import Bug
from freehold.model_check.bugs.hunt import Finding, Hunted, Instrument, MatrixReport

COMMAND = "freehold bugs --write docs/bugs.md"
SHOWN = (Instrument.MONITOR, Instrument.OBSERVE, Instrument.PROOF, Instrument.CONTRACT)
MEANING = {
    Instrument.EXPLORE: "a state within a small scope breaks a rule, or can never get where it must end",
    Instrument.MONITOR: "the law as it is refuses the log of that trace, or a step mark breaks a rule",
    Instrument.OBSERVE: "the same, when the engine also shows its real state after each operation",
    Instrument.PROOF: "what the bug changes does not keep an invariant, from some state that satisfies them all",
    Instrument.CONTRACT: "a changed event does not do what its contract says",
}


def markdown(report: MatrixReport) -> str:
    """The page of a whole matrix."""
    return "\n".join([*_head(report), *_tables(report.rows), *_traces(report.rows)]) + "\n"


def _head(report: MatrixReport) -> Iterator[str]:
    yield "# Public bugs, as the law sees them"
    yield ""
    yield f"Written by `{COMMAND}`; do not edit."
    yield ""
    yield "Each bug is a public one of a serving engine, re-created as a small change of the law: a clause, an update"
    yield "or a step. A search has to find it within its budget of operations, and nothing in the law as it is. The"
    yield "trace is a shortest one. An instrument's number says after how many events it objects; a dash, that it never"
    yield "does. Where no single state is wrong, only the search speaks."
    yield ""
    yield "| instrument | finds a bug when | bugs |"
    yield "|---|---|---|"
    for instrument, meaning in MEANING.items():
        yield f"| {instrument} | {meaning} | {report.found_by(instrument)} of {len(report.rows)} |"
    yield ""


def _tables(rows: Sequence[Hunted]) -> Iterator[str]:
    for kind, group in groupby(rows, key=lambda r: r.kind):
        yield f"## {kind}. {KINDS[kind].capitalize()}"
        yield ""
        yield f"| bug | what goes wrong | breaks | operations | {' | '.join(SHOWN)} |"
        yield f"|---|---|---|{'---|' * (1 + len(SHOWN))}"
        for row in group:
            found = row.by(Instrument.EXPLORE)
            breaks = f"`{found.says}`" if found is not None and found.steps is not None else "nothing"
            yield f"{opening(row)} | {breaks} | {_steps(found)} | {' | '.join(_cell(row.by(i)) for i in SHOWN)} |"
        yield ""


def opening(bug: Bug | Hunted) -> str:
    """The first two cells of a bug's line, which need no search."""
    repository, _, number = bug.reference.partition("#")
    link = f"[{bug.reference}](https://github.com/{repository}/issues/{number})"
    return f"| {link} | {bug.title}"


def _steps(finding: Finding | None) -> str:
    return "-" if finding is None or finding.steps is None else str(finding.steps)


def _cell(finding: Finding | None) -> str:
    if finding is None or finding.steps is None:
        return "" if finding is None else "-"
    if finding.instrument in (Instrument.PROOF, Instrument.CONTRACT):
        return finding.says
    return f"{finding.steps}"


def _traces(rows: Sequence[Hunted]) -> Iterator[str]:
    yield "## Shortest traces"
    yield ""
    for row in rows:
        if not row.trace:
            continue
        yield f"{row.kind}, {row.reference}: {row.title}"
        yield ""
        yield "```"
        for number, (operation, events) in enumerate(row.trace, start=1):
            yield f"{number}. {operation}"
            if events:
                yield f"     {' · '.join(events)}"
        yield "```"
        yield ""
