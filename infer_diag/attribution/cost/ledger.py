"""The ledger of one deployment: GPU-seconds and tokens, each with how sure it is, from which lines, and what lacks.

The sums are those of the windows, so every figure that is made of windows agrees with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import dataframely as dy
import polars as pl

from infer_diag.attribution.cost.activity import Activity, activity
from infer_diag.attribution.cost.delivery import Delivery, delivery
from infer_diag.attribution.cost.entries import Entry, entries
from infer_diag.attribution.cost.frames import CostWindows
from infer_diag.attribution.cost.gpu_counts import gpu_count
from infer_diag.attribution.cost.holds import Hold, holds
from infer_diag.attribution.cost.lanes import Lanes, lanes
from infer_diag.attribution.cost.life import beside
from infer_diag.attribution.cost.spread import microseconds, spread, width_us
from infer_diag.attribution.cost.stretches import sample_intervals
from infer_diag.attribution.cost.time_entries import MOST_UNTOLD_RATIO, untold_ratio
from infer_diag.attribution.preemptions import Preemptions, preemptions
from infer_diag.attribution.quantiles import median
from infer_diag.attribution.steps import recomputed
from infer_diag.attribution.throughput_loss.padding import padding
from infer_diag.fleet import Facts
from infer_diag.recording import Recording

UNKNOWN_FACT = "unknown"
LEAST_COVERED_RATIO = 0.8
"""Where scrapes leave out more of the ready time than a fifth, no idle share is told."""


@dataclass(frozen=True, eq=False)
class Observed:
    """What travels from one deployment: its windows, its ledger, what it runs on, and what it lacks.

    `kv_tokens`: tokens that the KV pool of a replica holds. `begin`: when the first window begins. `facts` are those of
    the logs under those given.
    """

    windows: dy.DataFrame[CostWindows]
    width_s: float
    ledger: dict[str, Entry]
    facts: Facts
    kv_tokens: float | None = None
    engine: str | None = None
    notes: tuple[str, ...] = field(default=())
    begin: datetime | None = None

    @property
    def group(self) -> str:
        """What comparable peers share: model, GPU, GPUs per replica and precision, as far as it is known."""
        known = self.facts
        count = None if known.gpu_count is None else f"{known.gpu_count} GPU"
        return " · ".join(part or UNKNOWN_FACT for part in (known.model, known.gpu, count, known.precision))


def observed(recording: Recording, facts: Facts | None = None) -> Observed:
    """The ledger and windows of one deployment; empty ones, with the reasons, where nothing dates its logs.

    Frames in: all of serving and starts. Frame out: CostWindows.
    """
    known = (facts or Facts()).over(_logged_facts(recording))
    told = lanes(recording)
    found = holds(recording, facts or Facts(), told)
    kv_tokens = recording.deployments.sort("source_id", "line")["kv_cache_tokens"].drop_nulls()
    engine = next((source.engine for source in recording.sources if source.engine != "kubernetes"), None)
    if found:
        first, last = min(hold.begin for hold in found), max(hold.end for hold in found)
    else:
        first = last = recording.first_time or datetime(2000, 1, 1)
    if not any(hold.end > hold.begin for hold in found):
        nothing = entries(recording, known, told, (), pl.DataFrame(), None, None, None)
        return Observed(CostWindows.create_empty(), 0.0, nothing, known, None, engine)
    width = width_us((last - first).total_seconds(), _spacing_s(recording))
    did, got = activity(recording, told, found, first, width), delivery(recording, first, width)
    sent_back = preemptions(recording)
    windows = _windows(recording, told, found, did, got, sent_back, first, last, width)
    scaled = _billed(windows, known)
    ledger = entries(recording, known, told, found, scaled, did, got, sent_back)
    return Observed(
        CostWindows.validate(scaled, cast=True),
        width / 1e6,
        ledger,
        known,
        float(kv_tokens[-1]) if len(kv_tokens) else None,
        engine,
        (*_notes(known, did), *told.notes, *_other_clocks(recording, told)),
        first,
    )


def _logged_facts(recording: Recording) -> Facts:
    """The last configuration printed says what the deployment runs on; the GPU's name may stand in telemetry alone."""
    told = recording.deployments.sort("source_id", "line")
    last = {name: told[name].drop_nulls() for name in ("model", "gpu", "precision", "price_per_gpu_h")}
    values: dict[str, Any] = {name: column[-1] for name, column in last.items() if len(column)}
    return Facts(**values, gpu_count=gpu_count(recording, Facts()))


def _spacing_s(recording: Recording) -> float | None:
    lines = sample_intervals(recording)
    if lines.is_empty():
        return None
    usual = lines.filter(~pl.col("silent")).select(median((pl.col("end") - pl.col("begin")).dt.total_microseconds()))
    return float(usual.item() or 0.0) / 1e6


def _windows(
    recording: Recording,
    told: Lanes,
    found: tuple[Hold, ...],
    did: Activity,
    got: Delivery,
    sent_back: Preemptions,
    first: datetime,
    last: datetime,
    width: int,
) -> pl.DataFrame:
    count = -(-(microseconds(last) - microseconds(first)) // width)
    frame = pl.DataFrame({"window": pl.int_range(count, eager=True)})
    for part in (_held(recording, told, found, first, width), did.windows, got.windows):
        inside = part.with_columns(pl.col("window").clip(0, count - 1)) if "window" in part.columns else part
        inside = inside.group_by("window").agg(_joined(name) for name in inside.columns if name != "window")
        frame = frame.join(inside, on="window", how="left", maintain_order="left")
    frame = _with_recomputed(recording, frame, sent_back)
    frame = _with_totals(_with_padded(recording, frame), got)
    pool = recording.deployments.sort("source_id", "line")["kv_cache_tokens"].drop_nulls()
    if "context_ratio" in frame.columns and len(pool):
        frame = frame.with_columns(context_tokens=pl.col("context_ratio") * float(pool[-1]))
    for name, column in CostWindows.columns().items():
        if name not in frame.columns and name != "begin_s":
            frame = frame.with_columns(pl.lit(None, column.dtype).alias(name))
    sums = [
        name
        for name in CostWindows.column_names()
        if name.endswith(("_gpu_s", "_tokens", "_count")) and name not in _MEANS
    ]
    known = [name for name in sums if name in frame.columns and frame[name].count()]
    frame = frame.with_columns(pl.col(known).fill_null(0.0), begin_s=pl.col("window") * (width / 1e6))
    # Gauges and holds may disagree by a spacing at each edge; what is held bounds what can be idle.
    ready = pl.max_horizontal(pl.col("held_gpu_s") - pl.col("cold_gpu_s").fill_null(0.0), 0.0)
    frame = (
        frame.with_columns(idle_gpu_s=pl.min_horizontal("idle_gpu_s", ready)) if frame["idle_gpu_s"].count() else frame
    )
    if did.covered_gpu_s < LEAST_COVERED_RATIO * did.ready_gpu_s:
        frame = frame.with_columns(idle_gpu_s=pl.lit(None, pl.Float64))
    return frame.select(CostWindows.column_names())


_MEANS = ("context_ratio", "context_tokens", "running_count", "waiting_count")


def _joined(name: str) -> pl.Expr:
    """Pieces beyond the first or last window join it: sums add up, means keep the first."""
    if name in (*_MEANS, "bound_ratio"):
        return pl.col(name).drop_nulls().first()
    # A sum of nothing that is known is no zero.
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)


def _held(recording: Recording, told: Lanes, found: tuple[Hold, ...], first: datetime, width: int) -> pl.DataFrame:
    rows = [
        {
            "begin": begin,
            "end": end,
            "gpu_count": hold.gpu_count,
            "cold": cold,
            "oom": cold and hold.after_oom,
        }
        for hold in found
        for begin, end, cold in _parts(hold)
    ]
    kinds: dict[str, pl.DataType | type[pl.DataType]] = {
        "begin": pl.Datetime("us", "UTC"),
        "end": pl.Datetime("us", "UTC"),
        "gpu_count": pl.Int64,
        "cold": pl.Boolean,
        "oom": pl.Boolean,
    }
    each = spread(pl.DataFrame(rows, schema=kinds), first, width)
    gpu_s = pl.col("seconds") * pl.col("gpu_count")
    summed = each.group_by("window").agg(
        held_gpu_s=gpu_s.sum(), cold_gpu_s=gpu_s.filter("cold").sum(), oom_cold_gpu_s=gpu_s.filter("oom").sum()
    )
    whole = summed.join(_starts_by_window(found, first, width), on="window", how="left")
    if untold_ratio(found) > MOST_UNTOLD_RATIO:
        whole = whole.drop("cold_gpu_s", "oom_cold_gpu_s")
    if any(hold.is_start for hold in found) or _log_is_whole(recording, told):
        return whole.with_columns(pl.col("start_count", "oom_start_count").fill_null(0.0))
    # Where no log shows the engine's life, a start may have happened unseen.
    return whole.drop("start_count", "oom_start_count", "cold_gpu_s", "oom_cold_gpu_s", strict=False)


def _starts_by_window(found: tuple[Hold, ...], first: datetime, width: int) -> pl.DataFrame:
    starts = [hold for hold in found if hold.is_start]
    begun = pl.DataFrame(
        {
            "window": [(microseconds(hold.begin) - microseconds(first)) // width for hold in starts],
            "start_count": [1.0] * len(starts),
            "oom_start_count": [float(hold.after_oom) for hold in starts],
        },
        schema={"window": pl.Int64, "start_count": pl.Float64, "oom_start_count": pl.Float64},
    )
    return begun.group_by("window").agg(pl.col("start_count", "oom_start_count").sum())


def _parts(hold: Hold) -> list[tuple[datetime, datetime, bool]]:
    return [(hold.begin, hold.cold_end, True), (hold.cold_end, hold.end, False)]


def _log_is_whole(recording: Recording, told: Lanes) -> bool:
    """Whether an engine's own log covers the time without a hole, so that a start in it would show."""
    logs = recording.engine_samples.filter(pl.col("kind") != "scrape")["source_id"].unique()
    cut = any(recording.sources[source_id].cut for source_id in logs)
    return bool(len(logs)) and not cut and not any(lane.gaps for lane in told.found)


def _with_totals(frame: pl.DataFrame, got: Delivery) -> pl.DataFrame:
    """Sums that no request places are laid on the windows in proportion to what the engine computed in them."""
    if got.output_total is None:
        if "output_tokens" in frame.columns or "decode_tokens" not in frame.columns:
            return frame
        return frame.with_columns(output_tokens=pl.col("decode_tokens"))
    basis = "decode_tokens" if "decode_tokens" in frame.columns else "held_gpu_s"
    weight = pl.col(basis).fill_null(0.0) / pl.col(basis).sum()
    frame = frame.with_columns(output_tokens=weight * got.output_total)
    return frame if got.prompt_total is None else frame.with_columns(prompt_tokens=weight * got.prompt_total)


def _with_padded(recording: Recording, frame: pl.DataFrame) -> pl.DataFrame:
    """Output tokens of rows that had ended, where whole batches tell of them; they lie as the computed tokens do."""
    found = padding(recording)
    if isinstance(found, str) or "decode_tokens" not in frame.columns:
        return frame
    share = pl.col("decode_tokens").fill_null(0.0) / pl.col("decode_tokens").sum()
    return frame.with_columns(padded_tokens=share * (found.output_computed_tokens - found.output_needed_tokens))


def _with_recomputed(recording: Recording, frame: pl.DataFrame, sent_back: Preemptions) -> pl.DataFrame:
    """What requests compute again after a preemption: steps count it as output, and it is prompt work."""
    told = recomputed(recording.engine_steps)
    if (told is None and sent_back.count != 0) or "decode_tokens" not in frame.columns:
        return frame
    total, whole = 0.0 if told is None else float(told.tokens), float(frame["decode_tokens"].sum())
    if not 0 <= total < whole:
        return frame
    again = pl.col("decode_tokens").fill_null(0.0) * (total / whole)
    return frame.with_columns(
        recomputed_tokens=again,
        decode_tokens=pl.col("decode_tokens") - again,
        prefill_tokens=pl.col("prefill_tokens") + again,
    )


def _billed(windows: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """Where the bill is known, the time held is the bill's; it lies on the windows as the logged time does."""
    logged = float(windows["held_gpu_s"].sum())
    if facts.held_gpu_h is None or not logged:
        return windows
    return windows.with_columns(held_gpu_s=pl.col("held_gpu_s") * (facts.held_gpu_h * 3600 / logged))


def _other_clocks(recording: Recording, told: Lanes) -> list[str]:
    """Scrapes that are left out because their stamps and the logs' cannot be compared."""
    logged = frozenset(stream.source_id for lane in told.found for stream in lane.streams)
    if not logged:
        return []
    scrapes = (
        recording.engine_samples.filter(pl.col("kind") == "scrape").drop_nulls("time")["source_id"].unique().sort()
    )
    near = beside(recording, logged)
    paths = [recording.sources[source_id].path for source_id in scrapes if source_id not in near]
    why = "left out, since their stamps and the log's are not of one clock (tz= names the log's zone)"
    return [f"{why}: {', '.join(paths)}"] if paths else []


def _notes(facts: Facts, did: Activity) -> tuple[str, ...]:
    notes = []
    if facts.gpu_count is None:
        notes.append("the logs do not say how many GPUs a replica has: one is counted, which is a lower bound")
    if did.basis is not None and not did.steps_timed:
        notes.append("no log times the engine's steps, so stall and step time are one figure")
    return tuple(notes)
