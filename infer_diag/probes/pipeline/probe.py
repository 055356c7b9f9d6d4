"""The pipeline probe: a fresh process per start, its phases by its own trace, its imports by the interpreter's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl

from infer_diag.errors import ProbeUnavailable, SourceError
from infer_diag.probes import machine
from infer_diag.probes.budget import Budget
from infer_diag.probes.pipeline.import_times import import_rows
from infer_diag.probes.result import ProbeResult, framed
from infer_diag.probes.settings import Settings
from infer_diag.probes.weights import page_cache
from infer_diag.probes.weights.model_files import ORDER, resolve
from infer_diag.units import format_bytes, format_s

PROMPT = "The quick brown fox"
_CHILD = Path(__file__).with_name("child.py")
_LONGEST_S = 900.0
_ASK_PLACES = "import json, sysconfig; print(json.dumps(sorted({*sysconfig.get_paths().values()})))"
_ASK_LIBRARIES = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('torch', 'transformers'))))"


def run(out: Path, settings: Settings, budget: Budget) -> ProbeResult:
    """`probe_pipeline` with the settings of the command line.

    Raises:
        ProbeUnavailable: no model is given.
    """
    if settings.model is None:
        raise ProbeUnavailable("the pipeline probe needs a model", hint="--model DIR, a folder that transformers loads")
    python = settings.python or sys.executable
    return probe_pipeline(
        out, settings.model, python=python, starts=settings.repeats or 1, cold=settings.cold, budget=budget
    )


def probe_pipeline(
    out: Path,
    model: Path,
    *,
    python: str = sys.executable,
    starts: int = 1,
    cold: bool = False,
    budget: Budget | None = None,
) -> ProbeResult:
    """Phases, imports, tokens and peak memory of `starts` starts of a text-generation pipeline, each a fresh process.

    Each start writes `pipeline_start_N.jsonl` into `out`, which `infer_diag.load` reads. With `cold` the files of the
    model and of the interpreter's libraries leave the page cache before each start; what other processes have mapped
    stays. Nothing is fetched: the hub is set offline.

    Raises:
        ProbeUnavailable: the interpreter lacks torch or transformers.
        SourceError: the model has no weights, or the process failed.
    """
    _require(python)
    weights, limit = resolve(model), budget or Budget(_LONGEST_S)
    imports, phases, names = list[dict[str, Any]](), list[dict[str, Any]](), list[str]()
    for start in range(1, starts + 1):
        if start > 1 and limit.spent:
            break
        if cold:
            _chill(python, [*weights.files, *(model / name for name in ORDER)])
        names.append(f"pipeline_start_{start}.jsonl")
        imports += import_rows(_start(python, out / names[-1], model, cold, limit.left_s), start)
        phases += phase_rows((out / names[-1]).read_text(encoding="utf-8"), start)
    told, modules = framed("pipeline_phases", phases), framed("import_times", imports)
    return ProbeResult(
        probe="pipeline",
        basis="measured",
        machine={**machine.facts(), "weights_bytes": weights.size_bytes, "page_cache": "cold" if cold else "as found"},
        frames={"pipeline_phases": told, "import_times": modules},
        sentences=_sentences(told, modules),
        recordings=tuple(names),
    )


def phase_rows(text: str, start: int) -> list[dict[str, Any]]:
    """Rows of `frames.PipelinePhases` of one trace, with the peak memory after each phase that ended."""
    rows: dict[str, dict[str, Any]] = {}
    begun: dict[str, float] = {}
    for line in text.splitlines():
        told = json.loads(line)
        name, at = told["phase"], told["time_s"]
        if told["event"] == "phase_begin":
            unknown = dict.fromkeys(("duration_s", "cpu_s", "peak_bytes"))
            rows[name] = {"start_id": start, "phase": name, "begin_s": at, **unknown}
            begun[name] = told["cpu_s"]
        elif told["event"] == "phase_end":
            rows[name]["duration_s"] = max(at - rows[name]["begin_s"], 0.0)
            rows[name]["cpu_s"] = max(told["cpu_s"] - begun[name], 0.0)
        elif told["event"] == "memory" and name in rows:
            rows[name]["peak_bytes"] = told["peak_bytes"]
    return list(rows.values())


def _require(python: str) -> None:
    try:
        found = subprocess.run([python, "-c", _ASK_LIBRARIES], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise ProbeUnavailable(f"{python} cannot be run: {error.strerror}", hint="--python FILE") from error
    if not found:
        raise ProbeUnavailable(
            "this interpreter has no torch or no transformers", hint="--python FILE, one that has both"
        )


def _start(python: str, path: Path, model: Path, cold: bool, limit_s: float) -> str:
    """Runs one start and returns what the interpreter printed of its imports."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    words = [str(_CHILD), str(time.monotonic()), str(path), str(model), PROMPT, "cold" if cold else "as found"]
    try:
        done = subprocess.run(
            [python, "-X", "importtime", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=max(limit_s, 1.0),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ProbeUnavailable(f"the start took longer than {format_s(limit_s)}", hint="use a smaller model") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("import time:")]
        raise SourceError(f"the pipeline of {model.name} failed to start: {(said or ['no message'])[-1][:200]}")
    return done.stderr


def _chill(python: str, files: list[Path]) -> None:
    """Takes the files and everything that the interpreter may import out of the page cache."""
    page_cache.require()
    asked = subprocess.run([python, "-c", _ASK_PLACES], capture_output=True, text=True, check=True)
    folders = [Path(place) for place in json.loads(asked.stdout) if Path(place).is_dir()]
    for path in {*files, *(path for folder in folders for path in folder.rglob("*"))}:
        if path.is_file() and os.access(path, os.R_OK):
            page_cache.drop(path)


def _sentences(phases: pl.DataFrame, imports: pl.DataFrame) -> tuple[str, ...]:
    said = []
    for start in phases["start_id"].unique().sort():
        mine = phases.filter((pl.col("start_id") == start) & pl.col("duration_s").is_not_null())
        longest = mine.sort("duration_s", descending=True).head(4)
        parts = ", ".join(
            f"{name} {format_s(seconds)}" for name, seconds in longest.select("phase", "duration_s").rows()
        )
        first = (
            mine.filter(pl.col("phase") == "first_token").select(pl.col("begin_s") + pl.col("duration_s")).to_series()
        )
        until = f"first token after {format_s(first[0])}" if len(first) else "no token came"
        peak = mine["peak_bytes"].max()
        memory = f", peak memory {format_bytes(peak)}" if isinstance(peak, int) else ""
        said.append(f"Start {start}: {until}; {parts}{memory}.")
    top = imports.filter(pl.col("start_id") == 1).sort("self_s", descending=True).head(3)
    if len(top):
        rows = ", ".join(f"{name} {format_s(seconds)}" for name, seconds in top.select("module", "self_s").rows())
        said.append(f"Dearest modules of {len(imports.filter(pl.col('start_id') == 1)):,} imported: {rows}.")
    return tuple(said)
