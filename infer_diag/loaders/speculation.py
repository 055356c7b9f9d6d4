"""vLLM's lines on speculative decoding, put into the sample of the statistics line that each of them follows."""

from __future__ import annotations

import polars as pl

NEEDLES = ("SpecDecoding metrics: ", "Speculative metrics: ")

_NEAR_LINES = 50
"""Both lines are printed together; requests and access lines may come between them."""

COLUMNS = ("acceptance_length_tokens", "draft_acceptance_ratio", "accepted_tokens_per_s", "drafted_tokens_per_s")


def speculation(records: pl.DataFrame) -> pl.DataFrame:
    """`line`, `replica` and the values of `COLUMNS` of each such line; null where a version does not print one."""
    message = pl.col("message")
    rows = records.filter(message.str.contains(f"^(?:Engine [0-9]+: *)?(?:{'|'.join(NEEDLES)})"))

    def number(pattern: str) -> pl.Expr:
        return message.str.extract(f"{pattern}: ([0-9]+(?:\\.[0-9]+)?)").cast(pl.Float64, strict=False)

    rate = number("Draft acceptance rate")
    percent = message.str.contains("Draft acceptance rate: [0-9.]+%")
    return rows.select(
        "line",
        "replica",
        number("Mean acceptance length").alias("acceptance_length_tokens"),
        pl.when(percent).then(rate / 100).otherwise(rate).alias("draft_acceptance_ratio"),
        number("Accepted throughput").alias("accepted_tokens_per_s"),
        number("Drafted throughput").alias("drafted_tokens_per_s"),
    )


def with_speculation(frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The frames with `speculation` in the samples: each line's values in the sample of the last line before it."""
    told = frames.pop("speculation", None)
    samples = frames.get("engine_samples")
    if told is None or told.is_empty() or samples is None or samples.is_empty():
        return frames
    places = samples.select(pl.col("line").alias("sample_line"), pl.col("line")).sort("line")
    near = told.sort("line").join_asof(places, on="line", strategy="backward")
    near = near.filter(pl.col("line") - pl.col("sample_line") <= _NEAR_LINES)
    near = near.select(pl.col("sample_line").alias("line"), *COLUMNS).unique("line", keep="first")
    return frames | {"engine_samples": samples.join(near, on="line", how="left", maintain_order="left")}
