"""The frames of the cost analysis: what travels from a deployment to the fleet, and what the fleet answers."""

from __future__ import annotations

import dataframely as dy

from infer_diag.schema import STATUSES


class CostWindows(dy.Schema):
    """One row per window of a deployment's time; a column that its logs cannot tell is null in every row.

    GPU-seconds count every GPU of a replica. Tokens computed are the engine's work, tokens delivered what successful
    requests got. A batch is that of the engine's steps, in sequences of one replica.
    """

    begin_s = dy.Float64(description="since the deployment's first stamp")
    held_gpu_s = dy.Float64(min=0, description="acquired and not released")
    cold_gpu_s = dy.Float64(nullable=True, min=0, description="held before ready")
    oom_cold_gpu_s = dy.Float64(nullable=True, min=0, description="of these, by starts that follow a failed allocation")
    start_count = dy.Float64(nullable=True, min=0)
    oom_start_count = dy.Float64(nullable=True, min=0)
    idle_gpu_s = dy.Float64(nullable=True, min=0, description="ready, nothing running and nothing waiting")
    step_gpu_s = dy.Float64(nullable=True, min=0, description="inside engine steps; null where no step is timed")
    decode_tokens = dy.Float64(nullable=True, min=0, description="output tokens computed")
    prefill_tokens = dy.Float64(nullable=True, min=0, description="prompt tokens computed, recomputed ones included")
    recomputed_tokens = dy.Float64(nullable=True, min=0, description="computed again after a preemption")
    padded_tokens = dy.Float64(nullable=True, min=0, description="computed only to fill a shape")
    output_tokens = dy.Float64(nullable=True, min=0, description="delivered")
    undelivered_tokens = dy.Float64(nullable=True, min=0, description="output of requests that did not succeed")
    prompt_tokens = dy.Float64(nullable=True, min=0, description="prompts of delivered requests, cached ones included")
    cached_tokens = dy.Float64(nullable=True, min=0, description="of these, found in the prefix cache")
    offered_tokens = dy.Float64(nullable=True, min=0, description="output of the requests that arrive in the window")
    request_count = dy.Float64(nullable=True, min=0, description="delivered requests")
    step_count = dy.Float64(nullable=True, min=0, description="steps that decode: decode tokens over the batch")
    step_variance_count = dy.Float64(nullable=True, min=0, description="of step_count, where gauges sample the batch")
    context_tokens = dy.Float64(nullable=True, min=0, description="mean tokens in the KV cache per running sequence")
    running_count = dy.Float64(nullable=True, min=0, description="mean over the busy time")
    waiting_count = dy.Float64(nullable=True, min=0, description="mean over the time in which memory binds")
    bound_ratio = dy.Float64(nullable=True, min=0, max=1, description="share of the busy time in which memory binds")


class LedgerRows(dy.Schema):
    """One row per deployment and entry of its ledger."""

    deployment = dy.String()
    entry = dy.String()
    unit = dy.Enum(("GPU-s", "tokens", "$/GPU-h", "starts", "GPUs"))
    amount_count = dy.Float64(nullable=True, description="in the row's unit; null where the logs cannot tell")
    lower_count = dy.Float64(nullable=True)
    upper_count = dy.Float64(nullable=True)
    status = dy.Enum(STATUSES)
    source = dy.String(nullable=True, description="what the amount was read from")
    missing = dy.String(nullable=True, description="the log that would tell, or tell better")
    evidence = dy.List(dy.String())


class CostBars(dy.Schema):
    """One row per deployment and cause: its part of ln(cost / reference), and what stands beside it."""

    deployment = dy.String()
    cause = dy.String()
    blamed = dy.Bool(description="false: bought, paid or asked for, so no fault")
    log_ratio = dy.Float64(nullable=True, description="Shapley part of ln(cost / reference); the bars add up to it")
    lower_ratio = dy.Float64(nullable=True, description="95 % interval of log_ratio; null where the log is too short")
    upper_ratio = dy.Float64(nullable=True)
    share_ratio = dy.Float64(nullable=True, description="of ln(cost / reference); null where that may be 0")
    dollars_per_million_tokens = dy.Float64(nullable=True, description="L(c1, c0) · log_ratio, per 1M output tokens")
    saves_ratio = dy.Float64(nullable=True, description="of the deployment's cost, where this cause alone is fixed")
    saves_lower_ratio = dy.Float64(nullable=True)
    saves_upper_ratio = dy.Float64(nullable=True)
    alone_ratio = dy.Float64(nullable=True, description="factor on the reference's cost by this cause alone")
    least_ratio = dy.Float64(nullable=True, description="least log_ratio over all orders of switching")
    most_ratio = dy.Float64(nullable=True)
    demand_low_ratio = dy.Float64(nullable=True, description="log_ratio where all that waited was backlog")
    demand_high_ratio = dy.Float64(nullable=True, description="log_ratio where all that waited was demand")
    p_ratio = dy.Float64(nullable=True, description="chance of such a value where the cause does nothing")
    discovered = dy.Bool(description="stands when a tenth of all named over the fleet may be false")
    status = dy.Enum(STATUSES)
    missing = dy.String(nullable=True)


class DeploymentCosts(dy.Schema):
    """One row per deployment: what its tokens cost, against which reference, and how far that can be trusted."""

    deployment = dy.String(primary_key=True)
    group = dy.String(description="model, GPU, GPUs per replica and precision, which comparable peers share")
    reference = dy.String(nullable=True)
    window_s = dy.Float64(nullable=True, min=0)
    effective_count = dy.Float64(nullable=True, min=0, description="independent samples that the windows are worth")
    verdict = dy.Enum(("refused", "provisional", "normal"))
    dollars_per_million_tokens = dy.Float64(nullable=True, min=0, description="per 1M delivered output tokens")
    lower_dollars_per_million_tokens = dy.Float64(nullable=True)
    upper_dollars_per_million_tokens = dy.Float64(nullable=True)
    dollars_per_million_equivalent_tokens = dy.Float64(nullable=True, min=0, description="with prompts weighted by ω")
    gpu_s_per_million_tokens = dy.Float64(nullable=True, min=0)
    delivered_tokens = dy.Float64(nullable=True, min=0)
    cost_ratio = dy.Float64(nullable=True, description="cost over the reference's, per 1M output tokens")
    ratio_lower_ratio = dy.Float64(nullable=True)
    ratio_upper_ratio = dy.Float64(nullable=True)
    equivalent_ratio = dy.Float64(nullable=True, description="the same without the mix and prefix bars")
    status = dy.Enum(STATUSES, description="of the cost: bounded where the time held is a lower bound")
    notes = dy.List(dy.String())


class ChainRows(dy.Schema):
    """One row per deployment and factor of the identity: measured chain and LMDI, the check beside the bars."""

    deployment = dy.String()
    factor = dy.String()
    deployment_ratio = dy.Float64(nullable=True)
    reference_ratio = dy.Float64(nullable=True)
    log_ratio = dy.Float64(nullable=True)
    dollars_per_million_tokens = dy.Float64(nullable=True)


class Interactions(dy.Schema):
    """One row per deployment and pair of causes that overlap or add to each other by more than 0.1 (ln)."""

    deployment = dy.String()
    one = dy.String()
    other = dy.String()
    log_ratio = dy.Float64()


class FleetRollup(dy.Schema):
    """One row per cause over the whole fleet; dollars for the tokens that the logs saw delivered."""

    cause = dy.String(primary_key=True)
    blamed = dy.Bool()
    excess_dollars_count = dy.Float64(
        nullable=True, description="Σ of the bars in dollars: they add up to the fleet's excess"
    )
    recoverable_dollars_count = dy.Float64(
        nullable=True, description="Σ of what fixing the cause alone saves where it costs"
    )
    excludes_zero_count = dy.UInt32(description="deployments whose interval excludes 0")
    discovered_count = dy.UInt32(description="of these, after control of false discoveries")
    deployment_count = dy.UInt32(description="deployments that can tell of the cause")
    median_log_ratio = dy.Float64(nullable=True)


class Sensitivities(dy.Schema):
    """One row per deployment and other setting: the ratio and the bars under it, so that one sees what hangs on it."""

    deployment = dy.String()
    setting = dy.String(description="prompt tokens weighted half or twice as much, or one price for all")
    equivalent_ratio = dy.Float64(nullable=True)
    largest_cause = dy.String(nullable=True)


class CostSteps(dy.Schema):
    """The way from the reference's cost to the deployment's, in the order in which it is drawn.

    The first row is the reference, the last the deployment; a cause begins where the one before it ends. Ends of the
    interval are those of the row's `end_count`, the causes before it as they are.
    """

    deployment = dy.String()
    label = dy.String()
    cause = dy.String(nullable=True, description="null for the reference and the deployment")
    unit = dy.Enum(("$ per 1M output tokens", "GPU-s per 1M output tokens"))
    begin_count = dy.Float64()
    end_count = dy.Float64()
    lower_count = dy.Float64(nullable=True)
    upper_count = dy.Float64(nullable=True)
    saves_ratio = dy.Float64(nullable=True)
    blamed = dy.Bool()
    status = dy.Enum(STATUSES)
    missing = dy.String(nullable=True)
