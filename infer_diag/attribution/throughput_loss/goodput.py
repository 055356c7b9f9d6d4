"""Where more requests at once stop paying, and what of the work met its promise to the user."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import dataframely as dy
import numpy as np
import polars as pl

from infer_diag.attribution.requests import durations
from infer_diag.attribution.steps import decode_baseline
from infer_diag.attribution.throughput_loss.frames import KneeLevels
from infer_diag.errors import DiagError
from infer_diag.recording import Recording

LEVELS = 8
SPREAD = 8.0
"""Greatest over least batch that a curve needs before its end says anything of what lies beyond."""
GAIN_RATIO = 0.5
"""The knee is seen where one more request adds less than half of what the first one added."""
_Z = 1.959964
_EVENTS = ("arrival_s", "queued_s", "scheduled_s", "first_token_s", "last_token_s")


@dataclass(frozen=True)
class Slo:
    """What a request has to meet, all of it, limits inclusive; null asks nothing.

    Raises:
        DiagError: no limit at all, or one that is not above 0.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        limits = [each for each in (self.ttft_s, self.tpot_s, self.e2e_s) if each is not None]
        if not limits or not all(each > 0 for each in limits):
            raise DiagError("an SLO needs a limit above 0", hint="Slo(ttft_s=1.0, tpot_s=0.05)")


@dataclass(frozen=True)
class Knee:
    """The batch from which more requests hardly pay, and the largest one that keeps a limit on TPOT.

    `knee_count` is null with a `reason` where the log has not gone so far: then it is above `largest_count`.
    `within_slo_count` null: no batch that ran keeps the limit, or none was asked.
    """

    levels: dy.DataFrame[KneeLevels] = field(default_factory=KneeLevels.create_empty)
    knee_count: int | None = None
    largest_count: int | None = None
    within_slo_count: int | None = None
    within_slo_tokens_per_s: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Goodput:
    """Requests that met the SLO; those that never finished count as missed. Ends: Wilson's 95 % interval of the share.

    `refusal` says why none can be told.
    """

    met_count: int = 0
    request_count: int = 0
    unfinished_count: int = 0
    met_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None
    goodput_requests_per_s: float | None = None
    goodput_output_tokens_per_s: float | None = None
    refusal: str | None = None


def saturation_knee(recording: Recording, *, tpot_s: float | None = None) -> Knee:
    """The knee of output tokens per second over the batch, from pure decode steps; modelled, levels measured.

    Frame in: EngineSteps. Throughput at b requests = b / median duration. The knee is the least b at which one more
    request adds less than half of what the first adds; it needs 8 levels with the greatest 8 times the least. The
    largest batch under a TPOT limit is the largest level whose median keeps it.
    """
    decode = recording.engine_steps.filter(kind="decode")
    if decode.is_empty():
        return Knee(reason="no pure decode step is logged")
    curve = decode_baseline(decode).filter(pl.col("baseline_s") > 0)
    rate = pl.col("decode_count") / pl.col("baseline_s")
    levels = KneeLevels.validate(
        curve.select(batch_count="decode_count", step_s="baseline_s", output_tokens_per_s=rate), cast=True
    )
    least, most = int(levels["batch_count"][0]), int(levels["batch_count"][-1])
    kept = levels.filter(pl.col("step_s") <= tpot_s) if tpot_s is not None else levels.clear()
    best = kept.row(-1, named=True) if len(kept) else None
    knee, reason = None, None
    if len(levels) < LEVELS or most < SPREAD * least:
        reason = f"decode ran at {len(levels)} batch sizes from {least} to {most}; the knee is not seen"
    else:
        knee = _knee(levels)
        reason = None if knee else f"throughput still grows at {most} requests: the knee is above"
    return Knee(
        levels,
        knee,
        most,
        best["batch_count"] if best else None,
        best["output_tokens_per_s"] if best else None,
        reason,
    )


def goodput(recording: Recording, slo: Slo) -> Goodput:
    """Requests per second that meet every limit of the SLO, and the output tokens of these. Measured.

    Frame in: Requests. TTFT counts from arrival (from when the engine takes the request in where no arrival is told),
    TPOT = (last − first token) / (output tokens − 1) and is met by a single token. The window is the first begin to the
    last event of any request.
    """
    begun = recording.requests.with_columns(arrival_s=pl.coalesce("arrival_s", "queued_s")).drop_nulls("arrival_s")
    needed = [("ttft_s", "first_token_s"), ("tpot_s", "last_token_s"), ("e2e_s", "last_token_s")]
    asked = [(limit, event) for limit, event in needed if getattr(slo, limit) is not None]
    lacking = [event for _, event in asked if not begun[event].count()]
    if begun.is_empty() or lacking:
        return Goodput(refusal="no request tells " + " and ".join(dict.fromkeys(lacking or ["its arrival"])))
    each = durations(begun).with_columns(begun["output_tokens"].alias("tokens"), begun["last_token_s"])
    kept = [pl.col(limit) <= getattr(slo, limit) for limit, _ in asked]
    kept = [
        rule | (pl.col("output_tokens") == 1) if limit == "tpot_s" else rule
        for rule, (limit, _) in zip(kept, asked, strict=True)
    ]
    done = pl.col("last_token_s").is_not_null()
    good = each.filter(done & pl.all_horizontal(rule.fill_null(False) for rule in kept))
    span_s = begun.select(pl.max_horizontal(pl.col(*_EVENTS).max()) - pl.col("arrival_s").min()).item()
    count, met = len(begun), len(good)
    low, high = _wilson(met, count)
    return Goodput(
        met_count=met,
        request_count=count,
        unfinished_count=count - begun["last_token_s"].count(),
        met_ratio=met / count,
        low_ratio=low,
        high_ratio=high,
        goodput_requests_per_s=met / span_s if span_s else None,
        goodput_output_tokens_per_s=float(good["tokens"].sum()) / span_s if span_s else None,
    )


def _knee(levels: pl.DataFrame) -> int | None:
    """The least batch at which one more request adds less than half of what the first adds; null beyond the levels."""
    batch = levels["batch_count"].to_numpy().astype(float)
    # Medians scatter: the step time is drawn as the line through them, whose gain per request falls steadily.
    weights = 1.0 / levels["step_s"].to_numpy()
    slope, fixed = np.polyfit(batch, levels["step_s"].to_numpy(), 1, w=weights)
    if fixed <= 0 or slope <= 0:
        return None
    # d/db of b / (fixed + slope · b) = fixed / (fixed + slope · b)²; half of that at one request.
    knee = ((fixed + slope) / math.sqrt(GAIN_RATIO) - fixed) / slope
    return math.ceil(knee) if knee <= batch[-1] else None


def _wilson(met: int, count: int) -> tuple[float, float]:
    """Wilson's interval of a share (Wilson, JASA 22, 1927)."""
    share, spread = met / count, _Z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
