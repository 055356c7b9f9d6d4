"""OTLP's JSON to spans."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.otlp.shapes import ATTRIBUTES as LISTED
from infer_diag.loaders.otlp.shapes import RESOURCE, exports, pairs
from infer_diag.loaders.request_traces.spans import ATTRIBUTES, SPAN

NEEDLE = r'"(?:resourceSpans|scopeSpans|instrumentationLibrarySpans)"'

_SPAN = pl.Struct(
    {
        "traceId": pl.String,
        "spanId": pl.String,
        "parentSpanId": pl.String,
        "name": pl.String,
        "startTimeUnixNano": pl.String,
        "endTimeUnixNano": pl.String,
        "attributes": LISTED,
        "status": pl.Struct({"code": pl.String}),
    }
)
_SCOPES = pl.List(pl.Struct({"scope": pl.Struct({"name": pl.String}), "spans": pl.List(_SPAN)}))
_RESOURCES = pl.List(
    pl.Struct(
        {
            "resource": RESOURCE,
            "scopeSpans": _SCOPES,
            "instrumentationLibrarySpans": _SCOPES,
        }
    )
)
_EXPORT = pl.Struct(
    {
        "resourceSpans": _RESOURCES,
        "batches": _RESOURCES,
        "trace": pl.Struct({"resourceSpans": _RESOURCES}),
        "result": pl.Struct({"resourceSpans": _RESOURCES}),
    }
)
_ERRORS = ("2", "STATUS_CODE_ERROR")
_SERVICE = "service.name"


def decoded(lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(spans with the columns of `SPAN`, lines that are no export) of `line` and `text`."""
    good, broken = exports(lines, _EXPORT)
    return _spans(good), broken


def _spans(read: pl.DataFrame) -> pl.DataFrame:
    export = pl.col("export").struct
    several = [export.field("resourceSpans"), export.field("batches")]
    several += [export.field(name).struct.field("resourceSpans") for name in ("trace", "result")]
    resources = read.select("line", pl.coalesce(several).alias("one")).explode("one").drop_nulls("one")
    resources = resources.with_row_index("resource")
    one = pl.col("one").struct
    scopes = resources.select(
        "line",
        "resource",
        pl.coalesce(one.field("scopeSpans"), one.field("instrumentationLibrarySpans")).alias("scope"),
    )
    named = pl.col("scope").struct.field("scope").struct.field("name").alias("scope_name")
    each = pl.col("scope").struct.field("spans").alias("span")
    listed = scopes.explode("scope").select("line", "resource", named, each)
    spans = listed.explode("span").drop_nulls("span").unnest("span").with_row_index("row")
    own = _wide(spans.select("row", "attributes"), "row")
    shared = resources.select("resource", one.field("resource").struct.field("attributes"))
    around = _wide(shared, "resource")
    whole = spans.join(own, on="row", how="left", maintain_order="left").join(
        around, on="resource", how="left", maintain_order="left", suffix="_around"
    )
    return _named(whole)


def _named(spans: pl.DataFrame) -> pl.DataFrame:
    told = [pl.coalesce(name, f"{name}_around").alias(name) for name in ATTRIBUTES.values()]
    ids = {"trace": "traceId", "span": "spanId", "parent": "parentSpanId"}
    out = spans.select(
        "line",
        *(_hexadecimal(pl.col(source).replace("", None)).alias(name) for name, source in ids.items()),
        "name",
        pl.coalesce("service_around", "service").alias("service"),
        pl.col("scope_name").replace("", None).alias("scope"),
        pl.col("startTimeUnixNano").cast(pl.Int64, strict=False).alias("begin_ns"),
        pl.col("endTimeUnixNano").cast(pl.Int64, strict=False).alias("end_ns"),
        pl.col("status").struct.field("code").is_in(list(_ERRORS)).fill_null(False).alias("failed"),
        *told,
    )
    return out.select(pl.col(name).cast(kind) for name, kind in SPAN.items())


def _wide(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """One column per attribute that is read (and `service`), as text, for each row that has any."""
    wanted = {**ATTRIBUTES, _SERVICE: "service"}
    mine = pairs(rows, key).filter(pl.col("name").is_in(list(wanted)))
    columns = [pl.col("text").filter(pl.col("name") == name).first().alias(column) for name, column in wanted.items()]
    return mine.group_by(key, maintain_order=True).agg(columns)


def _hexadecimal(identifier: pl.Expr) -> pl.Expr:
    """The id of a trace or a span as the collector's files write it; Tempo writes its 16 or 8 bytes in base64."""
    is_base64 = identifier.str.contains("^(?:[A-Za-z0-9+/]{11}=|[A-Za-z0-9+/]{22}==)$")
    digits = identifier.str.decode("base64", strict=False).bin.encode("hex")
    return pl.when(is_base64).then(digits).otherwise(identifier)
