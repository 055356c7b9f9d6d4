"""What has to hold before anything is attributed: Little's law and the ledger of tokens."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.attribution.cost.jackknife import effective_count
from infer_diag.attribution.cost.stretches import sample_intervals
from infer_diag.attribution.preemptions import preemptions
from infer_diag.attribution.quantiles import quantile
from infer_diag.attribution.requests import of_one_teller
from infer_diag.attribution.steps import recomputed
from infer_diag.attribution.throughput_loss.frames import LossGates
from infer_diag.recording import Recording

STAYS = 20.0
"""Little's law needs a window of many stays, or its edges rule the result."""
ERRORS = 3.0
"""Standard errors of the mean gauge: with two, one sound log in twenty would be refused for nothing."""
MIN_REQUESTS = 20
LEDGER_TOLERANCE_RATIO = 0.02
"""Requests cut by the edges of a log, and steps that a log leaves out, are worth a few tokens in a hundred."""
_SEVERAL = "several sources tell of requests, and not whether these are the same ones"


def gates(recording: Recording) -> dy.DataFrame[LossGates]:
    """Little's law and the token ledger of a recording. Measured; `unchecked` where the log lacks one side.

    Frames in: EngineSamples, EngineSteps, Requests. Frame out: LossGates. Little: mean number of requests at work or
    waiting = requests per second · mean stay, within (N at both edges) · p99 stay / T + 3 · standard error. Ledger:
    tokens that steps compute ≥ prompts − cached + outputs − 1 of the requests, and not less by more than 2 %. Where
    several sources tell of requests, a client's and a server's may be the same ones, and no check fails.
    """
    return LossGates.validate(pl.DataFrame([_little(recording), _ledger(recording)], strict=False), cast=True)


def stays(recording: Recording) -> pl.DataFrame:
    """Requests with the begin and end of their stay in the engine (`begin_s`, `end_s`), of the teller with most."""
    begun = pl.coalesce("queued_s", "arrival_s")
    told = of_one_teller(recording, "last_token_s")
    whole = told.with_columns(begin_s=begun, end_s="last_token_s").drop_nulls(["begin_s", "end_s"])
    return whole.filter(pl.col("end_s") >= pl.col("begin_s"))


def _unchecked(gate: str, basis: str) -> dict[str, object]:
    return {"gate": gate, "verdict": "unchecked", "seen": None, "expected": None, "tolerance": None, "basis": basis}


def _little(recording: Recording) -> dict[str, object]:
    told = stays(recording)
    samples = sample_intervals(recording)
    known = samples.filter(pl.col("running_count").is_not_null() & pl.col("waiting_count").is_not_null())
    known = known.filter(pl.col("kind").is_in(["interval", "scrape"]))
    if len(told) < MIN_REQUESTS or len(known) < MIN_REQUESTS:
        return _unchecked("little", "needs 20 requests with begin and end, and 20 samples of running and waiting")
    lengths = pl.col("end_s") - pl.col("begin_s")
    span_s = told.select(pl.col("end_s").max() - pl.col("begin_s").min()).item()
    mean_s, p99_s = told.select(lengths.mean().alias("mean"), quantile(lengths, 0.99).alias("p99")).row(0)
    if not span_s or span_s < STAYS * mean_s:
        return _unchecked("little", f"the requests span less than {STAYS:.0f} mean stays: edges would rule the law")
    expected = len(told) * mean_s / span_s
    present = pl.col("running_count").cast(pl.Int64) + pl.col("waiting_count") + pl.col("swapped_count").fill_null(0)
    held_s = (pl.col("end") - pl.col("begin")).dt.total_microseconds() / 1e6
    area = float(known.select((pl.when("silent").then(0).otherwise(present) * held_s).sum()).item())
    seen = area / span_s
    counted = known.group_by("begin").agg(present.sum().alias("count")).sort("begin")["count"].to_numpy().astype(float)
    error = float(counted.std()) / max(effective_count(counted), 1.0) ** 0.5
    tolerance = (counted[0] + counted[-1]) * p99_s / span_s + ERRORS * error
    verdict = "holds" if abs(seen - expected) <= tolerance else "fails"
    if verdict == "fails" and recording.requests["source_id"].n_unique() > 1:
        return _unchecked("little", _SEVERAL)
    basis = f"{len(told):,} requests over {span_s:.0f} s against {len(known):,} samples"
    return {"gate": "little", "verdict": verdict, "seen": seen, "expected": expected} | {
        "tolerance": tolerance,
        "basis": basis,
    }


def _ledger(recording: Recording) -> dict[str, object]:
    steps = recording.engine_steps
    columns = ["prompt_tokens", "output_tokens", "last_token_s"]
    everyone = of_one_teller(recording, *columns)
    told = everyone.drop_nulls(columns)
    if steps.is_empty() or told.is_empty() or len(told) < len(everyone):
        return _unchecked("token_ledger", "needs every engine step and the tokens of every request")
    computed = steps.select(pl.col("prefill_tokens", "decode_tokens").cast(pl.Int64).sum()).sum_horizontal().item()
    needed = told.select(
        (pl.col("prompt_tokens").cast(pl.Int64) + pl.col("output_tokens") - 1).sum()
        - pl.col("cached_tokens").cast(pl.Int64).fill_null(0).sum()
    ).item()
    again = recomputed(steps)
    tolerance = LEDGER_TOLERANCE_RATIO * needed
    left = computed - needed - (again.tokens if again else 0)
    count = preemptions(recording).count
    basis = f"steps compute {left:,} tokens beyond what requests need" + (
        f" and what {count:,} preemptions compute again" if count else ""
    )
    if left < -tolerance and told["cached_tokens"].null_count():
        return _unchecked("token_ledger", "how many prompt tokens the prefix cache held is not told of every request")
    if left < -tolerance and recording.requests["source_id"].n_unique() > 1:
        return _unchecked("token_ledger", _SEVERAL)
    verdict = "holds" if left >= -tolerance else "fails"
    return {"gate": "token_ledger", "verdict": verdict, "seen": float(computed), "expected": float(needed)} | {
        "tolerance": tolerance,
        "basis": basis if verdict == "holds" else f"steps compute {-left:,} tokens fewer than the requests need",
    }
