"""The command line. Commands import what they need when they run: the base install has no torch."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from freehold import __version__, bug_commands, instruments, law_commands
from freehold.extras import import_extra
from freehold.impl.serving.choices import Device, Dtype, KvCheck, OnBreach, Policy, Retraction
from freehold.spec.errors import FreeholdError

EXIT_CODES = "Exit codes: 0 holds, 1 a rule is broken, 2 invalid input, 3 unsupported here."


class Commands(TyperGroup):
    """Commands whose typed errors end in one line on stderr and their exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except FreeholdError as error:
            typer.echo(f"freehold: {error}", err=True)
            raise typer.Exit(error.exit_code) from error


app = typer.Typer(
    name="freehold",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help=f"Every KV page is free, or held by exactly one owner. {EXIT_CODES}",
)

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="A GGUF file or a Hugging Face directory; default: the bundled SmolLM2-135M-Instruct."
    ),
]
DeviceOption = Annotated[Device, typer.Option("--device", help="Where to run.")]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Type of weights and KV.")]
PageSizeOption = Annotated[int, typer.Option("--page-size", help="Tokens in a KV page, a power of two.")]
NumPagesOption = Annotated[int | None, typer.Option("--num-pages", help="KV pages; default: by the other sizes.")]
ContextOption = Annotated[
    int, typer.Option("--max-context-tokens", help="Longest prompt and output together; the model may lower it.")
]
ChunkOption = Annotated[int, typer.Option("--chunk-tokens", help="Prefill tokens in one step.")]
OverlapOption = Annotated[
    bool, typer.Option("--overlap/--disable-overlap", help="Plan the next step while the forward pass runs.")
]
BreachOption = Annotated[
    OnBreach, typer.Option("--on-breach", help="What follows a broken rule of the law; off has no monitor.")
]
DumpOption = Annotated[
    Path | None, typer.Option("--dump-directory", help="Where `--on-breach dump` writes the last events.")
]
KvCheckOption = Annotated[
    KvCheck, typer.Option("--kv-check", help="Verify marks in each slot, or fill free pages with NaN.")
]
SwaPagesOption = Annotated[
    int | None, typer.Option("--num-swa-pages", help="Pages for sliding-window layers; default: what running needs.")
]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", help="Write the event log here, for `freehold check`; .gz compresses it.")
]


def main() -> None:
    """The command `freehold`."""
    app(prog_name="freehold")


@contextmanager
def exit_on_sigterm(exit_code: int) -> Iterator[None]:
    """Inside, SIGTERM unwinds the stack as Ctrl-C does, so that everything open is closed; then the process exits."""

    def leave(signum: int, frame: object) -> None:
        raise SystemExit(exit_code)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"freehold {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to answer, or with --raw what to continue.")],
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="At most so many tokens; default: 128, or what fits.")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the likeliest token.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Draw from the likeliest tokens with this share.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Draw from so many tokens; 0 for all.")] = 0,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Fixes the draws; without one they are the same in every run.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be repeated.")] = None,
    chat: Annotated[
        bool | None, typer.Option("--chat/--raw", help="Ask, or let continue; default: ask if the model can chat.")
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    page_size: PageSizeOption = 16,
    num_pages: NumPagesOption = None,
    max_context_tokens: ContextOption = 2048,
    chunk_tokens: ChunkOption = 512,
    num_swa_pages: SwaPagesOption = None,
    overlap: OverlapOption = True,
    on_breach: BreachOption = "off",
    dump_directory: DumpOption = None,
    kv_check: KvCheckOption = "off",
    trace: TraceOption = None,
) -> None:
    """Generate text, shown as it comes."""
    assembly = import_extra("freehold.impl.serving.assembly", "engine")
    console = import_extra("freehold.impl.serving.console", "engine")
    options = assembly.EngineOptions(
        model=model,
        device=device,
        dtype=dtype,
        page_size=page_size,
        num_pages=num_pages,
        max_running=1,
        max_context_tokens=max_context_tokens,
        chunk_tokens=chunk_tokens,
        num_swa_pages=num_swa_pages,
        overlap=overlap,
        on_breach=on_breach,
        dump_directory=dump_directory,
        kv_check=kv_check,
        trace=trace,
    )
    question = console.Question(
        prompt=prompt,
        form=console.PromptForm.AUTO if chat is None else console.PromptForm.CHAT if chat else console.PromptForm.RAW,
        max_new_tokens=max_tokens,
        stops=tuple(stop or ()),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
    )
    with exit_on_sigterm(143), assembly.load_engine(options) as loaded:
        with closing(console.answer(loaded, question)) as pieces:  # the engine ends before its trace does
            for text in pieces:
                sys.stdout.write(text)
                sys.stdout.flush()
        sys.stdout.write("\n")


@app.command()
def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on; the default is this machine only.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.")] = 8000,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    page_size: PageSizeOption = 16,
    num_pages: NumPagesOption = None,
    max_running: Annotated[int, typer.Option("--max-running", help="Requests that may hold KV at once.")] = 16,
    max_context_tokens: ContextOption = 2048,
    chunk_tokens: ChunkOption = 512,
    policy: Annotated[Policy, typer.Option("--policy", help="Who is admitted first.")] = "first_come",
    retraction: Annotated[
        Retraction, typer.Option("--retraction", help="Who gives way first when pages run out.")
    ] = "youngest",
    num_swa_pages: SwaPagesOption = None,
    overlap: OverlapOption = True,
    waiting_timeout_s: Annotated[
        float | None, typer.Option("--request-waiting-timeout", help="Seconds until the first token may be computed.")
    ] = None,
    running_timeout_s: Annotated[
        float | None, typer.Option("--request-running-timeout", help="Seconds that a request may take in all.")
    ] = None,
    session_timeout_s: Annotated[
        float | None, typer.Option("--session-timeout", help="Seconds that a session may idle.")
    ] = None,
    on_breach: BreachOption = "off",
    dump_directory: DumpOption = None,
    kv_check: KvCheckOption = "off",
    trace: TraceOption = None,
    grace_s: Annotated[
        float, typer.Option("--shutdown-timeout", min=0.0, help="Seconds that answers under way may take at the end.")
    ] = 10.0,
) -> None:
    """Serve an OpenAI-compatible API over HTTP until Ctrl-C or SIGTERM."""
    assembly = import_extra("freehold.impl.serving.assembly", "engine")
    server = import_extra("freehold.impl.serving.server", "engine")
    options = assembly.EngineOptions(
        model=model,
        device=device,
        dtype=dtype,
        page_size=page_size,
        num_pages=num_pages,
        max_running=max_running,
        max_context_tokens=max_context_tokens,
        chunk_tokens=chunk_tokens,
        policy=policy,
        retraction=retraction,
        num_swa_pages=num_swa_pages,
        overlap=overlap,
        waiting_timeout_s=waiting_timeout_s,
        running_timeout_s=running_timeout_s,
        session_timeout_s=session_timeout_s,
        on_breach=on_breach,
        dump_directory=dump_directory,
        kv_check=kv_check,
        trace=trace,
    )
    with exit_on_sigterm(0), server.bind(host, port) as bound, assembly.load_engine(options) as loaded:
        where = f"{loaded.model_name} at {server.url_of(bound)}"
        server.run(loaded, bound, grace_s=grace_s, on_listening=lambda: typer.echo(f"Serving {where}", err=True))


@app.command(epilog=EXIT_CODES)
def check(
    file: Annotated[Path, typer.Argument(help="An event log, as `--trace` writes it; may be .gz.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    waive: Annotated[
        str, typer.Option("--waive", help="Accept these named deviations, like W1,W3; see docs/law.md.")
    ] = "",
) -> None:
    """Hold the event log of an engine to the law: the first broken rule, with its unit and owners, or OK."""
    from freehold.spec.monitor import Monitor
    from freehold.spec.trace import read

    header, events = read(file)
    monitor = Monitor(header, tuple(w.strip() for w in waive.split(",") if w.strip()))
    counts: Counter[str] = Counter()
    for event in events:
        counts[event.name] += 1
        if monitor.feed(event):
            break
    verdict = monitor.verdict
    if as_json:
        report = {
            "file": str(file),
            "holds": verdict is None,
            "events": counts.total(),
            "counts": dict(counts),
            "verdict": verdict.as_dict() if verdict else None,
        }
        typer.echo(json.dumps(report, indent=2))
    else:
        _print_counts(counts)
        typer.echo(f"{verdict}\n\nBROKEN after {counts.total()} events" if verdict else f"OK: {counts.total()} events")
    if verdict:
        raise typer.Exit(1)


def _print_counts(counts: Counter[str]) -> None:
    table = Table("event", "count", box=None)
    table.columns[1].justify = "right"
    for name, count in counts.most_common():
        table.add_row(name, str(count))
    Console().print(table)


app.add_typer(law_commands.app)
app.add_typer(bug_commands.app)
app.add_typer(instruments.app)

if __name__ == "__main__":
    main()
