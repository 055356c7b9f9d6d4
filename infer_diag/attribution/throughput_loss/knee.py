"""Where more requests at once stop paying: the curve of an engine's throughput over its batch, and how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import dataframely as dy
import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.attribution.steps import decode_baseline
from infer_diag.attribution.throughput_loss.frames import KneeLevels
from infer_diag.recording import Recording

Floats = NDArray[np.float64]
LEVELS = 8
SPREAD = 8.0
"""Greatest over least batch that a curve needs before its end says anything of what lies beyond."""
GAIN_RATIO = 0.5
"""The knee is seen where one more request adds less than half of what the first one added."""
REDRAWN = 200
BLOCKS = 40
"""Steps are drawn again in so many blocks of neighbours: a slow spell is one observation, not hundreds."""
LONGEST_BLOCK = 500
"""Longer blocks would only take time: fewer steps than the log has make the interval wider, not narrower."""
NEVER_RATIO = 0.025
"""An end of an interval that more of the redrawn logs than this do not have is not told."""


@dataclass(frozen=True)
class Usl:
    """The universal scalability law X(N) = γN / (1 + α(N − 1) + βN(N − 1)), by the parts of N / X, a step's time.

    s(N) = `alone_s` + `each_s` · N + `pair_s` · N(N − 1), with γ = 1 / (`alone_s` + `each_s`), the throughput of one
    request. Source: Gunther, "Guerrilla Capacity Planning", 2007.
    """

    alone_s: float
    each_s: float
    pair_s: float

    @property
    def alpha(self) -> float:
        """Contention: the share of the work that requests do one after another."""
        return self.each_s / (self.alone_s + self.each_s)

    @property
    def beta(self) -> float:
        """Coherency: what grows with pairs of requests."""
        return self.pair_s / (self.alone_s + self.each_s)

    @property
    def peak(self) -> float:
        """N* = √((1 − α) / β), beyond which throughput falls; infinite without coherency."""
        return math.sqrt(self.alone_s / self.pair_s) if self.pair_s > 0 else math.inf

    def gain(self, batch: float) -> float:
        """Output tokens per second that one more request adds: dX/dN = (alone − pair·N²) / s(N)²."""
        step_s = self.alone_s + self.each_s * batch + self.pair_s * batch * (batch - 1)
        return (self.alone_s - self.pair_s * batch**2) / step_s**2

    def knee(self, most: int) -> int | None:
        """The least batch at which one more request adds less than half of what the first adds; null beyond `most`."""
        first = self.gain(1.0)
        return next((batch for batch in range(1, most + 1) if self.gain(batch) < GAIN_RATIO * first), None)


@dataclass(frozen=True)
class Knee:
    """The batch from which more requests hardly pay, and the largest one that keeps a limit on TPOT.

    `knee_count` is null with a `reason` where the log has not gone so far: then it is above `largest_count`. Ends: 95 %
    of logs redrawn from blocks of this one's steps; an end above the batches that ran is null. `law` is what the levels
    were fitted to; its peak counts only where it lies within them. `within_slo_count` null: no batch that ran keeps the
    limit, or none was asked.
    """

    levels: dy.DataFrame[KneeLevels] = field(default_factory=KneeLevels.create_empty)
    knee_count: int | None = None
    low_count: int | None = None
    high_count: int | None = None
    law: Usl | None = None
    peak_count: float | None = None
    largest_count: int | None = None
    within_slo_count: int | None = None
    within_slo_tokens_per_s: float | None = None
    reason: str | None = None


def saturation_knee(recording: Recording, *, tpot_s: float | None = None) -> Knee:
    """The knee of output tokens per second over the batch, from pure decode steps; modelled, levels measured.

    Frame in: EngineSteps. Throughput at b requests = b / median duration; the universal scalability law is fitted to
    these by non-negative least squares of relative errors, a level's weight the root of its steps. The knee is the
    least b at which one more request adds less than half of what the first adds. Refused below 8 levels, where the
    greatest is not 8 times the least, and where the gain at the greatest is still above half. The largest batch under a
    TPOT limit is the largest level whose median keeps it.
    """
    decode = recording.engine_steps.filter((pl.col("kind") == "decode") & (pl.col("duration_s") > 0))
    if decode.is_empty():
        return Knee(reason="no pure decode step is logged")
    levels = _levels(decode)
    least, most = int(levels["batch_count"][0]), int(levels["batch_count"][-1])
    kept = levels.filter(pl.col("step_s") <= tpot_s) if tpot_s is not None else levels.clear()
    best = kept.row(-1, named=True) if len(kept) else {"batch_count": None, "output_tokens_per_s": None}
    within = (most, best["batch_count"], best["output_tokens_per_s"])
    if len(levels) < LEVELS or most < SPREAD * least:
        told = f"decode ran at {len(levels)} batch sizes from {least} to {most}; the knee is not seen"
        return Knee(levels, None, None, None, None, None, *within, told)
    law = _fitted(levels, decode)
    knee = law.knee(most)
    if knee is None:
        told = f"throughput still grows at {most} requests: the knee is above"
        return Knee(levels, None, None, None, law, None, *within, told)
    low, high = _ends(decode.sort("source_id", "line"), most)
    peak = law.peak if law.peak <= most else None
    above = None if high else f"in more than 1 of 40 redrawn logs the knee is above {most} requests"
    return Knee(levels, knee, low, high, law, peak, *within, above)


def _levels(decode: pl.DataFrame) -> dy.DataFrame[KneeLevels]:
    curve = decode_baseline(decode)
    rate = pl.col("decode_count") / pl.col("baseline_s")
    told = curve.select(batch_count="decode_count", step_s="baseline_s", output_tokens_per_s=rate)
    return KneeLevels.validate(told, cast=True)


def _fitted(levels: pl.DataFrame, decode: pl.DataFrame) -> Usl:
    from scipy.optimize import nnls

    counts = dict(decode.group_by("decode_count").len().iter_rows())
    batch, step_s = (levels[name].to_numpy().astype(np.float64) for name in ("batch_count", "step_s"))
    features = np.column_stack([np.ones(len(batch)), batch, batch * (batch - 1)])
    weights = np.sqrt([counts[each] for each in levels["batch_count"].to_list()])
    scale = np.maximum(features.mean(axis=0), 1e-300)
    parts, _ = nnls(features / scale * (weights / step_s)[:, None], weights)
    return Usl(*(float(each) for each in parts / scale))


def _ends(decode: pl.DataFrame, most: int) -> tuple[int | None, int | None]:
    """The 2.5 and 97.5 % quantile of the knee over redrawn logs; null where too many have none up to `most`."""
    random, found = np.random.default_rng(0), []
    block = min(-(-len(decode) // BLOCKS), LONGEST_BLOCK)
    for _ in range(REDRAWN):
        begins = random.integers(0, len(decode), BLOCKS)
        places = ((begins[:, None] + np.arange(block)) % len(decode)).ravel()
        drawn = decode[places]
        found.append(_fitted(_levels(drawn), drawn).knee(most))
    known = [each for each in found if each is not None]
    if not known:
        return None, None
    never = 1 - len(known) / REDRAWN
    low, high = np.percentile([most if each is None else each for each in found], [2.5, 97.5])
    return int(low), None if never > NEVER_RATIO else math.ceil(high)
