"""Engines' metrics: counters, gauges and histograms at each scrape, as pages of text or as Prometheus answers them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.simulators.fleet.plan import BEGIN
from infer_diag.simulators.fleet.pod_log import pod_name, rfc3339
from infer_diag.simulators.fleet.run import Part, Run, ticks

Floats = NDArray[np.float64]
SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
TOKENS = (1.0, 10.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)


@dataclass(frozen=True, eq=False)
class Series:
    """One series of one pod: its name and labels, the kind of its family, and a value per scrape."""

    family: str
    kind: str
    name: str
    labels: tuple[tuple[str, str], ...]
    values: Floats


@dataclass(frozen=True, eq=False)
class Scraped:
    """What one pod's metrics said at each scrape: times (seconds since BEGIN) and series."""

    pod: str
    at_s: Floats
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Names:
    """How an engine calls what is exported; `labels` stand on every series."""

    labels: tuple[tuple[str, str], ...]
    gauges: dict[str, str]
    counters: dict[str, str]
    histograms: dict[str, tuple[str, tuple[float, ...]]]


def scraped(run: Run, names: Names) -> list[Scraped]:
    """The scrapes of each life of a deployment, every `scrape_every_s` from a second of its own on."""
    return [_of_part(run, part, names) for part in run.parts if len(part.steps)]


def _of_part(run: Run, part: Part, names: Names) -> Scraped:
    every_s = run.plan.scrape_every_s
    first = np.ceil((part.life.ready_s - 7.3) / every_s) * every_s + 7.3
    told = ticks(part, every_s, first - every_s)
    at_s = told["at_s"].to_numpy()
    prompts = told["prefill_tokens"] + told["cached_tokens"]
    values = {
        "running": told["running_count"],
        "waiting": told["waiting_count"],
        "kv_usage": told["used_blocks"] / (part.pool_blocks or 1),
        "preempted": told["preempted_count"],
        "prompt_tokens": prompts,
        "output_tokens": told["output_tokens"],
        "prefix_hits": told["cached_tokens"],
    }
    found = [Series(name, "gauge", name, names.labels, _floats(values[key])) for name, key in names.gauges.items()]
    found += [
        Series(name.removesuffix("_total"), "counter", name, names.labels, _floats(values[key]))
        for name, key in names.counters.items()
    ]
    found += _succeeded(part, at_s, names)
    measured = _measured(part.requests)
    for name, (key, bounds) in names.histograms.items():
        found += _histogram(name, names.labels, measured["last_s"], measured[key], at_s, bounds)
    return Scraped(pod_name(run.plan, part.life.pod), at_s, tuple(found))


def _succeeded(part: Part, at_s: Floats, names: Names) -> Iterator[Series]:
    if not any(name.startswith("vllm:") for name in names.gauges):
        return
    ended = np.sort(part.requests.filter("done")["last_s"].to_numpy())
    count = np.searchsorted(ended, at_s, side="right").astype(np.float64)
    labels = (*names.labels, ("finished_reason", "stop"))
    yield Series("vllm:request_success", "counter", "vllm:request_success_total", labels, count)


def _floats(values: pl.Series) -> Floats:
    return values.cast(pl.Float64).to_numpy()


def _measured(requests: pl.DataFrame) -> pl.DataFrame:
    done = requests.filter("done")
    return done.select(
        "last_s",
        ttft=pl.col("first_s") - pl.col("arrival_s"),
        e2e=pl.col("last_s") - pl.col("arrival_s"),
        queue=pl.col("scheduled_s") - pl.col("arrival_s"),
        prefill=pl.col("first_s") - pl.col("scheduled_s"),
        decode=pl.col("last_s") - pl.col("first_s"),
        prompt=pl.col("prompt_tokens").cast(pl.Float64),
        output=pl.col("output_tokens").cast(pl.Float64),
    )


def _histogram(
    name: str,
    labels: tuple[tuple[str, str], ...],
    at: pl.Series,
    value: pl.Series,
    scrapes: Floats,
    bounds: tuple[float, ...],
) -> Iterator[Series]:
    order = np.argsort(at.to_numpy(), kind="stable")
    ended, values = at.to_numpy()[order], value.to_numpy()[order]
    for bound in bounds:
        count = np.searchsorted(ended[values <= bound], scrapes, side="right").astype(np.float64)
        yield Series(name, "histogram", f"{name}_bucket", (*labels, ("le", repr(bound))), count)
    through = np.searchsorted(ended, scrapes, side="right")
    yield Series(name, "histogram", f"{name}_bucket", (*labels, ("le", "+Inf")), through.astype(np.float64))
    yield Series(name, "histogram", f"{name}_count", labels, through.astype(np.float64))
    sums = np.concatenate([[0.0], np.cumsum(values)])[through]
    yield Series(name, "histogram", f"{name}_sum", labels, np.round(sums, 6))


def pages(found: list[Scraped]) -> str:
    """The pages one after another, each below a comment with its time, as a loop around curl writes them."""
    return "".join(_page(pod, place) for pod in found for place in range(len(pod.at_s)))


def _page(pod: Scraped, place: int) -> str:
    lines, family = [f"# scrape {rfc3339(float(pod.at_s[place]))}"], ""
    for each in pod.series:
        if each.family != family:
            family = each.family
            lines.append(f"# TYPE {family} {each.kind}")
        shown = ",".join(f'{name}="{value}"' for name, value in each.labels)
        lines.append(f"{each.name}{{{shown}}} {each.values[place]}")
    return "\n".join(lines) + "\n"


def query_range(found: list[Scraped], job: str) -> str:
    """What `/api/v1/query_range` answers for all of the job's metrics, without the buckets of histograms."""
    result = []
    for pod in found:
        stamps = [round(BEGIN.timestamp() + at, 3) for at in pod.at_s.tolist()]
        for each in pod.series:
            if each.name.endswith("_bucket"):
                continue
            metric = {"__name__": each.name, **dict(each.labels), "job": job, "namespace": "serving", "pod": pod.pod}
            values = [[stamp, f"{value:.10g}"] for stamp, value in zip(stamps, each.values.tolist(), strict=True)]
            result.append({"metric": metric, "values": values})
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return json.dumps(document, separators=(",", ":"))
