"""The verbs `rules`, `collector-config` and `bpftrace` of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from infer_diag.errors import DiagError, SourceError

Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write it to this file instead of standard output.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command line."""
    app.command(
        "rules",
        epilog="\b\nExamples:\n  infer-diag rules --engine vllm --out infer_diag.rules.yaml\n"
        "  infer-diag rules --engine sglang --engine dcgm-exporter | promtool check rules",
    )(rules)
    app.command(
        "collector-config",
        epilog="\b\nExamples:\n  infer-diag collector-config --engine vllm-0:8000 --out otelcol.yaml\n"
        "  infer-diag collector-config --check otelcol.yaml",
    )(collector_config)
    app.command(
        "bpftrace",
        epilog="\b\nExamples:\n  infer-diag bpftrace\n"
        "  infer-diag bpftrace cuda_allocations > a.bt && bpftrace -p 4242 a.bt > allocations.log",
    )(bpftrace)


def rules(
    engine: Annotated[
        list[str] | None,
        typer.Option(help="vllm, sglang, tgi, dcgm-exporter …; repeat it for several (vllm, sglang, dcgm-exporter)."),
    ] = None,
    out: Out = None,
) -> None:
    """Write Prometheus rules that alert on the findings that an engine's metrics can carry."""
    from infer_diag.observability.rules import DEFAULT, rules_yaml

    _put(rules_yaml(engine or DEFAULT), out)


def collector_config(
    engine: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="An engine's metrics (localhost:8000).")
    ] = None,
    dcgm: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A dcgm-exporter (localhost:9400).")
    ] = None,
    logs: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Log files (those of Kubernetes' pods).")
    ] = None,
    loki: Annotated[str | None, typer.Option(metavar="URL", help="Where logs go.")] = None,
    tempo: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where traces go.")] = None,
    remote_write: Annotated[str | None, typer.Option(metavar="URL", help="Where metrics go.")] = None,
    old_names: Annotated[bool, typer.Option("--old-names", help="For a collector before 0.144.")] = False,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Say what is wrong with this configuration, and write none.")
    ] = None,
    out: Out = None,
) -> None:
    """Write a complete configuration of the OpenTelemetry Collector, or check one.

    Exit status: 0, or 1 when a checked configuration would not start.
    """
    if check is not None:
        _checked(check)
        return
    from infer_diag.observability.collector import collector_yaml

    given = {"engines": engine, "dcgm": dcgm, "logs": logs, "loki": loki, "tempo": tempo, "remote_write": remote_write}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value}
    if logs:
        changes["are_pod_logs"] = any("/pods/" in name or "/containers/" in name for name in logs)
    _put(collector_yaml(with_old_names=old_names, **changes), out)


def bpftrace(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A script; without one they are listed.")] = None,
    library: Annotated[str, typer.Option(metavar="FILE", help="The CUDA driver to watch.")] = "libcuda",
    seconds: Annotated[int, typer.Option(help="End after this time.")] = 60,
    out: Out = None,
) -> None:
    """Write a bpftrace script that watches the CUDA driver, the disk or the network."""
    from infer_diag.observability.ebpf import script, scripts

    if name is not None:
        _put(script(name, library=library, seconds=seconds), out)
        return
    width = max(scripts()["name"].str.len_chars())
    for row in scripts().iter_rows(named=True):
        typer.echo(f"{row['name']:{width}}  {row['about']}")


def _checked(path: Path) -> None:
    from infer_diag.observability.collector_faults import faults
    from infer_diag.redact import redact

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is no text", hint="give the collector's YAML file") from error
    found = faults(text)
    for fault in found:
        typer.echo(redact(str(fault)))
    if not found:
        typer.echo("no fault found")
    raise typer.Exit(1 if any(fault.weight == "error" for fault in found) else 0)


def _put(text: str, out: Path | None) -> None:
    if out is None:
        typer.echo(text, nl=False)
        return
    if out.is_dir():
        raise DiagError(f"{out} is a folder", hint="name a file in it")
    out.write_text(text, encoding="utf-8")
    typer.echo(f"written: {out}", err=True)
