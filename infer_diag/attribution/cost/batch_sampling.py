"""How far a batch that is read off a gauge now and then is from the one that ran: the error of the steps told by it."""

from __future__ import annotations

import numpy as np
import polars as pl


def step_variance(lines: pl.DataFrame) -> pl.Series:
    """Variance of the steps that each line tells, by how lines that follow each other differ: null for a first line.

    In: `tokens` and `prompts` of the stretch before a line, `steps` = tokens / batch at the line, and `stream`, in
    order of time. In a stretch of busy time steps, tokens and prompts are bound to each other by the step time, so
    what differs in the steps and neither tokens nor prompts tell is the gauge's: variance = (rest of difference)² / 2.
    """
    columns = ("steps", "tokens", "prompts")
    change = lines.select((pl.col(name) - pl.col(name).shift(1)).over("stream").alias(name) for name in columns)
    known = change["steps"].is_not_null().to_numpy()
    values = change.fill_null(0.0).to_numpy()
    rest = values[:, 0].copy()
    if known.any():
        told = values[known, 1:]
        along, *_ = np.linalg.lstsq(told, rest[known], rcond=None)
        rest -= values[:, 1:] @ along
    return pl.select(pl.when(pl.lit(pl.Series(known))).then(pl.Series(rest**2 / 2)).alias("variance"))["variance"]
