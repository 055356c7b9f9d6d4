"""What a node offers, out of `kubectl describe node` and of node objects: whether it has a GPU to give."""

from __future__ import annotations

from typing import Any

import polars as pl

GPU_RESOURCE = (
    r"(?:nvidia\.com/(?:gpu|mig)|amd\.com/gpu|gpu\.intel\.com/|habana\.ai/|aws\.amazon\.com/neuron|google\.com/tpu)"
)
"""Names under which device plugins offer accelerators."""

NEEDLES = r"^Name:\s|^Capacity:|^Allocatable:|^[A-Z][A-Za-z ]+:|^\s+[a-z][A-Za-z0-9./-]*:\s+[0-9]+[A-Za-z]*\s*$"

NODE = pl.Schema({"line": pl.UInt32, "node": pl.String, "gpus": pl.Int64})
"""A node: `gpus` is the sum over its accelerator resources, 0 where it lists resources and none is an accelerator."""


def described_nodes(lines: pl.DataFrame) -> pl.DataFrame:
    """The nodes of `kubectl describe node` in lines `line, text`: the allocatable count where it is printed."""
    text = pl.col("text")
    block = text.str.extract(r"^(Capacity|Allocatable):\s*$")
    closes = text.str.contains(r"^[A-Z]") & block.is_null()
    read = lines.with_columns(
        text.str.extract(r"^Name:\s+(\S+)\s*$").forward_fill().alias("node"),
        pl.when(closes).then(pl.lit("")).otherwise(block).forward_fill().alias("block"),
        pl.when(block.is_not_null()).then("line").forward_fill().alias("head"),
        text.str.extract_groups(r"^\s+(?P<resource>[a-z][A-Za-z0-9./-]*):\s+(?P<amount>[0-9]+)[A-Za-z]*\s*$").alias(
            "_g"
        ),
    )
    rows = read.filter(pl.col("block").is_in(["Capacity", "Allocatable"])).with_columns(pl.col("_g").struct.unnest())
    rows = rows.filter(pl.col("resource").is_not_null())
    is_gpu = pl.col("resource").str.contains(f"^{GPU_RESOURCE}")
    amount = pl.col("amount").cast(pl.Int64, strict=False)
    blocks = rows.group_by("node", "block", maintain_order=True).agg(
        pl.col("head").first().alias("line"), pl.when(is_gpu).then(amount).otherwise(0).sum().alias("gpus")
    )
    offered = blocks.sort("block").group_by("node", maintain_order=True).first()
    return offered.select("line", "node", "gpus").cast(NODE)


def node_object(item: dict[str, Any], line: int) -> dict[str, Any] | None:
    """A row of NODE out of a node's JSON; null where it lists no resources."""
    status = item.get("status")
    offered = status.get("allocatable") or status.get("capacity") if isinstance(status, dict) else None
    if not isinstance(offered, dict) or not offered:
        return None
    amounts = pl.DataFrame({"resource": list(map(str, offered)), "amount": list(map(str, offered.values()))})
    found = amounts.filter(pl.col("resource").str.contains(f"^{GPU_RESOURCE}"))
    meta = item.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    gpus = found["amount"].cast(pl.Int64, strict=False).sum()
    return {"line": line, "node": str(name) if name is not None else None, "gpus": gpus}


def node_incidents(nodes: pl.DataFrame) -> pl.DataFrame:
    """Incidents about the nodes that offer no accelerator."""
    bare = nodes.filter(pl.col("gpus") == 0)
    return bare.select("line", pl.lit("node_without_gpu").alias("kind"), pl.col("node").alias("fields"))
