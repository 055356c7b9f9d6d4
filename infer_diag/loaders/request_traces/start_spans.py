"""vLLM's spans of its start to starts and phases: nested, on a real clock, to the nanosecond."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.loaders.conformed import Frames
from infer_diag.recording import start_id

PHASES = {
    "Init device": "device_init",
    "Download weights - HF": "weights_fetch",
    "Loading (GPU)": "weights_load",
    "Loading (CPU)": "weights_load",
    "Load model": "weights_load",
    "Load weights": "weights_read",
    "Prepare model": "init_engine",
    "Compile graph": "compile_graph",
    "Inductor compilation": "compile_graph",
    "Allocate KV cache": "kv_alloc",
    "DeepGemm warmup": "kernel_warmup",
    "CuTeDSL warmup": "kernel_warmup",
    "Warmup (GPU)": "kernel_warmup",
    "Warmup (CPU)": "kernel_warmup",
    "Capture model": "graph_capture",
}
"""The phase of each span by its name; the others enclose several phases."""

_WHOLES = ("Overall Loading", "API server setup", "AsyncMPClient init", "SyncMPClient init", "EngineCoreProc init")
"""Spans that end when the engine, or what is in front of it, is up."""
_ENCLOSING = ("Warmup (GPU)", "Warmup (CPU)")
"""Phases only where nothing inside them is one: they hold kernel warm-up and graph capture alike."""
_NAMES = (*PHASES, *_WHOLES, "Executor init", "Worker init", "Initialize model")
_RANK = r"_((?:PP|PCP|TP|DCP|EP)\d+(?:_(?:PP|PCP|TP|DCP|EP)\d+)*)$"
_MOST_LEVELS = 16


def of_starts(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans of starts: those of a trace in which at least one phase is."""
    named = spans.filter(pl.col("name").is_in(_NAMES))
    with_phase = named.filter(pl.col("name").is_in(list(PHASES)))["trace"].unique()
    return named.filter(pl.col("trace").is_in(with_phase.implode()))


def start_frames(spans: pl.DataFrame, served_ns: int | None) -> Frames:
    """`starts` and `phases`, one start per trace in the order of time; `served_ns`: when a request first came."""
    if spans.is_empty():
        return {}
    order = spans.group_by("trace").agg(pl.col("begin_ns").min()).sort("begin_ns")["trace"].to_list()
    starts, phases = [], []
    for number, trace in enumerate(order):
        mine = spans.filter(pl.col("trace") == trace)
        following = spans.filter(pl.col("trace").is_in(order[number + 1 :]))["begin_ns"].min()
        starts.append(_start(mine, start_id(number), served_ns, following if isinstance(following, int) else None))
        phases.append(_phases(mine, start_id(number)))
    return {"starts": pl.DataFrame(starts, infer_schema_length=None), "phases": pl.concat(phases)}


def _start(spans: pl.DataFrame, name: str, served_ns: int | None, next_ns: int | None) -> dict[str, Any]:
    whole = spans.filter(pl.col("name").is_in(_WHOLES))
    first, last = spans["begin_ns"].min(), spans["end_ns"].max()
    failed = whole.filter("failed")
    up = whole.filter(~pl.col("failed")) if failed.is_empty() else whole.head(0)
    ready = up.sort("end_ns").tail(1).to_dicts()
    served = (
        served_ns is not None and isinstance(last, int) and served_ns >= last and (next_ns or served_ns) >= served_ns
    )
    return {
        "line": spans["line"].min(),
        "start_id": name,
        "last_line": spans["line"].max(),
        "first_time": _time(first),
        "last_time": _time(last),
        "ready_time": _time(ready[0]["end_ns"]) if ready else None,
        "ready_line": ready[0]["line"] if ready else None,
        "failed_line": failed["line"].min(),
        "served": served,
    }


def _phases(spans: pl.DataFrame, name: str) -> pl.DataFrame:
    """Phases of one start; a span inside one of the same phase tells nothing new."""
    told = spans.with_columns(
        pl.col("name").replace_strict(PHASES, default=None, return_dtype=pl.String).alias("phase")
    )
    enclosing = _enclosing(told)
    inner = enclosing.filter(pl.col("phase").is_not_null())["outer"].unique()
    holds_others = pl.col("name").is_in(_ENCLOSING) & pl.col("span").is_in(inner.implode())
    nearest = (
        enclosing.filter(pl.col("outer_phase").is_not_null())
        .sort("level")
        .unique("span", keep="first", maintain_order=True)
        .select("span", inside="outer_phase")
    )
    rows = told.filter(pl.col("phase").is_not_null() & ~holds_others).join(
        nearest, on="span", how="left", maintain_order="left"
    )
    kept = rows.filter(pl.col("inside").is_null() | (pl.col("inside") != pl.col("phase")))
    return kept.sort("begin_ns").select(
        "line",
        pl.lit(name).alias("start_id"),
        pl.col("process_name").str.extract(_RANK).alias("rank"),
        "phase",
        "inside",
        (pl.col("begin_ns") // 1000).cast(pl.Datetime("us", "UTC")).alias("begin"),
        (pl.col("end_ns") // 1000).cast(pl.Datetime("us", "UTC")).alias("end"),
        pl.lit(False).alias("is_total"),
        pl.lit("measured").alias("status"),
    )


def _enclosing(spans: pl.DataFrame) -> pl.DataFrame:
    """Each span with every one around it: `span, phase, outer, outer_phase, level` (1 is the parent)."""
    # A span that holds several phases is none, so what is in it lies inside the one around it.
    phase = pl.when(~pl.col("name").is_in(_ENCLOSING)).then("phase")
    known = spans.select(outer="span", outer_phase=phase, next="parent")
    level = spans.select("span", "phase", next="parent")
    found = []
    for number in range(1, _MOST_LEVELS):
        level = level.join(known, left_on="next", right_on="outer", how="inner", coalesce=False, suffix="_up")
        if level.is_empty():
            break
        found.append(level.select("span", "phase", "outer", "outer_phase", pl.lit(number).alias("level")))
        level = level.select("span", "phase", next="next_up")
    empty = spans.select("span", "phase", outer="span", outer_phase="phase", level=pl.lit(0)).clear()
    return pl.concat([empty, *found])


def _time(nanoseconds: object) -> Any:
    if not isinstance(nanoseconds, int):
        return None
    return pl.Series([nanoseconds // 1000]).cast(pl.Datetime("us", "UTC"))[0]
