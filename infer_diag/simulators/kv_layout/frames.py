"""The frames of KV layouts, declared once."""

from __future__ import annotations

import dataframely as dy


class LayoutReads(dy.Schema):
    """One row per layout, tensor, reader and width of a load. Modelled: counted from the addresses of a warp."""

    layout = dy.String()
    tensor = dy.Enum(("keys", "values"))
    reader = dy.String()
    load_bytes = dy.UInt32()
    run_bytes = dy.UInt64(description="of one head that lie side by side")
    sector_count = dy.Float64(
        nullable=True, description="of 32 bytes, per load of a warp; null: it cannot be loaded so"
    )
    line_count = dy.Float64(nullable=True, description="of 128 bytes, per load of a warp")
    efficiency_ratio = dy.Float64(nullable=True, min=0, max=1, description="used bytes / (32 · sectors)")


class WidthReads(dy.Schema):
    """One row per layout and head width: what lanes along head_dim touch with the widest load that fits. Modelled."""

    layout = dy.String()
    head_dim_count = dy.UInt32(description="elements of 2 bytes")
    load_bytes = dy.UInt32(description="widest aligned load")
    efficiency_ratio = dy.Float64(min=0, max=1)


class BankConflicts(dy.Schema):
    """One row per width of a row in shared memory, arrangement and access. Modelled."""

    row_bytes = dy.UInt32()
    arrangement = dy.String()
    access = dy.Enum(("row", "column"))
    load_bytes = dy.UInt32()
    conflict_count = dy.UInt32(nullable=True, description="times as long as without conflicts; null: not arranged so")


class L2Hits(dy.Schema):
    """One row per layout and order of thread blocks: a decode step of one layer. Simulated; the bound is modelled."""

    layout = dy.String()
    order = dy.String()
    group_count = dy.UInt32(description="query heads per KV head")
    access_bytes = dy.UInt64(description="asked of the L2")
    memory_bytes = dy.UInt64(description="that came from device memory")
    hit_ratio = dy.Float64(min=0, max=1)
    most_hits_ratio = dy.Float64(min=0, max=1, description="1 − 1/g")


class Occupancies(dy.Schema):
    """One row per registers of a thread and shared memory of a block: what an SM holds. Modelled."""

    sm = dy.String()
    thread_count = dy.UInt32()
    register_count = dy.UInt32(description="of a thread")
    shared_bytes = dy.UInt64(description="of a block")
    block_count = dy.UInt32()
    occupancy_ratio = dy.Float64(min=0, max=1)
    limited_by = dy.String()
