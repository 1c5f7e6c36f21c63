"""The commands that hold the law and the engine to account: verify, fuzz, bench, mutate, gpu-check."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from freehold.extras import import_extra
from freehold.spec.errors import InvalidInput

app = typer.Typer(add_completion=False)


@contextmanager
def announcing() -> Iterator[Callable[[str], None]]:
    """Where progress goes: one line that changes on a terminal, a line a message elsewhere; on stderr both."""
    console = Console(stderr=True)
    started = time.monotonic()
    if console.is_terminal:
        with console.status("starting") as status:
            yield lambda text: status.update(f"{text}  [dim]{time.monotonic() - started:.0f} s[/]")
    else:
        yield lambda text: console.print(f"[{time.monotonic() - started:4.0f} s] {text}", markup=False, highlight=False)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Where a count goes, as (done, all): a bar on a terminal, a line a message elsewhere; on stderr both."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bars:
            bar = bars.add_task(what, total=None)
            yield lambda done, all_: bars.update(bar, completed=done, total=all_)
    else:
        with announcing() as announce:
            yield lambda done, all_: announce(f"{what}: {done} of {all_}")


@app.command()
def verify(
    depth: Annotated[str, typer.Option("--depth", help="ci (minutes) or deep (hours).")] = "ci",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run every instrument on the law and on the engine, and print one table; exit 1 on any gap."""
    module = import_extra("freehold.model_check.verify", "check")
    report_module = import_extra("freehold.model_check.report", "check")
    if depth not in module.DEPTHS:
        raise InvalidInput(f"depth {depth!r} is unknown: choose one of {', '.join(module.DEPTHS)}")
    with announcing() as announce:
        report = module.Verification(module.DEPTHS[depth], announce).run()
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        report_module.show(report, Console(width=None if Console().is_terminal else 160))
    if not report.holds:
        raise typer.Exit(1)


@app.command()
def fuzz(
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="How long.")] = 60.0,
    seed: Annotated[int | None, typer.Option("--seed", help="Start here; default: a fresh one.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Where failures are kept.")] = Path(".freehold/fuzz"),
    replay: Annotated[Path | None, typer.Option("--replay", help="Run a kept failure again.")] = None,
) -> None:
    """Drive the real scheduler with fresh seeds; keep each failure shrunk, as a trace and a program to replay."""
    module = import_extra("freehold.model_check.fuzz", "check")
    if replay is not None:
        violation = module.replay(replay).violation
        typer.echo(str(violation) if violation else "the program breaks no rule any more")
        raise typer.Exit(1 if violation else 0)
    first = secrets.randbelow(1 << 31) if seed is None else seed
    with announcing() as announce:
        found = module.fuzz(seconds, first, out, lambda report: announce(_so_far(report)))
    typer.echo(_so_far(found))
    for failure in found.failures:
        typer.echo(f"\n{failure.violation}\n  trace    {failure.trace}\n  replay   {failure.replay}")
    if found.failures:
        raise typer.Exit(1)


@app.command()
def simulate(
    scenarios: Annotated[
        int, typer.Option("--scenarios", min=1, help="How many, of seeds that follow one another.")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="The first seed.")] = 0,
    script: Annotated[Path | None, typer.Option("--script", help="Run this kept script instead.")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="With --script: write its event log here.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Where scripts that failed are kept.")] = Path(
        ".freehold/simulate"
    ),
) -> None:
    """Run the real scheduler in a scripted world: late and failing forwards, aborts, timeouts, full pools."""
    module = import_extra("freehold.model_check.campaign", "check")
    simulate_module = import_extra("freehold.model_check.simulate", "check")
    if script is not None:
        text = simulate_module.replay_file(script, trace)
        typer.echo(text or "the script runs to its end, and nothing is wrong")
        raise typer.Exit(1 if text else 0)
    with announcing() as announce:
        found = module.campaign(
            range(seed, seed + scenarios), progress=lambda done, wanted: announce(f"{done} of {wanted} scenarios")
        )
    ends = ", ".join(f"{count:,} {end}" for end, count in sorted(found.ends.items()))
    typer.echo(
        f"{found.scenarios:,} scenarios, {found.requests:,} requests ({ends}), {found.passes:,} forward passes, "
        f"{found.steps:,} steps, {found.steps / found.core_s:,.0f} a second and core, {len(found.failures)} failures"
    )
    for failure in found.failures:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"seed-{failure.seed}.json"
        path.write_text(failure.script.to_json(), encoding="utf-8")
        typer.echo(f"\n{failure.text}\n  replay   freehold simulate --script {path}")
    if found.failures:
        raise typer.Exit(1)


def _so_far(report: Any) -> str:
    return (
        f"seed {report.first_seed} and {report.seeds - 1} more: {report.examples:,} programs, {report.steps:,} engine "
        f"steps, {report.events:,} events, {len(report.failures)} failures, {report.seconds:.0f} s"
    )


@app.command()
def bench(
    new_tokens: Annotated[int, typer.Option("--new-tokens", min=1, help="Tokens to generate a request.")] = 48,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="A Mooncake trace for the prefix cache; else one is made up.")
    ] = None,
    only: Annotated[str, typer.Option("--only", help="One of text, scheduler, cache.")] = "",
    peers: Annotated[bool, typer.Option("--peers", help="The prefix cache beside SGLang's and vLLM's.")] = False,
    peers_python: Annotated[
        list[Path] | None, typer.Option("--peers-python", help="An interpreter that has a peer; may be repeated.")
    ] = None,
) -> None:
    """Tokens per second beside transformers; cost of the scheduler, the monitor and the prefix cache."""
    scheduler = import_extra("freehold.model_check.bench_scheduler", "check")
    console = Console(width=None if Console().is_terminal else 120)
    if only and only not in ("text", "scheduler", "cache"):
        raise InvalidInput(f"--only must be text, scheduler or cache, not {only!r}")
    warning = scheduler.busy_machine()
    if warning:
        console.print(f"[yellow]{warning}[/]")
    with announcing() as announce:
        if only in ("", "scheduler"):
            announce("scheduler steps")
            console.print(_step_table(scheduler.step_costs()))
        if only in ("", "cache"):
            beside = import_extra("freehold.model_check.bench_peers", "check") if peers or peers_python else None
            ask = partial(beside.rows_beside, pythons=peers_python or ()) if beside else None
            cache = import_extra("freehold.model_check.bench_cache", "check")
            console.print(_cache_table(cache, trace, announce, ask))
        if only in ("", "text"):
            text = import_extra("freehold.model_check.bench_text", "check")
            console.print(_text_table(text.text_rates(new_tokens, announce=announce)))


def _text_table(rates: Any) -> Table:
    table = Table(
        "dtype", "concurrent", "freehold", "with the monitor", "generate", "continuous batching", "by the better",
        title="SmolLM2-135M: tokens a second, beside transformers",
    )  # fmt: skip
    for r in rates:
        figures = (r.engine, r.watched, r.generate, r.continuous)
        table.add_row(r.dtype, str(r.concurrent), *(f"{x:.1f}" for x in figures), f"{r.ratio:.2f}")
    return table


def _step_table(costs: Any) -> Table:
    table = Table(
        "pools", "running", "µs a request and step", "with the monitor", "ratio", "means",
        title="Scheduler, no model: medians of all-decode steps",
    )  # fmt: skip
    for c in costs:
        means = f"{c.mean_off:.1f} / {c.mean_on:.1f}"
        ratio = f"{c.monitor_on / c.monitor_off:.1f}"
        table.add_row(c.kind, str(c.running), f"{c.monitor_off:.1f}", f"{c.monitor_on:.1f}", ratio, means)
    return table


def _cache_table(
    module: Any, trace: Path | None, announce: Callable[[str], None], ask: Callable[..., Any] | None
) -> Table:
    asked = module.read_trace(trace) if trace else module.made_up_trace()
    about = ", ".join(f"{value} {name}" for name, value in module.marginals(asked).items())
    table = Table(
        "page", "cache", "hit rate", "ns a prompt token", "match", "take", "publish", "release",
        title=f"Prefix cache, 8 M tokens: {about}",
    )  # fmt: skip
    missing: dict[str, str] = {}
    for page_size in (1, 16, 64):
        announce(f"prefix cache at page size {page_size}")
        if ask is None or page_size == 1:  # vLLM has no blocks of one token
            table.add_row(str(page_size), "Freehold", *_cost_cells(module.cache_cost(asked, page_size)))
            continue
        for row in ask(asked, page_size):
            if row.cost is None:
                missing[row.name] = row.missing
            else:
                table.add_row(str(page_size), row.name, *_cost_cells(row.cost))
    for name, why in missing.items():
        table.add_row("", f"{name}: {why}")
    return table


def _cost_cells(cost: Any) -> list[str]:
    parts = (cost.total_s, cost.match_s, cost.take_s, cost.publish_s, cost.release_s)
    return [f"{cost.hits / max(1, cost.tokens):.3f}", *(f"{cost.nanoseconds(s):.1f}" for s in parts)]


@app.command()
def mutate(
    sample: Annotated[int, typer.Option("--sample", min=1, help="So many mutants, some of each event.")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="Which ones.")] = 0,
    everything: Annotated[bool, typer.Option("--all", help="Every mutant.")] = False,
    only: Annotated[str, typer.Option("--only", help="Every mutant with this in its name.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Change the law in small ways, and say who sees each change; exit 1 when one goes unseen."""
    module = import_extra("freehold.commands_mutate", "check")
    with counting("mutants") as progress:
        code = module.run(None if everything or only else sample, seed, only, as_json, progress)
    raise typer.Exit(code)


@app.command("gpu-check")
def gpu_check() -> None:
    """On a GPU: kernels against their references, engine tokens against the CPU's; exit 3 where there is none."""
    module = import_extra("freehold.model_check.gpu_check", "check")
    raise typer.Exit(module.main())
