"""The series that every engine is brought to: one name per meaning, whatever the engine and its version call it.

The names of metrics come from the table by which scrapes are read (`infer_diag.loaders.exposition.families`).
"""

from __future__ import annotations

from infer_diag.loaders.exposition.families import Exporter, Family

RATE_WINDOW = "5m"
"""Rates are taken over this; it holds twenty scrapes of the usual 15 seconds."""
REPLICA = ("job", "namespace", "pod", "instance", "model_name", "engine", "dp_rank")
"""Labels that tell replicas apart; ranks, reasons and the like are put together."""
SERVER = ("job", "namespace", "pod", "instance", "model_name")
"""Labels of what the front end counts: SGLang's requests carry no rank of the data-parallel engine."""

_GAUGES = {
    "running_count": "running:count",
    "waiting_count": "waiting:count",
    "swapped_count": "swapped:count",
    "kv_usage_ratio": "kv_usage:ratio",
    "prefix_hit_ratio": "prefix_hit:ratio",
}
_RATES = {
    "preemption_count": "preemptions:rate5m",
    "prompt_tokens": "prompt_tokens:rate5m",
    "output_tokens": "output_tokens:rate5m",
}
_MEANS = {
    "ttft_s": "ttft_seconds:mean5m",
    "tpot_s": "tpot_seconds:mean5m",
    "e2e_s": "e2e_seconds:mean5m",
    "queue_s": "queue_seconds:mean5m",
    "prefill_s": "prefill_seconds:mean5m",
    "decode_s": "decode_seconds:mean5m",
}


def series(name: str, engine: str) -> str:
    """The selector of a recorded series of one engine: `series("kv_usage:ratio", "vllm")`."""
    return f'infer_diag:{name}{{engine_name="{engine}"}}'


def recorded(exporter: Exporter) -> dict[str, str]:
    """Recorded series (without `infer_diag:`) to the expression over the engine's own metrics.

    Gauges as they are; counters per second over `RATE_WINDOW`; histograms as the mean, the increase of the sum divided
    by that of the count, which is exact, where a quantile is known only to lie within a bucket.
    """
    out: dict[str, str] = {}
    for family in exporter.families:
        out |= _of(exporter, family)
    if "prefix_hit:ratio" not in out and {"prefix_hits", "prefix_queries"} <= {f.column for f in exporter.families}:
        hits, queries = (_rates(exporter, family_of(exporter, column)) for column in ("prefix_hits", "prefix_queries"))
        out["prefix_hit:ratio"] = f"(\n{hits}\n)\n/\n(\n{queries}\n)"
    return out


def family_of(exporter: Exporter, column: str, kind: str = "counter") -> Family:
    """The family of a column and kind; there has to be one."""
    return next(family for family in exporter.families if (family.column, family.kind) == (column, kind))


def metric_names(exporter: Exporter, family: Family) -> list[str]:
    """Every name under which a family may be met, the one to prefer first: collectors turn a colon into `_`."""
    return [f"{prefix}{name}" for name in family.names for prefix in exporter.prefixes]


def _of(exporter: Exporter, family: Family) -> dict[str, str]:
    if family.kind == "gauge" and family.column in _GAUGES:
        return {_GAUGES[family.column]: _either(exporter, family, "{name}", REPLICA)}
    if family.kind == "counter" and family.column in _RATES:
        return {_RATES[family.column]: _rates(exporter, family)}
    if family.kind == "histogram" and family.column in _MEANS:
        parts = (
            _either(exporter, family, f"rate({{name}}_{part}[{RATE_WINDOW}])", SERVER) for part in ("sum", "count")
        )
        total, number = parts
        # Nothing finished within the window: no mean, where the plain quotient would be NaN.
        return {_MEANS[family.column]: f"(\n{total}\n)\n/\n(\n(\n{number}\n) > 0\n)"}
    return {}


def _rates(exporter: Exporter, family: Family) -> str:
    return _either(exporter, family, f"rate({{name}}[{RATE_WINDOW}])", REPLICA)


def _either(exporter: Exporter, family: Family, value: str, labels: tuple[str, ...]) -> str:
    """The first of the family's names that there is; each is put together first, so that no two are counted as one."""
    by = f"{family.across} by ({', '.join(labels)})"
    return "\nor\n".join(f"{by} ({value.format(name=name)})" for name in metric_names(exporter, family))
