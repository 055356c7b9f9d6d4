"""States of containers as `kubectl describe pod` prints them, as events without a time."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.kubernetes.objects import STUCK
from infer_diag.loaders.kubernetes.tables import EVENT

NEEDLES = r"^\s+(?:Last )?State:\s|^\s+Reason:\s|^\s+Exit Code:\s"

_STATE = r"^\s+((?:Last )?State):\s+(\S+)\s*$"


def described_states(lines: pl.DataFrame) -> pl.DataFrame:
    """Containers that wait because they failed, ended badly, or were killed for their memory (columns of EVENT)."""
    text = pl.col("text")
    read = lines.with_columns(
        text.str.extract(r"^Name:\s+(\S+)\s*$").forward_fill().alias("pod"),
        text.str.extract(_STATE, 1).forward_fill().alias("which"),
        text.str.extract(_STATE, 2).forward_fill().alias("state"),
        text.str.extract(r"^\s+Reason:\s+(\S+)\s*$").alias("why"),
        text.str.extract(r"^\s+Exit Code:\s+(\d+)\s*$").cast(pl.Int64, strict=False).shift(-1).alias("code"),
    )
    told = read.filter(pl.col("why").is_not_null() & pl.col("which").is_not_null() & pl.col("pod").is_not_null())
    ended = (pl.col("state") == "Terminated") & (pl.col("code") != 0)
    reason = (
        pl.when((pl.col("state") == "Waiting") & pl.col("why").is_in(STUCK))
        .then(pl.lit("BackOff"))
        .when(ended & (pl.col("why") == "OOMKilled"))
        .then(pl.lit("OOMKilled"))
        .when(ended & (pl.col("which") == "State"))
        .then(pl.lit("terminated"))
    )
    exit_code = pl.format(", exit code {}", "code").fill_null("")
    return (
        told.with_columns(reason.alias("reason"))
        .drop_nulls("reason")
        .select(
            "line",
            "pod",
            "reason",
            pl.format("container: {}, {}{}", pl.col("state").str.to_lowercase(), "why", exit_code).alias("message"),
            *(pl.lit(None if name != "count" and name != "place" else 1).alias(name) for name in list(EVENT)[4:]),
        )
        .cast(EVENT)
    )
