"""What the query API of a Prometheus server answered, saved as JSON: the same samples that scrapes hold."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.exposition.scrapes import SAMPLES
from infer_diag.loaders.exposition.series import SERIES, series_row
from infer_diag.loaders.json_documents import JsonDocuments
from infer_diag.redact import redact


def answered(document: JsonDocuments, label: str) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """(samples, series, notes) of an answer of `query` or `query_range`.

    Raises:
        SourceError: the answer is an error, or none of its series has a name (the result of a function has none).
    """
    answer = document.value if isinstance(document.value, dict) else {}
    if answer.get("status") != "success":
        told = redact(str(answer.get("error") or "no status"))[:80]
        raise SourceError(
            f"{label} is an answer without a result: {told}", hint="run the query again and save its answer"
        )
    data = answer.get("data")
    results = data.get("result") if isinstance(data, dict) else None
    found = [each for each in results if isinstance(each, dict)] if isinstance(results, list) else []
    series, samples, unnamed = [], [], 0
    for number, result in enumerate(found):
        labels = {str(name): str(value) for name, value in (_object(result.get("metric"))).items()}
        unnamed += "__name__" not in labels
        row = series_row(str(number), labels.get("__name__", ""), labels)
        if row is None:
            continue
        series.append(row)
        samples.append(_values(str(number), result))
    if found and unnamed == len(found):
        raise SourceError(
            f"{label} holds series without a name, as functions such as rate() return them",
            hint="query the metrics themselves, without a function around them",
        )
    frame = (
        pl.concat(samples)
        if samples
        else pl.DataFrame(schema={"series": pl.String, "at": pl.Float64, "text": pl.String})
    )
    return _placed(frame), pl.DataFrame(series, schema=SERIES, orient="row"), _notes(answer, found)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _values(key: str, result: dict[str, Any]) -> pl.DataFrame:
    pairs = result.get("values") or [result.get("value")]
    good = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2] if isinstance(pairs, list) else []
    return pl.DataFrame(
        {
            "series": [key] * len(good),
            "at": pl.Series([pair[0] for pair in good], dtype=pl.Float64, strict=False),
            "text": pl.Series([str(pair[1]) for pair in good], dtype=pl.String),
        }
    )


def _placed(values: pl.DataFrame) -> pl.DataFrame:
    at = (pl.col("at") * 1e6).round().cast(pl.Int64, strict=False)
    samples = values.select(
        at.rank("dense").cast(pl.Int64).alias("scrape"),
        pl.lit(0, pl.UInt32).alias("line"),
        at.alias("us"),
        "series",
        pl.col("text").cast(pl.Float64, strict=False).alias("value"),
    )
    return samples.drop_nulls("us").select(pl.col(name).cast(kind) for name, kind in SAMPLES.items())


def _notes(answer: dict[str, Any], found: list[dict[str, Any]]) -> list[str]:
    notes = [
        str(note)[:200] for key in ("warnings", "infos") for note in (answer.get(key) or []) if isinstance(note, str)
    ]
    native = sum("histograms" in result or "histogram" in result for result in found)
    return [*notes, *([f"{native} native histograms are left out"] if native else [])]
