"""The article's figures on loading weights (its section 2.2, and its table of cold starts) beside ours."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.probes.obtained import Obtained
from infer_diag.probes.result import ProbeResult
from infer_diag.probes.weights.advice import ARTICLE_MODELS, ARTICLE_START_S, resident
from infer_diag.probes.weights.cache_steps import DONTNEED, ONE_WILLNEED, WILLNEED_STEPS
from infer_diag.report.claims import Claim, Claims
from infer_diag.units import format_bytes, format_ratio, format_s

PCIE5_BYTES_PER_S = 64e9
"""What sixteen lanes of PCIe 5.0 carry one way at most."""

_EMPTY_RATIO, _FULL_RATIO = 0.01, 0.99


def needed_bytes_per_s() -> pl.DataFrame:
    """`model`, `start`, `start_s`, `size_bytes`, `needed_bytes_per_s`: what each published start asks of storage."""
    rows = [
        (model, start, seconds, size, size / seconds)
        for model, size in ARTICLE_MODELS.items()
        for start, seconds in ARTICLE_START_S.items()
    ]
    names = ("model", "start", "start_s", "size_bytes", "needed_bytes_per_s")
    return pl.DataFrame(rows, schema=names, orient="row")


def cache_lines(got: Obtained) -> list[str]:
    """What each call did to the page cache as lines that end in `yes`, `no` or `unknown`; why, where it is unknown.

    Up to one percent counts as empty, 99 percent and more as the whole file. Where `DONTNEED` does not empty the cache,
    as with files that live in memory, nothing is said of what comes after it.
    """
    if got.result is None:
        return [got.said]
    steps = got.result.frames["cache_steps"]
    empty, once, looped = (resident(steps, "stepwise", call) for call in (DONTNEED, ONE_WILLNEED, WILLNEED_STEPS))
    emptied = empty is not None and empty <= _EMPTY_RATIO
    order = resident(steps, "article", ONE_WILLNEED)
    lines = [
        f"DONTNEED empties the cache of the file: {_word(empty, emptied)}",
        f"one WILLNEED brings the whole file back: {_whole(once, emptied)}",
        f"WILLNEED in steps brings the whole file back: {_whole(looped, emptied)}",
        f"the article's two calls leave a warm file warm: {_whole(order, emptied)}",
    ]
    return lines if emptied else [*lines, "This file system keeps its files in memory or hides its cache: try another."]


def weights_claims(got: Obtained, cold: ProbeResult, warm: ProbeResult) -> Claims:
    """Every figure of the article's section 2.2 and of its table of cold starts beside ours.

    `got` is the storage probe's; `cold` and `warm` are recorded starts of a pipeline.
    """
    return Claims(
        [
            _files_claim(),
            *_cache_claims(got),
            *_setting_claims(got),
            *_scheduler_claims(got),
            *_start_claims(cold, warm),
        ]
    )


def _files_claim() -> Claim:
    return Claim(
        "the files of the weights",
        "model.bin → index → shards",
        "safetensors before bin, a file before its index",
        "recorded",
        "model.bin is CTranslate2's name, and a folder with one file has no index. Read-ahead depends on how a file is "
        "read, not on its name; safetensors files are mapped",
        "in transformers 5.19",
    )


def _cache_claims(got: Obtained) -> list[Claim]:
    steps = got.result.frames["cache_steps"] if got.result else None
    size = steps["file_bytes"][0] if steps is not None and len(steps) else 0

    def left(sequence: str, call: str) -> str | None:
        ratio = None if steps is None else resident(steps, sequence, call)
        emptied = steps is not None and (resident(steps, "stepwise", DONTNEED) or 0.0) <= _EMPTY_RATIO
        return None if not emptied or ratio is None else f"{format_ratio(ratio)} of {format_bytes(size)} cached"

    return [
        _told(
            got,
            "DONTNEED before loading",
            "keeps the page cache clean",
            left("stepwise", DONTNEED),
            "it throws away what a warm cache holds; call it after the weights are on the GPU",
        ),
        _told(
            got,
            "DONTNEED, then one WILLNEED",
            "preloads the file",
            left("article", ONE_WILLNEED),
            "one call is cut to what the kernel reads ahead at a time; its size is also never defined in the article",
        ),
        _told(
            got,
            "WILLNEED in a loop",
            "not tried",
            left("stepwise", WILLNEED_STEPS),
            "each call no longer than the read-ahead limit",
        ),
    ]


def _setting_claims(got: Obtained) -> list[Claim]:
    settings = {row["setting"]: row for row in _rows(got, "block_settings")}

    def claim(setting: str, subject: str, article: str, correction: str) -> Claim:
        row = settings.get(setting)
        return _told(got, subject, article, None if row is None else row["value"], correction)

    return [
        claim(
            "scheduler", "scheduler on SSD", "none", "right: the default of NVMe drives, so there is nothing to change"
        ),
        claim(
            "read_expire",
            "scheduler on HDD",
            "deadline, read_expire raised to 500 ms",
            "deadline left the kernel with 5.0 and mq-deadline took its place; 500 ms is its default already",
        ),
        claim(
            "read_ahead",
            "what bounds WILLNEED",
            "the scheduler's queue depth",
            "the larger of read-ahead and largest request does; the queue depth bounds requests in flight",
        ),
    ]


def _scheduler_claims(got: Obtained) -> list[Claim]:
    cold = {row["method"]: row for row in _rows(got, "read_rates") if row["cache"] == "cold"}
    mapped, plain = cold.get("mmap"), cold.get("read")
    ratio = None
    if mapped and plain:
        ratio = f"cold, × {mapped['p50_bytes_per_s'] / plain['p50_bytes_per_s']:.2f} of a plain read"
    note = "no baseline is stated; compare schedulers on your own volume, as root, with this probe"
    return [
        Claim("none (NVMe and mmap)", "+38 %", None, "not_identifiable", note, "switching needs root and an idle disk"),
        Claim(
            "kyber (cloud disks of many tenants)",
            "+12 %",
            None,
            "not_identifiable",
            f"kyber cuts queues to hold latencies, which costs throughput rather than adding any; {note}",
            "switching needs root and an idle disk",
        ),
        _told(
            got,
            "mmap in place of reading",
            "part of the +38 %",
            ratio,
            "a map that is cold is read by page faults, which is often slower",
        ),
    ]


def _start_claims(cold: ProbeResult, warm: ProbeResult) -> list[Claim]:
    pipe, engine = ARTICLE_START_S
    asked = needed_bytes_per_s()
    needed = {
        start: ", ".join(f"{rate / 1e9:.1f}" for rate in asked.filter(start=start)["needed_bytes_per_s"])
        for start in (pipe, engine)
    }
    largest = max(ARTICLE_MODELS.values())
    return [
        *_pipeline_claims(cold, warm, needed[pipe]),
        Claim(
            "TensorRT-LLM, cold start",
            "320 ms",
            f"≥ {format_s(largest / PCIE5_BYTES_PER_S)} for {largest / 1e9:.1f} GB",
            "bounded",
            f"the three models would need {needed[engine]} GB/s, and an NVMe drive gives about 7. Without a built "
            "engine a start is a build of minutes",
            "by 16 lanes of PCIe 5.0",
        ),
        Claim(
            "TensorRT-LLM, first inference",
            "345 ms",
            None,
            "not_identifiable",
            "neither model, prompt nor length of the answer is told, so 2180 over 345 compares nothing",
            "without a GPU",
        ),
        Claim(
            "TensorRT-LLM, peak memory",
            "+0.3 GB",
            None,
            "not_identifiable",
            "an engine of these models is gigabytes, so this too is what came on top of the weights",
            "without a GPU",
        ),
    ]


def _pipeline_claims(cold: ProbeResult, warm: ProbeResult, needed: str) -> list[Claim]:
    (begin, first), (warm_begin, warm_first) = _first_token(cold), _first_token(warm)
    peak = cold.frames["pipeline_phases"]["peak_bytes"].drop_nulls().to_list()
    sizes = ", ".join(f"{size / 1e9:.1f}" for size in ARTICLE_MODELS.values())
    weights = format_bytes(int(cold.machine["weights_bytes"]))
    where = f"on {cold.machine['cpu_count']} CPU cores with {weights} of weights"
    start = f"{format_s(begin + first)} cold, {format_s(warm_begin + warm_first)} warm, to the first token"
    return [
        Claim(
            "Hugging Face pipeline, cold start",
            "1240 ms",
            start,
            "recorded",
            f"the three models weigh {sizes} GB in bfloat16 and would need {needed} GB/s: their weights are not in it",
            where,
        ),
        Claim(
            "Hugging Face pipeline, first inference",
            "2180 ms",
            f"{format_s(first)} cold, {format_s(warm_first)} warm",
            "recorded",
            "on a GPU it also loads modules and chooses kernels, which a CPU does not do",
            where,
        ),
        Claim(
            "Hugging Face pipeline, peak memory",
            "+1.8 GB",
            f"{format_bytes(max(peak))}, imports included",
            "recorded",
            "1.8 GB hold the weights of none of the three models, so it is what came on top of them",
            where,
        ),
    ]


def _first_token(result: ProbeResult) -> tuple[float, float]:
    """(begin, seconds) of the first token of the first start."""
    row = result.frames["pipeline_phases"].row(
        by_predicate=(pl.col("phase") == "first_token") & (pl.col("start_id") == 1)
    )
    told = dict(zip(result.frames["pipeline_phases"].columns, row, strict=True))
    return float(told["begin_s"]), float(told["duration_s"])


def _told(got: Obtained, subject: str, article: str, ours: str | None, correction: str) -> Claim:
    if ours is None:
        return Claim(subject, article, None, "not_identifiable", correction, "this file system does not show it")
    return Claim(subject, article, ours, got.how, correction, f"on {got.where}")


def _rows(got: Obtained, frame: str) -> list[dict[str, Any]]:
    return got.result.frames[frame].to_dicts() if got.result else []


def _word(known: float | None, holds: bool) -> str:
    return "unknown" if known is None else "yes" if holds else "no"


def _whole(ratio: float | None, emptied: bool) -> str:
    return _word(ratio if emptied else None, ratio is not None and ratio >= _FULL_RATIO)
