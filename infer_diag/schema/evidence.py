"""What every frame has: the way back to its line, and the names that columns are made of."""

from __future__ import annotations

import dataframely as dy

PHASES = (
    "schedule",
    "volume_mount",
    "image_pull_queue",
    "image_pull",
    "container_start",
    "process",
    "device_init",
    "weights_fetch",
    "model_build",
    "weights_load",
    "weights_read",
    "engine_build",
    "engine_load",
    "init_engine",
    "compile",
    "compile_dynamo",
    "compile_graph",
    "kv_profile",
    "kv_alloc",
    "kernel_warmup",
    "graph_capture",
    "warmup",
    "server_ready",
    "first_request",
)
"""Phases of a start in the order in which they happen."""

INSIDE = {
    "weights_read": "weights_load",
    "compile": "init_engine",
    "compile_dynamo": "compile",
    "compile_graph": "compile",
    "kv_profile": "init_engine",
    "kv_alloc": "init_engine",
    "kernel_warmup": "init_engine",
    "graph_capture": "init_engine",
}
"""The phase that encloses another one, where one does."""

STATUSES = ("measured", "modelled", "bounded", "not_identifiable")

INCIDENTS = (
    "engine_begin",
    "ready",
    "failed",
    "shutdown",
    "released",
    "cut",
    "compile_cache_hit",
    "compile_cache_miss",
    "compile_cache_used",
    "weights_cache_hit",
    "engine_cache_hit",
    "compile_off",
    "graphs_off",
    "kv_pool",
    "process_begin",
    "in_use",
    "preemption",
    "kv_full",
    "watchdog",
    "response",
    "oom",
    "restart",
    "xid",
    "eviction",
    "probe_failure",
    "unschedulable",
    "oom_killed",
    "node_without_gpu",
    "gpus_withheld",
)


def time_column(description: str | None = None) -> dy.Datetime:
    """A column of times with microseconds in UTC, null where the log has no clock."""
    return dy.Datetime(nullable=True, time_unit="us", time_zone="UTC", description=description)


class Evidence(dy.Schema):
    """The two columns that lead from a row to its line."""

    source_id = dy.UInt32(description="index in Recording.sources")
    line = dy.UInt32(description="physical line, 1-based; 0 where a source has no lines")


class Rejected(Evidence):
    """One row per line that a rule claims and cannot read."""

    rule = dy.String()
    text = dy.String(description="redacted, cut to 200 characters")
