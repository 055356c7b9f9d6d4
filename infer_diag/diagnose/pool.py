"""Findings on the KV pool: full while requests wait, and running requests thrown out of it."""

from __future__ import annotations

import polars as pl

from infer_diag.attribution.serving import Serving
from infer_diag.attribution.streams import Stream
from infer_diag.diagnose.evidence import cited, ends
from infer_diag.diagnose.finding import Finding, Severity, Status
from infer_diag.diagnose.remedies import has_setting, more_pool, setting
from infer_diag.diagnose.wording import lowered, spread, top
from infer_diag.recording import Recording
from infer_diag.units import format_count, format_ratio

KV_FULL_RATIO = 0.95
"""Engines keep a few per cent of the pool for growth, so at this use nothing more is admitted."""
KV_TIGHT_RATIO = 0.8
"""A pool of few large blocks, or a queue of long prompts, is full in effect from here on, if nothing else binds."""
FREQUENT_RATIO = 0.3
"""A limit that binds in this share of the samples shapes the whole run."""
SUSTAINED_COUNT = 3
"""Fewer samples than this in one state may be a moment and not a condition."""
SUSPECT_COUNT = 3
"""Fewer requests than this leaving between samples may as well have ended."""
MUCH_RECOMPUTED_RATIO = 0.1
"""One output token in ten computed for nothing."""
MANY_RETRIES = 10
"""One full batch alone is halved up to ten times, so more is more than one moment."""
MANY_PREEMPTED_RATIO = 0.05
"""One request in twenty computed twice shows in the bill."""


def kv_saturation(recording: Recording, stream: Stream) -> Finding | None:
    """The pool is at 95 % or more while requests wait, or stays there with nobody waiting (low: no loss yet).

    From 80 % on it counts too where the log states a sequence limit that is not reached, three times or more.
    """
    known = stream.samples.drop_nulls("kv_usage_ratio")
    full = known.filter(pl.col("kv_usage_ratio") >= KV_FULL_RATIO)
    below_limit = pl.col("running_count") < pl.col("max_running_count")
    tight = (pl.col("kv_usage_ratio") >= KV_FULL_RATIO) | ((pl.col("kv_usage_ratio") >= KV_TIGHT_RATIO) & below_limit)
    binding = known.filter((pl.col("waiting_count") > 0) & tight)
    certain = binding.filter(pl.col("kv_usage_ratio") >= KV_FULL_RATIO)
    if len(binding) < SUSTAINED_COUNT:
        binding = certain
    if binding.is_empty():
        return _full_without_queue(recording, known, full)
    share = len(binding) / len(known)
    severity: Severity = "high" if share >= FREQUENT_RATIO else "medium" if len(binding) > 1 else "low"
    limits = binding["max_running_count"].drop_nulls() if len(binding) > len(certain) else pl.Series()
    limit = "" if limits.is_empty() else f", below the sequence limit of {spread(limits, format_count)}"
    sentence = (
        f"The KV pool is full ({spread(binding['kv_usage_ratio'], format_ratio)}) in {len(binding):,} of "
        f"{len(known):,} samples while up to {format_count(top(binding['waiting_count']))} requests wait: the pool "
        f"holds the batch at {spread(binding['running_count'], format_count)} running{limit}."
    )
    status: Status = "measured" if limits.is_empty() else "modelled"
    evidence = cited(recording, ends(binding, by="waiting_count"))
    return Finding("batching.kv_saturation", severity, sentence, status, evidence, more_pool(stream.engine))


def no_room(recording: Recording, serving: Serving) -> Finding | None:
    """Batches found no free place in the KV cache and were tried again in smaller pieces (llama.cpp)."""
    retries = recording.incidents.filter(pl.col("kind") == "kv_full")
    if retries.is_empty():
        return None
    sentence = (
        f"{len(retries):,} times a batch found no room in the KV cache and was tried again in smaller pieces: the "
        "cache is too small for what the slots hold together."
    )
    remedy = "Give the cache more tokens (--ctx-size, or a smaller --cache-type-k/-v), or serve fewer slots at once."
    evidence = cited(recording, retries.sort("source_id", "line"))
    severity: Severity = "high" if len(retries) >= MANY_RETRIES else "medium"
    return Finding("batching.kv_saturation", severity, sentence, "measured", evidence, remedy)


def preemption(recording: Recording, serving: Serving) -> Finding | None:
    """Running requests were sent back to the queue, and the log counts them."""
    count, upper = serving.preemptions.count, serving.preemptions.upper
    if not count:
        return None
    exact = upper == count
    number = format_count(count) if exact else f"at least {format_count(count)}"
    bound = (
        "" if exact or upper is None else f" and at most {format_count(upper)} (the engine prints only some of them)"
    )
    of_requests = serving.request_count and count / serving.request_count
    share = f", one per {serving.request_count / count:.3g} requests that finished" if serving.request_count else ""
    sentence = (
        f"Running requests lost their place in the KV pool {number} times{bound}{share}; their work is done again."
    )
    severity: Severity = "high" if of_requests and of_requests >= MANY_PREEMPTED_RATIO else "medium"
    counted = recording.engine_samples.filter(pl.col("preemption_count") > 0).sort("preemption_count", descending=True)
    lines = recording.incidents.filter(kind="preemption").sort("source_id", "line", descending=True)
    rows = pl.concat([counted.select("source_id", "line"), lines.select("source_id", "line")])
    evidence = cited(recording, rows)
    engine = recording.sources[rows["source_id"][0]].engine if len(rows) else ""
    return Finding(
        "batching.preemption", severity, sentence, "measured" if exact else "bounded", evidence, _fewer_at_once(engine)
    )


def swapped_out(recording: Recording, serving: Serving, stream: Stream) -> Finding | None:
    """Sequences stand in host memory: they were preempted by swapping, whether or not a line counts them."""
    swapped = stream.samples.filter(pl.col("swapped_count") > 0)
    if serving.preemptions.count or swapped.is_empty():
        return None
    sentence = (
        f"Up to {format_count(top(swapped['swapped_count']))} running sequences at a time were moved out of the KV "
        f"pool to host memory, in {len(swapped):,} of {len(stream.samples):,} samples; how often is not counted."
    )
    evidence = cited(recording, ends(swapped, by="swapped_count"))
    remedy = _fewer_at_once(stream.engine)
    return Finding("batching.preemption", "medium", sentence, "bounded", evidence, remedy)


def preemption_suspected(recording: Recording, serving: Serving, stream: Stream) -> Finding | None:
    """A full pool, no prompt admitted, running falls while waiting rises, and no line that counts preemptions."""
    if serving.preemptions.count is not None or stream.samples["swapped_count"].fill_null(0).max():
        return None
    full = (pl.col("kv_usage_ratio") >= KV_FULL_RATIO) & (pl.col("kv_usage_ratio").shift() >= KV_FULL_RATIO)
    fell = -pl.col("running_count").cast(pl.Int64).diff()
    rose = pl.col("waiting_count").cast(pl.Int64).diff()
    moved = (
        stream.samples.drop_nulls(["kv_usage_ratio", "running_count", "waiting_count", "prompt_tokens_per_s"])
        .with_columns(moved=pl.min_horizontal(fell, rose), full=full)
        .filter(pl.col("full") & (pl.col("prompt_tokens_per_s") == 0) & (pl.col("moved") > 0))
    )
    count = int(moved["moved"].sum())
    if count < SUSPECT_COUNT:
        return None
    sentence = (
        f"With the KV pool full and no prompt admitted, running falls and waiting rises by {format_count(count)} "
        f"together: between 0 and {format_count(count)} requests were preempted; the rest ended and were replaced. "
        "The log does not count preemptions."
    )
    remedy = f"{_fewer_at_once(stream.engine)} The server's metrics count preemptions."
    evidence = cited(recording, moved.sort("moved", "line", descending=[True, False]))
    return Finding("batching.preemption_suspected", "medium", sentence, "bounded", evidence, remedy)


def recomputation(recording: Recording, serving: Serving) -> Finding | None:
    """Steps in which requests in their output compute far more than a token each: preempted ones start over."""
    again = serving.recomputed
    if again is None or serving.preemptions.count:
        return None
    share = again.tokens / again.decode_tokens
    severity: Severity = "high" if share >= MUCH_RECOMPUTED_RATIO else "medium"
    sentence = (
        f"In {again.step_count:,} of {again.busy_count:,} steps requests in their output compute {again.tokens:,} "
        f"tokens more than one each ({format_ratio(share)} of all output tokens computed), as preempted requests do "
        "when they start over. The log does not count preemptions."
    )
    surplus = pl.col("decode_tokens").cast(pl.Int64) - pl.col("decode_count")
    rows = recording.engine_steps.select("source_id", "line", surplus=surplus)
    rows = rows.top_k(5, by=["surplus", "line"], reverse=[False, True])
    engine = recording.sources[rows["source_id"][0]].engine
    remedy = f"{_fewer_at_once(engine)} The server's metrics count preemptions."
    return Finding("batching.preemption_suspected", severity, sentence, "bounded", cited(recording, rows), remedy)


def _full_without_queue(recording: Recording, known: pl.DataFrame, full: pl.DataFrame) -> Finding | None:
    quiet = full.filter(pl.col("waiting_count") == 0)
    if len(quiet) < SUSTAINED_COUNT or 2 * len(quiet) < len(known):
        return None
    sentence = (
        f"The KV pool stands at {spread(quiet['kv_usage_ratio'], format_ratio)} in {len(quiet):,} of {len(known):,} "
        "samples with nobody waiting: no loss yet, and no room for more."
    )
    evidence = cited(recording, ends(quiet, by="kv_usage_ratio"))
    return Finding("batching.kv_saturation", "low", sentence, "measured", evidence)


def _fewer_at_once(engine: str) -> str:
    if has_setting(engine, "admission"):
        return f"Admit more cautiously (raise {setting(engine, 'admission')}) or {lowered(more_pool(engine))}"
    return f"Lower {setting(engine, 'sequence_limit')} to what the pool holds, or {lowered(more_pool(engine))}"
