"""The scrolling monitors: `dcgmi dmon`, `nvidia-smi dmon` and `nvidia-smi pmon`."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.gpu_tables.columns import cells, wide
from infer_diag.loaders.gpu_tables.gpu_rows import mib, ratio, stamped, watts
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text import prefixes
from infer_diag.loaders.text.lines import Chunk
from infer_diag.recording import Clock, Recording

_DCGMI_HEADER = r"^[ \t]*#[ \t]*Entity[ \t]+[A-Z0-9]"
_DCGMI_ROW = r"^\s*(?P<entity>GPU|GPU-I|GPU-CI|CI)\s+(?P<id>[0-9/]+)\s+(?P<rest>\S.*)$"
_SMI_HEADER = r"^[ \t]*#[ \t]*(?:Date[ \t]+)?(?:Time[ \t]+)?gpu(?:[ \t]+[a-z0-9]+)+[ \t\r]*$"
_SMI_ROW = r"^\s*(?:[0-9]{8}\s+)?(?:[0-9]{2}:[0-9]{2}:[0-9]{2}\s+)?[0-9]+\s+\S.*$"


def load_dcgmi(file: LogFile, *, options: Options) -> Recording:
    """Samples of `dcgmi dmon`, which prints no time: rows are in the order of the file."""
    lines, count = _lines(file, options, f"{_DCGMI_HEADER}|{_DCGMI_ROW}")
    heads = lines.filter(pl.col("text").str.contains(_DCGMI_HEADER))
    names = pl.col("text").str.replace(r"^\s*#\s*Entity\s+", "")
    read = lines.with_columns(pl.col("text").str.extract_groups(_DCGMI_ROW).alias("_g")).select(
        "line", pl.col("_g").struct.unnest()
    )
    rows = read.filter(pl.col("entity").is_not_null())
    told, short = cells(rows.select("line", _words(pl.col("rest"))), heads.select("line", _words(names)))
    values = wide(told, ("FBUSD", "FBFRE", "FBRSV", "SMACT", "DRAMA", "POWER"))
    whole = rows.join(values, on="line", how="inner", maintain_order="left")
    is_device = pl.col("entity") == "GPU"
    samples = whole.select(
        "line",
        # A partition's parent is not printed, so partitions are told apart by their own number.
        pl.when(is_device).then("id").otherwise(pl.concat_str(["entity", "id"], separator=" ")).alias("gpu"),
        pl.when(~is_device).then("id").alias("instance"),
        mib(pl.col("FBUSD")).alias("used_bytes"),
        mib(pl.col("FBFRE")).alias("free_bytes"),
        mib(pl.col("FBRSV")).alias("reserved_bytes"),
        ratio(pl.col("SMACT")).alias("sm_active_ratio"),
        ratio(pl.col("DRAMA")).alias("dram_active_ratio"),
        watts(pl.col("POWER")).alias("power_w"),
    )
    return _recorded(file, options, samples, "dcgmi", count, _damaged(lines, short))


def load_smi(file: LogFile, *, options: Options) -> Recording:
    """Samples of `nvidia-smi dmon`, and of `pmon`, which lists processes and therefore no device's memory."""
    lines, count = _lines(file, options, f"{_SMI_HEADER}|{_SMI_ROW}")
    heads = lines.filter(pl.col("text").str.contains(_SMI_HEADER))
    names = pl.col("text").str.replace(r"^\s*#\s*", "")
    rows = lines.filter(pl.col("text").str.contains(_SMI_ROW))
    told, short = cells(rows.select("line", _words(pl.col("text"))), heads.select("line", _words(names)))
    values = wide(told, ("Date", "Time", "gpu", "pwr", "fb", "pid"))
    stamp = pl.when(pl.col("Time").is_not_null()).then(
        pl.concat_str(["Date", "Time"], separator=" ", ignore_nulls=True)
    )
    timed, clock = stamped(values.with_columns(stamp.alias("inner")), options)
    of_process = told["column"].is_in(["pid"]).any()
    samples = timed.sort("line").select(
        "line",
        "time",
        "gpu",
        (pl.lit(None, pl.UInt64) if of_process else mib(pl.col("fb"))).alias("used_bytes"),
        watts(pl.col("pwr")).alias("power_w"),
    )
    if of_process:
        samples = samples.unique(["gpu", "time"], keep="first", maintain_order=True)
    return _recorded(file, options, samples, "nvidia-smi-dmon", count, _damaged(lines, short), clock.clocks())


def _lines(file: LogFile, options: Options, pattern: str) -> tuple[pl.DataFrame, int]:
    parts, count = [pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String})], 0
    for data in file.chunks():
        chunk = Chunk(data, count + 1)
        options.on_bytes(len(data))
        count += chunk.line_count
        parts.append(chunk.matching(pattern))
    return pl.concat(parts).with_columns(prefixes.clean(pl.col("text"))), count


def _words(text: pl.Expr) -> pl.Expr:
    return text.str.extract_all(r"\S+").alias("words")


def _damaged(lines: pl.DataFrame, short: pl.DataFrame) -> pl.DataFrame:
    cut = lines.join(short, on="line", how="semi")
    return cut.select("line", pl.lit("a row of a monitor's table").alias("rule"), "text")


def _recorded(
    file: LogFile,
    options: Options,
    samples: pl.DataFrame,
    name: str,
    lines: int,
    rejected: pl.DataFrame,
    clocks: tuple[Clock, ...] = (),
) -> Recording:
    times = samples["time"] if "time" in samples.columns else pl.Series([], dtype=pl.Datetime("us", "UTC"))
    return recorded(
        file,
        {"gpu_samples": samples},
        options=options,
        format=name,
        engine=name.removesuffix("-dmon"),
        lines=lines,
        understood=len(samples),
        rejected=rejected if not rejected.is_empty() else pl.DataFrame(schema=CLAIMED),
        times=times,
        clocks=clocks,
    )


DCGMI = Loader(
    name="dcgmi",
    about="dcgmi dmon: memory, activity and power of each GPU and partition, in the order of its rows (no stamps)",
    versions="any choice of fields",
    frames=("gpu_samples",),
    example=(
        "#Entity   SMACT  DRAMA  POWER  FBUSD\nID                      W      MB\nGPU 0     0.912  0.433  612.5  71234"
    ),
    signature=Signature(phrases=(_DCGMI_HEADER,)),
    load=load_dcgmi,
)
NVIDIA_SMI_MONITOR = Loader(
    name="nvidia-smi-dmon",
    about="nvidia-smi dmon and pmon with any choice of columns",
    versions="any choice of columns",
    frames=("gpu_samples",),
    example=(
        "# gpu    pwr  gtemp     sm    mem     fb\n"
        "# Idx      W      C      %      %     MB\n"
        "    0    612     61     91     43  71234"
    ),
    signature=Signature(phrases=(_SMI_HEADER,)),
    load=load_smi,
)
