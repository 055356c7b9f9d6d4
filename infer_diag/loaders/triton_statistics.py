"""Triton's statistics extension (`GET v2/models/stats`, or the gRPC call as JSON): sums over requests per model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import polars as pl

from infer_diag.loaders.conformed import recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import JsonDocuments, documents
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Recording

_PARTS = ("compute_input", "compute_infer", "compute_output")
_SAME_RATIO = 1e-3
"""An ensemble's compute times are the sums of its steps' to the nanosecond; a request between two reads makes some."""

_MOST_STEPS = 12
"""Subsets of more models than this are not tried; no ensemble of that size has been seen."""

_NS = 1e-9


@dataclass(frozen=True)
class ModelStatistics:
    """Cumulative figures of one model and version since the server started; null where the document has none."""

    name: str
    version: str
    place: int
    last_inference_ms: int | None
    counts: dict[str, int | None]
    sums_ns: dict[str, int | None]

    @property
    def requests(self) -> int:
        """Requests that succeeded."""
        return self.counts["success"] or 0

    def known(self, *names: str) -> list[int] | None:
        """The sums with these names, null where one is unknown."""
        values = [self.sums_ns[name] for name in names]
        return None if any(value is None for value in values) else [value for value in values if value is not None]


def load(file: LogFile, *, options: Options) -> Recording:
    """One file as a recording: the last document in it, since every figure counts from the server's start."""
    text = documents(file, options)
    models = _last_models(text)
    rows = [row for model, steps in served(models) for row in _totals(model, steps, text)]
    frame = pl.DataFrame(rows, schema=_TOTALS, orient="row")
    stamps = [model.last_inference_ms for model in models if model.last_inference_ms]
    times = pl.Series([datetime.fromtimestamp(stamp / 1e3, UTC) for stamp in stamps], dtype=pl.Datetime("us", "UTC"))
    file.cut = file.cut or text.cut
    return recorded(
        file,
        {"request_totals": frame},
        options=options,
        format="triton-statistics",
        engine="triton",
        lines=text.lines,
        understood=text.lines,
        rejected=pl.DataFrame(schema={"line": pl.UInt32, "rule": pl.String, "text": pl.String}),
        times=times,
    )


_TOTALS: dict[str, Any] = {
    "line": pl.UInt32,
    "model": pl.String,
    "measure": pl.String,
    "request_count": pl.UInt64,
    "mean": pl.Float64,
}


def served(models: Sequence[ModelStatistics]) -> list[tuple[ModelStatistics, tuple[ModelStatistics, ...]]]:
    """The models that clients called, each with the steps that it passes its requests on to.

    An ensemble's compute times are the sums of those of its steps, so a set of other models whose three compute times
    add up to a model's own are its steps, and their requests are the ensemble's and not further ones.
    """
    busy = [model for model in models if model.requests]
    found = {index: steps for index, model in enumerate(busy) if (steps := _steps(model, busy))}
    inner = {id(step) for steps in found.values() for step in steps}
    return [(model, found.get(index, ())) for index, model in enumerate(busy) if id(model) not in inner]


def _steps(model: ModelStatistics, models: Sequence[ModelStatistics]) -> tuple[ModelStatistics, ...]:
    own = model.known(*_PARTS)
    if own is None or not any(own):
        return ()
    others = [other for other in models if other is not model and other.known(*_PARTS) is not None][:_MOST_STEPS]
    whole = model.sums_ns["success"]
    for size in range(1, len(others) + 1):
        for steps in combinations(others, size):
            added = [sum(parts) for parts in zip(*(step.known(*_PARTS) or () for step in steps), strict=True)]
            inside = whole is not None and all((step.sums_ns["success"] or 0) <= whole for step in steps)
            if inside and all(abs(a - b) <= _SAME_RATIO * max(a, b) for a, b in zip(own, added, strict=True)):
                return steps
    return ()


def _totals(
    model: ModelStatistics, steps: tuple[ModelStatistics, ...], text: JsonDocuments
) -> Iterable[tuple[int, str, str, int, float]]:
    """The rows of one called model: end to end, and in queues where the parts do not overlap."""
    line, count = text.line_at(model.place), model.requests
    whole = model.sums_ns["success"]
    if whole is None:
        return
    yield line, model.name, "e2e_s", count, whole * _NS / count
    everything = [part.known("queue", *_PARTS) for part in steps or (model,)]
    own_queue = model.sums_ns["queue"]
    if own_queue is None or any(part is None for part in everything):
        return
    queued = own_queue + (sum(part[0] for part in everything if part) if steps else 0)
    # Steps that run side by side wait side by side; then their times do not add up to a request's.
    if sum(sum(part) for part in everything if part) + (own_queue if steps else 0) <= whole:
        yield line, model.name, "queue_s", count, queued * _NS / count


def _last_models(text: JsonDocuments) -> list[ModelStatistics]:
    for begin, document in reversed(text.found):
        listed = _plain(document)
        models = listed.get("model_stats") if isinstance(listed, dict) else listed if isinstance(listed, list) else None
        if isinstance(models, list) and any(isinstance(each, dict) and "inference_stats" in each for each in models):
            return [_model(each, text, begin) for each in models if isinstance(each, dict)]
    return []


def _model(raw: dict[str, Any], text: JsonDocuments, begin: int) -> ModelStatistics:
    name = str(raw.get("name", ""))
    stats = raw.get("inference_stats")
    stats = stats if isinstance(stats, dict) else {}
    named = re.compile(rf'"name"\s*:\s*"{re.escape(name)}"').search(text.text, begin)
    place = named.start() if named else begin
    queue = re.compile(r'"queue"\s*:').search(text.text, place)
    return ModelStatistics(
        name=name,
        version=str(raw.get("version", "")),
        place=queue.start() if queue else place,
        last_inference_ms=_number(raw.get("last_inference")),
        counts={"success": _figure(stats, "success", "count")},
        sums_ns={part: _figure(stats, part, "ns") for part in ("success", "queue", *_PARTS)},
    )


def _figure(stats: dict[str, Any], part: str, name: str) -> int | None:
    """A figure of a statistic: protocol buffers leave zeros out of JSON, so one that is not there at all is zero."""
    told = stats.get(part)
    if not isinstance(told, dict):
        return None
    return _number(told[name]) if name in told else 0


def _number(value: Any) -> int | None:
    """A whole number that JSON holds as one, or as text because it has 64 bits."""
    try:
        return None if value is None or isinstance(value, bool) or int(value) < 0 else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _plain(value: Any) -> Any:
    """The document with the names of the HTTP answer, whatever wrote it (`modelStats` becomes `model_stats`)."""
    if isinstance(value, dict):
        return {re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower(): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


SIGNATURE = Signature(
    phrases=(
        r'"model_?[sS]tats"\s*:\s*\[',
        r'"inference_?[sS]tats"\s*:\s*\{',
        r'"compute_?[iI]nfer"\s*:\s*\{',
    ),
)

LOADER = Loader(
    name="triton-statistics",
    about="Triton statistics extension as JSON (HTTP or gRPC): requests and their time per model, ensembles included",
    versions="statistics extension of protocol v2",
    frames=("request_totals",),
    example=(
        '{"model_stats":[{"name":"llm","version":"1","inference_count":4,'
        '"inference_stats":{"success":{"count":"4","ns":"8000000000"},"queue":{"count":"4",'
        '"ns":"2000000000"}}}]}'
    ),
    signature=SIGNATURE,
    load=load,
)
