"""The frames of throughput loss: engine time by what it went to, gates, token budgets, bursts and goodput."""

from __future__ import annotations

import dataframely as dy

from infer_diag.schema import STATUSES

PARTS = (
    "idle",
    "host_stall",
    "idle_or_host",
    "prefill",
    "prefill_interference",
    "recompute",
    "padding",
    "kv_limited",
    "underfill",
    "decode",
    "residual",
    "burst_queueing",
)
USEFUL = ("prefill", "decode")
"""Parts that are the engine's purpose; the others are what it lost, apart from the residual."""


class LossParts(dy.Schema):
    """One row per part of the engines' time; the rows with `adds_up` and a value sum to the whole.

    A part that the log cannot tell has no seconds, and its `basis` names what would tell it: it is in the residual, or
    in the part that `basis` names. `burst_queueing` counts waiting requests (request-seconds) and does not add up.
    """

    part = dy.Enum(PARTS)
    engine_s = dy.Float64(nullable=True, description="seconds of all engines together")
    low_s = dy.Float64(nullable=True)
    high_s = dy.Float64(nullable=True)
    share_ratio = dy.Float64(nullable=True, description="of the whole; null where the part does not add up")
    status = dy.Enum(STATUSES)
    adds_up = dy.Bool()
    basis = dy.String(description="what it is computed from, or what is missing")


class LossGates(dy.Schema):
    """One row per check that comes before any part: two sides that have to agree within the tolerance."""

    gate = dy.Enum(("little", "token_ledger"))
    verdict = dy.Enum(("holds", "fails", "unchecked"))
    seen = dy.Float64(nullable=True)
    expected = dy.Float64(nullable=True)
    tolerance = dy.Float64(nullable=True)
    basis = dy.String()


class TokenBudgets(dy.Schema):
    """One row per token budget of a step: what decode would have waited behind prefill with it. Modelled.

    `saved_s` = stalled now − stalled then, both modelled, with the 95 % interval of a delete-block jackknife. Negative:
    it would have cost. The current budget is the row with `now`.
    """

    max_batch_tokens = dy.UInt32()
    now = dy.Bool()
    stalled_s = dy.Float64()
    saved_s = dy.Float64()
    low_s = dy.Float64(nullable=True)
    high_s = dy.Float64(nullable=True)
    p99_pause_s = dy.Float64(description="of the pauses that prefill makes in decode")
    longest_pause_s = dy.Float64()
    step_count = dy.Int64(description="steps that hold both, as many as with this budget")


class Bursts(dy.Schema):
    """One row per burst of arrivals, in order: seconds of the recording."""

    source_id = dy.UInt32()
    begin_s = dy.Float64()
    end_s = dy.Float64()
    request_count = dy.UInt32(description="that arrive in it")
    usual_count = dy.Float64(description="that are usual in as long a time around it")
    queue_s = dy.Float64(nullable=True, description="request-seconds that these wait before they are scheduled")
    untold_count = dy.UInt32(description="of these, requests whose schedule is not told, which `queue_s` leaves out")
    line = dy.UInt32(description="evidence: its first request")


class KneeLevels(dy.Schema):
    """One row per batch size that pure decode steps ran at."""

    batch_count = dy.UInt32()
    step_s = dy.Float64(description="median duration, the time per output token of each request")
    output_tokens_per_s = dy.Float64()
