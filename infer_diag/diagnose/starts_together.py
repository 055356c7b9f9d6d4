"""Many starts in words: their spread, what the caches save, what no line explains, the probe they need, the bill."""

from __future__ import annotations

import polars as pl

from infer_diag.attribution.starts_together import Together, cache_savings, phase_spreads, probe_advice
from infer_diag.units import format_count, format_ratio, format_s


def together_lines(together: Together) -> tuple[str, ...]:
    """One clause per thing that the starts tell; what they do not tell is left out."""
    spans = phase_spreads(together).filter(pl.col("part") == "span")
    lines = [_spread(row) for row in spans.iter_rows(named=True)]
    savings = cache_savings(together).filter(pl.col("part") == "span")
    lines += [_saving(row) for row in savings.iter_rows(named=True)]
    if together.unlogged_ratio is not None:
        lines.append(f"no line explains {format_ratio(together.unlogged_ratio)} of their time")
    advice = probe_advice(together.starts["container_s"].drop_nulls().to_list())
    if advice is not None:
        probe = advice.probe
        lines.append(
            f"a startup probe for them: initialDelaySeconds {probe.initial_delay_s}, periodSeconds {probe.period_s}, "
            f"failureThreshold {probe.failure_threshold} (allows {format_s(probe.allowed_s)})"
        )
    lines += _bill(together.starts)
    return tuple(lines)


def _spread(row: dict[str, object]) -> str:
    words = [str(row["caches"] or ""), "starts last"] if row["caches"] else ["starts last"]
    low, high = row["low_s"], row["high_s"]
    sure = f" (95 %: {_s(low)} to {_s(high)})" if low is not None else ""
    return f"{row['start_count']} {' '.join(words)} {_s(row['p50_s'])}{sure}, {_s(row['min_s'])} to {_s(row['max_s'])}"


def _saving(row: dict[str, object]) -> str:
    if row["low_s"] is None:
        return f"too few of one kind ({row['cold_count']} cold, {row['warm_count']} warm) to say what caches save"
    return f"warm caches save {_s(row['saved_s'])} (95 %: {_s(row['low_s'])} to {_s(row['high_s'])})"


def _bill(starts: pl.DataFrame) -> list[str]:
    known = starts.drop_nulls("gpu_s")
    if known.is_empty():
        return []
    least = "" if (known["gpu_status"] == "measured").all() else "at least "
    return [f"together they held {least}{format_count(round(known['gpu_s'].sum()))} GPU-seconds"]


def _s(value: object) -> str:
    return format_s(value if isinstance(value, float) else None)
