"""The command `infer-diag`: the verbs of the Python surface, for shells, CI and tools outside Python.

Standard output holds the answer and nothing else; progress and errors go to standard error, an error as one line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from infer_diag import __version__, cli_export, samples
from infer_diag.cli_answers import diagnosed, told, write_report
from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.observability import commands
from infer_diag.terminal import CONTROL, fleet_lines, print_coloured, show_count

EXIT_UNREADABLE = 2

app = typer.Typer(
    help="Why an LLM deployment costs what it costs, from the logs that it already writes.",
    epilog="\b\nExample:\n  infer-diag diagnose server.log",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="Log files, folders, globs, Prometheus servers (prometheus+http://HOST:PORT), samples (sample:NAME).",
    ),
]
Format = Annotated[str | None, typer.Option(help="Read every file as this format; see `infer-diag formats`.")]
Year = Annotated[int | None, typer.Option(help="Year of stamps that print none.")]
Zone = Annotated[str | None, typer.Option("--tz", help="Time zone of stamps that name none, such as Asia/Shanghai.")]
Strict = Annotated[bool, typer.Option("--strict", help="Fail at the first line that breaks the rules of its format.")]
Start = Annotated[
    str | None, typer.Option(metavar="TIME", help="For a Prometheus server: begin at this time, such as -2h (-1h).")
]
End = Annotated[str | None, typer.Option(metavar="TIME", help="For a Prometheus server: end at this time (now).")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the answer and errors.")]


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"infer-diag {__version__}")
        raise typer.Exit


@app.command(
    epilog="\b\nExamples:\n"
    "  infer-diag diagnose server.log\n"
    "  infer-diag diagnose logs/ --json\n"
    "  infer-diag diagnose pod.log.gz --year 2026 --tz Asia/Shanghai --html report.html\n"
    "  infer-diag diagnose 'prometheus+http://prometheus:9090?match={job=\"vllm\"}' --start -2h\n"
    "  infer-diag diagnose sample:captured/two_starts"
)
def diagnose(
    paths: Paths,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as one JSON document.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report to this file too.")] = None,
    format: Format = None,
    year: Year = None,
    tz: Zone = None,
    strict: Strict = False,
    start: Start = None,
    end: End = None,
    quiet: Quiet = False,
) -> None:
    """Say where the time goes, with the log lines behind every number; of a folder with a deployments.csv, a fleet.

    Exit status: 0 with or without findings, 2 when nothing in PATH could be read.
    """
    diagnosis = diagnosed(paths, quiet, format=format, year=year, tz=tz, strict=strict, start=start, end=end)
    if html is not None:
        write_report(diagnosis, html, quiet)
    if as_json:
        typer.echo(diagnosis.to_json())
    elif sys.stdout.isatty():
        print_coloured(told(diagnosis))
    else:
        typer.echo("\n".join(told(diagnosis)))


@app.command(
    epilog="\b\nExamples:\n"
    "  infer-diag fleet prod/ --price 2.5\n"
    "  infer-diag fleet 's3://bucket/prod/*' --reference best --json\n"
    "  infer-diag fleet prod/ --cluster tcp://scheduler:8786 --html fleet.html"
)
def fleet(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="A folder that holds a folder of logs per deployment, or a glob."),
    ],
    reference: Annotated[str, typer.Option(help="median, best, roofline, or a deployment's name.")] = "median",
    price: Annotated[
        float | None, typer.Option(help="Dollars per GPU and hour where deployments.csv says nothing.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Scheduler of a Dask cluster.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as one JSON document.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report to this file too.")] = None,
    year: Year = None,
    tz: Zone = None,
    quiet: Quiet = False,
) -> None:
    """Say what each deployment's tokens cost against its peers, and why.

    Exit status: 0, or 2 when the paths name no deployment.
    """
    from infer_diag.diagnose import diagnose as diagnose_fleet
    from infer_diag.fleet import connected
    from infer_diag.fleet_paths import load_fleet

    progress = show_count if sys.stderr.isatty() and not quiet else None
    client = None if cluster is None else connected(cluster)
    found = load_fleet(*paths, client=client, price_per_gpu_h=price, year=year, tz=tz)
    diagnosis = diagnose_fleet(found, reference, progress=progress)
    if html is not None:
        write_report(diagnosis, html, quiet)
    typer.echo(diagnosis.to_json() if as_json else "\n".join(fleet_lines(diagnosis)))


@app.command(
    epilog="\b\nExamples:\n"
    "  infer-diag report logs/ --out report.html\n"
    "  infer-diag report logs/ --format md --out -\n"
    "  infer-diag report logs/ --notebook report.ipynb"
)
def report(
    paths: Paths,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it (report.html); - prints Markdown.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(metavar="html|md|ipynb", help="Form of the report, where FILE's suffix does not say.")
    ] = None,
    notebook: Annotated[
        Path | None, typer.Option(metavar="OUT.ipynb", help="Write a notebook that reads the logs again, executed.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(help="Read every file as this format; see `infer-diag formats`.")
    ] = None,
    year: Year = None,
    tz: Zone = None,
    strict: Strict = False,
    start: Start = None,
    end: End = None,
    quiet: Quiet = False,
) -> None:
    """Write the diagnosis as one HTML file that needs no network, as Markdown for a ticket, or as a notebook."""
    from infer_diag.report import FORMATS, markdown

    if format is not None and format not in FORMATS:
        raise UnknownNameError("format of a report (--log-format names one of logs)", format, FORMATS)
    how = {"format": log_format, "year": year, "tz": tz, "strict": strict, "start": start, "end": end}
    diagnosis = diagnosed(paths, quiet, **how)
    if str(out) == "-":
        if format not in ("md", None):
            raise DiagError("only Markdown is printed", hint="--format md --out -, or name a file")
        typer.echo(markdown(diagnosis), nl=False)
    elif out is not None or format is not None or notebook is None:
        write_report(diagnosis, out or Path(f"report.{format or 'html'}"), quiet, format, {"paths": paths, **how})
    if notebook is not None:
        write_report(diagnosis, notebook, quiet, "ipynb", {"paths": paths, **how})


@app.command(epilog="\b\nExamples:\n  infer-diag formats\n  infer-diag formats --json")
def formats(
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as one JSON document.")] = False,
) -> None:
    """List the formats that can be read: the versions tested, the frames that each fills, and an example."""
    from infer_diag.loaders import LOADERS

    if as_json:
        keys = ("name", "about", "versions", "frames", "example")
        listed = [{key: getattr(loader, key) for key in keys} for loader in LOADERS.values()]
        typer.echo(json.dumps({"formats": listed}, indent=2, ensure_ascii=False))
        return
    for loader in LOADERS.values():
        typer.echo(f"{loader.name}: {loader.about}")
        typer.echo(f"  versions  {loader.versions}\n  fills     {', '.join(loader.frames)}")
        for number, line in enumerate((loader.example or "").splitlines()):
            typer.echo(f"  {'example   ' if number == 0 else ' ' * 10}{line}")


@app.command("samples")
def list_samples() -> None:
    """List the recorded logs that are shipped."""
    names = samples.names()
    width = max(map(len, names), default=0)
    for name in names:
        typer.echo(f"sample:{name:{width}}  {samples.about(name)}".rstrip())


@app.command(
    epilog="\b\nExamples:\n"
    "  infer-diag probe --list\n"
    "  infer-diag probe weights --out probes/\n"
    "  infer-diag probe all --out probes/"
)
def probe(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A probe, or all.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the recordings go.")] = Path("probes"),
    show: Annotated[bool, typer.Option("--list", help="List the probes and end.")] = False,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A model's folder, for weights and pipeline.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Repetitions, in place of the probe's own number.")] = None,
    size_mib: Annotated[int | None, typer.Option(min=1, help="Scratch file of the weights probe, in MiB.")] = None,
    python: Annotated[
        str | None, typer.Option(metavar="FILE", help="Interpreter that has torch and transformers.")
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Empty the page cache of the pipeline's files first.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure this machine and write recordings that the other verbs and the notebooks read.

    Exit status: 0 when something was measured, 2 when nothing could be.
    """
    from infer_diag.probes.registry import PROBES
    from infer_diag.probes.run import run
    from infer_diag.probes.settings import Settings

    if show or name is None:
        width = max(map(len, PROBES))
        for each in PROBES.values():
            typer.echo(f"{each.name:{width}}  {'GPU' if each.needs_gpu else '   '}  {each.about}")
        return
    size = None if size_mib is None else size_mib << 20
    chosen = Settings(model=model, repeats=repeats, size_bytes=size, python=python, cold=cold)
    ran = run(name, out, chosen, announce=lambda text: None if quiet else typer.echo(text, err=True))
    for done in ran.done:
        for sentence in done.result.sentences:
            typer.echo(CONTROL.sub("�", sentence))
        for file in (done.path.name, *done.result.recordings):
            typer.echo(f"written: {out / file}")
    for refused, reason in ran.refused:
        typer.echo(f"not measured: {refused}: {CONTROL.sub('�', reason)}", err=True)


@app.command(
    epilog="\b\nExamples:\n"
    "  infer-diag watch http://localhost:8000/metrics --every 2s --for 1m\n"
    "  infer-diag watch server.log gpu --out watched/"
)
def watch(
    targets: Annotated[
        list[str], typer.Argument(metavar="TARGET...", help="gpu, http://HOST:PORT/metrics, or a log that still grows.")
    ],
    every: Annotated[str, typer.Option(metavar="TIME", help="Time between two looks.")] = "2s",
    for_time: Annotated[str | None, typer.Option("--for", metavar="TIME", help="End after this time.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where what is seen is kept.")] = Path("watched"),
    tz: Zone = None,
) -> None:
    """Watch GPUs, a running engine or a growing log, with findings as they arise; Ctrl-C ends it.

    Exit status: 0 when something was seen, 2 when nothing was.
    """
    from infer_diag.units import parse_duration_s
    from infer_diag.watch import live, target
    from infer_diag.watch.terminal import follow

    for_s = parse_duration_s(for_time) if for_time is not None else None
    running = live([target(text) for text in targets], out, every_s=parse_duration_s(every), for_s=for_s, tz=tz)
    view = follow(running)
    typer.echo("\n".join(CONTROL.sub("�", line) for line in view.lines))
    if view.diagnosis is None:
        raise SystemExit(EXIT_UNREADABLE)


for verbs in (commands, cli_export):
    verbs.register(app)


def main() -> None:
    """Run the command line; what infer_diag raises on purpose becomes one line on standard error."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app()
    except (DiagError, OSError) as error:
        _fail(str(error) if isinstance(error, DiagError) else f"{error.filename or 'file'}: {error.strerror or error}")


def _fail(message: str) -> NoReturn:
    from infer_diag.redact import redact

    typer.echo(f"infer-diag: {CONTROL.sub('�', redact(message))}", err=True)
    raise SystemExit(EXIT_UNREADABLE)
