"""The frames of batch control, declared once."""

from __future__ import annotations

import dataframely as dy


class PlantRates(dy.Schema):
    """One row per size of a batch: how long it takes, and what a server that always fills it serves. Modelled."""

    batch_count = dy.UInt32(primary_key=True)
    duration_s = dy.Float64(min=0)
    served_per_s = dy.Float64(min=0)


class ControlRuns(dy.Schema):
    """One row per scenario, policy and seed. Simulated; the bounds are modelled.

    arrived = served + dropped + unfinished. Rates count a batch across an end of their interval by the share of its
    time inside.
    """

    scenario = dy.String()
    policy = dy.String()
    seed_id = dy.UInt32()
    arrived_count = dy.UInt32()
    served_count = dy.UInt32(description="ended before the horizon")
    dropped_count = dy.UInt32()
    unfinished_count = dy.UInt32(description="waiting or in a batch at the horizon")
    served_per_s = dy.Float64(min=0, description="over the whole run")
    burst_served_per_s = dy.Float64(nullable=True, min=0, description="over the burst; null without one")
    in_slo_ratio = dy.Float64(
        nullable=True, min=0, max=1, description="of the arrivals whose deadline lies before the horizon"
    )
    p50_response_s = dy.Float64(nullable=True, min=0, description="of all not dropped; null: half are unfinished")
    p99_response_s = dy.Float64(nullable=True, min=0, description="of all not dropped; null: over 1 % are unfinished")
    mean_batch_count = dy.Float64(nullable=True, min=0)
    recovery_s = dy.Float64(
        nullable=True, min=0, description="end of the burst to the last arrival that missed the SLO; null: none seen"
    )
    most_in_slo_ratio = dy.Float64(nullable=True, min=0, max=1, description="no controller can exceed it")
    most_burst_per_s = dy.Float64(nullable=True, min=0, description="no controller can exceed it")


class ControlSummary(dy.Schema):
    """One row per scenario, policy and measure: the mean over seeds and its 95 % interval (Student's t)."""

    scenario = dy.String()
    policy = dy.String()
    measure = dy.Enum(
        (
            "served_per_s",
            "burst_served_per_s",
            "in_slo_ratio",
            "p99_response_s",
            "dropped_count",
            "unfinished_count",
            "mean_batch_count",
            "recovery_s",
            "most_in_slo_ratio",
            "most_burst_per_s",
        )
    )
    mean = dy.Float64(nullable=True, description="null where a seed has none, since the others would flatter it")
    lower = dy.Float64(nullable=True, description="null for one seed, or where the arrivals are a log's")
    upper = dy.Float64(nullable=True)
    seed_count = dy.UInt32()
    known_count = dy.UInt32(description="seeds with a value")


class ControlSteps(dy.Schema):
    """One row per batch of one run."""

    scenario = dy.String()
    policy = dy.String()
    seed_id = dy.UInt32()
    begin_s = dy.Float64(min=0)
    duration_s = dy.Float64(min=0)
    limit_count = dy.UInt32(description="the largest batch that the controller allowed")
    batch_count = dy.UInt32()
    waiting_count = dy.UInt32(description="when the batch began, those that it took included")
    dropped_count = dy.UInt32(description="since the batch before")
    oldest_wait_s = dy.Float64(min=0, description="of the oldest request in the batch")
    served_per_s = dy.Float64(min=0, description="batch / duration")
