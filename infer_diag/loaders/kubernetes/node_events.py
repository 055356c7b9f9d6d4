"""Lines of a node's logs (kubelet, containerd) as the same events that the API server's tables hold.

kubelet writes klog (`"SyncLoop ADD" source="api" pods=[…]`), containerd logfmt (`msg="PullImage \\"…\\""`). containerd
names the pod when it makes the sandbox, and from there on only sandboxes and containers by their ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from infer_diag.loaders.kubernetes.amounts import SECOND_US
from infer_diag.loaders.kubernetes.objects import STUCK
from infer_diag.loaders.kubernetes.tables import EVENT

_POD = r'pod="(?P<space>[a-z0-9-]+)/(?P<pod>[a-z0-9.-]+)"'
_STUCK = "|".join(STUCK)
_OF_SYSTEM = ("kube-system", "kube-public", "kube-node-lease")
"""Namespaces of what every node runs for the cluster's own sake."""

RELIST_US = SECOND_US
"""kubelet lists its containers anew every second, and tells of what it finds then."""

RUNTIME, KUBELET, SUMMARY = 1, 2, 3
"""Who tells, the finest first: events that kubelet itself sends (0), the runtime, kubelet's loop, its summary."""


@dataclass(frozen=True)
class NodeRule:
    """One kind of line: a literal that it holds, a pattern with `space` and `pod`, and the event that it is."""

    claim: str
    pattern: str
    reason: str
    origin: int = KUBELET
    step_us: int = 1
    message: str = "{}"
    """How the pattern's group `text` stands in the event's message."""


RULES = (
    NodeRule("No sandbox for pod can be found", _POD, "sandbox"),
    NodeRule("VerifyControllerAttachedVolume started", _POD, "mounting"),
    NodeRule("MountVolume.SetUp succeeded", _POD, "mounted"),
    NodeRule("Making allocation request for device", rf'(?P<text>resourceName="[^"]+").*{_POD}', "Scheduled"),
    NodeRule("SyncLoop (probe)", rf'probe="readiness" status="ready" {_POD}', "ready"),
    NodeRule(
        "Probe failed",
        rf'probeType="?(?P<text>Readiness|Liveness|Startup)"? {_POD}',
        "Unhealthy",
        message="{} probe failed",
    ),
    NodeRule("pod is evicted successfully", _POD, "Evicted", message="evicted by the node{}"),
    NodeRule(
        "Error syncing pod",
        rf"with (?P<text>{_STUCK})\b.*{_POD}",
        "BackOff",
    ),
)

NEEDLES = (
    *(rule.claim for rule in RULES),
    "SyncLoop ADD",
    "SyncLoop (ADD",
    "ContainerStarted",
    "Observed pod startup duration",
    '"Event occurred"',
    "RunPodSandbox for ",
    "PullImage ",
    "Pulled image ",
    "CreateContainer within sandbox ",
    "StartContainer for ",
    "TaskOOM event",
    "oom-kill:",
)
"""Literals of the lines that tell something."""

TOLD = pl.Schema([*EVENT.items(), ("origin", pl.Int64)])
"""EVENT, and who tells."""


def kubelet_events(records: pl.DataFrame, sandboxes: pl.Series) -> pl.DataFrame:
    """What kubelet tells (columns of TOLD) in records `line, message, us`; `sandboxes`: ids that are no container's."""
    parts = [_ruled(records, rule) for rule in RULES]
    parts += [_added(records), _started(records, sandboxes), *_summaries(records), _sent(records)]
    return pl.concat(parts)


def told(rows: pl.DataFrame, reason: pl.Expr, message: pl.Expr, origin: int, step_us: int = 1) -> pl.DataFrame:
    """Rows `line, space, pod, us` (and `count`, where it is more than one) as rows of TOLD."""
    rows = rows.filter(pl.col("pod").is_not_null() & ~pl.col("space").is_in(_OF_SYSTEM).fill_null(False))
    count = pl.col("count") if "count" in rows.columns else pl.lit(1)
    last = pl.col("last_us") if "last_us" in rows.columns else pl.col("us")
    return rows.select(
        "line",
        "pod",
        reason.alias("reason"),
        message.alias("message"),
        count.alias("count"),
        pl.col("us").alias("first_us"),
        last.alias("last_us"),
        pl.lit(step_us).alias("step_us"),
        pl.lit(None).alias("age_s"),
        pl.col("line").alias("place"),
        pl.lit(origin).alias("origin"),
    ).cast(TOLD)


def _matched(records: pl.DataFrame, claim: str, pattern: str) -> pl.DataFrame:
    mine = records.filter(pl.col("message").str.contains(claim, literal=True))
    read = mine.with_columns(pl.col("message").str.extract_groups(pattern).alias("_g"))
    fits = pl.any_horizontal(pl.col("_g").struct.unnest().is_not_null())
    return read.filter(fits).with_columns(pl.col("_g").struct.unnest()).drop("_g")


def _ruled(records: pl.DataFrame, rule: NodeRule) -> pl.DataFrame:
    rows = _matched(records, rule.claim, rule.pattern)
    text = pl.col("text") if "text" in rows.columns else pl.lit("")
    rows = rows.with_columns(text.alias("text"))
    # What is tried again and again is one event that was seen so often.
    grouped = rows.group_by("space", "pod", "text", maintain_order=True)
    counted = grouped.agg(
        pl.col("line").first(), pl.col("us").min(), pl.col("us").max().alias("last_us"), pl.len().alias("count")
    )
    rows = counted if rule.reason in ("Unhealthy", "BackOff") else rows
    return told(rows, pl.lit(rule.reason), pl.format(rule.message, "text"), rule.origin, rule.step_us)


def _added(records: pl.DataFrame) -> pl.DataFrame:
    """Pods that the API server gave to this node: placed a moment before."""
    new = records.filter(pl.col("message").str.contains('^SyncLoop (?:ADD" source="api"|\\(ADD, "?api"?\\))'))
    names = pl.col("message").str.extract_all(r"[a-z0-9-]+/[a-z0-9][a-z0-9.-]*|[a-z0-9][a-z0-9.-]*_[a-z0-9-]+\(")
    pods = new.select("line", "us", names.alias("name")).explode("name").drop_nulls("name")
    slashed = pl.col("name").str.extract_groups(r"^(?P<space>[^/]+)/(?P<pod>.+)$")
    old = pl.col("name").str.extract_groups(r"^(?P<pod>[^_]+)_(?P<space>[^(]+)\($")
    pods = pods.with_columns(
        pl.coalesce(slashed.struct.field(part), old.struct.field(part)).alias(part) for part in ("space", "pod")
    )
    return told(pods, pl.lit("Scheduled"), pl.lit("taken on by the node"), KUBELET)


def _started(records: pl.DataFrame, sandboxes: pl.Series) -> pl.DataFrame:
    """Containers that kubelet finds running; a pod's first is its sandbox, unless the runtime tells which it is."""
    rows = _matched(records, "ContainerStarted", rf'{_POD}.*ContainerStarted"?,? ?"?Data"?:"?(?P<container>[0-9a-f]+)')
    known = rows.filter(pl.col("container").is_in(sandboxes.implode()))["pod"].unique()
    others = rows.filter(~pl.col("container").is_in(sandboxes.implode()))
    first = pl.col("line") == pl.col("line").min().over("space", "pod")
    others = others.filter(pl.col("pod").is_in(known.implode()) | ~first)
    return told(others, pl.lit("Started"), pl.lit("Started container"), KUBELET, RELIST_US)


_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}(?:\.[0-9]+)? [+-][0-9]{4}"
_SUMMARY = (
    rf'{_POD} .*pod\.?CreationTimestamp="(?P<created>{_TIME})[^"]*" firstStartedPulling="(?P<pulling>{_TIME})[^"]*" '
    rf'lastFinishedPulling="(?P<pulled>{_TIME})'
)


def go_time_us(text: pl.Expr) -> pl.Expr:
    """Microseconds since 1970 of a time as Go prints it (`2026-03-14 09:26:53.25 +0000 UTC`); its zero time is null."""
    at = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f %z", time_unit="us", strict=False)
    return pl.when(at.dt.year() > 1).then(at.dt.epoch("us"))


def _summaries(records: pl.DataFrame) -> list[pl.DataFrame]:
    """kubelet's line about a pod that has started: its creation, and the begin and end of all of its pulls."""
    rows = _matched(records, "Observed pod startup duration", _SUMMARY)
    parts = []
    for column, reason, message, step_us in (
        ("created", "created", "", SECOND_US),
        ("pulling", "Pulling", 'Pulling image ""', 1),
        ("pulled", "Pulled", 'Successfully pulled image ""', 1),
    ):
        at = rows.with_columns(go_time_us(pl.col(column)).alias("us")).drop_nulls("us")
        parts.append(told(at, pl.lit(reason), pl.lit(message), SUMMARY, step_us))
    return parts


_SENT = (
    r'object="(?P<space>[a-z0-9-]+)/(?P<pod>[a-z0-9.-]+)".* kind="Pod" .*reason="(?P<why>[A-Za-z]+)" '
    r'message="(?P<text>.*)"\s*$'
)


def _sent(records: pl.DataFrame) -> pl.DataFrame:
    """Events that kubelet sends to the API server and prints as well."""
    rows = _matched(records, "Event occurred", _SENT)
    return told(rows, pl.col("why"), pl.col("text"), 0)
