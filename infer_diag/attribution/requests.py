"""How long requests took and where their time went, from their events or from durations that the engine prints."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.attribution.quantiles import median, quantile
from infer_diag.attribution.request_totals import told_totals, total_shares
from infer_diag.recording import Recording
from infer_diag.results import RequestStats

_SPANS = {
    "queue_s": ("queued_s", "scheduled_s"),
    "prefill_s": ("scheduled_s", "first_token_s"),
    "decode_s": ("first_token_s", "last_token_s"),
    "ttft_s": ("arrival_s", "first_token_s"),
    "e2e_s": ("arrival_s", "last_token_s"),
}
MEASURES = ("queue_s", "prefill_s", "decode_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens", "output_tokens")
_STATUS = r"\s(\d{3})(?:\s|$)"


def durations(requests: pl.DataFrame) -> pl.DataFrame:
    """One row per request with the measures of `RequestStats`; null where an event is missing.

    Frame in: Requests. queue = scheduled − queued, prefill = first token − scheduled, decode = last − first token,
    ttft = first token − arrival, e2e = last token − arrival, tpot = decode / (output tokens − 1) and null for one
    token. A span whose end lies before its begin mixes two clocks: it is null and not clipped.
    """
    spans = [_span(begin, end).alias(name) for name, (begin, end) in _SPANS.items()]
    later = pl.col("output_tokens").cast(pl.Int64) - 1
    tpot = pl.when(later > 0).then(pl.col("decode_s") / later).alias("tpot_s")
    tokens = [pl.col(name).cast(pl.Float64) for name in ("prompt_tokens", "output_tokens")]
    return requests.select(*spans, *tokens).with_columns(tpot)


def printed(timings: pl.DataFrame) -> pl.DataFrame:
    """One row per request with the measures of `RequestStats`, as its engine prints them.

    Frame in: RequestTimings. Where the engine prints no tpot it is decode / (output tokens − 1), as for events.
    """
    later = pl.col("output_tokens").cast(pl.Int64) - 1
    tpot = pl.coalesce("tpot_s", pl.when(later > 0).then(pl.col("decode_s") / later)).alias("tpot_s")
    tokens = [pl.col(name).cast(pl.Float64) for name in ("prompt_tokens", "output_tokens")]
    return timings.select("queue_s", "prefill_s", "decode_s", "ttft_s", "e2e_s", *tokens, tpot)


def each_request(recording: Recording) -> pl.DataFrame:
    """One row per request and teller: the measures of `RequestStats`, `compute_s` (prefill and decode) and the line.

    Frames in: Requests, RequestTimings. `teller` is empty for the servers, which tell of requests of their own each,
    and a client's name for its record of the same requests; `told_once` picks one of them.
    """
    both = pl.col("prefill_s") + pl.col("decode_s")
    requests, timings = recording.requests, recording.request_timings
    events = durations(requests).with_columns(requests["source_id", "line"]).with_columns(compute_s=both)
    timed = printed(timings).with_columns(timings["source_id", "line"])
    timed = timed.with_columns(compute_s=pl.coalesce(both, timings["compute_s"]))
    each = pl.concat([events, timed.select(events.columns)])
    tellers = _tellers(recording)
    return each.with_columns(teller=pl.col("source_id").replace_strict(tellers, default="", return_dtype=pl.String))


def told_once(each: pl.DataFrame, *measures: str) -> pl.DataFrame:
    """The rows of `each_request` that have all of the measures, of the one teller that has the most of them.

    A client and its server tell of the same requests from two ends of a network, so their times are never pooled; of
    two that tell of equally many the server is believed.
    """
    known = each.drop_nulls(measures)
    counts = known.group_by("teller").len().sort(pl.col("len"), "teller", descending=[True, False])
    return known.filter(teller=counts["teller"][0]) if not counts.is_empty() else known


def of_one_teller(recording: Recording, *columns: str) -> pl.DataFrame:
    """The Requests of one teller, who has the most of them with all of these columns; the server among equals.

    Requests of its that lack a column are there too: they are the ones that never got so far.
    """
    tellers = pl.col("source_id").replace_strict(_tellers(recording), default="", return_dtype=pl.String)
    named = recording.requests.with_columns(teller=tellers)
    counts = named.drop_nulls(columns).group_by("teller").len().sort(pl.col("len"), "teller", descending=[True, False])
    return recording.requests if counts.is_empty() else named.filter(teller=counts["teller"][0]).drop("teller")


def backward_count(requests: pl.DataFrame) -> int:
    """Requests with an event that lies before one which has to come first."""
    backward = pl.any_horizontal(pl.col(end) < pl.col(begin) for begin, end in _SPANS.values())
    return int(requests.select(backward.fill_null(False).sum()).item() or 0)


def request_stats(recording: Recording) -> dy.DataFrame[RequestStats]:
    """Mean, median, 95th percentile (linear) and maximum per measure, over the requests that have it.

    Frames in: Requests, RequestTimings, RequestTotals. Frame out: RequestStats, without the measures that no request
    has; each is over the requests of one teller, who tells of most. Requests that had not finished when the log ended
    are not in `e2e_s` and `decode_s`, so these are biased low where many are left. A measure that only sums tell has a
    mean and no quantiles.
    """
    each = each_request(recording)
    rows = []
    for measure in MEASURES:
        value = pl.col(measure)
        told = told_once(each, measure)
        if told.is_empty():
            continue
        rows.append(
            told.select(
                measure=pl.lit(measure),
                request_count=value.count(),
                mean=value.mean(),
                p50=median(value),
                p95=quantile(value, 0.95),
                max=value.max(),
            )
        )
    known = [row["measure"].item() for row in rows]
    summed = told_totals(recording).filter(~pl.col("measure").cast(pl.String).is_in(known))
    rows += [summed.with_columns(pl.col("measure").cast(pl.String))] if not summed.is_empty() else []
    if not rows:
        return RequestStats.create_empty()
    whole = pl.concat(
        [RequestStats.create_empty().with_columns(pl.col("measure").cast(pl.String)), *rows], how="diagonal_relaxed"
    )
    order = pl.col("measure").replace_strict(MEASURES, range(len(MEASURES)))
    return RequestStats.validate(whole.sort(order), cast=True)


def request_count(recording: Recording) -> int | None:
    """Requests that finished: those with a last token, a number of output tokens or printed times.

    Sources without any tell by their responses with a 2xx code. Servers add up; what clients recorded are requests to
    them, told once more, so of the servers' sum and each kind of client's the largest counts. Where no source tells of
    single requests, those that its sums count; null where there are none either. A streamed response is logged when it
    begins, so at the end of a log a few of those counted may still have been running.
    """
    over = pl.any_horizontal(pl.col("last_token_s", "output_tokens").is_not_null())
    events = recording.requests.filter(over).select("source_id")
    finished = pl.concat([events, recording.request_timings.select("source_id")]).group_by("source_id").len("finished")
    responses = recording.incidents.filter(kind="response").with_columns(
        code=pl.col("fields").str.extract(_STATUS).cast(pl.Int32, strict=False)
    )
    answered = responses.group_by("source_id").agg(answered=pl.col("code").is_between(200, 299).sum())
    told = finished.join(answered, on="source_id", how="full", coalesce=True)
    if told.is_empty():
        counted = told_totals(recording).filter(
            pl.col("measure").cast(pl.String).is_in(["e2e_s", "queue_s", "output_tokens"])
        )
        return int(counted["request_count"].max()) if not counted.is_empty() else None  # type: ignore[arg-type]
    counts = told.select("source_id", count=pl.coalesce("finished", "answered"))
    teller = pl.col("source_id").replace_strict(_tellers(recording), default="", return_dtype=pl.String)
    return int(counts.group_by(teller).agg(pl.col("count").sum())["count"].max())  # type: ignore[arg-type]


def _tellers(recording: Recording) -> dict[int, str]:
    """Who tells of each source's requests: empty for servers, else the client's name."""
    servers = _servers(recording)
    return {number: "" if number in servers else source.engine for number, source in enumerate(recording.sources)}


def _servers(recording: Recording) -> set[int]:
    """Sources that tell of an engine beside its requests; a client's record, or a trace, holds nothing else."""
    frames = ("starts", "incidents", "engine_samples", "engine_steps", "request_timings")
    return set(pl.concat([getattr(recording, name)["source_id"].unique() for name in frames]))


def request_shares(recording: Recording) -> dict[str, float | None]:
    """Shares (0 to 1) of the requests' time: `queue`, `prefill`, `decode` and `other`, null where not measurable.

    Each is the sum of that part over the sum of e2e, over the requests that have both. `other` is what remains
    (front end, tokeniser, network) and is known only where the same requests have all of it.
    """
    each = each_request(recording)
    summed = total_shares(recording)
    shares = {part: _share(each, [f"{part}_s"]) for part in ("queue", "prefill", "decode")}
    shares = {part: share if share is not None else summed[part] for part, share in shares.items()}
    together = _share(each, ["queue_s", "compute_s"])
    if together is None and None not in summed.values():
        together = sum(share for share in summed.values() if share is not None)
    return {**shares, "other": None if together is None else max(0.0, 1.0 - together)}


def _span(begin: str, end: str) -> pl.Expr:
    length = pl.col(end) - pl.col(begin)
    return pl.when(length >= 0).then(length)


def _share(each: pl.DataFrame, parts: list[str]) -> float | None:
    both = told_once(each, *parts, "e2e_s")
    whole = float(both["e2e_s"].sum())
    return float(both.select(pl.sum_horizontal(parts).sum()).item()) / whole if whole else None
