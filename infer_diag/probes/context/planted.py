"""Pairs of starts whose difference is known, to see whether the test of a flag finds it."""

from __future__ import annotations

import random

import polars as pl

from infer_diag.probes.result import framed

CONTEXT_S = 0.1476
"""The article's context creation on an A100."""


def planted_pairs(effect_s: float, *, pairs: int = 30, scatter_s: float = 0.005, seed: int = 0) -> pl.DataFrame:
    """`frames.FlagPairs`, simulated: `CONTEXT_S` with normal scatter for each start, and `effect_s` more with the flag.

    `scatter_s` is the standard deviation of one start; the order alternates as the probe's does.
    """
    draws = random.Random(seed)
    return framed(
        "flag_pairs",
        [
            {
                "pair_id": number,
                "without_flag_s": max(draws.gauss(CONTEXT_S, scatter_s), 0.0),
                "with_flag_s": max(draws.gauss(CONTEXT_S + effect_s, scatter_s), 0.0),
                "with_flag_first": not number % 2,
            }
            for number in range(1, pairs + 1)
        ],
    )
