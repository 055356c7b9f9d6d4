"""What the query API of a Prometheus server answers, saved or just fetched: the same samples that scrapes hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.exposition.scrapes import SAMPLES
from infer_diag.loaders.exposition.series import SERIES, series_row
from infer_diag.redact import redact

_VALUES = {"series": pl.Categorical, "at": pl.Float64, "value": pl.Float64}


@dataclass(frozen=True)
class Answer:
    """One answer: values by series, what each series is, and what the server remarks.

    `values` has `series`, `at` (seconds since 1970) and `value`; a series is named by its labels, so that it has one
    name in every answer. `found` counts the series that came, those of no meaning here too.
    """

    values: pl.DataFrame
    series: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    found: int


def answered(document: object, label: str) -> Answer:
    """The samples of an answer of `query` or `query_range`.

    Raises:
        SourceError: the answer is an error, or none of its series has a name (the result of a function has none).
    """
    answer = _object(document)
    if answer.get("status") != "success":
        told = redact(str(answer.get("error") or "no status"))[:80]
        raise SourceError(
            f"{label} is an answer without a result: {told}", hint="run the query again and save its answer"
        )
    results = _object(answer.get("data")).get("result")
    found = [each for each in results if isinstance(each, dict)] if isinstance(results, list) else []
    series, kept, unnamed = [], [], 0
    for result in found:
        labels = {str(name): str(value) for name, value in _object(result.get("metric")).items()}
        unnamed += "__name__" not in labels
        row = series_row(_key(labels), labels.get("__name__", ""), labels)
        if row is not None:
            series.append(row)
            kept.append(result)
    if found and unnamed == len(found):
        raise SourceError(
            f"{label} holds series without a name, as functions such as rate() return them",
            hint="query the metrics themselves, without a function around them",
        )
    return Answer(_values([row["series"] for row in series], kept), tuple(series), _notes(answer, found), len(found))


def gathered(answers: Iterable[Answer]) -> tuple[pl.DataFrame, pl.DataFrame, tuple[str, ...]]:
    """(samples, series, notes) of several answers; a value that two of them hold counts once.

    Instants are numbered over all answers: what has the same time is one scrape.
    """
    every = list(answers)
    values = pl.concat([pl.DataFrame(schema=_VALUES), *(answer.values for answer in every)])
    rows = {row["series"]: row for answer in every for row in answer.series}
    notes = dict.fromkeys(note for answer in every for note in answer.notes)
    return _placed(values), pl.DataFrame(list(rows.values()), schema=SERIES, orient="row"), tuple(notes)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _key(labels: dict[str, str]) -> str:
    return repr(sorted(labels.items()))


def _values(keys: list[str], results: list[dict[str, Any]]) -> pl.DataFrame:
    lengths: list[int] = []
    times: list[Any] = []
    texts: list[str] = []
    for result in results:
        pairs = result.get("values") or [result.get("value")]
        good = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2] if isinstance(pairs, list) else []
        lengths.append(len(good))
        times += [pair[0] for pair in good]
        texts += [str(pair[1]) for pair in good]
    # A series' name is long and stands in each of its rows: one number a row, and the name once.
    names = pl.DataFrame(
        {"series": pl.Series(keys, dtype=pl.Categorical), "length": pl.Series(lengths, dtype=pl.UInt32)}
    )
    return names.select(pl.col("series").repeat_by("length").explode().drop_nulls()).with_columns(
        pl.Series("at", times, dtype=pl.Float64, strict=False),
        pl.Series(texts, dtype=pl.String).cast(pl.Float64, strict=False).alias("value"),
    )


def _placed(values: pl.DataFrame) -> pl.DataFrame:
    at = (pl.col("at") * 1e6).round().cast(pl.Int64, strict=False)
    samples = values.select(
        at.rank("dense").cast(pl.Int64).alias("scrape"),
        pl.lit(0, pl.UInt32).alias("line"),
        at.alias("us"),
        "series",
        "value",
    )
    once = samples.drop_nulls("us").unique(["series", "us"], maintain_order=True)
    return once.select(pl.col(name).cast(kind) for name, kind in SAMPLES.items())


def _notes(answer: dict[str, Any], found: list[dict[str, Any]]) -> tuple[str, ...]:
    remarks = (answer.get(key) for key in ("warnings", "infos"))
    notes = [redact(note)[:200] for each in remarks if isinstance(each, list) for note in each if isinstance(note, str)]
    native = sum("histograms" in result or "histogram" in result for result in found)
    return (*notes, *([f"{native} native histograms are left out"] if native else []))
