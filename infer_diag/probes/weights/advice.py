"""What the storage probe says in sentences, and the settings of the device beside the article's advice."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.probes.weights.block_device import DEFAULT_READ_AHEAD_BYTES, BlockDevice
from infer_diag.probes.weights.cache_steps import DONTNEED, ONE_WILLNEED, WILLNEED_STEPS
from infer_diag.units import format_bytes, format_s

DEFAULT_READ_EXPIRE_S = 0.5
"""`read_expire = HZ / 2` in Linux' block/mq-deadline.c."""

ARTICLE_MODELS = {
    "Llama-2-13B, bfloat16": 26_040_000_000,
    "Qwen2-7B, bfloat16": 15_240_000_000,
    "Phi-3-mini, bfloat16": 7_640_000_000,
}
"""Two bytes for each of 13.02, 7.62 and 3.82 billion parameters: the article's models."""

ARTICLE_START_S = {"Hugging Face pipeline": 1.24, "TensorRT-LLM": 0.32}


def settings_rows(device: BlockDevice) -> list[dict[str, Any]]:
    """Rows of `frames.BlockSettings`."""
    expire = device.read_expire_s
    return [
        _row("rotational", device.is_rotational, None, None, _rotational(device)),
        _row("scheduler", device.scheduler, None, "none on SSD, deadline on HDD", _scheduler(device)),
        _row(
            "read_expire",
            None if expire is None else format_s(expire),
            format_s(DEFAULT_READ_EXPIRE_S),
            "raise it to 500 ms on HDD",
            "500 ms is the default of mq-deadline, so the advice changes nothing"
            if expire in (None, DEFAULT_READ_EXPIRE_S)
            else f"somebody has set it to {format_s(expire)}; the advice would put back the default",
        ),
        _row(
            "read_ahead",
            _size(device.read_ahead_bytes),
            format_bytes(DEFAULT_READ_AHEAD_BYTES),
            "WILLNEED on the whole file",
            f"one WILLNEED brings in at most {_size(device.read_ahead_limit_bytes) or 'what is read ahead'}, "
            "so it has to be repeated over the file",
        ),
        _row(
            "queue_depth",
            device.queue_depth_count,
            None,
            "align WILLNEED with it",
            "it bounds requests in flight and has no part in how much WILLNEED brings in",
        ),
    ]


def floor_rows(size_bytes: int, rates: pl.DataFrame, model: str) -> list[dict[str, Any]]:
    """Rows of `frames.LoadFloors`: bytes / rate of the fastest cold method, for the model and the article's three.

    A machine without cold readings gives no row.
    """
    cold = rates.filter(pl.col("cache") == "cold").sort("p50_bytes_per_s", descending=True)
    if cold.is_empty():
        return []
    method, rate = str(cold["method"][0]), float(cold["p50_bytes_per_s"][0])
    models = {model: size_bytes, **ARTICLE_MODELS}
    return [
        {"model": name, "size_bytes": size, "method": method, "bytes_per_s": rate, "floor_s": size / rate}
        for name, size in models.items()
    ]


def sentences(steps: pl.DataFrame, rates: pl.DataFrame, floors: pl.DataFrame, device: BlockDevice) -> tuple[str, ...]:
    """What was seen of the cache, what it advises, and how long the article's models would take at least."""
    return tuple(filter(None, (_cache(steps), _order(steps), _fastest(rates), _warm(rates), *_bounds(floors))))


def resident(steps: pl.DataFrame, sequence: str, call: str) -> float | None:
    """Median share of the file that is cached after the last such call of a sequence; null where it is not known."""
    rows = steps.filter((pl.col("sequence") == sequence) & (pl.col("call") == call))
    value = rows.filter(pl.col("step_id") == pl.col("step_id").max())["resident_ratio"].median()
    return value if isinstance(value, float) else None


def _cache(steps: pl.DataFrame) -> str:
    empty, once, looped = (resident(steps, "stepwise", call) for call in (DONTNEED, ONE_WILLNEED, WILLNEED_STEPS))
    if empty is None or once is None or looped is None:
        return "The kernel does not tell this user what is cached; run the probe as the owner of the files."
    size = int(steps["file_bytes"][0])
    return (
        f"Of {format_bytes(size)}, DONTNEED leaves {empty:.1%} in the page cache, one WILLNEED brings back "
        f"{once:.1%} ({format_bytes(once * size)}), WILLNEED in steps {looped:.1%}."
    )


def _order(steps: pl.DataFrame) -> str:
    left = resident(steps, "article", ONE_WILLNEED)
    if left is None or left > 0.9:
        return ""
    return (
        f"The article's order (DONTNEED, then WILLNEED) turns a warm cache into {left:.1%}: "
        "call DONTNEED only after the weights are on the GPU, and WILLNEED in a loop before they are read."
    )


def _fastest(rates: pl.DataFrame) -> str:
    cold = rates.filter(pl.col("cache") == "cold").sort("p50_bytes_per_s", descending=True)
    plain = cold.filter(pl.col("method") == "read")
    if cold.is_empty() or plain.is_empty():
        return ""
    best, rate, base = str(cold["method"][0]), float(cold["p50_bytes_per_s"][0]), float(plain["p50_bytes_per_s"][0])
    shown = f"{format_bytes(rate)}/s"
    if best == "read" or _overlap(cold.row(0, named=True), plain.row(0, named=True)):
        return (
            f"Cold, no method beats a plain read beyond the scatter ({format_bytes(base)}/s): keep the loader as it is."
        )
    name = best.replace("_", " ")
    return f"Cold, {name} is fastest here: {shown} against {format_bytes(base)}/s of a plain read."


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two interquartile ranges meet; true where there are too few runs for quartiles."""
    ends = (one["q1_bytes_per_s"], other["q3_bytes_per_s"])
    return None in ends or bool(ends[0] <= ends[1])


def _warm(rates: pl.DataFrame) -> str:
    both = {row["cache"]: row["p50_bytes_per_s"] for row in rates.filter(pl.col("method") == "read").to_dicts()}
    if {"cold", "warm"} - set(both):
        return ""
    return f"A warm page cache reads {both['warm'] / both['cold']:.1f} times as fast as a cold one (plain read)."


def _bounds(floors: pl.DataFrame) -> list[str]:
    rows = floors.filter(pl.col("model").is_in(list(ARTICLE_MODELS)))
    said = []
    for row in rows.sort("size_bytes", descending=True).head(1).to_dicts():
        needed = " and ".join(
            f"{row['size_bytes'] / start / 1e9:.1f} GB/s ({name})" for name, start in ARTICLE_START_S.items()
        )
        said.append(
            f"At the fastest cold rate seen here {row['model']} takes {format_s(row['floor_s'])} to read; "
            f"the article's start times need {needed}. A virtual machine's host may hold what its guest has dropped, "
            "so real cold storage can be slower."
        )
    return said


def _rotational(device: BlockDevice) -> str:
    if device.is_rotational is None:
        return "there is no block device behind this file system (network, overlay or memory)"
    if device.is_rotational:
        return "the kernel takes it for a rotating disk, as it does with many virtual ones"
    return "the kernel knows that it does not rotate"


def _scheduler(device: BlockDevice) -> str:
    if device.scheduler is None:
        return "there is no scheduler to choose"
    if device.scheduler == "none":
        return "already none; nothing to change"
    if device.scheduler == "mq-deadline":
        return "deadline left the kernel with 5.0, mq-deadline is its successor and in use here"
    return f"{device.scheduler} trades throughput for fairness; compare it with none by this probe before changing it"


def _size(value: int | None) -> str | None:
    return None if value is None else format_bytes(value)


def _row(setting: str, value: object, default: str | None, advice: str | None, reading: str) -> dict[str, Any]:
    return {
        "setting": setting,
        "value": None if value is None else str(value),
        "kernel_default": default,
        "article_advice": advice,
        "reading": reading,
    }
