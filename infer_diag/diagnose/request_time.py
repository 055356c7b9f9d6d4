"""Findings from the requests' own events and durations: where their time went, and how unequal they are."""

from __future__ import annotations

import polars as pl

from infer_diag.attribution.requests import each_request, told_once
from infer_diag.attribution.serving import Serving
from infer_diag.diagnose.evidence import cited
from infer_diag.diagnose.finding import Finding, Severity
from infer_diag.recording import Recording
from infer_diag.units import format_count, format_ratio, format_s

QUEUE_RATIO = 0.3
"""Nearly a third of a request's life in the queue is what its user notices first."""
MOSTLY_RATIO = 0.5
"""More than everything else together."""
PREFILL_RATIO = 0.6
"""Prompts outweigh output clearly."""
MIN_LENGTHS = 100
"""A coefficient of variation from fewer requests of a heavy tail is noise."""
EXTRA_KV_RATIO = 0.25
"""A quarter more KV space than equal lengths would need."""


def queue_of_requests(recording: Recording, serving: Serving) -> Finding | None:
    """A large share of the requests' time passes before they first run."""
    share = serving.shares["queue"]
    waits = serving.requests.filter(pl.col("measure") == "queue_s")
    if share is None or share < QUEUE_RATIO or waits.is_empty():
        return None
    row = waits.row(0, named=True)
    severity: Severity = "high" if share >= MOSTLY_RATIO else "medium"
    tail = f", {format_s(row['p95'])} at the 95th percentile" if row["p95"] is not None else ""
    sentence = (
        f"{format_ratio(share)} of the requests' time is spent in the queue: {format_s(row['mean'])} on average{tail}, "
        f"of {format_count(row['request_count'])} requests."
    )
    rows = told_once(each_request(recording), "queue_s")
    summed = recording.request_totals.filter(pl.col("measure").cast(pl.String).is_in(["queue_s", "e2e_s"]))
    longest = rows.sort("queue_s", "line", descending=[True, False])
    evidence = cited(recording, longest if not longest.is_empty() else summed)
    remedy = "Computing is not the problem: add a replica, or raise the limit that keeps requests out."
    return Finding("batching.queue", severity, sentence, "measured", evidence, remedy)


def prefill_of_requests(recording: Recording, serving: Serving) -> Finding | None:
    """Most of the requests' time goes into their prompts."""
    share = serving.shares["prefill"]
    if share is None or share < PREFILL_RATIO:
        return None
    means = dict(serving.requests.select(pl.col("measure").cast(pl.String), "mean").iter_rows())
    lengths = ""
    if "prompt_tokens" in means and "output_tokens" in means:
        prompt, output = (format_count(round(means[name])) for name in ("prompt_tokens", "output_tokens"))
        lengths = f" ({prompt} prompt and {output} output tokens on average)"
    sentence = (
        f"{format_ratio(share)} of the requests' time goes into their prompts, {format_s(means['prefill_s'])} each on "
        f"average{lengths}."
    )
    remedy = "Reuse prefixes, shorten prompts, or compute more of a prompt at once."
    rows = told_once(each_request(recording), "prefill_s")
    evidence = cited(recording, rows.sort("prefill_s", "line", descending=[True, False]))
    return Finding("batching.prefill_bound", "medium", sentence, "measured", evidence, remedy)


def length_variance(recording: Recording, serving: Serving) -> Finding | None:
    """Unequal outputs hold KV space longer than equal ones of the same mean would (modelled)."""
    known = told_once(each_request(recording), "prompt_tokens", "output_tokens")
    if len(known) < MIN_LENGTHS:
        return None
    prompt, output = (pl.col(name).cast(pl.Float64) for name in ("prompt_tokens", "output_tokens"))
    held, equal, variation = known.select(
        held=(prompt * output).mean() + (output**2).mean() / 2,
        equal=prompt.mean() * output.mean() + output.mean() ** 2 / 2,
        variation=output.std() / output.mean(),
    ).row(0)
    if not equal or held / equal - 1 < EXTRA_KV_RATIO:
        return None
    sentence = (
        f"Output lengths vary (standard deviation over mean {variation:.2f}, {len(known):,} requests): they hold "
        f"{format_ratio(held / equal - 1)} more token-steps of KV space than equal lengths of the same mean, so as "
        "much less fits at once where the pool binds."
    )
    evidence = cited(recording, known.sort("output_tokens", "line", descending=[True, False]))
    remedy = "Cap the output where users allow it, or send long and short requests to replicas of their own."
    return Finding("batching.length_variance", "low", sentence, "modelled", evidence, remedy)
