"""The frames about many starts."""

from __future__ import annotations

import dataframely as dy

from infer_diag.results import OUTCOMES
from infer_diag.schema import STATUSES

CACHES = ("cold", "warm")
UNLOGGED, SPAN = "unlogged", "span"
"""What is no phase: the time that no line explains, and the whole start."""


class StartsTogether(dy.Schema):
    """One row per start of all recordings."""

    deployment = dy.String(primary_key=True, description="name of the recording")
    start_id = dy.String(primary_key=True)
    replica = dy.String(nullable=True)
    configuration = dy.String(description="model, engine and GPUs: starts are compared within one")
    outcome = dy.Enum(OUTCOMES)
    caches = dy.Enum(CACHES, nullable=True, description="cold where anything had to be made anew; null: no line tells")
    span_s = dy.Float64(nullable=True, min=0)
    hold_s = dy.Float64(nullable=True, min=0)
    container_s = dy.Float64(
        nullable=True,
        min=0,
        description="from the container's start, or the first line where no event tells of a pod, to ready",
    )
    unlogged_s = dy.Float64(nullable=True, min=0)
    unlogged_ratio = dy.Float64(nullable=True, min=0, description="of the span")
    gpu_count = dy.UInt32(nullable=True)
    gpu_s = dy.Float64(nullable=True, min=0, description="GPU-seconds: GPUs times the hold, or what of it is seen")
    gpu_status = dy.Enum(STATUSES)
    evidence = dy.String(description="path:line of the start's first line")


class StartParts(dy.Schema):
    """One row per start and exclusive part of it: parts of one start add up to its span."""

    deployment = dy.String()
    start_id = dy.String()
    caches = dy.Enum(CACHES, nullable=True)
    part = dy.String(description="phase, or `unlogged`")
    duration_s = dy.Float64(min=0)


class PhaseSpreads(dy.Schema):
    """One row per deployment, state of the caches, and part: the spread over the starts that tell it."""

    deployment = dy.String()
    caches = dy.Enum(CACHES, nullable=True)
    part = dy.String(description="phase, `unlogged` or `span`")
    start_count = dy.UInt32()
    min_s = dy.Float64(min=0)
    p50_s = dy.Float64(min=0)
    max_s = dy.Float64(min=0)
    low_s = dy.Float64(nullable=True, description="95 % interval of the median; null below 6 starts")
    high_s = dy.Float64(nullable=True)


class CacheSavings(dy.Schema):
    """One row per configuration and part that both kinds of start tell: how much longer it lasts with cold caches."""

    configuration = dy.String(primary_key=True)
    part = dy.String(primary_key=True, description="phase, `unlogged` or `span`")
    cold_count = dy.UInt32()
    warm_count = dy.UInt32()
    saved_s = dy.Float64(description="Hodges–Lehmann shift, cold minus warm")
    low_s = dy.Float64(nullable=True, description="95 % interval; null below 6 starts of either kind")
    high_s = dy.Float64(nullable=True)


class Stragglers(dy.Schema):
    """One row per deployment, phase and worker that was last to end it, over the starts with two workers or more."""

    deployment = dy.String()
    phase = dy.String()
    rank = dy.String()
    slowest_count = dy.UInt32()
    start_count = dy.UInt32()
    excess_s = dy.Float64(min=0, description="median, over those starts, of its end after the median worker's end")
    chance_ratio = dy.Float64(min=0, max=1, description="of some worker being last so often if each were as likely")


class StartRequests(dy.Schema):
    """One row per request after a start, in the order of arrival; what the penalty is made of."""

    deployment = dy.String()
    start_id = dy.String()
    order_id = dy.UInt32(description="0 is the first request after the start")
    ttft_s = dy.Float64(min=0)
    prompt_tokens = dy.UInt32(nullable=True)
    queue_s = dy.Float64(nullable=True, min=0)
    cached_tokens = dy.UInt32(nullable=True)


class FirstRequests(dy.Schema):
    """One row per start whose first request can be held against steady ones."""

    deployment = dy.String()
    start_id = dy.String()
    first_ttft_s = dy.Float64(min=0)
    steady_ttft_s = dy.Float64(min=0, description="median of the steady requests of the same prompt length")
    steady_count = dy.UInt32()
    penalty_s = dy.Float64(description="first minus steady")
