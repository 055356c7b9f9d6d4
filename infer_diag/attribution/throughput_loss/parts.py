"""Where the engines' time went: each part measured, modelled, bounded or refused, and all add up to the whole."""

from __future__ import annotations

from dataclasses import dataclass

import dataframely as dy
import polars as pl

from infer_diag.attribution.streams import counted_once
from infer_diag.attribution.throughput_loss.frames import PARTS, LossGates, LossParts
from infer_diag.attribution.throughput_loss.gates import gates
from infer_diag.attribution.throughput_loss.queueing import burst_queueing
from infer_diag.attribution.throughput_loss.rows import Row, told
from infer_diag.attribution.throughput_loss.statistics_parts import of_statistics
from infer_diag.attribution.throughput_loss.timed_steps import of_steps
from infer_diag.recording import Recording

NOTHING = (
    "load the engine's log with statistics lines; a log of every step (--enable-logging-iteration-details) and the "
    "requests' times tell the parts apart"
)


@dataclass(frozen=True, eq=False)
class ThroughputLoss:
    """The parts of `whole_s` engine-seconds, `basis` says what tells them; `refusal` says why there are none.

    Gates come first: where one fails, rows are lost or counted twice, and no part is told.
    """

    parts: dy.DataFrame[LossParts]
    gates: dy.DataFrame[LossGates]
    whole_s: float | None
    basis: str
    refusal: str | None = None


def throughput_loss(recording: Recording) -> ThroughputLoss:
    """Idle, underfill, padding, interference, recompute, KV limit, host stall and bursts of one deployment.

    Frames in: EngineSteps, else EngineSamples; Requests, Deployments. Frame out: LossParts, whose parts and residual
    add up to the whole: the time of all engines from their first step or sample to their last.
    """
    checked = gates(recording)
    failed = checked.filter(pl.col("verdict") == "fails")
    if len(failed):
        row = failed.row(0, named=True)
        name = "Little's law" if row["gate"] == "little" else "the ledger of tokens"
        why = f"{name} does not hold ({row['basis']}: {row['seen']:,.4g} against {row['expected']:,.4g}): requests are "
        why += "missing, counted twice or on another clock, so nothing is attributed"
        return ThroughputLoss(LossParts.create_empty(), checked, None, "", why)
    stepped = recording.engine_steps.filter(pl.col("duration_s") > 0)
    if len(stepped):
        rows, whole_s, basis = of_steps(recording)
    elif len(counted_once(recording).drop_nulls("time")) >= 2:
        rows, whole_s, basis = of_statistics(recording)
    else:
        return ThroughputLoss(LossParts.create_empty(), checked, None, "", NOTHING)
    if whole_s <= 0:
        return ThroughputLoss(LossParts.create_empty(), checked, None, "", NOTHING)
    rows.append(burst_queueing(recording))
    return ThroughputLoss(_frame(rows, whole_s), checked, whole_s, basis)


def _frame(rows: list[Row], whole_s: float) -> dy.DataFrame[LossParts]:
    known = sum(row.engine_s for row in rows if row.adds_up and row.engine_s is not None)
    open_parts = [row.part.replace("_", " ") for row in rows if row.adds_up and row.engine_s is None]
    basis = "the whole less the other parts" + (f"; {', '.join(open_parts)} not told apart" if open_parts else "")
    left = whole_s - known
    rows = [*rows, told("residual", left if abs(left) > 1e-9 * whole_s else 0.0, "modelled", basis)]
    frame = pl.DataFrame([row._asdict() for row in rows], infer_schema_length=None).with_columns(
        share_ratio=pl.when("adds_up").then(pl.col("engine_s") / whole_s)
    )
    order = pl.col("part").replace_strict(PARTS, range(len(PARTS)), return_dtype=pl.Int32)
    return LossParts.validate(frame.sort(order).select(LossParts.column_names()), cast=True)
