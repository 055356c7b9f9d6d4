"""What a Prometheus server holds of engines and devices, asked for over its HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import polars as pl

from infer_diag.errors import DiagError, SourceError
from infer_diag.loaders.exposition.address import Address, address
from infer_diag.loaders.exposition.answers import Answer, answered, gathered
from infer_diag.loaders.exposition.families import EXPORTERS, MEANINGS
from infer_diag.loaders.exposition.moments import Moment, epoch_s, written, written_duration
from infer_diag.loaders.exposition.prometheus_api import AnswerTooLarge, PrometheusApi
from infer_diag.loaders.exposition.reading import answers_recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options
from infer_diag.recording import Recording

SAMPLE_LIMIT = 5_000_000
"""Values that are held together while the frames are made: more than 1 GiB with all that is known of each."""

DEFAULT_S = 3600.0
_WINDOW_S = 6 * 3600.0
_MOST_WINDOWS = 48
_LEAST_WINDOW_S = 60.0
_MOST_STEPS = 10_000
"""Prometheus answers at most 11,000 points of a series."""
_SPACINGS = 20
_SEEN = 5
_PREFIXES = sorted({prefix.rstrip(":_") for exporter in EXPORTERS for prefix in exporter.prefixes})


@dataclass(frozen=True)
class Span:
    """Seconds since 1970 between which samples are wanted, and what to say about them."""

    begin_s: float
    end_s: float
    note: str


def load(file: LogFile, *, options: Options) -> Recording:
    """Everything that fills a frame between `start` and `end`, out of the server whose address is the file's path.

    Without a step in the address each sample comes as it was scraped, with its own time; with one, the server's
    `query_range` gives one value per step.

    Raises:
        SourceError: the server cannot be asked, or holds nothing of an engine or a device in that time.
    """
    asked, received = address(file.path), 0

    def count(size: int) -> None:
        nonlocal received
        received += size
        options.on_bytes(size)

    api = PrometheusApi(asked, count)
    span = span_of(options, api.now_s())
    names = _names(api, asked, span)
    if not names:
        raise _nothing(api, asked, span)
    if asked.step_s is not None:
        _check_step(api, asked, span, names)
    answers, held = [], 0
    windows = _windows(span, asked.step_s)
    requests = [(name, *window) for window in windows for name in names]
    for number, (name, begin_s, end_s) in enumerate(requests, 1):
        # The size of what is still to come is guessed from what came: it only serves to show the progress.
        file.size_bytes = received * len(requests) // number
        for answer in _fetched(api, asked, name, begin_s, end_s):
            answers.append(answer)
            held += len(answer.values)
        if held > SAMPLE_LIMIT:
            raise _too_many(asked)
    file.size_bytes = received
    options.on_bytes(0)
    file.notes += [span.note, _how(asked)]
    return _recorded(file, options, asked, span, answers)


def span_of(options: Options, now_s: float) -> Span:
    """The span that `start` and `end` name, by default the hour before the end and the server's own time.

    Raises:
        DiagError: one of them is no time, or the end does not lie after the start.
    """
    end_s = min(_given(options.end, "end", now_s, options), now_s) if options.end is not None else now_s
    begin_s = _given(options.start, "start", now_s, options) if options.start is not None else end_s - DEFAULT_S
    if begin_s >= end_s:
        raise DiagError(
            f"start ({written(begin_s)}) does not lie before end ({written(end_s)}; the server's clock says "
            f"{written(now_s)})",
            hint="give start= and end= in order, such as start='-2h'; times without a zone are UTC unless tz= is given",
        )
    chosen = {
        (False, False): "the hour up to now, since neither start= nor end= is given",
        (False, True): "the hour before end=, since no start= is given",
        (True, False): "up to now, since no end= is given",
    }.get((options.start is not None, options.end is not None))
    note = f"samples from {written(begin_s)} to {written(end_s)}"
    return Span(round(begin_s, 3), round(end_s, 3), f"{note} ({chosen})" if chosen else note)


def _given(moment: Moment, name: str, now_s: float, options: Options) -> float:
    assert moment is not None
    return epoch_s(moment, name, now_s, options.tz)


def _selector(asked: Address, condition: str) -> str:
    return "{" + ",".join(filter(None, (condition, asked.matchers))) + "}"


def _names(api: PrometheusApi, asked: Address, span: Span | None) -> list[str]:
    """The names of the metrics that the server holds and that mean something here, of any time without a span."""
    known = _selector(asked, f'__name__=~"(?:{"|".join(_PREFIXES)})[:_].+"')
    when = {"start": f"{span.begin_s:.3f}", "end": f"{span.end_s:.3f}"} if span is not None else {}
    return [name for name in _listed(api.get("label/__name__/values", {"match[]": known, **when})) if name in MEANINGS]


def _listed(document: dict[str, Any]) -> list[str]:
    data = document.get("data")
    return [name for name in data if isinstance(name, str)] if isinstance(data, list) else []


def _windows(span: Span, step_s: float | None) -> list[tuple[float, float]]:
    """The span in pieces, each a moderate answer; with a step, each begins one step after the end of the one before."""
    length_s = max(_WINDOW_S, (span.end_s - span.begin_s) / _MOST_WINDOWS)
    if step_s is not None:
        length_s = step_s * max(min(int(length_s / step_s), _MOST_STEPS), 1)
    windows, begin_s = [], span.begin_s
    while begin_s < span.end_s:
        end_s = min(round(begin_s + length_s, 3), span.end_s)
        windows.append((begin_s, end_s))
        begin_s = round(end_s + (step_s or 0.0), 3)
    return windows


def _fetched(api: PrometheusApi, asked: Address, name: str, begin_s: float, end_s: float) -> Iterator[Answer]:
    """The answers about one metric, in halves where one answer would be too large."""
    selector = _selector(asked, f'__name__="{name}"')
    step_s = asked.step_s
    try:
        if step_s is not None:
            document = api.query_range(selector, begin_s, end_s, step_s)
        else:
            document = api.query(f"{selector}[{written_duration(end_s - begin_s)}]", end_s)
        yield answered(document, asked.label)
        return
    except AnswerTooLarge:
        if end_s - begin_s < max(_LEAST_WINDOW_S, 2 * (step_s or 0.0)):
            raise
    middle_s = round(begin_s + (end_s - begin_s) / 2, 3)
    if step_s is not None:
        middle_s = round(begin_s + step_s * int((end_s - begin_s) / step_s / 2), 3)
    yield from _fetched(api, asked, name, begin_s, middle_s)
    yield from _fetched(api, asked, name, round(middle_s + (step_s or 0.0), 3), end_s)


def _check_step(api: PrometheusApi, asked: Address, span: Span, names: list[str]) -> None:
    """Refuses steps shorter than those of the scrapes: repeated values would pass for an engine that stands still."""
    assert asked.step_s is not None
    length_s = min(_SPACINGS * asked.step_s + 300.0, span.end_s - span.begin_s)
    for name in names[:_SEEN]:
        for begin_s in (span.end_s - length_s, span.begin_s):
            selector = _selector(asked, f'__name__="{name}"')
            document = api.query(f"{selector}[{written_duration(length_s)}]", begin_s + length_s)
            gaps = answered(document, asked.label).values.select(pl.col("at").diff().over("series")).drop_nulls()
            if len(gaps) > 1:
                spacing_s = median(gaps["at"])
                if asked.step_s < 0.99 * spacing_s:
                    raise SourceError(
                        f"step={asked.step_s:g}s is shorter than the {spacing_s:.3g} s between two scrapes: the values "
                        "between them would be repeated",
                        hint="leave step= out to get each scrape as it is, or give a longer one",
                    )
                return


def _how(asked: Address) -> str:
    if asked.step_s is None:
        return "each value as it was scraped"
    return (
        f"one value per {asked.step_s:g} s by query_range: what a counter did between two steps is not seen, and a "
        "value stands for up to five minutes after its scrape"
    )


def _recorded(file: LogFile, options: Options, asked: Address, span: Span, answers: list[Answer]) -> Recording:
    samples, series, notes = gathered(answers)
    if samples.is_empty():
        raise SourceError(
            f"{asked.label} lists metrics of engines and holds no value of them from {written(span.begin_s)} to "
            f"{written(span.end_s)}",
            hint="give a wider start= and end=",
        )
    return answers_recorded(file, options, samples, series, notes)


def _nothing(api: PrometheusApi, asked: Address, span: Span) -> SourceError:
    """Why nothing was found: at other times or under other labels there may be something."""
    when = f"from {written(span.begin_s)} to {written(span.end_s)}"
    anywhere = _names(api, Address(asked.base, asked.label), None)
    if anywhere:
        under = f" under match={{{asked.matchers}}}" if asked.matchers else ""
        return SourceError(
            f"{asked.label} holds no metric of an engine or a GPU {when}{under}; at other times or under other labels "
            f"it holds {', '.join(anywhere[:3])} and more",
            hint="give another start= and end=, or other labels in match=",
        )
    seen = _listed(api.get("label/__name__/values"))
    told = f"{len(seen)} metrics, such as {', '.join(seen[:3])}" if seen else "no metric at all"
    return SourceError(
        f"{asked.label} holds no metric of an engine or a GPU that infer_diag reads; it holds {told}",
        hint="let it scrape the engine's /metrics (vllm:…, sglang:…, DCGM_FI_…)",
    )


def _too_many(asked: Address) -> SourceError:
    return SourceError(
        f"{asked.label} holds more than {SAMPLE_LIMIT:,} values of engines and GPUs in that time",
        hint='give a shorter time, fewer series (match={pod="…"}), or a step= such as 60s',
    )
