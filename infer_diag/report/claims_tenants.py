"""The article's section 2.5 on the device plugin and its tenants beside what models and recordings say."""

from __future__ import annotations

from infer_diag.attribution.starts_together import Penalty
from infer_diag.attribution.tenancy import burst_waits, poisson_load_for
from infer_diag.attribution.tenancy.allocation_totals import METRIC
from infer_diag.report.claims import Claim, Claims
from infer_diag.units import format_ratio, format_s

ARTICLE_COLD_S = 0.420
ARTICLE_WARM_S = 0.085
ARTICLE_LOCK_S = 0.300

QUERY = (
    f"histogram_quantile(0.99, sum by (resource_name, le) (rate({METRIC}_bucket"
    '{resource_name="nvidia.com/gpu"}[15m])))'
)
"""PromQL that works: the 99th percentile of kubelet's calls of Allocate."""


def lock_lines() -> list[str]:
    """What would have to be so for the article's extra wait, as a burst and as steady load."""
    extra = ARTICLE_COLD_S - ARTICLE_WARM_S
    load = poisson_load_for(extra, ARTICLE_WARM_S)
    burst = burst_waits(8, ARTICLE_WARM_S)
    return [
        f"eight allocations at once, {format_s(ARTICLE_WARM_S)} each: "
        f"mean wait {burst.mean_s * 1e3:.1f} ms, the last {format_s(burst.last_s)}",
        f"{format_s(extra)} under steady load needs the lock {format_ratio(load)} of the time held, "
        f"{load / ARTICLE_WARM_S:.1f} allocations a second on one node",
        f"{format_s(ARTICLE_LOCK_S)} behind 109 other pods needs {2 * ARTICLE_LOCK_S / 109 * 1e3:.1f} ms each",
    ]


_FIXED = (
    Claim(
        "who calls Register()",
        "every namespace, concurrently",
        "the plugin, once per resource, when it or kubelet starts",
        "modelled",
        "no tenant ever calls it, so no state has to be brought into step before Allocate",
        "device plugin API",
    ),
    Claim(
        "what to check on the node",
        "Allocatable against Capacity",
        "unhealthy or reserved devices",
        "modelled",
        "the difference does not move with use: requests stand under Allocated resources",
        "kubectl describe node",
    ),
    Claim(
        "the metric",
        "device_plugin_allocation_duration_seconds",
        METRIC,
        "modelled",
        "a histogram by resource_name, and kubelet's own; before it alloc_latency_microseconds",
        "kubelet's metrics",
    ),
)


def tenant_claims(penalty: Penalty | None = None) -> Claims:
    """Every figure of the article's section 2.5 beside ours; with the recorded starts' first requests, if given."""
    return Claims([_FIXED[0], *_lock_claims(), *_FIXED[1:], *([_first(penalty)] if penalty is not None else [])])


def _lock_claims() -> list[Claim]:
    extra = ARTICLE_COLD_S - ARTICLE_WARM_S
    load, burst = poisson_load_for(extra, ARTICLE_WARM_S), burst_waits(8, ARTICLE_WARM_S)
    return [
        Claim(
            "a global d.mu in Allocate()",
            f"+{format_s(ARTICLE_LOCK_S)} on average",
            f"{burst.mean_s * 1e3:.1f} ms for eight at once, of {format_s(ARTICLE_WARM_S)} each",
            "modelled",
            "NVIDIA's plugin holds no lock there and answers in less than a millisecond; it is kubelet that admits the "
            "pods of a node one after another",
            "one server, constant service",
        ),
        Claim(
            "start without and with a warm pool",
            f"{format_s(ARTICLE_COLD_S)} and {format_s(ARTICLE_WARM_S)}",
            f"{format_s(extra)} more would need {load / ARTICLE_WARM_S:.1f} allocations a second, or nine at once",
            "modelled",
            "“2-core GPU” is no unit: extended resources are whole numbers, and GPUs have no cores to request. What "
            "can be kept warm is a placeholder pod and a pulled image; shares are MIG, time slices or MPS",
            "M/D/1 and a burst",
        ),
    ]


def _first(penalty: Penalty) -> Claim:
    found = penalty.location
    if found is None or found.low is None:
        return Claim("what the first request pays", "none given", None, "not_identifiable", penalty.reason or "")
    cold = "; the prefix cache of the first is empty too" if penalty.includes_cold_prefix else ""
    return Claim(
        "what the first request pays",
        "none given",
        f"{format_s(found.value)} more to its first token (95 %: {format_s(found.low)} to {format_s(found.high)})",
        "recorded",
        f"{found.count} starts of vLLM on a CPU, where no graph is left to capture{cold}",
        "2 CPU cores",
    )
