"""How throughput goes with the spread of request lengths within one deployment: an association, never a cause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.attribution.cost.jackknife import REFUSED_BELOW, block_jackknife, effective_count
from infer_diag.recording import Recording

Floats = NDArray[np.float64]
MIN_REQUESTS = 100
"""The coefficient of variation of fewer lengths with a heavy tail is noise."""
MIN_WINDOWS = 24
DAYS = 7.0
"""A daily cycle moves load and lengths together; below a week it is not told apart from them."""
DAY_S = 86_400.0
CONFOUNDERS = ("offered load", "mean prompt tokens", "mean output tokens")
MEDIATORS = ("running batch", "KV use", "preemptions")


@dataclass(frozen=True)
class LengthEffect:
    """Change of ln(output tokens per second) per +1 of CV of the lengths, at equal load and mean lengths.

    `adjusted` and `not_adjusted` name the confounders held equal and what the effect goes through and is left free.
    `unadjusted_slope_ratio` is the bare regression on CV. An association: what else differs between the windows of a
    log (users, prompts, versions) is not held equal. `refusal`: why there is none.
    """

    slope_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None
    unadjusted_slope_ratio: float | None = None
    window_count: int = 0
    adjusted: tuple[str, ...] = CONFOUNDERS
    not_adjusted: tuple[str, ...] = MEDIATORS
    status: str = "association"
    refusal: str | None = None


def length_effect(recording: Recording, *, window_s: float = 3600.0, least_days: float = DAYS) -> LengthEffect:
    """Throughput against the CV of request lengths over saturated windows of one deployment. An association.

    Frame in: Requests with arrival, first schedule, last token and both lengths. Requests belong to the window of their
    arrival, so that long ones are not sorted out; windows after the last arrival less the longest stay are dropped. A
    window counts with 100 requests or more that waited in most of it. Interval: delete-block jackknife, 8 blocks.
    """
    columns = ["arrival_s", "scheduled_s", "last_token_s", "prompt_tokens", "output_tokens"]
    known = recording.requests.drop_nulls(columns)
    if len(known) < MIN_REQUESTS:
        return LengthEffect(
            refusal=f"{len(known)} requests tell arrival, schedule, end and lengths; hundreds are needed"
        )
    span_s = float(known.select(pl.col("arrival_s").max() - pl.col("arrival_s").min()).item())
    if span_s < least_days * DAY_S:
        told = (
            f"the log spans {span_s / DAY_S:.2g} days; below {least_days:g} load and lengths move together with the day"
        )
        return LengthEffect(refusal=told)
    windows = _windows(known, window_s)
    if len(windows) < MIN_WINDOWS:
        told = f"{len(windows)} windows have {MIN_REQUESTS} requests and a queue; {MIN_WINDOWS} are needed"
        return LengthEffect(window_count=len(windows), refusal=told)
    names = ("cv", "log_load", "log_prompt", "log_output")
    features = np.column_stack([np.ones(len(windows)), *(windows[name].to_numpy() for name in names)])
    outcome = windows["log_rate"].to_numpy()

    def slope(keep: NDArray[np.bool_]) -> Floats:
        return np.array([_regressed(features[keep], outcome[keep])])

    value, low, high = block_jackknife(slope, len(windows))
    enough = effective_count(outcome) >= REFUSED_BELOW
    return LengthEffect(
        float(value[0]),
        float(low[0]) if enough else None,
        float(high[0]) if enough else None,
        _regressed(features[:, :2], outcome),
        len(windows),
    )


def _windows(known: pl.DataFrame, window_s: float) -> pl.DataFrame:
    length = (pl.col("prompt_tokens").cast(pl.Float64) + pl.col("output_tokens")).alias("length")
    stay = known.select((pl.col("last_token_s") - pl.col("arrival_s")).max()).item()
    last = known.select(pl.col("arrival_s").max()).item() - stay
    ended = known.select(window=(pl.col("last_token_s") // window_s).cast(pl.Int64), tokens=pl.col("output_tokens"))
    made = ended.group_by("window").agg(pl.col("tokens").cast(pl.Int64).sum())
    arrived = (
        known.with_columns(length, window=(pl.col("arrival_s") // window_s).cast(pl.Int64))
        .group_by("window")
        .agg(
            count=pl.len(),
            cv=pl.col("length").std() / pl.col("length").mean(),
            log_prompt=pl.col("prompt_tokens").cast(pl.Float64).mean().log(),
            log_output=pl.col("output_tokens").cast(pl.Float64).mean().log(),
            log_load=(pl.col("output_tokens").cast(pl.Float64).sum() / window_s).log(),
            queued=((pl.col("scheduled_s") - pl.col("arrival_s")) > 0.0).mean(),
        )
    )
    whole = arrived.join(made, on="window").filter(
        (pl.col("count") >= MIN_REQUESTS) & (pl.col("queued") > 0.5) & ((pl.col("window") + 1) * window_s <= last)
    )
    return whole.filter(pl.col("tokens") > 0).with_columns(log_rate=(pl.col("tokens") / window_s).log()).sort("window")


def _regressed(features: Floats, outcome: Floats) -> float:
    """The coefficient of the second column."""
    found, *_ = np.linalg.lstsq(features, outcome, rcond=None)
    return float(found[1])
