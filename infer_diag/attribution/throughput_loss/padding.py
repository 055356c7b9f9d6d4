"""Padding where it can be counted: engines that batch whole requests compute every row to the longest one."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from infer_diag.recording import Recording

CONTINUOUS = "the engine lets requests join and leave its batch, which pads no length; no line tells graph-size padding"
UNTOLD = "no line tells padded from real tokens: needs every step's tokens and the lengths of every request"


@dataclass(frozen=True)
class Padding:
    """Tokens that steps computed and those that requests needed, of prompts and of outputs.

    `prompt_s` and `output_s`: the steps' time at the padded share. What less padding saves is less where a step's time
    grows more slowly than its tokens, as it does in decode.
    """

    prompt_computed_tokens: int
    prompt_needed_tokens: int
    output_computed_tokens: int
    output_needed_tokens: int
    prompt_s: float
    output_s: float

    @property
    def prompt_ratio(self) -> float:
        """Share of the computed prompt tokens that is padding."""
        return 1.0 - self.prompt_needed_tokens / self.prompt_computed_tokens

    @property
    def output_ratio(self) -> float:
        """Share of the rows in decode steps whose request had already ended."""
        computed = self.output_computed_tokens
        return 1.0 - self.output_needed_tokens / computed if computed else 0.0

    @property
    def ratio(self) -> float:
        """Share of all computed tokens that is padding."""
        computed = self.prompt_computed_tokens + self.output_computed_tokens
        return 1.0 - (self.prompt_needed_tokens + self.output_needed_tokens) / computed


def padding(recording: Recording) -> Padding | str:
    """The padding of an engine that batches whole requests, or why it cannot be counted. Measured.

    Frames in: EngineSteps, Requests. Such an engine shows itself: no step computes prompts and outputs together, every
    prompt is computed in one step, each step's prompt tokens are rows · longest, and a batch keeps its rows until its
    last output. waste = 1 − tokens that requests need / tokens that steps compute.
    """
    steps = recording.engine_steps.filter(pl.col("kind") != "idle")
    if steps.is_empty():
        return UNTOLD
    if (steps["kind"] == "mixed").any() or not _whole_batches(steps.sort("source_id", "line")):
        return CONTINUOUS
    requests = recording.requests.drop_nulls(["prompt_tokens", "output_tokens"])
    served = requests.filter(pl.col("last_token_s").is_not_null())
    if len(requests) < len(recording.requests) or int(steps["prefill_count"].sum()) != len(served):
        return UNTOLD
    kinds = steps.group_by("kind").agg(
        pl.col("prefill_tokens", "decode_tokens").cast(pl.Int64).sum(), spent_s=pl.col("duration_s").sum()
    )
    seconds = {row["kind"]: row["spent_s"] for row in kinds.iter_rows(named=True)}
    computed = int(kinds["prefill_tokens"].sum()), int(kinds["decode_tokens"].sum())
    tokens = served.select(
        pl.col("prompt_tokens").cast(pl.Int64).sum(), (pl.col("output_tokens").cast(pl.Int64) - 1).sum()
    )
    needed = tokens.row(0)
    if needed[0] > computed[0] or needed[1] > computed[1]:
        return UNTOLD
    shares = [1.0 - need / done if done else 0.0 for need, done in zip(needed, computed, strict=True)]
    spent_s = seconds.get("prefill", 0.0) * shares[0], seconds.get("decode", 0.0) * shares[1]
    return Padding(computed[0], needed[0], computed[1], needed[1], *spent_s)


def _whole_batches(steps: pl.DataFrame) -> bool:
    """Whether every prompt step of steps that are never mixed begins a batch whose rows all stay until its end."""
    marked = steps.with_columns(
        batch=(pl.col("kind") == "prefill").cum_sum().over("source_id", "replica"),
        even=pl.col("prefill_tokens") % pl.col("prefill_count").replace(0, 1) == 0,
    )
    if not marked["even"].all() or (marked["batch"] == 0).any():
        return False
    rows = marked.group_by("source_id", "replica", "batch").agg(
        rows=pl.col("prefill_count").max(),
        least=pl.col("decode_count").filter(pl.col("kind") == "decode").min(),
        most=pl.col("decode_count").filter(pl.col("kind") == "decode").max(),
    )
    kept = rows.select(((pl.col("least") == pl.col("rows")) & (pl.col("most") == pl.col("rows"))).fill_null(True).all())
    return bool(kept.item()) and bool((rows["rows"] > 1).any())
