"""What a node offers, out of `kubectl describe node` and of node objects: whether it has a GPU to give."""

from __future__ import annotations

from typing import Any

import polars as pl

GPU_RESOURCE = (
    r"(?:nvidia\.com/(?:gpu|mig)|amd\.com/gpu|gpu\.intel\.com/|habana\.ai/|aws\.amazon\.com/neuron|google\.com/tpu)"
)
"""Names under which device plugins offer accelerators."""

NEEDLES = r"^Name:\s|^Capacity:|^Allocatable:|^[A-Z][A-Za-z ]+:|^\s+[a-z][A-Za-z0-9./-]*:\s+[0-9]+[A-Za-z]*\s*$"

NODE = pl.Schema({"line": pl.UInt32, "node": pl.String, "gpus": pl.Int64, "registered": pl.Int64})
"""A node: `gpus` that pods may ask for, summed over its accelerator resources, 0 where it lists resources and none is
an accelerator; `registered` by the device plugin, whether healthy or not, null where only one of both is told."""


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
    several = pl.col("block").n_unique() > 1
    offered = (
        blocks.sort("block")
        .group_by("node", maintain_order=True)
        .agg(pl.col("line", "gpus").first(), pl.when(several).then(pl.col("gpus").last()).alias("registered"))
    )
    return offered.select(*NODE).cast(NODE)


def node_object(item: dict[str, Any], line: int) -> dict[str, Any] | None:
    """A row of NODE out of a node's JSON; null where it lists no resources."""
    status = item.get("status")
    told = [status.get(name) for name in ("allocatable", "capacity")] if isinstance(status, dict) else []
    counts = [_accelerators(amounts) for amounts in told if isinstance(amounts, dict) and amounts]
    if not counts or counts[0] is None:
        return None
    meta = item.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    registered = counts[1] if len(counts) > 1 else None
    return {"line": line, "node": str(name) if name is not None else None, "gpus": counts[0], "registered": registered}


def _accelerators(amounts: dict[str, Any]) -> int | None:
    """The sum over accelerator resources; null where one of their amounts is no number, which is not to have none."""
    named = pl.DataFrame({"resource": list(map(str, amounts)), "amount": list(map(str, amounts.values()))})
    found = named.filter(pl.col("resource").str.contains(f"^{GPU_RESOURCE}"))
    told = found["amount"].cast(pl.Int64, strict=False)
    return None if told.null_count() else int(told.sum())


def node_incidents(nodes: pl.DataFrame) -> pl.DataFrame:
    """Incidents about the nodes that offer no accelerator, or fewer than they have."""
    bare = pl.col("gpus") == 0
    fewer = pl.format("{} offers {} of its {}", pl.col("node").fill_null("a node"), "gpus", "registered")
    return nodes.filter(bare | (pl.col("gpus") < pl.col("registered")).fill_null(False)).select(
        "line",
        pl.when(bare).then(pl.lit("node_without_gpu")).otherwise(pl.lit("gpus_withheld")).alias("kind"),
        pl.when(bare).then("node").otherwise(fewer).alias("fields"),
    )
