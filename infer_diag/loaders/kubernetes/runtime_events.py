"""What containerd tells of pods: sandboxes, pulls, containers, and containers that were killed for their memory."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.kubernetes.amounts import GO_DURATION
from infer_diag.loaders.kubernetes.node_events import RUNTIME, TOLD, told

_SANDBOX = (
    r"^RunPodSandbox for &PodSandboxMetadata\{Name:(?P<pod>[^,]+),Uid:[^,]*,Namespace:(?P<space>[^,]+),[^}]*\}"
    r'(?: returns sandbox id "(?P<sandbox>[0-9a-f]+)")?'
)
_CREATED = (
    r'^CreateContainer within sandbox "(?P<sandbox>[0-9a-f]+)" for (?:container )?&ContainerMetadata\{'
    r'Name:(?P<name>[^,]+),Attempt:(?P<attempt>[0-9]+),[^}]*\} returns container id "(?P<container>[0-9a-f]+)"'
)
_STARTED = r'^StartContainer for "(?P<container>[0-9a-f]+)" returns successfully'
_KILLED = (
    r'^TaskOOM event (?:container_id:"|&TaskOOM\{ContainerID:)(?P<container>[0-9a-f]{12,})'
    r"|oom-kill:.*task_memcg=\S*?(?P<scope>[0-9a-f]{64})"
)
_BEGUN = r'^PullImage "(?P<image>[^"]+)"[^a-z]*$'
_DONE = (
    rf'^Pulled image "(?P<image>[^"]+)" with image id .*size "(?P<size>[0-9]+)" in (?P<length>{GO_DURATION})'
    r'|^PullImage "(?P<returned>[^"]+)" returns image reference'
)


def sandbox_ids(records: pl.DataFrame) -> pl.DataFrame:
    """Sandboxes whose id is told: `sandbox, space, pod`."""
    rows = _read(records, _SANDBOX).drop_nulls("sandbox")
    return rows.select("sandbox", "space", "pod").unique("sandbox", keep="first", maintain_order=True)


def runtime_events(records: pl.DataFrame, sandboxes: pl.DataFrame) -> pl.DataFrame:
    """What containerd tells (columns of TOLD) in records `line, message, us`; a pull of perhaps two pods is of none."""
    begun = _read(records, _SANDBOX)
    created = _read(records, _CREATED).join(sandboxes, on="sandbox", maintain_order="left")
    created = created.with_columns((pl.col("attempt").cast(pl.Int64) + 1).alias("count"))
    of_container = created.select("container", "space", "pod", "name", "count").unique("container", keep="first")
    started = _read(records, _STARTED).join(of_container, on="container", maintain_order="left")
    killed = _read(records, _KILLED).with_columns(pl.coalesce("container", "scope").alias("container"))
    killed = killed.join(of_container, on="container", maintain_order="left").drop("count")
    return pl.concat(
        [
            told(begun, pl.lit("sandbox"), pl.lit(""), RUNTIME),
            told(created.drop("count"), pl.lit("Created"), pl.format("Created container: {}", "name"), RUNTIME),
            told(started, pl.lit("Started"), pl.format("Started container {}", "name"), RUNTIME),
            told(killed, pl.lit("OOMKilling"), pl.format("container {} ran out of its memory", "name"), RUNTIME),
            _pulls(records, begun, created),
        ]
    )


def _read(records: pl.DataFrame, pattern: str) -> pl.DataFrame:
    read = records.with_columns(pl.col("message").str.extract_groups(pattern).alias("_g"))
    fits = pl.col("message").str.contains(pattern)
    return read.filter(fits).with_columns(pl.col("_g").struct.unnest()).drop("_g")


def _pulls(records: pl.DataFrame, begun: pl.DataFrame, created: pl.DataFrame) -> pl.DataFrame:
    """Pulls, each given to the pod whose sandbox stood and whose container was not there yet, where that is one pod."""
    begins = _read(records, _BEGUN).select("line", "us", "image")
    ends = _read(records, _DONE).with_columns(pl.coalesce("image", "returned").alias("image"))
    timed = ends.drop_nulls("length").select("line", "us", "image", "size", "length")
    plain = ends.filter(pl.col("length").is_null() & ~pl.col("image").is_in(timed["image"].implode()))
    last = created.group_by("space", "pod", maintain_order=True).agg(pl.col("us").max().alias("closes"))
    pods = begun.group_by("space", "pod", maintain_order=True).agg(pl.col("us").min().alias("opens"))
    pods = pods.join(last, on=["space", "pod"], how="left", maintain_order="left")
    reads = [
        (begins, "Pulling", pl.format('Pulling image "{}"', "image")),
        (
            timed,
            "Pulled",
            pl.format('Successfully pulled image "{}" in {}. Image size: {} bytes.', "image", "length", "size"),
        ),
        (plain, "Pulled", pl.format('Successfully pulled image "{}"', "image")),
    ]
    parts = [told(_of_one_pod(rows, pods), pl.lit(reason), message, RUNTIME) for rows, reason, message in reads]
    return pl.concat(parts) if parts else pl.DataFrame(schema=TOLD)


def _of_one_pod(rows: pl.DataFrame, pods: pl.DataFrame) -> pl.DataFrame:
    within = (pl.col("us") >= pl.col("opens")) & (pl.col("closes").is_null() | (pl.col("us") <= pl.col("closes")))
    mine = rows.join(pods, how="cross").filter(within)
    return mine.filter(pl.len().over("line") == 1).sort("line")
