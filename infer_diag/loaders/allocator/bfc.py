"""Dumps of the BFC allocator (TensorFlow, JAX) at a failed allocation to a recording."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.allocator.bfc_chunks import chunks, statistics
from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.gpu_tables.gpu_rows import stamped
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.oom_messages import resolution, size
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text import prefixes
from infer_diag.loaders.text.lines import Chunk
from infer_diag.recording import Recording

_NEEDLES = (
    r"ran out of memory trying to allocate|Ran out of memory trying to allocate|Out of memory while trying to allocate"
    r"|(?:InUse|Free |Chunk) at |Next region of size|Bin \(256\):"
    r"|^\W*(?:Limit|InUse|MaxInUse|LargestFreeBlock): +[0-9]|total_region_allocated_bytes_: |Total bytes in pool: "
)
_STAMP = (
    r"^((?:[0-9]{4}-[0-9]{2}-[0-9]{2} )[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?|[IWEF][0-9]{4} [0-9:]{8}(?:\.[0-9]+)?)"
)
_ASKED = r"[Rr]an out of memory trying to allocate ([0-9.]+) ?(B|[KMGT]i?B)"
_ROUNDED = r"\(rounded to ([0-9]+)\)"
_RAISED = r"(?:RESOURCE_EXHAUSTED|Resource exhausted): Out of memory while trying to allocate ([0-9]+) bytes"
_NO_FAILURE = "not a failure"
_DEVICE = r"GPU_([0-9]+)_bfc"
_OPERATION = r"requested by op ([^\s]+)"


def load(file: LogFile, *, options: Options) -> Recording:
    """Failed allocations, the chunks of each dump, and the allocator's own totals."""
    parts, count = [pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String})], 0
    for data in file.chunks():
        options.on_bytes(len(data))
        chunk = Chunk(data, count + 1)
        count += chunk.line_count
        parts.append(chunk.matching(_NEEDLES))
    text = pl.concat(parts).with_columns(prefixes.clean(pl.col("text")))
    lines, clock = stamped(text.with_columns(pl.col("text").str.extract(_STAMP).alias("inner")), options)
    lines = lines.sort("line").with_columns(pl.col("text").str.extract(_DEVICE).forward_fill().alias("gpu"))
    blocks, doubts = chunks(lines)
    stats = statistics(lines)
    failed = _failed(lines, stats)
    is_jax = lines["text"].str.contains("xla/", literal=True).any()
    return recorded(
        file,
        {"ooms": failed, "blocks": blocks, "memory_stats": stats},
        options=options,
        format="bfc",
        engine="jax" if is_jax else "tensorflow",
        lines=count,
        understood=len(lines),
        rejected=pl.DataFrame(schema=CLAIMED),
        times=lines["time"],
        clocks=clock.clocks(),
        doubts=tuple(doubts),
    )


def _failed(lines: pl.DataFrame, stats: pl.DataFrame) -> pl.DataFrame:
    """Failures as the allocator tells them, else as they are raised, which programs print more than once."""
    text = pl.col("text")
    told = lines.filter(text.str.contains(_ASKED) & ~text.str.contains(_NO_FAILURE, literal=True))
    exact = text.str.extract(_ROUNDED).cast(pl.Float64)
    requested = pl.coalesce(exact, size(text, _ASKED))
    step = pl.when(exact.is_not_null()).then(0.0).otherwise(resolution(text, _ASKED))
    if told.is_empty():
        told, step = lines, pl.lit(0.0)
        requested = text.str.extract(_RAISED).cast(pl.Float64)
    rows = told.select(
        "line",
        "time",
        pl.lit("device").alias("memory"),
        "gpu",
        text.str.extract(_OPERATION).alias("component"),
        requested.alias("requested_bytes"),
        step.alias("requested_resolution_bytes"),
    ).drop_nulls("requested_bytes")
    repeated = (pl.col("requested_bytes") == pl.col("requested_bytes").shift(1)).fill_null(False)
    return _with_totals(rows if told is not lines else rows.filter(~repeated), stats)


def _with_totals(failed: pl.DataFrame, stats: pl.DataFrame) -> pl.DataFrame:
    """Adds what was in use, reserved and allowed: the totals of the dump that follows the message before the next."""
    if failed.is_empty() or stats.is_empty():
        return failed
    totals = stats.select(
        pl.col("line").alias("_line"), "allocated_bytes", "reserved_bytes", pl.col("limit_bytes").alias("allowed_bytes")
    )
    placed = failed.with_columns(pl.col("line").shift(-1).alias("_next"))
    joined = placed.join_asof(totals, left_on="line", right_on="_line", strategy="forward", check_sortedness=False)
    mine = pl.col("_next").is_null() | (pl.col("_line") < pl.col("_next"))
    told = joined.with_columns(
        pl.when(mine).then(name).alias(name) for name in ("allocated_bytes", "reserved_bytes", "allowed_bytes")
    )
    return told.with_columns(
        pl.when(pl.col(f"{name}_bytes").is_not_null()).then(0.0).alias(f"{name}_resolution_bytes")
        for name in ("allocated", "reserved", "allowed")
    ).drop("_line", "_next")


LOADER = Loader(
    name="bfc",
    about="Dumps of the BFC allocator (TensorFlow, JAX) at a failed allocation: its chunks, regions and totals",
    versions="wording of TensorFlow 1 and 2 and of XLA",
    frames=("blocks", "memory_stats", "ooms"),
    example=(
        "2026-01-23 12:34:56.789012: W external/xla/xla/tsl/framework/bfc_allocator.cc:501] Allocator "
        "(GPU_0_bfc) ran out of memory trying to allocate 1.00GiB (rounded to 1073741824)requested by op "
    ),
    signature=Signature(
        phrases=(
            r"bfc_allocator\.cc:[0-9]+\]|_bfc\) ran out of memory trying to allocate",
            r"RESOURCE_EXHAUSTED: Out of memory while trying to allocate [0-9]+ bytes",
        )
    ),
    load=load,
)
