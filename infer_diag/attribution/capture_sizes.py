"""Which step sizes to capture as GPU graphs: least padding for so many graphs, against the lists that engines ship.

A step of b tokens replays the smallest captured graph of s ≥ b tokens and computes s − b tokens for nothing; a step
larger than every graph is launched kernel by kernel. Decode graphs depend on the number of tokens alone: the context
is reached through the block table, so a second dimension of sequence lengths buys nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import dataframely as dy
import numpy as np
import numpy.typing as npt
import polars as pl

from infer_diag.attribution.capture_costs import GraphCost
from infer_diag.errors import DiagError

KINDS = ("prefill", "decode", "mixed")
ARTICLE_SIZES = (8, 16, 32)
ARTICLE_GRAPHS = 6
"""The article warms up batch 8, 16 and 32 with sequences of 128 and 512."""
ARTICLE_MOST_PADDING = 0.7

VLLM_LARGEST = 512

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class BatchSizes(dy.Schema):
    """One row per size of a step in tokens: how many steps had it, and how long they took together."""

    size_tokens = dy.UInt32(primary_key=True, min=1)
    step_count = dy.UInt64(min=1)
    duration_s = dy.Float64(nullable=True, min=0)


class CapturePlans(dy.Schema):
    """One row per list of capture sizes, priced on the same steps."""

    plan = dy.String()
    graph_count = dy.UInt32()
    sizes = dy.List(dy.UInt32(), description="tokens of each captured graph, ascending")
    covered_ratio = dy.Float64(min=0, max=1, description="share of the steps that replay a graph")
    padding_tokens = dy.Float64(nullable=True, min=0, description="mean per replayed step; null where none is")
    padding_ratio = dy.Float64(nullable=True, min=0, max=1, description="share of replayed tokens that are padding")
    graph_bytes = dy.Float64(nullable=True, min=0, description="graphs times the bytes of one, as the log tells them")
    capture_s = dy.Float64(nullable=True, min=0, description="once per start")
    padding_s = dy.Float64(nullable=True, min=0, description="all padded tokens of the steps given")


@dataclass(frozen=True)
class Verdict:
    """What the design is worth beside a reference at no more graphs: `saved_ratio` of its expected padding is gone.

    `better` is false where the reference cannot be beaten, and `sentence` says so.
    """

    better: bool
    saved_ratio: float | None
    sentence: str


def batch_sizes(steps: pl.DataFrame, kinds: Sequence[str] = KINDS) -> dy.DataFrame[BatchSizes]:
    """How often the engine's steps had each size: tokens of decode and prefill together, as engines pad them.

    Frame in: EngineSteps of a log or of a simulated run; idle steps do not count. Frame out: BatchSizes.
    """
    size = (pl.col("decode_tokens") + pl.col("prefill_tokens")).cast(pl.UInt32)
    found = (
        steps.filter(pl.col("kind").cast(pl.String).is_in(list(kinds)))
        .group_by(size.alias("size_tokens"))
        .agg(pl.len().cast(pl.UInt64).alias("step_count"), pl.col("duration_s").sum())
        .filter(pl.col("size_tokens") > 0)
    )
    return BatchSizes.validate(found.sort("size_tokens"), cast=True)


def vllm_sizes(largest: int = VLLM_LARGEST) -> tuple[int, ...]:
    """vLLM's default list up to `largest`: 1, 2, 4, every 8 below 256, every 16 from there on.

    Source: `VllmConfig._set_cudagraph_sizes` of vLLM 0.15; `largest` is 2 · `max_num_seqs`, at most 512, unless a
    model raises it.
    """
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16))
    return tuple(size for size in steps if size <= largest)


def vllm_sizes_for(deployments: pl.DataFrame) -> tuple[int, ...]:
    """vLLM's default list under the sequence limit that the log states last; the list up to 512 where it states none.

    Frame in: Deployments. The list ends at 2 · `max_num_seqs`, at most 512.
    """
    told = deployments["max_running_count"].drop_nulls()
    return vllm_sizes(min(2 * int(told[-1]), VLLM_LARGEST) if len(told) else VLLM_LARGEST)


def capture_plan(
    batches: pl.DataFrame,
    sizes: Iterable[int],
    name: str,
    *,
    cost: GraphCost | None = None,
    graph_count: int | None = None,
    most_padding_ratio: float = 1.0,
    token_s: float | None = None,
) -> dy.DataFrame[CapturePlans]:
    """One row that prices a list of sizes on the steps.

    Frame in: BatchSizes. Frame out: CapturePlans. Steps padded beyond `most_padding_ratio` of a graph do not replay it.
    `graph_count` where more graphs are captured than there are sizes;
    `token_s` seconds of one padded token (`padded_token_s`).

    Raises:
        DiagError: no size, or one below 1.
    """
    chosen = sorted(set(sizes))
    if not chosen or chosen[0] < 1:
        raise DiagError("a capture list needs sizes of 1 token or more", hint="capture_plan(batches, (1, 2, 4, 8), …)")
    steps, replayed, padding, computed = _replays(batches, chosen, most_padding_ratio)
    number = len(chosen) if graph_count is None else graph_count
    row = {
        "plan": name,
        "graph_count": number,
        "sizes": chosen,
        "covered_ratio": replayed / steps if steps else 0.0,
        "padding_tokens": padding / replayed if replayed else None,
        "padding_ratio": padding / computed if computed else None,
        "graph_bytes": None if cost is None or cost.graph_bytes is None else cost.graph_bytes * number,
        "capture_s": None if cost is None or cost.graph_s is None else cost.graph_s * number,
        "padding_s": None if token_s is None else token_s * padding,
    }
    return CapturePlans.validate(pl.DataFrame([row], schema=CapturePlans.create_empty().schema), cast=True)


def capture_frontier(
    batches: pl.DataFrame,
    *,
    most: int,
    largest: int | None = None,
    multiple_of: int = 1,
    cost: GraphCost | None = None,
    token_s: float | None = None,
) -> dy.DataFrame[CapturePlans]:
    """The best list for every number of graphs from 1 to `most`: no other list of so many pads less.

    Frame in: BatchSizes. Frame out: CapturePlans named `best of N`, by number. Exact: an optimal list holds sizes that
    occur (rounded up to `multiple_of`), so D_k(j) = min over i < j of D_{k−1}(i) + c_j·(N_j − N_i) − (B_j − B_i), with
    N steps and B tokens up to a size. A given `largest` is in every list, so that sizes which these steps lack replay a
    graph as well; steps above it are launched without one.

    Raises:
        DiagError: no step within `largest`, or `most` below 1.
    """
    size, count = _counted(batches)
    within = size <= (largest if largest is not None else size.max(initial=0))
    size, count = size[within], count[within]
    if not len(size) or most < 1:
        raise DiagError("no step is small enough for a graph", hint="give a larger `largest`, or at least one graph")
    levels, steps, tokens = _levelled(size, count, largest, multiple_of)
    lists = _best_lists(levels, steps, tokens, min(most, len(levels)))
    plans = [capture_plan(batches, chosen, f"best of {len(chosen)}", cost=cost, token_s=token_s) for chosen in lists]
    return CapturePlans.validate(pl.concat(plans))


def designed(frontier: pl.DataFrame, *, budget_bytes: float | None = None) -> dy.DataFrame[CapturePlans]:
    """The row of the frontier to capture: least padding and capture time together, within the memory.

    Frame in and out: CapturePlans. Where the steps have a price (`padding_s`, `capture_s`) their sum is least; where
    they have none, the padding is, and of equals the fewer graphs.

    Raises:
        DiagError: a budget where the log tells no graph's bytes, or too small for one graph.
    """
    fits = frontier
    if budget_bytes is not None:
        if frontier["graph_bytes"].null_count():
            raise DiagError("no line tells what a graph takes, so a memory budget cannot be held")
        fits = frontier.filter(pl.col("graph_bytes") <= budget_bytes)
    if fits.is_empty():
        raise DiagError("the memory budget is too small for one graph")
    priced = not (fits["padding_s"].null_count() or fits["capture_s"].null_count())
    worth = pl.col("padding_s") + pl.col("capture_s") if priced else pl.col("padding_tokens")
    return CapturePlans.validate(fits.sort(worth, "graph_count").head(1))


def padded_token_s(batches: pl.DataFrame) -> float | None:
    """Seconds that one more token adds to a step: slope of duration on size, weighted by steps; null below 8 sizes.

    Frame in: BatchSizes. Modelled: a token of padding costs what a real one does, its attention apart, so this is an
    upper bound. A slope below 0 counts as 0.
    """
    known = batches.drop_nulls("duration_s")
    if len(known) < 8:
        return None
    size, count = _counted(known)
    each = known["duration_s"].to_numpy() / count
    mean_size, mean_each = np.average(size, weights=count), np.average(each, weights=count)
    spread = float(np.average((size - mean_size) ** 2, weights=count))
    if spread == 0:
        return None
    return max(float(np.average((size - mean_size) * (each - mean_each), weights=count)) / spread, 0.0)


def compared(plan: pl.DataFrame, reference: pl.DataFrame) -> Verdict:
    """Whether the plan pads less than the reference with no more graphs and no fewer steps covered.

    Frames in: one row of CapturePlans each.
    """
    ours, theirs = plan.row(0, named=True), reference.row(0, named=True)
    name, pads = theirs["plan"], theirs["padding_tokens"]
    if ours["graph_count"] > theirs["graph_count"] or ours["covered_ratio"] < theirs["covered_ratio"]:
        return Verdict(False, None, f"not comparable with {name}: more graphs, or fewer steps covered")
    if pads is None or ours["padding_tokens"] is None or ours["padding_tokens"] >= pads:
        return Verdict(False, 0.0, f"{name} cannot be beaten on these steps with so many graphs")
    saved = 1 - ours["padding_tokens"] / pads
    return Verdict(
        True,
        saved,
        f"{ours['graph_count']} graphs pad {ours['padding_tokens']:.3g} tokens a step where {name} "
        f"({theirs['graph_count']} graphs) pads {pads:.3g}",
    )


def _replays(batches: pl.DataFrame, sizes: Sequence[int], most_padding_ratio: float) -> tuple[int, int, int, int]:
    """(steps, steps that replay a graph, tokens of padding in these, tokens that these compute)."""
    size, count = _counted(batches)
    graphs = np.asarray(sizes, dtype=np.int64)
    place = np.searchsorted(graphs, size)
    padded_to = graphs[np.minimum(place, len(graphs) - 1)]
    replays = (place < len(graphs)) & ((padded_to - size) <= most_padding_ratio * padded_to)
    padding = ((padded_to - size) * count)[replays]
    return int(count.sum()), int(count[replays].sum()), int(padding.sum()), int((padded_to * count)[replays].sum())


def _counted(batches: pl.DataFrame) -> tuple[Ints, Ints]:
    ordered = batches.sort("size_tokens")
    return ordered["size_tokens"].to_numpy().astype(np.int64), ordered["step_count"].to_numpy().astype(np.int64)


def _levelled(size: Ints, count: Ints, largest: int | None, multiple_of: int) -> tuple[Ints, Floats, Floats]:
    """The sizes that a list may hold, ascending, with the steps and their tokens that belong to each."""
    rounded = -(-size // multiple_of) * multiple_of
    if largest is not None:
        rounded = np.minimum(rounded, largest)
    levels, group = np.unique(rounded, return_inverse=True)
    steps: Floats = np.bincount(group, weights=count).astype(np.float64)
    tokens: Floats = np.bincount(group, weights=count * size).astype(np.float64)
    if largest is not None and levels[-1] < largest:
        return np.append(levels, largest), np.append(steps, 0.0), np.append(tokens, 0.0)
    return levels, steps, tokens


def _best_lists(levels: Ints, steps: Floats, tokens: Floats, most: int) -> list[list[int]]:
    """For every k up to `most` the k levels of least padding, the highest level always among them."""
    before_steps = np.concatenate([[0.0], np.cumsum(steps)])
    before_tokens = np.concatenate([[0.0], np.cumsum(tokens)])
    upto = before_steps[1:]
    # padding[i, j]: steps above level i − 1 and up to level j all run at level j.
    padding = levels * (upto - before_steps[:-1, None]) - (before_tokens[1:] - before_tokens[:-1, None])
    padding[np.tril_indices(len(levels), -1)] = np.inf
    best, choices = padding[0], []
    for _ in range(most):
        choices.append(best)
        joined = np.concatenate([[np.inf], best[:-1]])[:, None] + padding
        best = joined.min(axis=0)
    return [_traced(choices[: k + 1], padding, levels) for k in range(most)]


def _traced(layers: list[Floats], padding: Floats, levels: Ints) -> list[int]:
    """The levels behind the best value of the last layer."""
    at, chosen = len(levels) - 1, []
    for k in range(len(layers) - 1, -1, -1):
        chosen.append(int(levels[at]))
        if k:
            earlier = np.concatenate([[np.inf], layers[k - 1][:-1]]) + padding[:, at]
            at = int(earlier.argmin()) - 1
    return chosen[::-1]
