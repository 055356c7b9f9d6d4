"""Lines that a container runtime wrote in pieces (flag `P`, the last one `F`), put together again.

Runtimes cut lines of more than 16 KiB. Each piece has a stamp of its own, and pieces of standard output and of standard
error come between each other. The whole line takes the place of its first piece and leaves the others' lines empty, so
that all lines keep their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import polars as pl

_CRI = re.compile(rb"[0-9]{4}-[0-9-]{5}T\S+ (?:stdout|stderr) [FP] ")
_PIECES = (b" stdout P ", b" stderr P ")
_LINE = r"(?s)^(?P<head>\S+ (?P<stream>stdout|stderr) )(?P<flag>[FP]) (?P<text>.*)$"

HELD_BYTES = 1 << 20
"""A line whose last piece does not come within so many bytes is left as it is."""


def whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks, each ending at a line, with pieces joined; logs of another shape pass through as they are."""
    rest = b""
    cut: bool | None = None
    for data in chunks:
        if cut is None:
            cut = _CRI.match(data) is not None
        if not cut:
            yield data
            continue
        data, rest = rest + data, b""
        if any(piece in data for piece in _PIECES):
            data, rest = _joined(data)
        if data:
            yield data
    if rest:
        yield rest


def _joined(data: bytes) -> tuple[bytes, bytes]:
    """(the text with its pieces joined, what begins with the first line whose last piece is still to come)."""
    lines = pl.DataFrame({"line": data.decode("utf-8", "replace").split("\n")}).with_row_index("row")
    read = lines.with_columns(pl.col("line").str.extract_groups(_LINE).alias("_g")).unnest("_g")
    pieces = read.filter(pl.col("flag").is_not_null())
    goes_on = (pl.col("flag").shift(1) == "P").over("stream").fill_null(False)
    numbered = pieces.with_columns((~goes_on).cum_sum().over("stream").alias("whole"))
    groups = numbered.group_by("stream", "whole", maintain_order=True).agg(
        pl.col("row"), pl.col("head").first(), pl.col("text").str.join(""), pl.col("flag").last(), pl.len().alias("len")
    )
    done = groups.filter((pl.col("len") > 1) & (pl.col("flag") == "F"))
    whole = done.select(pl.col("row").list.first(), pl.format("{}F {}", "head", "text").alias("joined"))
    emptied = done.select(pl.col("row").list.slice(1).alias("row")).explode("row")["row"]
    mended = lines.join(whole, on="row", how="left", maintain_order="left").select(
        pl.when(pl.col("row").is_in(emptied.implode()))
        .then(pl.lit(""))
        .otherwise(pl.coalesce("joined", "line"))
        .alias("line")
    )["line"]
    waiting = groups.filter(pl.col("flag") == "P").select(pl.col("row").list.first()).to_series().to_list()
    first = min(waiting, default=len(mended))
    text, rest = "\n".join(mended[:first]), "\n".join(mended[first:])
    if len(rest) > HELD_BYTES:
        return "\n".join(mended).encode(), b""
    return (f"{text}\n" if rest and text else text).encode(), rest.encode()
