"""What a described node has, offers and has given away of each accelerator, and where events placed pods."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.loaders.kubernetes.nodes import GPU_RESOURCE

PLUGIN_STOPPED = "the device plugin has stopped, or never registered, so no pod that asks for one can start here"


class NodeResources(dy.Schema):
    """One row per node and accelerator resource of `kubectl describe node`."""

    node = dy.String(nullable=True)
    resource = dy.String()
    capacity_count = dy.Int64(nullable=True, description="registered by the device plugin")
    allocatable_count = dy.Int64(nullable=True, description="healthy and not reserved: what may be requested")
    requested_count = dy.Int64(nullable=True, description="requested by pods on the node; null where it is not printed")
    line = dy.UInt32(description="first line of the node that names the resource")


class Placements(dy.Schema):
    """One row per pod that the scheduler placed, as its events say."""

    tenant = dy.String(description="namespace")
    pod = dy.String()
    node = dy.String()
    line = dy.UInt32()


def node_resources(text: str) -> dy.DataFrame[NodeResources]:
    """Capacity, Allocatable and requests of every accelerator in the output of `kubectl describe node`.

    Frame out: NodeResources; empty where the text describes no node with an accelerator.
    """
    lines = pl.DataFrame({"text": text.splitlines()}).with_row_index("line", 1)
    raw = pl.col("text")
    block = raw.str.extract(r"^(Capacity|Allocatable|Allocated resources):\s*$")
    read = lines.with_columns(
        raw.str.extract(r"^Name:\s+(\S+)\s*$").forward_fill().alias("node"),
        pl.when(raw.str.contains(r"^\S")).then(block.fill_null("")).forward_fill().alias("block"),
        raw.str.extract_groups(rf"^\s+(?P<resource>{GPU_RESOURCE}\S*?):?\s+(?P<amount>[0-9]+)(?:\s|$)").alias("_g"),
    )
    named = read.with_columns(pl.col("_g").struct.unnest()).filter(
        pl.col("resource").is_not_null() & (pl.col("block") != "")
    )
    amounts = named.with_columns(pl.col("amount").cast(pl.Int64, strict=False))
    of = {"capacity_count": "Capacity", "allocatable_count": "Allocatable", "requested_count": "Allocated resources"}
    told = amounts.group_by("node", "resource", maintain_order=True).agg(
        *(pl.col("amount").filter(pl.col("block") == block).first().alias(name) for name, block in of.items()),
        pl.col("line").min(),
    )
    return NodeResources.validate(told.select(NodeResources.column_names()), cast=True)


def placements(text: str) -> dy.DataFrame[Placements]:
    """Tenant (namespace), pod and node of every `Successfully assigned` in tables of events or events as JSON.

    Frame out: Placements.
    """
    lines = pl.DataFrame({"text": text.splitlines()}).with_row_index("line", 1)
    pattern = (
        r"Successfully assigned (?P<tenant>[a-z0-9.-]+)/(?P<pod>[a-z0-9.-]+) to (?P<node>[A-Za-z0-9.-]*[A-Za-z0-9])"
    )
    found = lines.with_columns(pl.col("text").str.extract_groups(pattern).struct.unnest()).drop_nulls("pod")
    return Placements.validate(found.select(Placements.column_names()), cast=True)


def resource_check(resources: pl.DataFrame) -> tuple[str, ...]:
    """What Capacity beside Allocatable says, one sentence per node and resource.

    Frame in: NodeResources. The difference is what is unhealthy or reserved; what pods use stands under Allocated
    resources and changes neither.
    """
    return tuple(_sentence(row) for row in resources.iter_rows(named=True))


def _sentence(row: dict[str, object]) -> str:
    name = f"{row['node'] or 'a node'}, {row['resource']}"
    capacity, allocatable, requested = (row[f"{part}_count"] for part in ("capacity", "allocatable", "requested"))
    if not isinstance(capacity, int) or not isinstance(allocatable, int):
        return f"{name}: Capacity and Allocatable are not both printed"
    used = f", {requested} of these requested by pods" if isinstance(requested, int) else ""
    if capacity == 0:
        return f"{name}: 0 registered: {PLUGIN_STOPPED}"
    if allocatable == 0:
        return f"{name}: {capacity} registered and none healthy: {PLUGIN_STOPPED}"
    if allocatable < capacity:
        return f"{name}: {capacity - allocatable} of {capacity} are unhealthy or reserved, {allocatable} offered{used}"
    return f"{name}: all {capacity} are offered{used}"
