"""A text log, chunk by chunk, as timed records: what every loader of text starts from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl

from infer_diag.loaders.files import LogFile
from infer_diag.loaders.text import prefixes
from infer_diag.loaders.text.clock import FileClock
from infer_diag.loaders.text.dense import DenseRule, attached, divided
from infer_diag.loaders.text.lines import Chunk, Wrap, wrapping
from infer_diag.loaders.text.needles import Needles
from infer_diag.loaders.text.partials import whole_lines
from infer_diag.loaders.text.records import records

_CONTEXT_LINES = 5000
"""How far from a start's own lines its surroundings are read: banners, library chatter, the stamps that bound it."""

_EDGE_LINES = 50
"""Lines at either end of such surroundings that are read; one of them will carry a stamp."""

_BATCH_BYTES = 96 << 20
_BATCH_LINES = 500_000
"""So much text, or so many lines that may tell something, are taken apart together: each time costs a tenth of a
second, however few they are, and each line takes up to a kilobyte."""

_UNSTAMPED_BEGIN = (
    r"(?:srv|slot|que|main) +[a-z_]+: |main: |[a-z0-9]+(?:_[a-z0-9]+)+ ?: |(?:prompt eval|eval|total) time +="
    r"|\d+\.\d\d\.\d\d\d\.\d\d\d [A-Z] |time=\S+ level=|GIN\] \d"
)
"""How records of llama.cpp and Ollama begin, which carry no date in front or none at all."""

_CUT_MARK = (
    # Longer rows of dots are a loader's progress.
    r"(?i)^[^\w.]*\.{3,9}[^\w.]*$|^\W*(?:…|\[\.\.\.\]|\[…\]|<snip(?:ped)?>"
    r"|\(?(?:output|log|lines?)? ?(?:truncated|omitted|snipped|skipped)[^\w]*\)?"
    r"|[^a-z]*\d+ (?:more )?lines? (?:omitted|skipped|truncated|removed)[^\d]*)\W*$"
)


@dataclass(frozen=True)
class TextFormat:
    """What a loader asks of the reader: literals of start-up and of serving lines, and the dense kinds."""

    start_needles: tuple[str, ...]
    serving_needles: tuple[str, ...]
    dense: tuple[DenseRule, ...] = ()


@dataclass
class Batch:
    """Records of one piece of a file: `records` (thorough) and a frame per dense rule, all with `line` and `time`."""

    records: pl.DataFrame
    dense: dict[str, pl.DataFrame]

    def rows(self, rule: DenseRule) -> tuple[pl.DataFrame, pl.DataFrame]:
        """(all rows of a dense kind, whichever way they went; lines that it claims and cannot read)."""
        claimed = self.records.filter(pl.col("message").str.contains(rule.needle, literal=True))
        pattern = f"^(?:{rule.tag})?(?:{rule.variable_tail}){re.escape(rule.needle)}{rule.pattern.removeprefix('^')}"
        groups = pl.col("message").str.extract_groups(prefixes.ascii_classes(pattern))
        read = claimed.with_columns(groups.alias("_g"))
        key = pl.col("_g").struct.field(rule.first_group).is_not_null()
        begins = pl.col("message").str.contains(f"^(?:{rule.tag})?{re.escape(rule.needle)}")
        damaged = read.filter(~key & begins).select(
            "line", pl.lit(rule.name).alias("rule"), pl.col("message").alias("text")
        )
        groups_of = pl.col("_g").struct.unnest()
        loose = read.filter(key).select("line", "message", "time", "replica", "rank", groups_of)
        known = self.dense.get(rule.name)
        if known is None or loose.is_empty():
            return (loose if known is None else known), damaged
        return pl.concat([known.select(loose.columns), loose]).sort("line"), damaged

    def timeline(self) -> pl.DataFrame:
        """`line` and `time` of every stamped record, in the order of the file."""
        stamped = [frame.select("line", "time") for frame in (self.records, *self.dense.values())]
        return pl.concat(stamped).drop_nulls().sort("line", maintain_order=True)


@dataclass
class TextReader:
    """Reads one file for one format; `lines`, `clock` and `cut_lines` tell about it once `batches` has run out."""

    file: LogFile
    format: TextFormat
    clock: FileClock
    on_bytes: Callable[[int], None] = lambda _: None
    identify: Callable[[pl.DataFrame], pl.DataFrame] = lambda records: records
    """Adds columns to records by what their prefixes say, row by row; applied to runs of dense lines as a whole."""
    lines: int = 0
    wrap: Wrap | None = None
    ends_mid_line: bool = False
    cut_lines: list[int] = field(default_factory=list)

    def batches(self) -> Iterator[Batch]:
        """Timed records, piece after piece; those of several chunks go together."""
        held: list[tuple[Chunk, pl.DataFrame]] = []
        for number, data in enumerate(whole_lines(self.file.chunks())):
            if number == 0:
                self.wrap = _sniffed_wrap(data)
            self.on_bytes(len(data))
            self.ends_mid_line = not data.endswith(b"\n")
            chunk = Chunk(data, self.lines + 1, self.wrap)
            text = chunk.matching(self._needles.likely)
            held.append((chunk, text))
            self.lines += chunk.line_count
            if number == 1:
                # A second chunk shows that the log is long; what it holds in vain, the others will hold too.
                self._needles.avoid(self._needles.held(text)[1])
            size, lines = sum(chunk.size_bytes for chunk, _ in held), sum(len(text) for _, text in held)
            if size >= _BATCH_BYTES or lines >= _BATCH_LINES:
                batch, held = self._batch(held), []
                yield batch
        if held:
            yield self._batch(held)

    def _batch(self, held: list[tuple[Chunk, pl.DataFrame]]) -> Batch:
        # In hundreds of small pieces, as they come, each later step would take the pieces one by one.
        parts = divided(pl.concat([text for _, text in held], rechunk=True), self.format.dense)
        told, vain = self._needles.held(parts.rest)
        self._needles.avoid(vain)
        start = told.filter("start")["line"]
        lines = pl.concat([told["line"], *[rows["line"] for rows in parts.rows.values()]]).sort()
        context = pl.concat([chunk.between(_start_regions(lines, start, chunk)) for chunk, _ in held])
        self.cut_lines += _cut_lines(pl.concat([told.filter("start").drop("start"), context]))
        thorough = pl.concat([told.drop("start"), context]).unique("line", keep="first").sort("line")
        timed = self.clock.timed({"records": records(thorough), "runs": parts.runs})
        runs = self.identify(timed["runs"])
        rows = {name: attached(dense, runs) for name, dense in parts.rows.items()}
        return Batch(self.identify(timed["records"]), rows)

    @cached_property
    def _needles(self) -> Needles:
        common = tuple(rule.pattern for rule in self.format.dense)
        return Needles(self.format.start_needles, self.format.serving_needles, common)


def _start_regions(told: pl.Series, start: pl.Series, chunk: Chunk) -> list[tuple[int, int]]:
    """Line ranges of a chunk around its start-up lines, up to the serving lines next to them.

    `told`: the numbers of all lines that tell something, `start`: those of start-up, both in ascending order.
    """
    first, last = chunk.first_line, chunk.first_line + chunk.line_count - 1
    own = start.filter(start.is_between(first, last)).to_numpy().astype(np.int64)
    if not len(own):
        return []
    lines = told.filter(told.is_between(first, last)).to_numpy().astype(np.int64)
    padded = np.concatenate([[first - 1], lines, [last + 1]])
    at = np.searchsorted(lines, own) + 1
    begins = np.maximum(padded[at - 1] + 1, own - _CONTEXT_LINES)
    ends = np.minimum(padded[at + 1] - 1, own + _CONTEXT_LINES)
    merged: list[tuple[int, int]] = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        if merged and begin <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return [edge for region in merged for edge in _edges(*region)]


def _edges(begin: int, end: int) -> list[tuple[int, int]]:
    """The first and last lines of a region: what its middle holds beside the start's own lines changes nothing."""
    if end - begin <= 2 * _EDGE_LINES:
        return [(begin, end)]
    return [(begin, begin + _EDGE_LINES - 1), (end - _EDGE_LINES + 1, end)]


def _cut_lines(context: pl.DataFrame) -> list[int]:
    return context.filter(pl.col("text").str.contains(_CUT_MARK))["line"].to_list()


def _sniffed_wrap(data: bytes) -> Wrap | None:
    head = data[: 1 << 20]
    sample = Chunk(head, 1).matching("")
    stamped = rf"\d{{4}}-\d\d-\d\dT|{prefixes.RECORD_BEGIN}|(?:\([A-Za-z][^()]*\) ?)*{prefixes.LEVEL}:"
    begin = rf"^\W*(?:{stamped}|{_UNSTAMPED_BEGIN})"
    return wrapping(sample, prefixes.ascii_classes(begin))
