"""`nvidia-smi --query-gpu=… --format=csv`, also as spreadsheets save it again (semicolons, decimal commas)."""

from __future__ import annotations

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.conformed import recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.gpu_tables.columns import cells, wide
from infer_diag.loaders.gpu_tables.gpu_rows import mib, stamped, watts
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text import prefixes
from infer_diag.loaders.text.lines import Chunk
from infer_diag.recording import Recording

_FIELD = (
    r"(?:timestamp|index|name|uuid|gpu_uuid|gpu_name|pci\.bus_id|count|serial|pstate|driver_version|vbios_version"
    r"|(?:memory|utilization|power|temperature|clocks|ecc|pcie|mig|compute|fan|encoder|enforced)[a-z0-9_.]*)"
)
_UNIT = r"(?: \[[A-Za-z%]+\])?"
_HEADER = rf'^[ \t]*"?{_FIELD}{_UNIT}"?(?:[ \t]*[,;][ \t]*"?[a-z][a-z0-9_.]*{_UNIT}"?)+[ \t\r]*$'
_HEADERLESS = r"^[ \t]*[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}[ \t]*[,;]"
_NAMES = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "name", "gpu_name")
"""What tells devices apart, the best first."""
_VALUES = ("memory.used", "memory.free", "memory.reserved", "power.draw", "power.draw.instant", "power.draw.average")


def load(file: LogFile, *, options: Options) -> Recording:
    """Samples of each device.

    Raises:
        SourceError: the table has no header, or no column that tells its devices apart.
    """
    lines, count = _lines(file, options)
    heads = lines.filter(pl.col("text").str.contains(_HEADER))
    if heads.is_empty():
        raise SourceError(
            f"{file.label} is a table of nvidia-smi without its header, so its columns cannot be told",
            hint="record it with --format=csv, without noheader, or put the header in front",
        )
    rows = lines.join(heads, on="line", how="anti").filter(pl.col("text").str.contains("[,;]"))
    separator = ";" if str(heads["text"][0]).count(";") > str(heads["text"][0]).count(",") else ","
    told, short = cells(rows.select("line", _words(separator)), heads.select("line", _header_words(separator)))
    values = wide(told, ("timestamp", *_NAMES, *_VALUES))
    timed, clock = stamped(values.rename({"timestamp": "inner"}), options)
    samples = _samples(file, timed.sort("line"))
    cut = lines.join(short, on="line", how="semi")
    return recorded(
        file,
        {"gpu_samples": samples},
        options=options,
        format="nvidia-smi",
        engine="nvidia-smi",
        lines=count,
        understood=len(samples) + len(heads),
        rejected=cut.select("line", pl.lit("a row of nvidia-smi's table").alias("rule"), "text"),
        times=samples["time"],
        clocks=clock.clocks(),
    )


def _samples(file: LogFile, timed: pl.DataFrame) -> pl.DataFrame:
    return timed.select(
        "line",
        "time",
        _identity(file, timed).alias("gpu"),
        mib(pl.col("memory.used")).alias("used_bytes"),
        mib(pl.col("memory.free")).alias("free_bytes"),
        mib(pl.col("memory.reserved")).alias("reserved_bytes"),
        pl.coalesce(watts(pl.col(name)) for name in _VALUES[3:]).alias("power_w"),
    )


def _lines(file: LogFile, options: Options) -> tuple[pl.DataFrame, int]:
    parts, count = [pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String})], 0
    for data in file.chunks():
        chunk = Chunk(data, count + 1)
        options.on_bytes(len(data))
        count += chunk.line_count
        parts.append(chunk.matching("[,;]"))
    return pl.concat(parts).with_columns(prefixes.clean(pl.col("text"))), count


def _words(separator: str) -> pl.Expr:
    return pl.col("text").str.split(separator).list.eval(pl.element().str.strip_chars(' "')).alias("words")


def _header_words(separator: str) -> pl.Expr:
    plain = pl.element().str.strip_chars(' "').str.replace(r"\s*\[[A-Za-z%]+\]$", "")
    return pl.col("text").str.split(separator).list.eval(plain).alias("words")


def _identity(file: LogFile, rows: pl.DataFrame) -> pl.Expr:
    """What names the device of a row.

    A table without a column that does is one device's, unless two of its rows have one stamp or none has any.
    """
    for name in _NAMES[:6]:
        if not rows[name].is_null().all():
            return pl.col(name).fill_null("unknown")
    stamps = rows["time"]
    if len(rows) > 1 and (stamps.is_null().any() or stamps.is_duplicated().any()):
        raise SourceError(
            f"{file.label} has no column that tells its GPUs apart", hint="add index or uuid to --query-gpu"
        )
    return pl.coalesce("name", "gpu_name", pl.lit("unknown"))


LOADER = Loader(
    name="nvidia-smi",
    about="nvidia-smi --query-gpu as CSV: units, N/A, several GPUs, semicolons and decimal commas",
    versions="any choice of columns",
    frames=("gpu_samples",),
    example=("index, memory.used [MiB], utilization.gpu [%], power.draw [W]\n0, 71234 MiB, 91 %, 612.50 W"),
    signature=Signature(phrases=(_HEADER, _HEADERLESS)),
    load=load,
)
