"""Scrapes that lie in a file each, put together into one series, so that counters are compared across files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.exposition.address import is_address
from infer_diag.loaders.exposition.file_times import FileTimes, NamedFile, modification_times, name_times, named
from infer_diag.loaders.exposition.reading import LOADERS, scrapes_recorded
from infer_diag.loaders.exposition.scrapes import Scrapes, read_files
from infer_diag.loaders.exposition.series import read_series
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options
from infer_diag.loaders.sniff import is_binary, sniffed
from infer_diag.recording import Recording

FORMATS = tuple(loader.name for loader in LOADERS)
_SIGNATURES = [(loader.name, loader.signature) for loader in LOADERS]
_HEAD = 1 << 16


def read_together(
    files: Sequence[LogFile], options: Options, counting: Callable[[LogFile], Callable[[int], None]]
) -> tuple[list[Recording], list[LogFile]]:
    """(one recording for each series of scrapes among the files, the files that belong to none).

    Files of one series lie in one folder, have names that differ in a stamp or in a number that counts scrapes, and
    follow one another in time. Names that differ in more are taken for other engines, and so is what overlaps in time.
    """
    likes: dict[tuple[str, bool], list[NamedFile]] = {}
    for file in files:
        if not is_address(file.path) and (name := named(file)) is not None:
            likes.setdefault((name.rest, name.stamp is None), []).append(name)
    recordings: list[Recording] = []
    taken: set[str] = set()
    for (rest, _), names in likes.items():
        if len(names) < 2 or not _is_exposition(names[0].file):
            continue
        whole = LogFile(rest, rest, sum(name.file.size_bytes for name in names))
        names.sort(key=lambda name: (name.number or 0, name.stamp or ""))
        series = _read(names, dataclasses.replace(options, on_bytes=counting(whole)))
        if series is not None:
            recordings.append(_recorded(whole, options, names, series))
            taken |= {name.file.path for name in series.names}
    return recordings, [file for file in files if file.path not in taken]


def _is_exposition(file: LogFile) -> bool:
    try:
        head = file.head(_HEAD)
    except SourceError:
        return False
    return not is_binary(head) and head.lstrip()[:1] != b"{" and sniffed(head, _SIGNATURES) is not None


@dataclass(frozen=True)
class _Series:
    """Scrapes in order, the files that hold them, the times of these, and the first line of each file that was read."""

    scrapes: Scrapes
    names: tuple[NamedFile, ...]
    times: FileTimes | None
    begins: tuple[int, ...]


def _read(names: list[NamedFile], options: Options) -> _Series | None:
    """The series that the files make; null where they make none."""
    scrapes, begins = read_files([name.file for name in names], options)
    first = pl.DataFrame({"line": begins}, schema={"line": pl.UInt32}).with_row_index("file")
    samples = scrapes.samples.sort("line").join_asof(first, on="line", strategy="backward")
    us = pl.col("us")
    files = samples.group_by("file").agg(us.min().alias("begin"), us.max().alias("end"), pl.col("scrape").n_unique())
    files = files.sort("file")
    if len(files) < 2:
        return None
    used = tuple(names[place] for place in files["file"])
    times = None
    if samples["us"].null_count():
        # Where one file tells no time, all must be without and hold one scrape each.
        times = _file_times(used, options) if files["begin"].is_null().all() and files["scrape"].max() == 1 else None
        if times is None:
            return None
        told = pl.Series(times.us, dtype=pl.Int64)
        files = files.with_columns(begin=told, end=told)
        samples = samples.drop("us").join(
            files.select("file", us="begin"), on="file", how="left", maintain_order="left"
        )
    if not (_counts_up(samples) if files["begin"].null_count() else _apart(files)):
        return None
    order = pl.struct("us", "file", "scrape").rank("dense").cast(pl.Int64).alias("scrape")
    ordered = samples.with_columns(order).select(scrapes.samples.columns)
    return _Series(dataclasses.replace(scrapes, samples=ordered), used, times, tuple(begins))


def _file_times(names: tuple[NamedFile, ...], options: Options) -> FileTimes | None:
    return modification_times(names) if names[0].stamp is None else name_times(names, options.tz)


def _apart(files: pl.DataFrame) -> bool:
    """Whether the files follow one another in time without touching."""
    spans = files.sort("begin")
    return bool((spans["begin"].slice(1) > spans["end"].head(len(spans) - 1)).all())


def _counts_up(samples: pl.DataFrame) -> bool:
    """Whether counters rather grow than shrink in this order: nothing but the names' numbers says that it is one."""
    series, _ = read_series(samples["series"].unique(maintain_order=True).to_list())
    counters = series.filter(pl.col("kind").is_in(["counter", "histogram"])).select("series")
    steps = samples.join(counters, on="series").sort("line").select(pl.col("value").diff().over("series")).drop_nulls()
    return int((steps["value"] > 0).sum()) > int((steps["value"] < 0).sum())


def _recorded(whole: LogFile, options: Options, names: list[NamedFile], series: _Series) -> Recording:
    scrapes, times = series.scrapes, series.times
    whole.cut = any(name.file.cut for name in names)
    notes = [f"{len(series.names)} files as one series", *([times.note] if times is not None else [])]
    whole.notes = [*notes, *(f"{name.file.label}: {note}" for name in names for note in name.file.notes)]
    if times is not None:
        scrapes = dataclasses.replace(scrapes, example=times.example, zone=times.zone, has_year=True)
    recording = scrapes_recorded(whole, options, scrapes)
    (source,) = recording.sources
    places = zip(names, series.begins, strict=True)
    parts = tuple((name.file.label, begin, name.file.size_bytes) for name, begin in places)
    return recording.replace(sources=(dataclasses.replace(source, parts=parts),))
