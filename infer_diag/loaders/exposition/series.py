"""A series (a name with its labels) read once for all its samples, by the Prometheus client's own parser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from infer_diag.loaders.exposition.families import MEANINGS

SERIES: dict[str, pl.DataType | type[pl.DataType]] = {
    "series": pl.Categorical,
    "name": pl.String,
    "engine": pl.String,
    "column": pl.String,
    "kind": pl.String,
    "part": pl.String,
    "scale": pl.Float64,
    "across": pl.String,
    "rank": pl.Int64,
    "place": pl.String,
    "replica": pl.String,
    "model": pl.String,
    "le": pl.Float64,
    "host": pl.String,
    "gpu": pl.String,
    "uuid": pl.String,
    "instance": pl.String,
}
"""A series with what its name means and the labels that tell things apart; `replica` is the data-parallel engine."""

_PLACES = ("pod", "exported_pod", "pod_name", "instance")
_HOSTS = ("Hostname", "hostname", "exported_hostname", "node", "instance")
_ABOUT = ("model_name", "model", "resource_name", "operation_type")
_PARALLEL = ("engine", "dp_rank")


def read_series(texts: Iterable[str]) -> tuple[pl.DataFrame, list[str]]:
    """(rows of SERIES of the texts `name{labels}` that mean something, texts that are no series)."""
    # The client brings a web server along; who diagnoses a text log should not wait for it.
    from prometheus_client.parser import text_string_to_metric_families

    rows, damaged = [], []
    for text in texts:
        try:
            samples = [sample for family in text_string_to_metric_families(f"{text} 0\n") for sample in family.samples]
        except (ValueError, KeyError, IndexError, AttributeError, TypeError):
            damaged.append(text)
            continue
        rows += [row for sample in samples if (row := series_row(text, sample.name, sample.labels)) is not None]
    return pl.DataFrame(rows, schema=SERIES, orient="row"), damaged


def series_row(key: str, name: str, labels: Mapping[str, str]) -> dict[str, Any] | None:
    """The row of one series; null where its name means nothing here."""
    meaning = MEANINGS.get(name)
    if meaning is None:
        return None
    parallel = next((labels[label] for label in _PARALLEL if labels.get(label)), None)
    device = labels.get("gpu") or labels.get("device") or labels.get("gpu_uuid")
    if meaning.kind == "device" and not device:
        return None
    return {
        "series": key,
        "name": name,
        **{part: getattr(meaning, part) for part in ("engine", "column", "kind", "part", "scale", "across", "rank")},
        "place": next((labels[label] for label in _PLACES if labels.get(label)), None),
        "replica": f"DP{parallel}" if parallel is not None else None,
        "model": next((labels[label] for label in _ABOUT if labels.get(label)), None),
        "le": _limit(labels.get("le")),
        "host": next((labels[label] for label in _HOSTS if labels.get(label)), None),
        "gpu": device,
        "uuid": labels.get("UUID") or labels.get("uuid") or labels.get("gpu_uuid"),
        "instance": labels.get("GPU_I_ID") or None,
    }


def _limit(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
