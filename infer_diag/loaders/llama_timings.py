"""llama.cpp's timings: which lines belong to one request, and what they say of the start before it."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.engine_log import Frames
from infer_diag.loaders.text.reader import Batch

NEEDLES = (
    "eval time",
    "total time",
    "sample time",
    "sampling time",
    "print_timing",
    "n_prompt_tokens",
    "task.n_tokens",
)
"""Literals of the lines that `timing_lines` reads."""

_SLOT = r"slot +[a-z_]+: id +(?:[0-9]+) \| task (?P<task>-?[0-9]+) \| *"
_TIME = (
    rf"^(?:(?P<by>[a-z_]+) ?: +)?(?:{_SLOT})?(?:generation )?(?P<what>prompt eval|eval|total|sample|sampling) time += +"
    r"(?P<ms>[0-9.]+) ms(?: +/ +(?P<count>[0-9]+) (?:tokens|runs))?"
)
_HEADER = rf"^{_SLOT}$"
_LENGTH = rf"^{_SLOT}.*\b(?:n_prompt_tokens|task\.n_tokens) = (?P<count>[0-9]+)"

_CONTEXT = ("llama_print_timings", "llama_perf_context_print", "llama_perf_print", "common_perf_print")
"""Functions that sum over a whole context, where a slot's print is about one request."""

_TOGETHER_LINES = 25
"""A block is printed at once; other threads put a few lines between, never a screenful."""


def timing_lines(batch: Batch) -> pl.DataFrame:
    """One row per line of a timing block, header of one, or length of a slot's prompt.

    Columns `line, time, replica, what, by, task, ms, count`; `what` is the time's name, `header` or `length`.
    """
    message = pl.col("message")
    mine = batch.records.filter(message.str.contains_any(list(NEEDLES)).fill_null(False))
    found = []
    for pattern, what in ((_TIME, None), (_HEADER, "header"), (_LENGTH, "length")):
        read = mine.filter(message.str.contains(pattern)).with_columns(message.str.extract_groups(pattern).alias("_g"))
        names = [field.name for field in read.schema["_g"].fields]  # type: ignore[attr-defined]
        group = {name: pl.col("_g").struct.field(name) if name in names else pl.lit(None, pl.String) for name in _READ}
        found.append(
            read.select(
                "line",
                "time",
                "replica",
                (group["what"] if what is None else pl.lit(what)).alias("what"),
                group["by"].alias("by"),
                group["task"].alias("task"),
                group["ms"].cast(pl.Float64, strict=False).alias("ms"),
                group["count"].cast(pl.UInt32, strict=False).alias("count"),
            )
        )
    return pl.concat(found).sort("line", maintain_order=True)


_READ = ("what", "by", "task", "ms", "count")


def whole(frames: Frames) -> Frames:
    """The frames with `request_timings` in place of single lines, and with what their blocks tell of the starts."""
    lines = frames.pop("timing_lines", _NO_LINES)
    observations = frames["observations"]
    lengths = lines.filter(what="length").select("line", "replica", "task", length="count").sort("line")
    blocks = _blocks(pl.concat([lines.filter(pl.col("what") != "length"), _loads(observations)])).sort("line")
    # Tasks are numbered anew by every process, so the nearest line before the times is meant.
    timings = _requests(blocks.join_asof(lengths, on="line", by=["replica", "task"], check_sortedness=False))
    return frames | {"request_timings": timings, "observations": _starts(observations, blocks)}


_NO_LINES = pl.DataFrame(
    schema={
        "line": pl.UInt32,
        "time": pl.Datetime("us", "UTC"),
        "replica": pl.String,
        "what": pl.String,
        "by": pl.String,
        "task": pl.String,
        "ms": pl.Float64,
        "count": pl.UInt32,
    }
)


def _loads(observations: pl.DataFrame) -> pl.DataFrame:
    found = observations.filter(pl.col("edge") == "bound")
    return pl.concat(
        [_NO_LINES, found.select("line", "time", "replica", what=pl.lit("load"), ms=pl.col("seconds") * 1e3)],
        how="diagonal_relaxed",
    )


def _blocks(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per block: `line` and `time` of its last line, its times and counts."""
    rows = rows.sort("replica", "line", maintain_order=True)
    numbered = rows.with_columns(_begins_block().cum_sum().over("replica").alias("block"))

    def first(name: str, column: str) -> pl.Expr:
        return pl.col(column).filter(pl.col("what") == name).first()

    return numbered.group_by("replica", "block", maintain_order=True).agg(
        pl.col("line").last(),
        first("prompt eval", "line").alias("prompt_line"),
        pl.col("time").drop_nulls().last(),
        pl.col("by").drop_nulls().first(),
        pl.col("task").drop_nulls().first(),
        first("load", "line").alias("load_line"),
        first("load", "ms").alias("load"),
        first("prompt eval", "ms").alias("prompt"),
        first("prompt eval", "count").alias("prompt_count"),
        first("eval", "ms").alias("eval"),
        first("eval", "count").alias("eval_count"),
        first("total", "ms").alias("total"),
        first("sample", "count").alias("sampled"),
    )


def _begins_block() -> pl.Expr:
    """Whether a line opens a block: by the order in which the versions print, by its task, or by its distance."""
    what, before = pl.col("what"), pl.col("what").shift(1).over("replica")
    apart = pl.col("line") - pl.col("line").shift(1).over("replica") > _TOGETHER_LINES
    other_task = pl.col("task") != pl.col("task").shift(1).over("replica")
    begins = (
        what.is_in(["header", "sampling"])
        | ((what == "load") & (before != "sampling"))
        | ((what == "sample") & (before != "load"))
        | ((what == "prompt eval") & ~before.is_in(["header", "load", "sample", "sampling"]))
        | (what.is_in(["eval", "total"]) & (before == "total"))
    )
    return begins.fill_null(False) | apart.fill_null(True) | other_task.fill_null(False)


def _is_context() -> pl.Expr:
    return pl.col("by").is_in(list(_CONTEXT)).fill_null(False) | pl.col("load").is_not_null()


def _requests(blocks: pl.DataFrame) -> pl.DataFrame:
    """Rows of `RequestTimings`.

    A server's slot counts the prompt's computation up to the first token and its output with that token, so its total
    is the request's time from the slot on. A context counts the runs after the first token, and its total begins with
    the context: it is no request's time. What a context prints beside slots' times sums over them and is left out.
    """
    context = _is_context()
    served = (~context).any().over("replica")
    timed = pl.any_horizontal(pl.col("prompt") > 0, pl.col("eval") > 0).fill_null(False)
    rows = blocks.filter(timed & (~context | ~served))
    alone = pl.when(~context)
    after_first = pl.col("sampled").cast(pl.Int64) - pl.col("eval_count")
    return rows.select(
        "line",
        "time",
        "replica",
        pl.coalesce("task", pl.col("line").cast(pl.String)).alias("request_id"),
        (pl.when(pl.col("prompt") > 0).then("prompt") / 1e3).alias("prefill_s"),
        (pl.when(pl.col("eval") > 0).then("eval") / 1e3).alias("decode_s"),
        (alone.then("total") / 1e3).alias("e2e_s"),
        pl.when(context & (pl.col("eval_count") > 0)).then(pl.col("eval") / 1e3 / pl.col("eval_count")).alias("tpot_s"),
        pl.coalesce("length", "prompt_count").alias("prompt_tokens"),
        pl.when(pl.col("length") >= pl.col("prompt_count"))
        .then(pl.col("length") - pl.col("prompt_count"))
        .alias("cached_tokens"),
        alone.then("eval_count").when(after_first.is_in([0, 1])).then("sampled").alias("output_tokens"),
    )


def _starts(observations: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """The observations of starts, with what the blocks of contexts add to them.

    A load time runs from the first byte to the end of the first evaluation, since weights that are mapped come in while
    they are first used: it bounds the load from above. It is printed with every block of its context; another value,
    with no line of a load before it, is another run.
    """
    order = observations.sort("replica", "line", "part", maintain_order=True)
    loads = _loads_once(order)
    nameless = ("phase", "seconds", "resolution_s")
    begun = loads.filter(~pl.col("_described")).with_columns(
        *(pl.lit(None, observations.schema[name]).alias(name) for name in nameless),
        kind=pl.lit("engine_begin"),
        edge=pl.lit("mark"),
    )
    rest = _timed_runs(_paired(order.filter(pl.col("edge") != "bound")), blocks)
    parts = [frame.select(observations.columns) for frame in (begun, rest, loads, _first_requests(loads, blocks))]
    return pl.concat(parts).sort("line", "part", maintain_order=True)


def _loads_once(order: pl.DataFrame) -> pl.DataFrame:
    """The load times, each once, with `_described`: whether other lines tell of the same start."""
    bound, over = pl.col("edge") == "bound", (pl.col("kind") == "shutdown").fill_null(False)
    counted = order.with_columns(
        (~bound & ~over).cum_sum().over("replica").alias("_told"), over.cum_sum().over("replica").alias("_runs")
    )
    printed = pl.struct("seconds", "_runs")
    loads = counted.filter(bound).with_columns(
        (pl.col("_told") > pl.col("_told").shift(1, fill_value=0).over("replica")).alias("_described"),
        (printed == printed.shift(1).over("replica")).fill_null(False).alias("_again"),
    )
    return loads.filter(pl.col("_described") | ~pl.col("_again"))


def _first_requests(loads: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """A phase for the request that follows a load, in a run that has no stamps and no slots.

    With stamps the request is told for itself, and idle time may lie before it.
    """
    lone = blocks.filter((~_is_context()).any().over("replica").not_() & (pl.col("prompt") > 0))
    lone = lone.select("replica", "load_line", "prompt_line", "prompt", "eval").drop_nulls("load_line")
    found = loads.filter(pl.col("time").is_null()).join(
        lone, left_on=["replica", "line"], right_on=["replica", "load_line"]
    )
    return found.with_columns(
        line="prompt_line",
        phase=pl.lit("first_request"),
        edge=pl.lit("duration"),
        seconds=pl.sum_horizontal("prompt", "eval") / 1e3,
    )


def _paired(order: pl.DataFrame) -> pl.DataFrame:
    """The observations without ends that have no begin: further contexts print the same line as the first one."""
    edges = pl.col("edge").is_in(["begin", "end"])
    begun = (pl.col("edge").shift(1).over("replica", "phase") == "begin").fill_null(False)
    kept = order.filter(edges).filter((pl.col("edge") == "begin") | begun)
    return pl.concat([order.filter(~edges), kept])


def _timed_runs(order: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """The observations; a run's wall clock stays only where exactly one context's block is all that was served."""
    ends = order.filter(pl.col("kind") == "shutdown").sort("replica", "line")
    if ends.is_empty():
        return order
    counted = blocks.sort("line").join_asof(
        ends.select("replica", "line", _end="line").sort("line"),
        on="line",
        by="replica",
        strategy="forward",
        check_sortedness=False,
    )
    lone = counted.group_by("replica", "_end").agg(((pl.len() == 1) & _is_context().all()).alias("_lone"))
    told = ends.join(lone, left_on=["replica", "line"], right_on=["replica", "_end"], how="left")
    told = told.with_columns(pl.when(pl.col("_lone")).then("seconds").alias("seconds")).drop("_lone")
    return pl.concat([order.filter((pl.col("kind") != "shutdown") | pl.col("kind").is_null()), told])
