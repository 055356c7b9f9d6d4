"""Findings on the logs themselves: what is missing, contradictory or cannot be told from them."""

from __future__ import annotations

import polars as pl

from infer_diag.attribution.requests import backward_count
from infer_diag.attribution.serving import Serving
from infer_diag.diagnose.evidence import cited
from infer_diag.diagnose.finding import Finding
from infer_diag.diagnose.remedies import has_setting, setting
from infer_diag.recording import Recording, Source
from infer_diag.units import format_s

CLOCK_SPREAD_S = 5.0
"""Two clocks that keep their distance to a few seconds (buffers) agree; a zone between them is no conflict."""


SCRAPES_WITH_TIMES = "several scrapes in one file, each after a line with its time (`# scrape 2026-03-14T09:26:53Z`)"


def findings(recording: Recording, serving: Serving | None) -> list[Finding]:
    """Findings with ids `data.*`, source by source, then what serving logs do not tell."""
    found = []
    for source_id, source in enumerate(recording.sources):
        found += [_cut(recording, source_id, source), _clock_conflict(source)]
        found += [_clock_missing(recording, source_id, source), _rejected_lines(recording, source_id, source)]
        found += [_counter_reset(recording, source_id, source), _implausible(source)]
    found.append(_backward_requests(recording))
    if serving is not None:
        found += [_untold(recording, serving), _stall_untold(recording, serving)]
    return [finding for finding in found if finding is not None]


def _cut(recording: Recording, source_id: int, source: Source) -> Finding | None:
    lines = recording.incidents.filter(kind="cut", source_id=source_id).sort("line")
    if not source.cut and lines.is_empty():
        return None
    sentence = (
        f"{source.path} breaks off or has lines removed: counts and sums are what is left of them, so lower bounds."
    )
    remedy = "Diagnose the whole file; a gap that this leaves is marked as cut and never read as idle time."
    return Finding("data.cut", "low", sentence, "measured", cited(recording, lines), remedy)


def _clock_conflict(source: Source) -> Finding | None:
    spread_s = max((clock.spread_s or 0.0 for clock in source.clocks), default=0.0)
    if spread_s <= CLOCK_SPREAD_S:
        return None
    sentence = (
        f"The clocks of {source.path} do not keep their distance: it varies by {format_s(spread_s)} between the "
        "collector's stamps and the engine's own, so durations across it are as uncertain."
    )
    remedy = "Look for buffered output or a clock that was set; lines that print their own duration are not affected."
    return Finding("data.clock_conflict", "medium", sentence, "measured", (), remedy)


def _clock_missing(recording: Recording, source_id: int, source: Source) -> Finding | None:
    here = pl.col("source_id") == source_id
    timed = ("phases", "incidents", "engine_samples", "engine_steps", "progress")
    rows = sum(len(getattr(recording, name).filter(here)) for name in timed)
    if source.clocks or source.first_time is not None or not rows:
        return None
    sentence = f"{source.path} has no time stamps: only durations that a line prints itself can be told."
    remedy = "Keep the logger's own prefix, or let the collector add stamps (`docker logs --timestamps`)."
    return Finding("data.clock_missing", "info", sentence, "measured", (), remedy)


def _rejected_lines(recording: Recording, source_id: int, source: Source) -> Finding | None:
    if not source.rejected_lines:
        return None
    rows = recording.rejected.filter(source_id=source_id).sort("line")
    rules = ", ".join(rows["rule"].unique().sort().head(3).to_list())
    sentence = (
        f"{source.rejected_lines:,} of {source.lines:,} lines of {source.path} look like lines that infer_diag knows "
        f"and cannot be read{f' ({rules})' if rules else ''}; they are left out."
    )
    remedy = "They may be damaged or from a version whose wording is new; `Recording.rejected` holds them."
    return Finding("data.rejected_lines", "low", sentence, "measured", cited(recording, rows), remedy)


def _implausible(source: Source) -> Finding | None:
    if not source.doubts:
        return None
    sentence = f"{source.path} says what cannot be so: {'; '.join(source.doubts)}."
    remedy = "Look at what wrote the file: a column that is never filled, or a sum over other rows than these."
    return Finding("data.implausible", "low", sentence, "measured", (), remedy)


def _counter_reset(recording: Recording, source_id: int, source: Source) -> Finding | None:
    scraped = recording.engine_samples.filter(source_id=source_id, kind="scrape")
    again = recording.incidents.filter(kind="restart", source_id=source_id).sort("line")
    if scraped.is_empty() or again.is_empty():
        return None
    times = f"{len(again)} times" if len(again) > 1 else "once"
    sentence = (
        f"The counters of {source.path} begin again {times}: the engine was restarted. No rate is taken over that, and "
        "what was counted between the last scrape and the restart is lost, so sums are lower bounds."
    )
    remedy = "Scrape more often, or read the engine's log for what ended it."
    return Finding("data.counter_reset", "low", sentence, "bounded", cited(recording, again), remedy)


def _backward_requests(recording: Recording) -> Finding | None:
    count = backward_count(recording.requests)
    if not count:
        return None
    sentence = (
        f"{count:,} of {len(recording.requests):,} requests have an event before one that has to come first, so two "
        "clocks are mixed; those spans are left out."
    )
    return Finding("data.clock_conflict", "medium", sentence, "measured", (), "Bring all events onto one clock.")


def _untold(recording: Recording, serving: Serving) -> Finding | None:
    measures = set(serving.samples["measure"].cast(pl.String))
    engines = sorted({recording.sources[each].engine for each in _serving_sources(recording)})
    engine = engines[0] if len(engines) == 1 else ""
    missing: list[tuple[str, str]] = []
    scraped = bool(serving.sample_count) and bool((recording.engine_samples["kind"] == "scrape").all())
    if scraped and "output_tokens_per_s" not in measures:
        missing.append(("rates (one scrape, or scrapes without their times)", SCRAPES_WITH_TIMES))
    elif serving.sample_count and "output_tokens_per_s" not in measures:
        missing.append(("the output rate (no decode line)", _decode_lines(engine)))
    if not serving.sample_count:
        missing.append(("rates, queue and KV use (no statistics line)", "keep the engine's statistics lines on"))
    if "e2e_s" not in set(serving.requests["measure"].cast(pl.String)):
        missing.append(("how long requests took (no line per finished request)", _request_times(engine)))
    if serving.sample_count and serving.preemptions.count is None:
        missing.append(("how many requests were preempted", _preemption_counts(engine)))
    if not missing:
        return None
    what, how = "; ".join(each for each, _ in missing), "; ".join(dict.fromkeys(each for _, each in missing))
    sentence = f"Not told by these logs: {what}."
    return Finding("data.not_identifiable", "info", sentence, "not_identifiable", (), f"To tell: {how}.")


def _stall_untold(recording: Recording, serving: Serving) -> Finding | None:
    if serving.stall.reason is None or not serving.stall.mixed_count:
        return None
    sentence = f"How long decode waits behind prefill cannot be told: {serving.stall.reason}."
    remedy = "A longer log of every step, with stretches that only decode."
    return Finding("data.not_identifiable", "info", sentence, "not_identifiable", (), remedy)


def _serving_sources(recording: Recording) -> list[int]:
    frames = (recording.engine_samples, recording.engine_steps, recording.requests, recording.request_timings)
    return pl.concat([frame.select("source_id") for frame in frames])["source_id"].unique().to_list()


def _decode_lines(engine: str) -> str:
    if has_setting(engine, "decode_lines"):
        return f"a log that reaches into decoding, or a smaller {setting(engine, 'decode_lines')}"
    return "the engine's decode or statistics lines"


def _request_times(engine: str) -> str:
    if has_setting(engine, "traces"):
        return f"request traces ({setting(engine, 'traces')}) or the histograms of the metrics endpoint"
    if has_setting(engine, "metrics"):
        return f"the metrics endpoint ({setting(engine, 'metrics')}) or a client's own record of each request"
    return "the metrics endpoint or a client's own record of each request"


def _preemption_counts(engine: str) -> str:
    if engine == "vllm":
        return "`vllm:num_preemptions` of the metrics endpoint"
    return "a whole log from the engine's start, or the metrics endpoint"
