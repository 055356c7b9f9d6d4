"""When a file's scrape was taken: by the stamp in its name, or not later than it was last written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import polars as pl

from infer_diag.loaders.files import LogFile
from infer_diag.loaders.text import stamps

_DATE = r"(20\d\d)([-.]?)(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])"
_CLOCK = r"([01]\d|2[0-3])([-:._h]?)([0-5]\d)(?:[-:._m]?([0-5]\d)s?(?:[.,](\d{1,9})|[-_.]?(\d{6}|\d{3}))?)?"
_STAMP = re.compile(rf"(?<!\d){_DATE}[T_ .-]*{_CLOCK}(Z|UTC|[+-]\d\d:\d\d|\+\d{{4}})?(?!\d)", re.ASCII)
_EPOCH = re.compile(r"(?<!\d)(1\d{9}(?:\.\d{1,6})?|1\d{12}|1\d{15}|1\d{18})(?!\d)", re.ASCII)
_DAY = re.compile(rf"(?<!\d){_DATE}(?:[T_ .-]?([01]\d|2[0-3])h?)?(?!\d)", re.ASCII)
_NUMBER = re.compile(r"(?<!\d)(\d{1,9})(?=$|[-_. )])", re.ASCII)
_COUNTED = re.compile(
    r"(?:.*[-_. ])?(?:metrics?|scrapes?|samples?|snapshots?|dumps?|pages?|polls?|ticks?|steps?|seq|t"
    r"|prom|prometheus|openmetrics|exposition)[-_. #(]*",
    re.ASCII | re.IGNORECASE,
)
_NUMBER_ALONE = re.compile(r"[-_. #(]*(\d{1,9})(?=$|[-_. )])(?!.*[-_. ]\d)", re.ASCII)
_COPIED_S = 0.5
"""Nothing scrapes as often as this; files whose times lie closer were copied or unpacked one after the other."""


@dataclass(frozen=True)
class NamedFile:
    """A file with what its name tells: the stamp or else the number in it, and the rest, the same for its like."""

    file: LogFile
    rest: str
    stamp: str | None
    number: int | None


def named(file: LogFile) -> NamedFile | None:
    """What the file's name tells; null where it holds neither a stamp nor a number that counts scrapes.

    A day or an hour, as of files that are begun anew every day, counts as a number: it is no time of a scrape. Other
    numbers count where nothing or a word like `scrape` stands in front: `vllm-0` and `vllm-1` are two engines.
    """
    folder, _, name = file.label.replace("\\", "/").rpartition("/")
    if (found := _STAMP.search(name)) is not None:
        year, _, month, day, hour, _, minute, second, fraction, digits, zone = found.groups()
        text = f"{year}-{month}-{day} {hour}:{minute}:{second or '00'}.{fraction or digits or '0'}{zone or ''}"
        return NamedFile(file, _rest(folder, name, found), text, None)
    if (found := _EPOCH.search(name)) is not None:
        return NamedFile(file, _rest(folder, name, found), found.group(), None)
    if (found := _DAY.search(name)) is not None:
        year, _, month, day, hour = found.groups()
        return NamedFile(file, _rest(folder, name, found), None, int(f"{year}{month}{day}{hour or '00'}"))
    numbers = [each for each in _NUMBER.finditer(name) if _COUNTED.fullmatch(name[: each.start()])]
    if (last := numbers[-1] if numbers else _NUMBER_ALONE.match(name)) is None:
        return None
    return NamedFile(file, _rest(folder, name, last), None, int(last.group(1)))


def _rest(folder: str, name: str, found: re.Match[str]) -> str:
    return f"{folder}/{name[: found.start()]}*{name[found.end() :]}".removeprefix("/" if not folder else "")


@dataclass(frozen=True)
class FileTimes:
    """Microseconds since 1970 of each file (null where nothing tells), an example, its zone, and how they are known."""

    us: tuple[int | None, ...]
    example: str | None
    zone: str | None
    note: str


def name_times(files: Sequence[NamedFile], tz: str | None) -> FileTimes | None:
    """The times that the names print; null where one prints none that exists."""
    written = [file.stamp for file in files]
    table = stamps.parsed(pl.Series(written, dtype=pl.String), tz=tz)
    known = {raw: (us, zone) for raw, us, zone in table.select("raw", "us", "zone").iter_rows()}
    told = [known.get(stamp, (None, None)) for stamp in written if stamp is not None]
    if len(told) < len(files) or any(us is None for us, _ in told):
        return None
    zone = told[0][1]
    # A zone is a name; what is written behind a stamp is its offset.
    shown = "UTC" if zone == "Z" else zone
    note = "times by the names of the files" + ("" if zone else ", taken as UTC (tz= names their zone)")
    return FileTimes(tuple(us for us, _ in told), written[0], shown, note)


def modification_times(files: Sequence[NamedFile]) -> FileTimes:
    """When each file was last written: its scrape is not later. Null where these times tell of copying alone."""
    seconds = [_modified_s(file.file) for file in files]
    known = [each for each in seconds if each is not None]
    gaps = [after - before for before, after in pairwise(known)]
    ordered = all(gap > 0 for gap in gaps) or all(gap < 0 for gap in gaps)
    if len(known) < len(seconds) or not ordered or median(map(abs, gaps)) < _COPIED_S:
        nothing = (None,) * len(files)
        return FileTimes(nothing, None, None, "no times: neither the files' names nor when they were written tell them")
    note = "times by when each file was last written: a scrape is not later than that"
    return FileTimes(tuple(round(each * 1e6) for each in known), "last written", "UTC", note)


def _modified_s(file: LogFile) -> float | None:
    try:
        return Path(file.path).stat().st_mtime if "://" not in file.path else None
    except OSError:
        return None
