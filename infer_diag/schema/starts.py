"""The frames of starts: their phases, bars and discrete events."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.schema.evidence import INCIDENTS, PHASES, STATUSES, Evidence, time_column


class Starts(Evidence):
    """One row per engine start found."""

    start_id = dy.String(primary_key=True, description="unique in the recording, in order of appearance")
    replica = dy.String(nullable=True, description="data-parallel replica, where the log tells several apart")
    last_line = dy.UInt32(description="last physical line of this start")
    first_time = time_column("first stamp of this start")
    last_time = time_column("last stamp of this start, ready included")
    acquire_time = time_column("device assigned; only cluster events tell")
    ready_time = time_column("stamp of the ready line or of the last one before it")
    ready_line = dy.UInt32(nullable=True, description="line that says that the server is up")
    failed_line = dy.UInt32(nullable=True, description="first line that says that the start failed")
    wall_s = dy.Float64(nullable=True, min=0, description="whole run of the process, where a shell's `time` told it")
    served = dy.Bool(description="the engine is seen serving after this start")


class Phases(Evidence):
    """One row per line that tells of an interval of a start.

    `duration_s` with `end`: printed at its end, so the interval is [end − duration_s, end]. `begin` alone: seen to
    begin. `end` alone: seen to end. `lower_s`: lasted at least so long (a bar's elapsed time). `upper_s`: at most so
    long (a printed duration that holds more than the phase).
    """

    start_id = dy.String()
    replica = dy.String(nullable=True)
    rank = dy.String(nullable=True, description="worker, where workers are told apart")
    phase = dy.Enum(PHASES)
    inside = dy.Enum(PHASES, nullable=True, description="enclosing phase")
    begin = time_column()
    end = time_column()
    duration_s = dy.Float64(nullable=True, min=0)
    lower_s = dy.Float64(nullable=True, min=0)
    upper_s = dy.Float64(nullable=True, min=0)
    resolution_s = dy.Float64(nullable=True, min=0, description="half of the last printed digit")
    is_total = dy.Bool(description="sums what other lines print one by one, so it is no interval of its own")
    status = dy.Enum(STATUSES)
    size_bytes = dy.Float64(nullable=True, min=0, description="bytes moved or taken, where the line says so")


class StartTotals(Evidence):
    """One row per step of starts and resource of a source that sums over many and tells of no single one.

    `pod_start` lasts from kubelet's first sight of a pod until it runs, `pod_start_total` from the pod's creation until
    its containers are seen to have started, and `pod_start_without_pulls` is that without pulls and init containers.
    """

    step = dy.Enum(
        (
            "device_registration",
            "device_allocation",
            "sandbox",
            "image_pull",
            "container_create",
            "container_start",
            "pod_start",
            "pod_start_total",
            "pod_start_without_pulls",
        )
    )
    resource = dy.String(nullable=True, description="what a device plugin offers")
    event_count = dy.UInt64()
    mean_s = dy.Float64(nullable=True, min=0, description="null where the source counts and does not time")
    bucket_max_s = dy.List(
        dy.Float64(nullable=True), nullable=True, description="upper bounds of a histogram's buckets; null: without one"
    )
    bucket_counts = dy.List(dy.UInt64(), nullable=True, description="events in each bucket, above the bound before")


class Progress(Evidence):
    """One row per reading of a progress bar of a start."""

    start_id = dy.String()
    replica = dy.String(nullable=True)
    rank = dy.String(nullable=True)
    phase = dy.Enum(PHASES)
    time = time_column()
    done_count = dy.UInt32()
    total_count = dy.UInt32()
    elapsed_s = dy.Float64(nullable=True, min=0, description="the bar's own clock")

    @dy.rule()
    def done_within_total(cls) -> pl.Expr:
        """A bar never stands beyond its end."""
        return cls.done_count.col <= cls.total_count.col


class Incidents(Evidence):
    """One row per discrete event."""

    start_id = dy.String(nullable=True)
    replica = dy.String(nullable=True)
    rank = dy.String(nullable=True)
    time = time_column()
    kind = dy.Enum(INCIDENTS)
    fields = dy.String(nullable=True, description="what else the line says, redacted and cut to 200 characters")
