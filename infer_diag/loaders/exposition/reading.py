"""A file of metrics to a recording: engines and devices alike, whichever the file is about."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, Frames, recorded
from infer_diag.loaders.exposition.answers import answered, gathered
from infer_diag.loaders.exposition.devices import device_frames
from infer_diag.loaders.exposition.engines import engine_frames
from infer_diag.loaders.exposition.families import DCGM, EXPORTERS, KUBELET
from infer_diag.loaders.exposition.file_times import name_times, named
from infer_diag.loaders.exposition.nodes import node_frames
from infer_diag.loaders.exposition.scrapes import Scrapes, read_scrapes
from infer_diag.loaders.exposition.series import read_series
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import document
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Clock, Recording


def load(file: LogFile, *, options: Options) -> Recording:
    """Samples of the engine and of its devices, sums over requests, restarts and device errors."""
    if file.head(256).lstrip()[:1] == b"{":
        return _from_answer(file, options)
    scrapes = read_scrapes(file, options)
    name = named(file)
    alone = scrapes.samples["us"].is_null().all() and scrapes.samples["scrape"].n_unique() == 1
    if alone and name is not None and name.stamp is not None:
        times = name_times([name], options.tz)
        if times is not None:
            file.notes.append(times.note)
            scrapes = scrapes.taken_at(times.us[0], times.example, times.zone)
    return scrapes_recorded(file, options, scrapes)


def scrapes_recorded(file: LogFile, options: Options, scrapes: Scrapes) -> Recording:
    """The recording of scrapes as `read_scrapes` returns them."""
    series, damaged = read_series(scrapes.samples["series"].unique(maintain_order=True).to_list())
    text = pl.col("series").cast(pl.String)
    broken = (scrapes.samples.filter(text.is_in(damaged)) if damaged else scrapes.samples.clear()).select(
        "line", pl.lit("a sample of a metric").alias("rule"), text.alias("text")
    )
    clocks: tuple[Clock, ...] = ()
    if scrapes.example is not None:
        clocks = (Clock("inner", scrapes.example, zone=scrapes.zone, year_known=scrapes.has_year),)
    rejected = pl.concat([scrapes.damaged, broken])
    return _recorded(file, options, scrapes.samples, series, scrapes.lines, rejected, clocks)


def _from_answer(file: LogFile, options: Options) -> Recording:
    read = document(file, options)
    return answers_recorded(file, options, *gathered([answered(read.value, file.label)]), lines=read.lines)


def answers_recorded(
    file: LogFile,
    options: Options,
    samples: pl.DataFrame,
    series: pl.DataFrame,
    notes: tuple[str, ...],
    lines: int = 0,
) -> Recording:
    """The recording of what `answers.gathered` returns."""
    clocks = (Clock("inner", "epoch", zone="UTC"),) if not samples.is_empty() else ()
    return _recorded(file, options, samples, series, lines, pl.DataFrame(schema=CLAIMED), clocks, notes)


def _recorded(
    file: LogFile,
    options: Options,
    samples: pl.DataFrame,
    series: pl.DataFrame,
    lines: int,
    rejected: pl.DataFrame,
    clocks: tuple[Clock, ...],
    notes: tuple[str, ...] = (),
) -> Recording:
    told = value_frames(samples, series)
    return recorded(
        file,
        dict(told.frames),
        options=options,
        format=told.engine if told.engine == DCGM.engine else "prometheus",
        engine=told.engine,
        lines=lines,
        understood=samples["line"].n_unique(),
        rejected=rejected,
        times=told.times,
        clocks=clocks,
        notes=notes,
    )


@dataclass(frozen=True)
class ValueFrames:
    """Frames without `source_id`, the engine that most values are about, and when they were taken."""

    frames: Frames
    engine: str
    times: pl.Series


def value_frames(samples: pl.DataFrame, series: pl.DataFrame) -> ValueFrames:
    """What samples (columns of SAMPLES) of series (columns of SERIES) say of engines, devices and nodes."""
    values = samples.join(series, on="series", how="inner", maintain_order="left")
    # A stale marker is no value, and an infinite one none that a frame can hold.
    values = values.with_columns(pl.when(pl.col("value").is_finite()).then("value").alias("value")).drop_nulls("value")
    of_nodes = pl.col("engine") == KUBELET.engine
    engines, nodes = values.filter(~of_nodes), values.filter(of_nodes)
    frames = _joined(engine_frames(engines), device_frames(engines)) | node_frames(nodes)
    return ValueFrames(frames, _engine(values), values["us"].cast(pl.Datetime("us", "UTC")))


def _joined(engines: Frames, devices: Frames) -> Frames:
    whole = {**engines, **devices}
    if "incidents" in engines and "incidents" in devices:
        whole["incidents"] = pl.concat([engines["incidents"], devices["incidents"]], how="diagonal_relaxed")
    return whole


def _engine(values: pl.DataFrame) -> str:
    """The engine that most of the values are about; a device exporter only where there is no engine."""
    counted = values.group_by("engine").len().sort("len", "engine", descending=[True, False])
    names = [name for name in counted["engine"].to_list() if name != DCGM.engine]
    return str(names[0]) if names else DCGM.engine if not counted.is_empty() else "prometheus"


_NAMES = "|".join(
    f"{prefix}(?:{'|'.join(name for family in exporter.families for name in family.names)})"
    for exporter in EXPORTERS
    if exporter is not DCGM
    for prefix in exporter.prefixes
)
_SAMPLE = rf"^[ \t]*(?:{_NAMES})(?:_sum|_count|_bucket)?(?:\{{[^\n]*\}})?[ \t]+[0-9+.NI-]"
_DEVICE_SAMPLE = r"^[ \t]*DCGM_FI_[A-Z0-9_]+\{[^\n]*\}[ \t]+[0-9+.NI-]"
_RESULT = r'"resultType"\s*:\s*"(?:matrix|vector)"'

PROMETHEUS = Loader(
    name="prometheus",
    about="Prometheus text and OpenMetrics, one scrape or many, and saved query answers: engines, kubelet",
    versions="text 0.0.4 and OpenMetrics 1.0; vLLM to 0.32, SGLang to 0.5",
    frames=("incidents", "start_totals", "request_totals", "engine_samples", "gpu_samples"),
    example='vllm:num_requests_running{engine="0",model_name="m"} 3.0',
    signature=Signature(
        # Names of metrics hold names of engines, so a sample counts for more than a word in it.
        stamp=rf"(?m){_SAMPLE}|{_RESULT}",
        phrases=(
            _SAMPLE,
            _RESULT,
            r"^# (?:TYPE|HELP) (?:vllm|sglang|llamacpp|lmdeploy|trtllm)[:_]",
            r"^# (?:TYPE|HELP) (?:tgi|nv|kubelet)_",
        ),
    ),
    load=load,
)
DCGM_EXPORTER = Loader(
    name="dcgm-exporter",
    about="dcgm-exporter's metrics: memory, activity and power of each GPU and MIG instance, Xid errors",
    versions="as of May 2026, with and without MIG",
    frames=("incidents", "gpu_samples"),
    example='DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",Hostname="node-b"} 71234',
    signature=Signature(
        stamp=rf"(?m){_DEVICE_SAMPLE}",
        phrases=(_DEVICE_SAMPLE, r"^# (?:TYPE|HELP) DCGM_FI_"),
    ),
    load=load,
)
LOADERS = (PROMETHEUS, DCGM_EXPORTER)
