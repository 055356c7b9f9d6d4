"""Findings on what the cluster did: a pod that found no accelerator, nodes that offer none, containers killed."""

from __future__ import annotations

import polars as pl

from infer_diag.diagnose.evidence import cited
from infer_diag.diagnose.finding import Finding
from infer_diag.diagnose.remedies_cold_start import remedy
from infer_diag.recording import Recording
from infer_diag.units import format_s

LACKING = (
    r"Insufficient ((?:nvidia\.com/(?:gpu|mig)|amd\.com/gpu|gpu\.intel\.com/|habana\.ai/"
    r"|aws\.amazon\.com/neuron|google\.com/tpu)(?:[A-Za-z0-9./_-]*[A-Za-z0-9])?)"
)
"""What the scheduler says of an accelerator that no node has free."""


def findings(recording: Recording, summary: pl.DataFrame, phases: pl.DataFrame) -> list[Finding]:
    """Findings `cold_start.no_gpu_resource`, pod by pod, then for nodes that lack some, and `memory.host_memory`.

    Frames in: `StartSummary` and `StartPhases` of the recording. A refusal alone does not tell whether the nodes offer
    no accelerator or all are taken; where a description of the nodes is at hand, it does.
    """
    refused = recording.incidents.filter(kind="unschedulable").with_columns(
        lacking=pl.col("fields").str.extract(LACKING)
    )
    bare = recording.incidents.filter(kind="node_without_gpu")
    waiting = phases.filter(pl.col("rank").is_null() & (pl.col("phase") == "schedule") & pl.col("duration_s").is_null())
    found = []
    for row in waiting.sort("start_id").iter_rows(named=True):
        mine = refused.filter((pl.col("start_id") == row["start_id"]) & pl.col("lacking").is_not_null())
        placed = recording.starts.filter((pl.col("start_id") == row["start_id"]) & pl.col("acquire_time").is_not_null())
        if not mine.is_empty() and placed.is_empty() and row["end_s"] is None:
            found.append(_never_placed(recording, row["start_id"], len(summary) > 1, row["lower_s"], mine, bare))
    if not found and not bare.is_empty():
        found.append(_bare_nodes(recording, bare))
    withheld = recording.incidents.filter(kind="gpus_withheld")
    if not withheld.is_empty():
        found.append(_withheld(recording, withheld))
    killed = recording.incidents.filter(kind="oom_killed")
    return [*found, *([_killed(recording, killed)] if not killed.is_empty() else [])]


def _never_placed(
    recording: Recording, start: str, several: bool, lower_s: float | None, refusals: pl.DataFrame, bare: pl.DataFrame
) -> Finding:
    resource = str(refusals["lacking"].drop_nulls().last())
    waited = f" for at least {format_s(lower_s)}" if lower_s else ""
    if bare.is_empty():
        why = f"no node has {resource} to give: either none offers it (no device plugin) or all are taken"
    else:
        nodes = bare["fields"].drop_nulls().unique().sort()
        why = f"it asks for {resource} and {_named(nodes)} offers no accelerator at all"
    return Finding(
        id="cold_start.no_gpu_resource",
        severity="high",
        sentence=f"{f'{start}: ' if several else ''}The pod was not placed{waited}: {why}.",
        status="measured",
        evidence=cited(recording, pl.concat([refusals.select("source_id", "line"), bare.select("source_id", "line")])),
        remedy=remedy("no_gpu_resource", ""),
    )


def _bare_nodes(recording: Recording, bare: pl.DataFrame) -> Finding:
    nodes = bare["fields"].drop_nulls().unique().sort()
    named = _named(nodes)
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return Finding(
        id="cold_start.no_gpu_resource",
        severity="low",
        sentence=f"{named}{more} offers no accelerator: a pod that requests one cannot be placed there.",
        status="measured",
        evidence=cited(recording, bare),
        remedy=remedy("no_gpu_resource", ""),
    )


def _withheld(recording: Recording, withheld: pl.DataFrame) -> Finding:
    told = withheld["fields"].drop_nulls().unique().sort()
    more = f", and so do {len(told) - 3} more" if len(told) > 3 else ""
    return Finding(
        id="cold_start.no_gpu_resource",
        severity="medium",
        sentence=(
            f"{'; '.join(told.head(3))} accelerators{more}: Allocatable stays below Capacity, so the others are "
            "unhealthy or reserved, whatever runs on the node."
        ),
        status="measured",
        evidence=cited(recording, withheld),
        remedy=remedy("no_gpu_resource", ""),
    )


def _killed(recording: Recording, killed: pl.DataFrame) -> Finding:
    pods = killed["replica"].drop_nulls().unique().sort()
    where = f" of {_named(pods)}" if not pods.is_empty() else ""
    return Finding(
        id="memory.host_memory",
        severity="high",
        sentence=(
            f"The kernel killed a container{where} because it reached its limit of host memory (OOMKilled): that is "
            "the container's memory, not the device's."
        ),
        status="measured",
        evidence=cited(recording, killed),
        remedy=(
            "Raise the container's memory limit, or lower what it takes while it loads: pinned buffers, a swap space "
            "of the engine, and a /dev/shm in memory count as well."
        ),
    )


def _named(nodes: pl.Series) -> str:
    return ", ".join(str(node) for node in nodes.head(3)) or "a node"
