"""The finding on padding, where an engine that batches whole requests lets it be counted."""

from __future__ import annotations

import polars as pl

from infer_diag.attribution.serving import Serving
from infer_diag.attribution.throughput_loss import padding
from infer_diag.diagnose.evidence import cited
from infer_diag.diagnose.finding import Finding, Severity
from infer_diag.recording import Recording
from infer_diag.units import format_count, format_ratio, format_s

RATIOS: tuple[tuple[float, Severity], ...] = ((0.3, "high"), (0.15, "medium"), (0.05, "low"))
"""Share of the computed tokens that nobody asked for; a twentieth is what aligned shapes cost anyway."""


def padded(recording: Recording, serving: Serving) -> Finding | None:
    """A batch of whole requests is computed to its longest prompt and its longest output."""
    found = padding(recording)
    if isinstance(found, str):
        return None
    severity = next((grade for least, grade in RATIOS if found.ratio >= least), None)
    if severity is None:
        return None
    computed = found.prompt_computed_tokens + found.output_computed_tokens
    sentence = (
        f"{format_ratio(found.ratio)} of the {format_count(computed)} tokens that the engine computes are padding "
        f"({format_ratio(found.prompt_ratio)} of the prompts', {format_ratio(found.output_ratio)} of the outputs'): "
        f"{format_s(found.prompt_s + found.output_s)} of step time at the steps' own time per token."
    )
    remedy = (
        "Batch continuously, so that requests join and leave a running batch; where batches must be whole, group "
        "requests of similar length and batch by tokens and not by number. What is saved in decode is less than the "
        "share, since the time of a decode step grows more slowly than its rows."
    )
    rows = recording.engine_steps.filter(pl.col("kind") == "prefill").top_k(
        5, by=["prefill_tokens", "line"], reverse=[False, True]
    )
    return Finding("batching.padding", severity, sentence, "measured", cited(recording, rows), remedy)
