"""The frames that the analysis of heaps returns. A value that the recording cannot tell is null."""

from __future__ import annotations

import dataframely as dy

BASES = ("segments", "touched")
BRICK_STATES = ("cached", "stuck", "awaiting", "active")
"""Idle in a segment without live blocks, idle beside live blocks, freed and still waited for, live."""


class HeapCurves(dy.Schema):
    """One row per instant and scope: the whole device, and each pool whose blocks never share a hole with others'.

    `basis` `touched`: the recording names no segments, so what is reserved and idle is a lower bound. Segments that
    only a driver's trace tells of (`cudaMalloc`) have no blocks, and all but `reserved_bytes` is null.
    """

    source_id = dy.UInt32()
    gpu = dy.String(nullable=True)
    scope = dy.Enum(("device", "pool"))
    segment_kind = dy.Enum(("small", "large"), nullable=True)
    pool = dy.String(nullable=True, description="private pool of a captured graph, where a snapshot names it")
    stream = dy.String(nullable=True)
    event_id = dy.Int64(description="0-based number of the last event that counts; -1 before the first")
    line = dy.UInt32(description="evidence: the event's line, 0 where the source has none")
    time = dy.Datetime(nullable=True, time_unit="us", time_zone="UTC")
    time_s = dy.Float64(nullable=True, min=0, description="since the first stamped event")
    is_failure = dy.Bool(description="the event is a failed allocation")
    basis = dy.Enum(BASES)
    reserved_bytes = dy.Int64(nullable=True, min=0, description="taken from the driver")
    active_bytes = dy.Int64(nullable=True, min=0, description="live, or freed and still waited for by a stream")
    allocated_bytes = dy.Int64(nullable=True, min=0, description="live")
    requested_bytes = dy.Int64(nullable=True, min=0, description="what live blocks asked for, before rounding")
    peak_active_bytes = dy.Int64(nullable=True, min=0, description="most active since the instant before")
    idle_bytes = dy.Int64(nullable=True, min=0, description="in holes")
    inactive_split_bytes = dy.Int64(nullable=True, min=0, description="in holes beside live blocks of their segment")
    largest_free_bytes = dy.Int64(nullable=True, min=0)
    hole_count = dy.Int64(nullable=True, min=0)
    external_frag_ratio = dy.Float64(nullable=True, min=0, max=1, description="1 − largest hole / idle")
    weighted_unusable_ratio = dy.Float64(
        nullable=True, min=0, max=1, description="idle bytes that a request cannot use, mean over the bytes requested"
    )
    beyond_largest_ratio = dy.Float64(
        nullable=True, min=0, max=1, description="share of the recording's requests larger than the largest hole"
    )


class HeapAgreement(dy.Schema):
    """One row per source and device: how the replayed final state compares with the snapshot, and what does not fit."""

    source_id = dy.UInt32()
    gpu = dy.String(nullable=True)
    basis = dy.Enum(BASES)
    block_count = dy.UInt32(description="blocks of the snapshot, idle ones too; 0 without a snapshot")
    equal_count = dy.UInt32(description="of them those with the same address, size and state in the replay")
    replayed_count = dy.UInt32(description="blocks and holes of the replay in segments that the snapshot knows")
    sized_by_rule_count = dy.UInt32(description="allocations whose size the allocator's rounding gave")
    sized_later_count = dy.UInt32(description="allocations whose size only a later event or the snapshot gave")
    outside_count = dy.UInt32(description="allocations in no known segment")
    overlapping_count = dy.UInt32(description="blocks at a place that was taken: their free was not recorded")
    unknown_free_count = dy.UInt32(description="frees of what was not there")
    uncovered_count = dy.UInt32(description="changes of segments that do not fit those that are known")


class MemoryWaste(dy.Schema):
    """One row per source, snapshot, device and pool, and one with scope `device`: what reserved memory is used for.

    requested + internal + awaiting + stuck + cached + unnamed = reserved, exactly; `internal` is rounding, `stuck` idle
    bytes beside live blocks (external fragmentation), `cached` idle bytes that could go back to the driver
    (reservation), `unnamed` those of segments that no block of the map names.
    """

    source_id = dy.UInt32()
    snapshot = dy.String()
    gpu = dy.String(nullable=True)
    scope = dy.Enum(("device", "pool"))
    segment_kind = dy.Enum(("small", "large"), nullable=True)
    pool = dy.String(nullable=True)
    stream = dy.String(nullable=True)
    reserved_bytes = dy.Int64(min=0)
    requested_bytes = dy.Int64(nullable=True, min=0)
    internal_bytes = dy.Int64(nullable=True, min=0)
    awaiting_bytes = dy.Int64(min=0, description="freed, and still waited for by a stream")
    stuck_bytes = dy.Int64(min=0)
    cached_bytes = dy.Int64(min=0)
    unnamed_bytes = dy.Int64(min=0)
    largest_free_bytes = dy.Int64(min=0)
    hole_count = dy.Int64(min=0)
    internal_frag_ratio = dy.Float64(nullable=True, min=0, max=1, description="internal / (requested + internal)")
    stuck_ratio = dy.Float64(nullable=True, min=0, max=1, description="stuck / reserved")
    cached_ratio = dy.Float64(nullable=True, min=0, max=1, description="cached / reserved")
    external_frag_ratio = dy.Float64(nullable=True, min=0, max=1, description="1 − largest hole / idle")


class HoleSizes(dy.Schema):
    """One row per power of two: the holes of an instant from this size up to the next."""

    source_id = dy.UInt32()
    gpu = dy.String(nullable=True)
    segment_kind = dy.Enum(("small", "large"), nullable=True)
    stream = dy.String(nullable=True)
    size_bytes = dy.Int64(min=1, description="smallest size of the row")
    hole_count = dy.UInt32()
    idle_bytes = dy.Int64(min=0)
    request_count = dy.UInt64(
        nullable=True, description="recorded requests of these sizes; null where none is recorded"
    )


class MapBricks(dy.Schema):
    """One row per brick of a block map, in the order of addresses: a block, a hole, or a run of small neighbours."""

    source_id = dy.UInt32()
    gpu = dy.String(nullable=True)
    event_id = dy.Int64(description="0-based number of the last event that counts; -1 before the first")
    time_s = dy.Float64(nullable=True, min=0, description="since the first stamped event")
    begin_bytes = dy.Int64(
        min=0, description="place on the map: segments one behind the other, without the space between"
    )
    size_bytes = dy.Int64(min=1)
    address_id = dy.UInt64()
    segment_id = dy.UInt64()
    segment_bytes = dy.Int64(min=1)
    state = dy.Enum(BRICK_STATES)
    block_count = dy.UInt32(description="blocks and holes that share the brick")
    live_bytes = dy.Int64(min=0)
    requested_bytes = dy.Int64(nullable=True, min=0)
    segment_kind = dy.Enum(("small", "large"), nullable=True)
    pool = dy.String(nullable=True)
    stream = dy.String(nullable=True)
    allocated_event_id = dy.Int64(nullable=True, description="event that allocated it; null: before the recording")
    requester = dy.String(nullable=True, description="Python frame that asked for it, of blocks that live at the end")
