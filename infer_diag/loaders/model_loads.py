"""Results of ServerlessLLM's loading benchmark: how long each of many loads of a model took, one loader per file."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import document
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces.values import amount, as_object, values
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Recording, start_id


def load(file: LogFile, *, options: Options) -> Recording:
    """One start per load, of which nothing but the load is told, and the time of the one answer that followed it.

    Raises:
        SourceError: no load in it has a length.
    """
    read = document(file, options)
    line_of = read.lines_in_order()
    starts: list[dict[str, Any]] = []
    phases: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for told in map(as_object, values(read.value)):
        seconds = amount(told.get("loading_time"))
        name = str(told.get("model_name") or "")
        line = line_of(name) or 1
        if seconds is None:
            continue
        known = {"line": line, "start_id": start_id(len(starts))}
        starts.append({**known, "last_line": line, "ready_line": line, "served": True})
        phases.append(
            {**known, "phase": "weights_load", "duration_s": seconds, "is_total": False, "status": "measured"}
        )
        answered = amount(told.get("end_to_end_time"))
        if answered is not None:
            answers.append({"line": line, "request_id": f"{len(starts)} {name}", "e2e_s": answered})
    if not starts:
        raise SourceError(f"{file.label} holds no load with its length", hint="run the benchmark to its end")
    frames = {"starts": _frame(starts), "phases": _frame(phases)}
    return recorded(
        file,
        frames | ({"request_timings": _frame(answers)} if answers else {}),
        options=options,
        format="model-loads",
        engine="serverlessllm",
        lines=read.lines,
        understood=read.lines,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=pl.Series([], dtype=pl.Datetime("us", "UTC")),
        notes=("each load is a process's own measure of reading and placing the weights, and no whole start",),
    )


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, infer_schema_length=None)


LOADER = Loader(
    name="model-loads",
    about="ServerlessLLM's loading benchmark (JSON): each load of a model, by one loader per file",
    versions="results of 2024",
    frames=("starts", "phases", "request_timings"),
    example='[{"model_name":"org/some-7b_3","loading_time":5.25,"end_to_end_time":2.5,"throughput":24.4}]',
    signature=Signature(phrases=(r'"loading_time"\s*:\s*[0-9.]+\s*,\s*"end_to_end_time"\s*:',)),
    load=load,
)
