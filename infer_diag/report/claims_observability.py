"""The article's chapter 5 on observability beside what a checker, an export and the projects' own pages say."""

from __future__ import annotations

from collections.abc import Sequence

from infer_diag.observability.collector_faults import Fault
from infer_diag.report.claims import Claim, Claims
from infer_diag.units import format_count

ORDERS = 10_000
"""Orders a day in the reckoning of labels; any shop has as many."""

_ANECDOTE = Claim(
    "Prometheus and Jaeger replaced by the collector",
    "alerts are answered 37 % sooner",
    None,
    "not_identifiable",
    "No source, no before and after, and a collector forwards: it answers no alert.",
)
_FIXED = (
    Claim(
        "DaemonSet collector, sidecar injected by OpenShift's mesh",
        "one set-up",
        "three patterns: agent (DaemonSet), sidecar, gateway",
        "modelled",
        "The mesh injects Envoy, not a collector; which of the three it is decides where batches and sampling happen.",
        "the projects' pages",
    ),
    Claim(
        "eBPF in OpenTelemetry's Go instrumentation",
        "by way of libbpf-go",
        "cilium/ebpf, without libbpf",
        "modelled",
        "It sees the kernel and a process's own calls. A GPU's kernels it cannot see, only the calls that launch them.",
        "the project's page",
    ),
    Claim(
        "sampling in OpenTelemetry",
        "changes with an HTTP header",
        "the header carries a decision that was taken at the head",
        "modelled",
        "What changes a rate while it runs is a sampler with a remote, or the collector's tail_sampling.",
        "W3C trace context, SDK",
    ),
    Claim(
        "sampling in Jaeger's clients",
        "static configuration",
        "remote and adaptive sampling came from there",
        "modelled",
        "The clients were retired in January 2022; that they stand still is right.",
        "their own page",
    ),
    Claim(
        "[Collector] → (filter by service.name) → [Loki+Tempo]",
        "one arrow",
        "a pipeline per signal, and a third for metrics",
        "modelled",
        "The filter processor drops what it matches; parting streams is the routing connector's work.",
        "the collector's documentation",
    ),
)


def observability_claims(faults: Sequence[Fault], *, series_count: int, phases_same: tuple[int, int]) -> Claims:
    """Every figure and tick of chapter 5 beside ours.

    `faults`: what a checker says of the article's configuration. `series_count`: time series of one export.
    `phases_same`: phases that are the same after export and import, of how many.
    """
    return Claims([_ANECDOTE, _configuration(faults), _labels(series_count), _standard(*phases_same), *_FIXED])


def _configuration(faults: Sequence[Fault]) -> Claim:
    errors = sum(fault.weight == "error" for fault in faults)
    return Claim(
        "the configuration",
        "typical",
        f"{errors} error and {len(faults) - errors} warnings: it does not start",
        "measured",
        "There is no service.pipelines; remote write takes metrics alone, so traces would have nowhere to go; "
        "nothing limits memory. A batch waits 200 ms by default, not 1 s.",
        "by this package's checker",
    )


def _labels(series_count: int) -> Claim:
    return Claim(
        "labels order_id and tenant_id",
        "both, for telling tenants apart",
        f"{format_count(series_count)} series; with order_id {format_count(series_count * ORDERS)} more a day",
        "modelled",
        "On spans both are right. On metrics a label with a new value per order makes new series for good; "
        "tenant_id is bounded.",
        f"{ORDERS:,} orders a day",
    )


def _standard(same: int, of: int) -> Claim:
    return Claim(
        "one standard for metrics, logs and traces",
        "de facto",
        f"{same} of {of} phases the same after export and import",
        "measured",
        "The conventions for generative AI (gen_ai.*) still change: vLLM's spans go by names of its own.",
        "this export, read back",
    )
