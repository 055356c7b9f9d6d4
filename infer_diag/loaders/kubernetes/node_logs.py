"""kubelet's and containerd's logs to a recording: the starts of the pods that the node took on meanwhile."""

from __future__ import annotations

import re

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.kubernetes.node_events import NEEDLES, go_time_us, kubelet_events
from infer_diag.loaders.kubernetes.pod_starts import pod_frames
from infer_diag.loaders.kubernetes.runtime_events import runtime_events, sandbox_ids
from infer_diag.loaders.kubernetes.tables import EVENT
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text.clock import FileClock
from infer_diag.loaders.text.lines import Chunk
from infer_diag.loaders.text.records import records
from infer_diag.recording import Clock, Recording

_KLOG = r"^[VIWEF][0-9]{4} "
_ZONED = r"(?:Z|[+-][0-9]{2}:?[0-9]{2})$"
_HEAD_BYTES = 8 << 20
_ANCHOR = re.compile(r"[IWE](\d{4} \d\d:\d\d:\d\d\.\d{6}) [^\n]*watchObservedRunningTime=\"(\d{4}-[^\"]*? [+-]\d{4})")
_QUARTER_US = 900_000_000
_NEAR_US = 60_000_000

_SHARED = ("Pulling", "Pulled", "Created", "Started", "Scheduled", "created")
"""Reasons that several tell of, of whom the finest is believed; all else is told once."""


def load(file: LogFile, *, options: Options) -> Recording:
    """Starts, phases and incidents of the pods whose begin the log holds; what ran before has no start in it."""
    year, tz = _year_and_zone(file, options)
    lines, count = _lines(file, options)
    read, clocks = _timed(lines, year, tz)
    sandboxes = sandbox_ids(read)
    events = pl.concat([kubelet_events(read, sandboxes["sandbox"]), runtime_events(read, sandboxes)])
    events = _finest(_begun(events))
    return recorded(
        file,
        pod_frames(events.select(EVENT.names())),
        options=options,
        format="kubelet",
        engine="kubernetes",
        lines=count,
        understood=read["line"].n_unique(),
        rejected=pl.DataFrame(schema=CLAIMED),
        times=read["us"].cast(pl.Datetime("us", "UTC")),
        clocks=clocks,
    )


def _lines(file: LogFile, options: Options) -> tuple[pl.DataFrame, int]:
    pattern = "|".join(map(re.escape, NEEDLES))
    parts, count = [pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String})], 0
    for data in file.chunks():
        chunk = Chunk(data, count + 1)
        options.on_bytes(len(data))
        parts.append(chunk.matching(pattern))
        count += chunk.line_count
    return pl.concat(parts), count


def _timed(lines: pl.DataFrame, year: int | None, tz: str | None) -> tuple[pl.DataFrame, tuple[Clock, ...]]:
    """Records `line, message, us`, and the clocks that they were stamped by.

    journald's stamps have whole seconds and no zone; kubelet's and containerd's own, behind them, are finer.
    """
    found = records(lines)
    coarse = pl.col("inner").is_not_null() & ~pl.col("outer").str.contains(_ZONED)
    found = found.with_columns(pl.when(~coarse.fill_null(False)).then("outer").alias("outer"))
    clock = FileClock(year, tz)
    timed = clock.timed({"": found})[""].with_columns(
        pl.col("time").dt.epoch("us").alias("us"), pl.col("message").str.replace_all('\\"', '"', literal=True)
    )
    local = found.filter(pl.col("outer").is_null() & pl.col("inner").str.contains(_KLOG))
    clocks = clock.clocks()
    if tz is None and not local.is_empty():
        clocks = tuple(Clock(one.where, one.example, None, year_known=one.year_known) for one in clocks)
    return timed.select("line", "message", "us"), clocks


def _year_and_zone(file: LogFile, options: Options) -> tuple[int | None, str | None]:
    """Year and zone of klog's stamps, which print neither: kubelet's summary of a start prints one moment both ways."""
    if options.year is not None and options.tz is not None:
        return options.year, options.tz
    found = _ANCHOR.search(file.head(_HEAD_BYTES).decode("utf-8", "replace"))
    if found is None:
        return options.year, options.tz
    (moment,) = pl.select(go_time_us(pl.lit(found[2]))).row(0)
    if moment is None:
        return options.year, options.tz
    year = int(pl.Series([moment]).cast(pl.Datetime("us")).dt.year()[0])
    local = pl.Series([f"{year}{found[1]}"]).str.to_datetime("%Y%m%d %H:%M:%S%.f", time_unit="us", strict=False)
    (stamp,) = local.dt.epoch("us").to_list()
    if stamp is None:
        return options.year, options.tz
    quarters = round((stamp - moment) / _QUARTER_US)
    if abs(stamp - moment - quarters * _QUARTER_US) > _NEAR_US or quarters % 4 or abs(quarters) > 56:
        return options.year or year, options.tz
    # The signs of these names are turned round: Etc/GMT-8 is eight hours ahead.
    zone = "UTC" if quarters == 0 else f"Etc/GMT{-quarters // 4:+d}"
    return options.year or year, options.tz or zone


def _begun(events: pl.DataFrame) -> pl.DataFrame:
    """The events without those of pods that ran before: a kubelet that starts anew lists and finds them all again."""
    shown = pl.col("reason").is_in(["sandbox", "Pulling", "Pulled"]) | (pl.col("origin") == 0)
    began = events.filter(shown)["pod"].unique()
    of_starts = pl.col("reason").is_in(["Scheduled", "created", "mounting", "mounted", "Started", "ready"])
    return events.filter(~of_starts | pl.col("pod").is_in(began.implode()))


def _finest(events: pl.DataFrame) -> pl.DataFrame:
    finest = pl.col("origin") == pl.col("origin").min().over("pod", "reason")
    return events.filter(~pl.col("reason").is_in(_SHARED) | finest).sort("line")


LOADER = Loader(
    name="kubelet",
    about="Logs of kubelet (klog) and containerd (logfmt, JSON): pods taken on, volumes, pulls, containers, kills",
    versions="structured klog, 2021 to 2026; containerd, 2019 to 2026",
    frames=("starts", "phases", "incidents"),
    example=(
        'I0123 12:34:56.789012    1234 util.go:30] "No sandbox for pod can be found. Need to start a new '
        'one" pod="default/llm-0"\n'
        'I0123 12:34:57.000000    1234 operation_generator.go:721] "MountVolume.SetUp succeeded for '
        'volume \\"models\\" (UniqueName: \\"csi/x\\") pod \\"llm-0\\" (UID: \\"d1\\") " pod="default/llm-0"'
    ),
    signature=Signature(
        phrases=(
            r'"SyncLoop (?:ADD|UPDATE|REMOVE|DELETE|RECONCILE|\(PLEG\)|\(probe\)|\(ADD)',
            r"[VIWEF][0-9]{4} [0-9:.]{15} +[0-9]+ (?:kubelet\w*|reconciler\w*|operation_generator|prober\w*|pod_workers"
            r"|pod_startup_latency_tracker|eviction_manager|kuberuntime_\w+|topology_manager|scope|util)\.go:[0-9]+\]",
            r'\bmsg"?[=:]"?(?:RunPodSandbox|PullImage|Pulled image|CreateContainer within sandbox|StartContainer for'
            r"|TaskOOM event|ImageCreate event|ImageUpdate event|StopPodSandbox|RemoveContainer for)",
            r"&PodSandboxMetadata\{Name:",
        )
    ),
    load=load,
)
