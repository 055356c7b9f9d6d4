"""Lines to records: colours stripped, bars and glued records split, JSON and containers unwrapped, prefixes peeled."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.text import prefixes

_SPLIT = "\x1e"
_MAX_NESTING = 3
_WRAPPED = ("$.log", "$.line", "$.textPayload", "$.MESSAGE")
_LOGGED = ("$.message", "$.msg", "$.event", "$.jsonPayload.message", "$.text", "$.fields.message")
_SPANS = ("$.spans", "$.span")
_STAMPED = (
    "$.time",
    "$.timestamp",
    "$.asctime",
    "$.ts",
    "$['@timestamp']",
    "$.created",
    "$.__REALTIME_TIMESTAMP",
)
_PODS = ("$.kubernetes.pod_name", "$.labels.pod", "$.pod")
_STAMP_BEHIND = '" timestamp='
_PROMPT = "Received request "
ATTRIBUTES = ("outer", "inner", "process", "pid", "ip", "rank", "ranks", "pod", "service")


def records(lines: pl.DataFrame) -> pl.DataFrame:
    """One row per record: `line`, `part` (its place within the line), `message` and the columns of `ATTRIBUTES`."""
    cleaned = lines.with_columns(prefixes.clean(pl.col("text")))
    document = _is_document(pl.col("text"))
    whole = prefixes.peeled(cleaned.filter(document).with_columns(pl.lit(0, pl.UInt32).alias("part")))
    split = _joined_heads(prefixes.split_at_engine_stamp(_split(cleaned.filter(~document))))
    found = pl.concat([split, whole], how="diagonal").sort("line", "part", maintain_order=True)
    for _ in range(_MAX_NESTING):
        wrapped = pl.col("message").str.starts_with("{") & pl.col("message").str.ends_with("}")
        if not found.select(wrapped.any()).item():
            break
        found = pl.concat([found.filter(~wrapped), _unwrapped(found.filter(wrapped))], how="diagonal").sort(
            "line", "part"
        )
    return _stamped_behind(found).select("line", "part", "message", *ATTRIBUTES)


def _stamped_behind(found: pl.DataFrame) -> pl.DataFrame:
    """Takes the stamp that llama.cpp's text log of 2024 prints behind the message."""
    behind = pl.col("message").str.contains(_STAMP_BEHIND, literal=True)
    if not found.select(behind.any()).item():
        return found
    stamp = pl.col("message").str.extract(f"{_STAMP_BEHIND}(1[0-9]+)")
    return found.with_columns(pl.coalesce("inner", stamp).alias("inner"))


def _is_document(text: pl.Expr) -> pl.Expr:
    """Whether a line is one JSON object, prefixes of collectors aside; an engine's own record may hold braces too."""
    ahead = text.str.extract(r'^([^{]*)\{\s*"')
    closed = text.str.ends_with("}")
    return (ahead.is_not_null() & closed & ~ahead.str.contains(prefixes.RECORD_BEGIN)).fill_null(False)


def _split(lines: pl.DataFrame) -> pl.DataFrame:
    """Cuts lines at carriage returns and before every engine stamp; a prompt is never cut, its text is the user's."""
    marked = (
        pl.when(pl.col("text").str.contains(_PROMPT, literal=True))
        .then("text")
        .otherwise(
            pl.col("text").str.replace_all(f"(?:{prefixes.RECORD_BEGIN})", f"{_SPLIT}$0").str.replace_all("\r", _SPLIT)
        )
    )
    pieces = lines.with_columns(marked.str.split(_SPLIT).alias("text")).explode("text")
    return pieces.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).over("line").alias("part"))


def _joined_heads(peeled: pl.DataFrame) -> pl.DataFrame:
    """Gives what stood in front of a line's first engine stamp to that record, and drops pieces that say nothing."""
    same = pl.col("line") == pl.col("line").shift(1)
    first_stamped = same & (pl.col("part") == 1)
    carried = [
        pl.when(first_stamped).then(pl.coalesce(name, pl.col(name).shift(1))).otherwise(name).alias(name)
        for name in ("outer", "process", "pid", "ip", "rank", "ranks", "pod", "service")
    ]
    said = (pl.col("message") != "") | pl.col("inner").is_not_null() | pl.col("outer").is_not_null()
    lone_head = (pl.col("message") == "") & (pl.col("line") == pl.col("line").shift(-1)).fill_null(False)
    return peeled.with_columns(*carried).filter(said & ~lone_head)


def _unwrapped(found: pl.DataFrame) -> pl.DataFrame:
    """Records out of JSON: a container's wrapper holds the whole line, an application's formatter the message alone."""
    text = pl.col("message")
    # A number is the line of a source file and not the text of a record.
    wrapped = pl.coalesce([text.str.json_path_match(path) for path in _WRAPPED])
    wrapped = pl.when(~wrapped.str.contains(r"^[0-9]*$")).then(wrapped)
    logged = pl.coalesce([text.str.json_path_match(path) for path in _LOGGED])
    stamp = pl.coalesce([text.str.json_path_match(path) for path in _STAMPED])
    pod = pl.coalesce([text.str.json_path_match(path) for path in _PODS])
    # Rust's tracing keeps what it knows of a request in the spans around the event.
    spans = pl.coalesce([text.str.json_path_match(path) for path in _SPANS])
    logged = pl.concat_str([logged, spans], separator=" ", ignore_nulls=True)
    opened = found.with_columns(
        wrapped.alias("_wrapped"), logged.alias("_logged"), stamp.alias("_stamp"), pod.alias("_pod")
    )
    # A record that is a JSON object of the engine's own (statistics of an iteration) wraps nothing.
    logged_or_itself = pl.when(pl.col("_logged") != "").then("_logged").otherwise("message")
    body = opened.with_columns(prefixes.clean(pl.coalesce("_wrapped", logged_or_itself)).alias("text"))
    inside = prefixes.split_at_engine_stamp(body.drop("message", *ATTRIBUTES))
    names = [
        pl.coalesce(inside[name], body[name]).alias(name)
        for name in ATTRIBUTES
        if name not in ("outer", "inner", "pod")
    ]
    is_wrapper = body["_wrapped"].is_not_null()
    outside = pl.select(
        outer=pl.when(is_wrapper)
        .then(pl.coalesce(body["_stamp"], body["outer"]))
        .otherwise(pl.coalesce(body["outer"], inside["outer"])),
        inner=pl.when(is_wrapper).then(inside["inner"]).otherwise(pl.coalesce(inside["inner"], body["_stamp"])),
    )
    return inside.select(
        "line",
        "part",
        "message",
        outside["outer"],
        outside["inner"],
        pl.coalesce(inside["pod"], body["_pod"], body["pod"]).alias("pod"),
        *names,
    )
