"""The way from a text log to a recording that the engines' loaders share; an engine brings tables and two functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import cast

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.conformed import Frames as Frames
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options
from infer_diag.loaders.observations import StartRule, observed
from infer_diag.loaders.oom_messages import NEEDLES as OOM_NEEDLES
from infer_diag.loaders.oom_messages import ooms
from infer_diag.loaders.serving_lines import ServingLines
from infer_diag.loaders.start_frames import start_frames
from infer_diag.loaders.starts import segmented
from infer_diag.loaders.text.clock import FileClock
from infer_diag.loaders.text.reader import Batch, TextFormat, TextReader
from infer_diag.recording import Recording

_PENDING_ROWS = 50_000


@dataclass(frozen=True)
class Engine:
    """What one engine's text log needs beyond the common way.

    `identify` adds `replica` and `rank` to records (or to heads of dense lines); `serving` turns a batch into frames of
    the schema (without `source_id`) plus `rejected`; `configured` reads `deployments` rows out of start-up records, of
    which `deployed` makes those of each start;
    `whole` mends frames (`observations` of starts among them) once all batches are there, where lines that belong
    together stand apart. `starts_within` says that a server which already runs starts engines, so that what it prints
    before an engine's own first line is no part of the start.
    """

    name: str
    text: TextFormat
    rules: tuple[StartRule, ...]
    identify: Callable[[pl.DataFrame], pl.DataFrame]
    serving: Callable[[Batch], Frames]
    configured: Callable[[pl.DataFrame], pl.DataFrame]
    deployed: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows
    whole: Callable[[Frames], Frames] = lambda frames: frames
    starts_within: bool = False


@dataclass
class _Gathered:
    """Frames of the batches so far."""

    serving: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    pending: list[pl.DataFrame] = field(default_factory=list)
    observations: list[pl.DataFrame] = field(default_factory=list)
    configuration: list[pl.DataFrame] = field(default_factory=list)
    context: list[pl.DataFrame] = field(default_factory=list)
    understood: int = 0
    first_time: datetime | None = None
    last_time: datetime | None = None


def load(file: LogFile, *, engine: Engine, options: Options) -> Recording:
    """One file as a recording.

    Raises:
        LogFormatError: `strict` and a line breaks a rule that claims it.
    """
    text = replace(engine.text, start_needles=(*engine.text.start_needles, *OOM_NEEDLES))
    reader = TextReader(file, text, FileClock(options.year, options.tz), options.on_bytes, engine.identify)
    gathered = _Gathered()
    for batch in reader.batches():
        _gather(engine, batch, gathered)
    _flush(engine, gathered)
    return _recorded(engine, reader, gathered, options)


def _gather(engine: Engine, batch: Batch, gathered: _Gathered) -> None:
    served = engine.serving(batch)
    for name, frame in served.items():
        if not frame.is_empty():
            gathered.serving.setdefault(name, []).append(frame)
    # A line of the memory ledger may also tell of a start or of the configuration; the others tell of one thing alone.
    told = [frame["line"] for name, frame in served.items() if name not in ("components", "ooms")]
    lines = pl.concat(told or [pl.Series("line", [], pl.UInt32)])
    gathered.understood += lines.n_unique() if not lines.is_empty() else 0
    rest = batch.records.filter(~pl.col("line").is_in(lines.unique().implode()))
    gathered.pending.append(rest)
    times = [frame["time"] for frame in (batch.records, *batch.dense.values()) if "time" in frame.columns]
    known = pl.concat(times).drop_nulls() if times else pl.Series([], dtype=pl.Datetime("us", "UTC"))
    if not known.is_empty():
        gathered.first_time = min(filter(None, (gathered.first_time, cast(datetime, known.min()))))
        gathered.last_time = max(filter(None, (gathered.last_time, cast(datetime, known.max()))))
    if sum(map(len, gathered.pending)) > _PENDING_ROWS:
        _flush(engine, gathered)


def _flush(engine: Engine, gathered: _Gathered) -> None:
    """Applies the start-up rules to the records gathered so far: once for many chunks, since there are many rules."""
    if not gathered.pending:
        return
    records = pl.concat(gathered.pending)
    gathered.pending.clear()
    rows, damaged = observed(records, engine.rules)
    gathered.observations.append(rows)
    placed = records.select("line", "replica").unique("line", keep="first")
    gathered.configuration.append(engine.configured(records).join(placed, on="line", how="left", maintain_order="left"))
    gathered.context.append(records.select("line", "time", "replica"))
    gathered.understood += rows["line"].n_unique()
    failed = ooms(records)
    if not failed.is_empty():
        gathered.serving.setdefault("ooms", []).append(failed)
    if not damaged.is_empty():
        gathered.serving.setdefault("rejected", []).append(damaged)


def _recorded(engine: Engine, reader: TextReader, gathered: _Gathered, options: Options) -> Recording:
    frames = {name: pl.concat(parts, how="diagonal_relaxed") for name, parts in gathered.serving.items()}
    frames |= {"observations": pl.concat(gathered.observations), "context": pl.concat(gathered.context)}
    frames |= {"configuration": pl.concat(gathered.configuration, how="diagonal_relaxed")}
    frames = _told_apart(engine.whole(frames))
    if "requests" in frames:
        frames["requests"] = _per_request(frames["requests"], gathered.first_time)
    serving = _serving_lines(frames)
    found = segmented(frames.pop("observations"), serving)
    starts = start_frames(found, frames.pop("context"), serving, within=engine.starts_within)
    for name, frame in (*starts.items(), ("incidents", _cuts(reader))):
        frames[name] = pl.concat([frames[name], frame], how="diagonal_relaxed") if name in frames else frame
    frames["deployments"] = engine.deployed(_per_start(frames.pop("configuration"), starts.get("starts"), engine.name))
    reader.file.cut = reader.file.cut or bool(reader.cut_lines)
    wrap = reader.wrap
    return recorded(
        reader.file,
        frames,
        options=options,
        format=engine.name,
        engine=engine.name,
        engine_version=_version(frames["deployments"]),
        lines=reader.lines,
        understood=gathered.understood,
        rejected=frames.pop("rejected", pl.DataFrame(schema=CLAIMED)),
        times=pl.Series([gathered.first_time, gathered.last_time], dtype=pl.Datetime("us", "UTC")),
        clocks=reader.clock.clocks(),
        notes=() if wrap is None else (f"lines wrapped at {wrap.width} characters were joined",),
    )


_SERVED = ("engine_samples", "engine_steps", "request_timings")


def _serving_lines(frames: Frames) -> ServingLines:
    parts = [frames[name] for name in _SERVED if name in frames]
    if "incidents" in frames:
        parts.append(frames["incidents"].filter(pl.col("kind").is_in(["response", "in_use"])))
    return ServingLines(parts, apart=frames.pop("warmup", None))


REPLICA_PARTS = "\x1f"
"""Between the place (pod, service) and the data-parallel engine in `replica`, until the whole file is known."""


def replica(place: pl.Expr, engine: pl.Expr) -> pl.Expr:
    """The column `replica` of records: where they come from and which data-parallel engine wrote them."""
    return pl.concat_str([place.fill_null(""), engine.fill_null("")], separator=REPLICA_PARTS).alias("replica")


def _told_apart(frames: Frames) -> Frames:
    """Replica names only where there are several: a lone one tells nothing apart."""
    named = {name: frame for name, frame in frames.items() if "replica" in frame.columns}
    seen = pl.concat([frame["replica"].unique().cast(pl.String) for frame in named.values()]).drop_nulls().unique()
    parts = pl.DataFrame({"replica": seen}).with_columns(
        pl.col("replica").str.splitn(REPLICA_PARTS, 2).struct.rename_fields(["place", "engine"]).struct.unnest()
    )
    for part in ("place", "engine"):
        several = parts.filter(pl.col(part) != "")[part].n_unique() > 1
        parts = parts.with_columns((pl.col(part) if several else pl.lit("")).alias(part))
    label = pl.concat_str("place", "engine", separator=" ").str.strip_chars()
    table = parts.select("replica", pl.when(label != "").then(label).alias("label"))
    labels = dict(table.iter_rows())
    column = pl.col("replica").cast(pl.String).replace_strict(labels, default=None, return_dtype=pl.String)
    if not any(labels.values()):
        column = pl.lit(None, pl.String)
    return frames | {name: frame.with_columns(column.alias("replica")) for name, frame in named.items()}


def _per_request(rows: pl.DataFrame, first_time: datetime | None) -> pl.DataFrame:
    """One row per request out of one per line; seconds since the file's first stamp."""
    stamps = [name for name in ("arrival", "last_token") if name in rows.columns]
    grouped = rows.group_by("request_id", maintain_order=True)
    joined = grouped.agg(pl.col("line").first(), *[pl.col(name).drop_nulls().first() for name in stamps])
    origin = pl.lit(first_time, pl.Datetime("us", "UTC"))
    return joined.with_columns(
        ((pl.col(name) - origin).dt.total_microseconds() / 1e6).alias(f"{name}_s") for name in stamps
    ).drop(stamps)


def _cuts(reader: TextReader) -> pl.DataFrame:
    frame = pl.DataFrame({"line": reader.cut_lines}, schema={"line": pl.UInt32})
    return frame.with_columns(pl.lit("cut").alias("kind"), pl.lit("text was left out here").alias("fields"))


def _per_start(found: pl.DataFrame, starts: pl.DataFrame | None, engine: str) -> pl.DataFrame:
    """One row per start: what its lines, or those of its replica, say of the configuration; the last word counts."""
    if found.is_empty():
        return found.drop("replica", strict=False)
    found = found.sort("line")
    if starts is not None and not starts.is_empty():
        begins = starts.select("line", "start_id", "replica").sort("line")
        apart = begins["replica"].null_count() == 0
        own = found.filter(pl.col("replica").is_not_null() & apart)
        others = found.join(own, on="line", how="anti", maintain_order="left").drop("replica")
        first = begins.unique("line", keep="first", maintain_order=True).drop("replica")
        found = pl.concat(
            [
                own.join_asof(begins, on="line", by="replica", check_sortedness=False).drop("replica"),
                others.join_asof(first, on="line"),
            ],
            how="diagonal_relaxed",
        ).sort("line")
    else:
        found = found.drop("replica").with_columns(pl.lit(None, pl.String).alias("start_id"))
    values = [name for name in found.columns if name not in ("line", "start_id")]
    told = found.group_by("start_id", maintain_order=True).agg(
        pl.col("line").first(), *[pl.col(name).drop_nulls().last() for name in values]
    )
    return told.with_columns(pl.lit(engine).alias("engine"))


def _version(deployments: pl.DataFrame) -> str | None:
    if "engine_version" not in deployments.columns:
        return None
    return cast(str | None, deployments["engine_version"].drop_nulls().last())
