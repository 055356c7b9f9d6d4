"""Results of `vllm bench startup`: how long each start took, and how much of it was compilation."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import document
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces.values import Object, amount, as_object, values
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Recording, start_id

_KINDS = {"cold": "compile_cache_miss", "warm": "compile_cache_hit"}
"""A cold start of this benchmark finds vLLM's cache directory empty; the weights may lie in the page cache."""


def load(file: LogFile, *, options: Options) -> Recording:
    """One start per measured one, of whose whole time compilation is a part; when in it is not told.

    Raises:
        SourceError: there is no single start in it.
    """
    read = document(file, options)
    told = as_object(read.value)
    starts: list[dict[str, Any]] = []
    phases: list[dict[str, Any]] = []
    incidents: list[dict[str, Any]] = []
    for kind, incident in _KINDS.items():
        line = read.line_of(f"{kind}_startup_times") or 1
        compiled = values(told.get(f"{kind}_compilation_times"))
        for place, lasted in enumerate(_lengths(told, kind)):
            name = start_id(len(starts))
            starts.append(_start(line, name, lasted))
            seconds = amount(compiled[place]) if place < len(compiled) else None
            if seconds is not None and seconds <= lasted:
                phases.append(_phase(line, name, seconds))
            incidents.append({"line": line, "start_id": name, "kind": incident, "fields": f"{kind} start"})
    if not starts:
        raise SourceError(f"{file.label} holds no single start", hint="run vllm bench startup with --output-json")
    return recorded(
        file,
        {"starts": _frame(starts), "phases": _frame(phases), "incidents": _frame(incidents)},
        options=options,
        format="vllm-startup",
        engine="vllm",
        lines=read.lines,
        understood=read.lines,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=pl.Series([], dtype=pl.Datetime("us", "UTC")),
        notes=("cold and warm mean vLLM's own cache, neither the page cache nor a download",),
    )


def _lengths(told: Object, kind: str) -> list[float]:
    lengths = [amount(each) for each in values(told.get(f"{kind}_startup_times"))]
    return [each for each in lengths if each is not None]


def _start(line: int, name: str, lasted: float) -> dict[str, Any]:
    told = {"wall_s": lasted, "ready_line": line, "served": False}
    return {"line": line, "start_id": name, "last_line": line, **told}


def _phase(line: int, name: str, seconds: float) -> dict[str, Any]:
    known = {"phase": "compile", "duration_s": seconds, "is_total": True, "status": "measured"}
    return {"line": line, "start_id": name, **known}


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, infer_schema_length=None)


LOADER = Loader(
    name="vllm-startup",
    about="vllm bench startup results (JSON): cold and warm starts and their compilation",
    versions="0.32",
    frames=("starts", "phases", "incidents"),
    example='{"avg_cold_startup_time":45.5,"cold_startup_times":[45.0,46.0],"cold_compilation_times":[20.0,21.0]}',
    signature=Signature(phrases=(r'"(?:avg_)?(?:cold|warm)_startup_times?"\s*:',)),
    load=load,
)
