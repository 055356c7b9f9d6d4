"""All that the spans of one file tell: requests and starts, whatever wrote them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from infer_diag.loaders.conformed import Frames
from infer_diag.loaders.request_traces.engine_names import UNKNOWN_ENGINE, engine_of
from infer_diag.loaders.request_traces.own_spans import of_own, own_frames
from infer_diag.loaders.request_traces.spans import request_frames, request_spans, usable
from infer_diag.loaders.request_traces.start_spans import of_starts, start_frames
from infer_diag.recording import Clock


@dataclass(frozen=True)
class SpanFrames:
    """Frames without `source_id`, the first and last nanosecond of what they were made of, and who wrote the spans."""

    frames: Frames
    first_ns: int | None
    last_ns: int | None
    engine: str
    clocks: tuple[Clock, ...]
    notes: tuple[str, ...]


def told_by(spans: pl.DataFrame, since_ns: int | None = None) -> SpanFrames:
    """What spans (columns of `SPAN`) tell; moments of requests count from the first span, or from `since_ns` before."""
    known = usable(spans)
    own = of_own(known)
    others = known.join(own.select("trace", "span"), on=["trace", "span"], how="anti", maintain_order="left")
    asked, starting = request_spans(others), of_starts(others)
    used = pl.concat([asked, starting, own])
    first, last = used["begin_ns"].min(), used["end_ns"].max()
    left = len(spans) - len(known)
    notes = [f"{left:,} spans are told twice or have no begin or end before it"] if left else []
    if not isinstance(first, int) or not isinstance(last, int):
        return SpanFrames({}, None, None, UNKNOWN_ENGINE, (), tuple(notes))
    served = asked["begin_ns"].max()
    starts = start_frames(starting, served if isinstance(served, int) else None)
    ours = own_frames(own, len(starts.get("starts", ())))
    both = {
        name: pl.concat([frames[name] for frames in (starts, ours) if name in frames], how="diagonal_relaxed")
        for name in {**starts, **ours}
    }
    frames = {**request_frames(asked, first if since_ns is None else min(first, since_ns)), **both}
    if not own.is_empty():
        notes.append("infer_diag exported it: its starts are those of a diagnosis")
    # Where the clock was not known, the export was placed by hand: differences are right, the date is not.
    is_true = (own["own_clock"].fill_null("true") != "relative").all()
    clocks = (Clock("inner", str(first), zone="UTC", year_known=is_true, date_known=is_true),)
    return SpanFrames(frames, first, last, _engine(own, asked, starting), clocks, tuple(notes))


def _engine(own: pl.DataFrame, asked: pl.DataFrame, starting: pl.DataFrame) -> str:
    named = own["own_engine"].drop_nulls()
    if not named.is_empty():
        return str(named[0])
    # vLLM alone traces its starts under these names; any application may call a request's span `llm_request`.
    return "vllm" if not starting.is_empty() else engine_of(asked)
