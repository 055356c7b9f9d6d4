"""Loki's answers, which come newest first: the lines of engines put into the order in which they were written.

What is in the lines is read by the engines' own loaders; the lines keep their place in the file for evidence.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.files import LogFile, counted, whole
from infer_diag.loaders.json_documents import documents
from infer_diag.loaders.loader import Options
from infer_diag.loaders.text import stamps
from infer_diag.recording import Recording

_LARGEST_BYTES = 1 << 30
_HEAD_BYTES = 1 << 18
_LINE_BEGIN = rb'\s*\{"labels":\s*\{'
_ANSWER = rb'"resultType"\s*:\s*"streams"'
_NOTE = "the lines came newest first; they are read in the order of time"


@dataclass
class OrderedFile(LogFile):
    """A file whose lines were put in order; `places` holds the physical line of each."""

    text: bytes = b""
    places: tuple[int, ...] = ()

    def _expanded(self, limit: int, *, to_a_line: bool = False) -> Iterator[bytes]:
        view = io.BytesIO(self.text)
        while block := view.read(limit):
            yield block


def in_order_of_time(file: LogFile, head: bytes, options: Options) -> LogFile:
    """The file as it is, unless Loki wrote it and its first lines are not in the order of time.

    Raises:
        SourceError: it is too large to be put in order, or holds no line.
    """
    if re.search(_ANSWER, head[:_HEAD_BYTES]):
        rows = _answered(file, options)
    elif _is_listing(head) and not _in_order(_stamped(_split(head[:_HEAD_BYTES]))):
        rows = _listed(file, options)
    else:
        return file
    if rows.is_empty():
        raise SourceError(f"{file.label} is an answer of Loki that holds no line", hint="query a longer time range")
    rows = _sorted(rows)
    text = "\n".join(rows["text"].to_list()) + "\n"
    notes = [*file.notes, _NOTE]
    return OrderedFile(
        file.path,
        file.label,
        file.size_bytes,
        file.cut,
        file.sha256,
        notes,
        text.encode(),
        tuple(rows["line"].to_list()),
    )


def _is_listing(head: bytes) -> bool:
    """Whether the first line is one of `logcli --output=jsonl`; searched by literals, since it may be of any length."""
    first = head.lstrip().partition(b"\n")[0]
    return re.match(_LINE_BEGIN, first) is not None and 0 < first.find(b'"line":') < first.rfind(b'"timestamp":')


def placed(recording: Recording, file: LogFile) -> Recording:
    """The recording with its evidence at the physical lines of a file that was put in order."""
    if not isinstance(file, OrderedFile):
        return recording
    return recording.replace(sources=tuple(replace(source, places=file.places) for source in recording.sources))


def _split(data: bytes) -> pl.DataFrame:
    text = data.decode("utf-8", "replace").split("\n")
    rows = pl.DataFrame({"text": text}, schema={"text": pl.String}).with_row_index("line", offset=1)
    return rows.filter(pl.col("text").str.contains(r"\S"))


def _stamped(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with `us` and the digits of the stamp beyond microseconds; null where a line has no stamp."""
    raw = rows.with_columns(pl.col("text").str.json_path_match("$.timestamp").alias("raw"))
    known = stamps.parsed(raw["raw"]).select("raw", "us")
    finer = pl.col("raw").str.extract(r"\.[0-9]{6}([0-9]{1,3})").str.pad_end(3, "0").cast(pl.Int64).fill_null(0)
    return raw.join(known, on="raw", how="left", maintain_order="left").select(
        "line", "text", "us", finer.alias("finer")
    )


def _in_order(rows: pl.DataFrame) -> bool:
    times = rows["us"].drop_nulls()
    return len(times) < 2 or bool((times.diff().drop_nulls() >= 0).all())


def _listed(file: LogFile, options: Options) -> pl.DataFrame:
    """Lines of `logcli --output=jsonl`."""
    read = counted(file.chunks(), options.on_bytes)
    hint = "query with logcli --forward, or a shorter time range"
    return _stamped(_split(whole(file, read, _LARGEST_BYTES, "newest first", hint)))


def _answered(file: LogFile, options: Options) -> pl.DataFrame:
    """Lines of an answer of Loki's HTTP API, as `logcli` would list them."""
    read = documents(file, options)
    rows: list[tuple[int, str, int | None, int]] = []
    places = [match.start() for match in re.finditer(r'\[\s*"[0-9]{10,20}"\s*,\s*"', read.text)]
    for stream, stamp, line in _entries(found for _, found in read.found):
        at = read.line_at(places[len(rows)]) if len(rows) < len(places) else 0
        text = json.dumps({"labels": stream, "line": line, "timestamp": stamp}, ensure_ascii=False)
        nanoseconds = int(stamp) if stamp.isdecimal() and len(stamp) <= 19 else None
        us = None if nanoseconds is None else nanoseconds // 1000
        rows.append((at, text, us, 0 if nanoseconds is None else nanoseconds % 1000))
    file.cut = file.cut or read.cut
    schema = {"line": pl.UInt32, "text": pl.String, "us": pl.Int64, "finer": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _entries(found: Iterator[object]) -> Iterator[tuple[dict[str, object], str, str]]:
    for document in found:
        data = document.get("data") if isinstance(document, dict) else None
        results = data.get("result") if isinstance(data, dict) else None
        for result in results if isinstance(results, list) else []:
            stream = result.get("stream") if isinstance(result, dict) else None
            entries = result.get("values") if isinstance(result, dict) else None
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, list) and len(entry) >= 2 and all(isinstance(part, str) for part in entry[:2]):
                    yield stream if isinstance(stream, dict) else {}, entry[0], entry[1]


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    """By time; lines of one instant in the order in which they were written, which a listing newest first reverses."""
    times = rows["us"].drop_nulls()
    if len(times) > 1 and times[0] > times[-1]:
        rows = rows.reverse()
    filled = rows.with_columns(pl.col("us").forward_fill().backward_fill())
    return filled.sort("us", "finer", maintain_order=True, nulls_last=True)
