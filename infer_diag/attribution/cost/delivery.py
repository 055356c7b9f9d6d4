"""What was delivered: tokens of the requests that succeeded, and when they were asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from infer_diag.attribution.cost.spread import window_of
from infer_diag.attribution.request_totals import told_totals
from infer_diag.recording import Recording

NOT_DELIVERED = r"(?i)abort|error|fail|cancel|time.?out|disconnect|crash|reject"
_ROW: dict[str, pl.DataType | type[pl.DataType]] = {
    "source_id": pl.UInt32,
    "line": pl.UInt32,
    "time": pl.Datetime("us", "UTC"),
    "arrival": pl.Datetime("us", "UTC"),
    "output": pl.Float64,
    "prompt": pl.Float64,
    "cached": pl.Float64,
    "delivered": pl.Boolean,
}


@dataclass(frozen=True, eq=False)
class Delivery:
    """Window rows of delivered tokens, from which source, and whether single requests tell them.

    `lost_count`: requests that did not succeed, and of whose output nothing tells.
    `output_total` and `prompt_total` stand alone where only sums over the whole log are told.
    """

    windows: pl.DataFrame
    basis: str | None
    source_ids: tuple[int, ...] = ()
    request_count: int = 0
    output_total: float | None = None
    prompt_total: float | None = None
    tells_success: bool = False
    lost_count: int = 0
    lines: tuple[tuple[int, int], ...] = ()


def delivery(recording: Recording, first: datetime, width: int) -> Delivery:
    """Delivered tokens by window: of single requests where they are told, else their sums.

    Frames in: Requests, RequestTimings, RequestTotals. What a client recorded are requests to a server, told once more:
    of the servers together and each kind of client, the one with the most tokens counts.
    """
    rows = told_requests(recording)
    if not rows.is_empty():
        return _of_requests(recording, rows, first, width)
    summed = {str(measure): count * mean for measure, count, mean in told_totals(recording).iter_rows()}
    empty = pl.DataFrame(schema={"window": pl.Int64})
    if "output_tokens" not in summed:
        return Delivery(empty, None)
    sources = tuple(recording.request_totals["source_id"].unique().sort().to_list())
    return Delivery(
        empty,
        "sums over all requests",
        sources,
        output_total=summed["output_tokens"],
        prompt_total=summed.get("prompt_tokens"),
    )


def told_requests(recording: Recording) -> pl.DataFrame:
    """One row per request whose output tokens and time are told."""
    parts = []
    for key, part in recording.requests.partition_by("source_id", as_dict=True).items():
        zero = recording.first_time or recording.sources[key[0]].first_time
        if zero is None:
            continue
        done = pl.coalesce("last_token_s", "first_token_s", "scheduled_s", "arrival_s")
        at, asked = (
            pl.lit(zero) + pl.duration(microseconds=(each * 1e6).round()) for each in (done, pl.col("arrival_s"))
        )
        parts.append(_rows(part, at, asked, ~pl.col("finish_reason").str.contains(NOT_DELIVERED).fill_null(False)))
    timings = recording.request_timings
    parts.append(_rows(timings, pl.col("time"), pl.lit(None, pl.Datetime("us", "UTC")), pl.lit(True)))
    return pl.concat(parts).drop_nulls(["time", "output"])


def _rows(frame: pl.DataFrame, at: pl.Expr, asked: pl.Expr, delivered: pl.Expr) -> pl.DataFrame:
    return frame.select(
        "source_id",
        "line",
        time=at,
        arrival=asked,
        output=pl.col("output_tokens"),
        prompt=pl.col("prompt_tokens"),
        cached=pl.col("cached_tokens"),
        delivered=delivered,
    ).cast(_ROW)  # type: ignore[arg-type]


def _of_requests(recording: Recording, rows: pl.DataFrame, first: datetime, width: int) -> Delivery:
    chosen = _best_teller(recording, rows)
    told = rows.filter(pl.col("source_id").is_in(chosen))
    good = pl.col("delivered")
    done = told.with_columns(window_of(pl.col("time"), first, width))
    windows = done.group_by("window").agg(
        request_count=good.cast(pl.Float64).sum(),
        output_tokens=pl.col("output").filter(good).sum(),
        undelivered_tokens=pl.col("output").filter(~good).sum(),
        prompt_tokens=pl.col("prompt").filter(good).sum(),
        cached_tokens=pl.col("cached").filter(good).sum(),
    )
    offered = (
        told.drop_nulls("arrival")
        .with_columns(window_of(pl.col("arrival"), first, width))
        .group_by("window")
        .agg(offered_tokens=pl.col("output").sum())
    )
    windows = windows.join(offered, on="window", how="full", coalesce=True)
    lacking = [
        name
        for name, column in (("prompt_tokens", "prompt"), ("cached_tokens", "cached"), ("offered_tokens", "arrival"))
        if told[column].null_count() == len(told)
    ]
    asked = recording.requests.filter(pl.col("source_id").is_in(chosen))
    lost = asked.filter(pl.col("finish_reason").str.contains(NOT_DELIVERED) & pl.col("output_tokens").is_null())
    tells_success = bool(asked["finish_reason"].count())
    if not tells_success or (len(lost) and not windows["undelivered_tokens"].sum()):
        # A zero here would say that nothing was lost.
        lacking.append("undelivered_tokens")
    ends = told.sort("source_id", "line").select("source_id", "line")
    return Delivery(
        windows.drop(lacking),
        "single requests",
        tuple(chosen),
        int(told["delivered"].sum()),
        tells_success=tells_success,
        lost_count=len(lost),
        lines=tuple(ends[[0, -1]].unique(maintain_order=True).iter_rows()),
    )


def _best_teller(recording: Recording, rows: pl.DataFrame) -> list[int]:
    frames = ("starts", "incidents", "engine_samples", "engine_steps", "request_timings")
    servers = set(pl.concat([getattr(recording, name).select("source_id") for name in frames])["source_id"])
    tellers: dict[str, list[int]] = {}
    for source_id in rows["source_id"].unique().sort():
        teller = "" if source_id in servers else recording.sources[source_id].engine
        tellers.setdefault(teller, []).append(source_id)
    output = dict(rows.group_by("source_id").agg(pl.col("output").sum()).iter_rows())
    return max(tellers.values(), key=lambda sources: sum(output[each] for each in sources))
