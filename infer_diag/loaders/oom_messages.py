"""Failed allocations in any engine's log: PyTorch's messages of all versions, and those of the host's allocator."""

from __future__ import annotations

import numpy as np
import polars as pl

from infer_diag.loaders.text.prefixes import ascii_classes

NEEDLES = (
    "out of memory",
    "DefaultCPUAllocator: ",
    "total capac",
    " memory in use",
    " by PyTorch",
    " already allocated",
    "could not be allocated",
)
"""Literals of the lines that such a message stands on, also where a terminal or a paste has broken it over several."""

_HIT = (
    r"(?:CUDA|HIP|XPU|NPU|MUSA|MPS backend) out of memory(?:\. Tr|\. *$| \(MPS| *$)"
    r"|(?:CUDA|HIP) (?:driver )?error: out of memory|cuda runtime error \(2\) ?: out of memory"
    r"|CUDA runtime error in [A-Za-z]+\([^()]*(?:\([^()]*\)[^()]*)*\): out of memory"
    r"|Requested amount of GPU memory \([0-9]+ bytes\) could not be allocated"
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
)
_FOLLOWING_LINES = 8
"""A message of four hundred characters on lines of sixty."""

_REPEATED_WITHIN_LINES = 200
_REPEATED_WITHIN_US = 5_000_000

_KIB = 1024.0
_UNITS = {"bytes": 1.0, "B": 1.0} | {
    f"{letter}{binary}B": _KIB**power for power, letter in enumerate("KMGT", start=1) for binary in ("i", "")
}
"""PyTorch divides by 1024 whatever it prints behind the number."""

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)(bytes|[KMGT]i?B|B)"
_PRINTED = {
    "requested": (f"[Tt]riedtoallocate{_NUMBER}", f"RequestedamountofGPUmemory\\({_NUMBER}\\)"),
    "total": (f"totalcapaci?tyof{_NUMBER}", f"{_NUMBER}totalcapacity"),
    "free": (f"ofwhich{_NUMBER}isfree", f"{_NUMBER}free;"),
    "process": (f"thisprocesshas{_NUMBER}memoryinuse",),
    "allocated": (
        f"Oftheallocatedmemory{_NUMBER}isallocatedbyPyTorch",
        f"{_NUMBER}alreadyallocated",
        f"MPSallocated:{_NUMBER}",
    ),
    "reserved": (f"{_NUMBER}reservedintotalbyPyTorch",),
    "idle": (f"{_NUMBER}isreservedbyPyTorchbutunallocated", f"{_NUMBER}cached\\)"),
    "private_pools": (f"with{_NUMBER}allocatedinprivatepools",),
    "allowed": (f"maxallowed:{_NUMBER}", f"{_NUMBER}allowed;"),
}
"""Patterns on a message without its blanks, since breaks and indents fall anywhere in it."""

_LISTED = f"Process[0-9]+has{_NUMBER}memoryinuse"
_END = (
    r"^(.*?(?:isreservedbyPyTorchbutunallocated|reservedintotalbyPyTorch|cached\)|pool\."
    r"|youtriedtoallocate[0-9]+bytes))"
)
_CLASS = (
    r"(?:\b[A-Za-z_.]*(?:Error|Exception)\b[:(]?|^E\b|\[enforce fail[^\]]*\]\s*\.?"
    r"|\[?[\w./]+\.(?:cpp|cc|h):\d+\]?)"
)
"""What a message's head holds beside words of its own: exception classes, places in the source."""


def ooms(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `schema.Ooms` (without `source_id`), one per failed allocation, in the order of the log.

    `records` holds `line, time, message` and may hold `replica` and `rank`. A message that is printed again (a
    traceback shown twice, an error that quotes another process's) is one failure; the same numbers behind a text of
    their own, such as another test's name, are another one.
    """
    hit = records.select(pl.col("message").str.contains(_HIT).fill_null(False)).to_series()
    if not hit.any():
        return pl.DataFrame(schema={"line": pl.UInt32})
    stamped = records.with_columns(pl.col("time").forward_fill())
    found = _gathered(stamped, np.flatnonzero(hit.to_numpy()))
    return _once(_read(found)).drop("_text", "_label", "_quoted")


def _gathered(records: pl.DataFrame, hits: np.ndarray) -> pl.DataFrame:
    """The hits with `_head` (what stands before the message) and `_text` (the whole message without blanks)."""
    messages, lines = records["message"].fill_null(""), records["line"].to_numpy().astype(np.int64)
    following = np.append(hits[1:], len(records))
    begun = messages.gather(hits)
    parts = [begun.str.extract(f"(?s)((?:{_HIT}).*)$").fill_null("")]
    for step in range(1, _FOLLOWING_LINES + 1):
        at = np.minimum(hits + step, len(records) - 1)
        own = (hits + step < following) & (lines[at] <= lines[hits] + _FOLLOWING_LINES + 4)
        parts.append(pl.select(pl.when(pl.Series(own)).then(messages.gather(at)).otherwise(pl.lit(""))).to_series())
    joined = pl.select(pl.concat_str(parts)).to_series().str.replace_all(r"\s+", "")
    ended = pl.select(pl.coalesce(joined.str.extract(_END), joined.str.slice(0, 600))).to_series()
    head = begun.str.extract(f"(?s)^(.*?)(?:{_HIT})").fill_null("")
    found: pl.DataFrame = records[hits.tolist()]
    return found.with_columns(ended.alias("_text"), head.alias("_head"))


def _read(found: pl.DataFrame) -> pl.DataFrame:
    text = pl.col("_text")
    is_host = text.str.starts_with("DefaultCPUAllocator")
    listed = text.str.extract_all(_LISTED)
    names = [name for name in ("replica", "rank") if name in found.columns]
    sizes = [_printed(f"{name}_", patterns) for name, patterns in _PRINTED.items()]
    return found.select(
        "line",
        "time",
        *names,
        pl.when(is_host).then(pl.lit("host")).otherwise(pl.lit("device")).alias("memory"),
        text.str.extract(r"[.(](?:GPU|XPU|NPU)([0-9]+)(?:;|hasatotal)").alias("gpu"),
        *[column for pair in sizes for column in pair],
        listed.list.eval(size(pl.element(), _LISTED)).alias("listed_bytes"),
        listed.list.eval(resolution(pl.element(), _LISTED)).alias("listed_resolution_bytes"),
        "_text",
        pl.col("_head").str.replace_all(ascii_classes(_CLASS), "").str.strip_chars(" :'\"-.()").alias("_label"),
        pl.col("_head").str.contains("['\"]$").alias("_quoted"),
    )


def _printed(name: str, patterns: tuple[str, ...]) -> tuple[pl.Expr, pl.Expr]:
    text = pl.col("_text")
    return (
        pl.coalesce([size(text, pattern) for pattern in patterns]).alias(f"{name}bytes"),
        pl.coalesce([resolution(text, pattern) for pattern in patterns]).alias(f"{name}resolution_bytes"),
    )


def size(text: pl.Expr, pattern: str) -> pl.Expr:
    """Bytes that a pattern's first two groups (number, unit) print."""
    return text.str.extract(pattern, 1).cast(pl.Float64, strict=False) * _scale(text.str.extract(pattern, 2))


def resolution(text: pl.Expr, pattern: str) -> pl.Expr:
    """Half of the last digit that a pattern's first two groups print, in bytes; whole bytes are exact."""
    unit = text.str.extract(pattern, 2)
    decimals = text.str.extract(pattern, 1).str.extract(r"\.([0-9]+)").str.len_chars().fill_null(0)
    half = 0.5 * pl.lit(10.0).pow(-decimals.cast(pl.Float64)) * _scale(unit)
    return pl.when(unit.is_in(["bytes", "B"])).then(0.0).otherwise(half)


def _scale(unit: pl.Expr) -> pl.Expr:
    return unit.replace_strict(_UNITS, default=None, return_dtype=pl.Float64)


def _once(rows: pl.DataFrame) -> pl.DataFrame:
    """Drops a message that only repeats the one before it with the same text."""
    earlier = {name: pl.col(name).shift(1).over("_text") for name in ("line", "time", "_label")}
    near = pl.col("line").cast(pl.Int64) - earlier["line"].cast(pl.Int64) <= _REPEATED_WITHIN_LINES
    soon = (pl.col("time") - earlier["time"]).dt.total_microseconds().abs() <= _REPEATED_WITHIN_US
    says_nothing = (pl.col("_label") == "") | (earlier["_label"] == "") | pl.col("_quoted")
    return rows.filter(~(near & soon.fill_null(True) & says_nothing).fill_null(False))
