"""A diagnosis as metrics: what it says of starts, requests and findings, and the samples that it was made of.

Every name, unit and attribute that can be exported stands in `MEASURES`; OTLP and Prometheus carry the same series.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from infer_diag.attribution.start_reading import start_readings
from infer_diag.diagnose import Diagnosis
from infer_diag.errors import DiagError
from infer_diag.export.placing import Placing
from infer_diag.export.texts import MOST_OF_A_LABEL, cleaned

MOST_SERIES = 5000
"""More than this of one diagnosis is a label out of hand."""

MOST_SAMPLES = 1_000_000
"""Every sample becomes an object and a line of a request; more belong into Prometheus by its own scrapes."""

MEASURES: dict[str, tuple[str, str]] = {
    "infer_diag.start.duration": ("s", "Span of an engine's start, from its first to its last stamp."),
    "infer_diag.start.hold": ("s", "From the assignment of the device to readiness."),
    "infer_diag.start.unlogged": ("s", "Silent gaps of a start."),
    "infer_diag.start.phase.duration": ("s", "Wall clock of one phase of a start; phases may enclose each other."),
    "infer_diag.findings": ("{finding}", "Findings of one kind."),
    "infer_diag.finding.saves": ("s", "The largest saving that a finding of this kind names."),
    "infer_diag.request.count": ("{request}", "Requests that the logs tell of."),
    "infer_diag.request.queue": ("s", "From arrival to the first slot."),
    "infer_diag.request.prefill": ("s", "From the first slot to the first token."),
    "infer_diag.request.decode": ("s", "From the first to the last token."),
    "infer_diag.request.ttft": ("s", "From arrival to the first token."),
    "infer_diag.request.tpot": ("s", "Time per output token after the first one."),
    "infer_diag.request.e2e": ("s", "From arrival to the last token."),
    "infer_diag.request.prompt.size": ("{token}", "Prompt tokens of a request."),
    "infer_diag.request.output.size": ("{token}", "Output tokens of a request."),
    "infer_diag.engine.requests.running": ("{request}", "Requests in the batch."),
    "infer_diag.engine.requests.waiting": ("{request}", "Requests in the queue."),
    "infer_diag.engine.kv.usage": ("1", "Share of the KV pool in use."),
    "infer_diag.engine.prompt.throughput": ("{token}/s", "Prompt tokens per second."),
    "infer_diag.engine.output.throughput": ("{token}/s", "Output tokens per second."),
    "infer_diag.engine.preemptions": ("{preemption}", "Preemptions since the sample before."),
    "infer_diag.gpu.memory.used": ("By", "Device memory in use."),
    "infer_diag.gpu.power": ("W", "Power draw of a device."),
}
"""Unit (UCUM) and description of every metric; all are gauges."""

_SUFFIXES = {
    "s": "_seconds",
    "By": "_bytes",
    "W": "_watts",
    "1": "_ratio",
    "{token}/s": "_per_second",
}
"""What a unit becomes at the end of a name, as OpenTelemetry's own translation to Prometheus has it."""

_REQUESTS = {
    "queue_s": "infer_diag.request.queue",
    "prefill_s": "infer_diag.request.prefill",
    "decode_s": "infer_diag.request.decode",
    "ttft_s": "infer_diag.request.ttft",
    "tpot_s": "infer_diag.request.tpot",
    "e2e_s": "infer_diag.request.e2e",
    "prompt_tokens": "infer_diag.request.prompt.size",
    "output_tokens": "infer_diag.request.output.size",
}
_SAMPLES = {
    "running_count": "infer_diag.engine.requests.running",
    "waiting_count": "infer_diag.engine.requests.waiting",
    "kv_usage_ratio": "infer_diag.engine.kv.usage",
    "prompt_tokens_per_s": "infer_diag.engine.prompt.throughput",
    "output_tokens_per_s": "infer_diag.engine.output.throughput",
    "preemption_count": "infer_diag.engine.preemptions",
}
_DEVICES = {"used_bytes": "infer_diag.gpu.memory.used", "power_w": "infer_diag.gpu.power"}
_STATISTICS = ("mean", "p50", "p95", "max")

Attributes = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Series:
    """One time series: values in order of time, one for each moment (microseconds since 1970)."""

    name: str
    attributes: Attributes
    points: tuple[tuple[int, float], ...]


def prometheus_name(name: str) -> str:
    """The name of a metric in Prometheus: underscores for dots, and its unit at the end."""
    return name.replace(".", "_") + _SUFFIXES.get(MEASURES[name][0], "")


def measures_table() -> pl.DataFrame:
    """One row per metric that can be exported: `metric` (OTLP), `prometheus`, `unit` (UCUM), `about`."""
    rows = [(name, prometheus_name(name), unit, about) for name, (unit, about) in MEASURES.items()]
    return pl.DataFrame(rows, schema=dict.fromkeys(("metric", "prometheus", "unit", "about"), pl.String), orient="row")


def series_of(diagnosis: Diagnosis, placing: Placing) -> tuple[Series, ...]:
    """Every series of a diagnosis, by name and attributes. Values that are unknown, or whose time is, are not there.

    Raises:
        DiagError: there are more than `MOST_SERIES`, or the samples are more than `MOST_SAMPLES`.
    """
    _check_size(diagnosis)
    rows = [
        *_of_starts(diagnosis, placing),
        *_of_findings(diagnosis, placing.last_us),
        *_of_requests(diagnosis, placing.last_us),
        *_of_samples(diagnosis.recording.engine_samples, _SAMPLES, ("replica", "kind"), placing),
        *_of_samples(diagnosis.recording.gpu_samples, _DEVICES, ("gpu", "instance"), placing),
    ]
    texts = (str(text) for _, attributes, _, _ in rows for text in attributes.values() if text is not None)
    clean = cleaned(texts, MOST_OF_A_LABEL)
    found: dict[tuple[str, Attributes], dict[int, float]] = defaultdict(dict)
    for name, attributes, us, value in rows:
        told = tuple(sorted((key, clean[str(text)]) for key, text in attributes.items() if text is not None))
        found[name, told][us] = value
    if len(found) > MOST_SERIES:
        raise DiagError(
            f"{len(found):,} time series are more than one diagnosis should make",
            hint=f"export a part of the logs; at most {MOST_SERIES:,}",
        )
    return tuple(Series(*key, tuple(sorted(points.items()))) for key, points in sorted(found.items()))


def _check_size(diagnosis: Diagnosis) -> None:
    samples, devices = diagnosis.recording.engine_samples, diagnosis.recording.gpu_samples
    count = len(samples) * len(_SAMPLES) + len(devices) * len(_DEVICES)
    if count > MOST_SAMPLES:
        raise DiagError(
            f"up to {count:,} samples are more than one export should carry",
            hint="export a shorter part of the logs; live metrics go to Prometheus by its own scrapes",
        )


_Row = tuple[str, Mapping[str, object], int, float]


def _of_starts(diagnosis: Diagnosis, placing: Placing) -> Iterator[_Row]:
    lasts = {reading.start_id: reading.last for reading in start_readings(diagnosis.recording)}
    ends = {start: placing.last_us if us is None else us + placing.shift_us for start, us in lasts.items()}
    for row in diagnosis.cold_start.summary.iter_rows(named=True):
        told = {"start_id": row["start_id"], "replica": row["replica"], "outcome": row["outcome"]}
        for column, name in (("span_s", "duration"), ("hold_s", "hold"), ("unlogged_s", "unlogged")):
            if row[column] is not None:
                yield f"infer_diag.start.{name}", told, ends[row["start_id"]], row[column]
    phases = diagnosis.cold_start.phases.filter(pl.col("rank").is_null() & pl.col("chosen"))
    for row in phases.drop_nulls("duration_s").iter_rows(named=True):
        told = {name: row[name] for name in ("start_id", "phase", "status")}
        yield "infer_diag.start.phase.duration", told, ends[row["start_id"]], row["duration_s"]


def _of_findings(diagnosis: Diagnosis, us: int) -> Iterator[_Row]:
    kinds = Counter((finding.id, finding.severity, finding.status) for finding in diagnosis.findings)
    for (finding, severity, status), count in kinds.items():
        yield (
            "infer_diag.findings",
            {"finding": finding, "severity": severity, "status": status},
            us,
            float(count),
        )
    for finding in {each.id for each in diagnosis.findings}:
        saved = [each.saves for each in diagnosis.findings if each.id == finding and each.saves is not None]
        if saved:
            yield "infer_diag.finding.saves", {"finding": finding}, us, max(saved)


def _of_requests(diagnosis: Diagnosis, us: int) -> Iterator[_Row]:
    served = diagnosis.batching
    if served is None:
        return
    if served.request_count is not None:
        yield "infer_diag.request.count", {}, us, float(served.request_count)
    for row in served.requests.iter_rows(named=True):
        for statistic in _STATISTICS:
            if row[statistic] is not None:
                yield _REQUESTS[str(row["measure"])], {"statistic": statistic}, us, row[statistic]


def _of_samples(
    samples: pl.DataFrame, names: Mapping[str, str], keys: tuple[str, str], placing: Placing
) -> Iterator[_Row]:
    """Samples with a time; `instance` is Prometheus' own word, so partitions of a device go by another."""
    timed = samples.drop_nulls("time").with_columns(us=pl.col("time").dt.epoch("us") + placing.shift_us)
    several = timed["source_id"].n_unique() > 1
    for column, name in names.items():
        for row in timed.drop_nulls(column).select(*keys, "source_id", "us", column).iter_rows(named=True):
            told = {("partition" if key == "instance" else key): row[key] for key in keys}
            told["source"] = row["source_id"] if several else None
            yield name, told, row["us"], float(row[column])
