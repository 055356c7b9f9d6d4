"""Start-up lines to observations: one table of rules per engine, one function that applies it.

An observation says what one line tells of a start: a phase that began, ended or took so long, a bar that stands
somewhere, or an incident.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from infer_diag.loaders.text.prefixes import ascii_classes

_TAG = ascii_classes(r"^(?:\[[\w. -]+\] )?")
_GIB = float(1 << 30)
_KEPT_TEXT = 200


@dataclass(frozen=True)
class StartRule:
    """What one kind of line says of a start.

    `claim` is a literal without which the line is not meant; `pattern` follows the message's begin and may name the
    groups `seconds` (after `minutes`, if it has them), `ms`, `gib`, `done`, `total`, `fraction` (done of 1), `percent`,
    `elapsed`, `rank` and `fields`. Exactly one of `phase` and `kind` is set; `inside` names the enclosing phase where
    the engine's differs from the usual. `edge` is `duration` (printed at its end), `bound` (a duration that holds more
    than the phase), `begin`, `end`, `bar`, `mark` or `verdict` (a line that is printed only where a start fails).
    """

    claim: str
    pattern: str = ""
    phase: str | None = None
    inside: str | None = None
    kind: str | None = None
    edge: str = "duration"
    is_total: bool = False
    strict: bool = True
    """Whether a line that begins with the claim and does not fit the pattern is damaged, and not of another kind."""


_GROUPS = ("minutes", "seconds", "ms", "gib", "done", "total", "fraction", "percent", "elapsed", "rank", "fields")
_FRACTION_PARTS = 100
"""Engines print a fraction with two decimals."""

_CLAIMED = {"line": pl.UInt32, "rule": pl.String, "text": pl.String}


def observed(records: pl.DataFrame, rules: Iterable[StartRule]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(observations, lines that a rule claims and cannot read).

    `records` holds `line, part, time, message, process, pid, replica, rank`; observations add `phase, inside, kind,
    edge, is_total, seconds, resolution_s, size_bytes, done_count, total_count, elapsed_s, fields`, in the
    order of the log.
    """
    found, damaged = [], []
    for rule in rules:
        mine = records.filter(pl.col("message").str.contains(rule.claim, literal=True))
        if mine.is_empty():
            continue
        pattern = ascii_classes(rule.pattern) or _escaped(rule.claim)
        got = pl.col("message").str.extract_groups(f"{_TAG}(?P<all>{pattern})")
        read = mine.with_columns(got.alias("_g")).with_columns(
            pl.col("_g").struct.field("all").is_not_null().alias("_fits")
        )
        if rule.strict:
            # A claim in the middle of a message is somebody quoting it.
            begins = pl.col("message").str.contains(_TAG + _escaped(rule.claim))
            broken = read.filter(~pl.col("_fits") & begins)
            damaged.append(
                broken.select("line", pl.lit(rule.claim.strip()).alias("rule"), pl.col("message").alias("text"))
            )
        found.append(_observation(read.filter("_fits"), rule))
    rows = (
        pl.concat(found)
        if found
        else _observation(records.clear().with_columns(pl.lit(None).alias("_g")), StartRule(""))
    )
    return rows.sort("line", "part", maintain_order=True), pl.concat(damaged) if damaged else pl.DataFrame(
        schema=_CLAIMED
    )


def _escaped(literal: str) -> str:
    return "".join(f"\\{char}" if char in r"\.+*?()|[]{}^$#&-~" else char for char in literal)


def _observation(read: pl.DataFrame, rule: StartRule) -> pl.DataFrame:
    names = {field.name for field in read.schema["_g"].fields} if isinstance(read.schema["_g"], pl.Struct) else set()
    group = {name: pl.col("_g").struct.field(name) if name in names else pl.lit(None, pl.String) for name in _GROUPS}
    number = {
        name: group[name].cast(pl.Float64, strict=False) for name in ("minutes", "seconds", "ms", "fraction", "percent")
    }
    seconds = pl.coalesce(number["seconds"] + 60 * number["minutes"].fill_null(0.0), number["ms"] / 1e3)
    hundredths = pl.coalesce(number["fraction"] * _FRACTION_PARTS, number["percent"])
    parts = pl.when(hundredths.is_not_null()).then(pl.lit(_FRACTION_PARTS, pl.UInt32))
    done = hundredths.round().cast(pl.UInt32, strict=False)
    return read.select(
        "line",
        "part",
        "time",
        "process",
        "pid",
        "replica",
        pl.coalesce(group["rank"], "rank").alias("rank"),
        pl.lit(rule.phase, pl.String).alias("phase"),
        pl.lit(rule.inside, pl.String).alias("inside"),
        pl.lit(rule.kind, pl.String).alias("kind"),
        pl.lit(rule.edge).alias("edge"),
        pl.lit(rule.is_total).alias("is_total"),
        seconds.alias("seconds"),
        _resolution(group["seconds"], group["ms"]).alias("resolution_s"),
        (group["gib"].cast(pl.Float64, strict=False) * _GIB).alias("size_bytes"),
        pl.coalesce(group["done"].cast(pl.UInt32, strict=False), done).alias("done_count"),
        pl.coalesce(group["total"].cast(pl.UInt32, strict=False), parts).alias("total_count"),
        _clock_s(group["elapsed"]).alias("elapsed_s"),
        group["fields"].str.slice(0, _KEPT_TEXT).alias("fields"),
    )


def _resolution(seconds: pl.Expr, ms: pl.Expr) -> pl.Expr:
    """Half of the last printed digit."""
    decimals = seconds.str.extract(r"\.([0-9]+)").str.len_chars().fill_null(0)
    thousandths = ms.str.extract(r"\.([0-9]+)").str.len_chars().fill_null(0) + 3
    digits = pl.when(seconds.is_not_null()).then(decimals).when(ms.is_not_null()).then(thousandths)
    return 0.5 * pl.lit(10.0).pow(-digits.cast(pl.Float64))


def _clock_s(text: pl.Expr) -> pl.Expr:
    """Seconds of a bar's `MM:SS` or `H:MM:SS`."""
    parts = text.str.extract_groups(r"^(?:(?P<h>[0-9]+):)?(?P<m>[0-9]+):(?P<s>[0-9]{2})$")
    hours = parts.struct.field("h").cast(pl.Float64).fill_null(0.0)
    return hours * 3600 + parts.struct.field("m").cast(pl.Float64) * 60 + parts.struct.field("s").cast(pl.Float64)


BAR = r"\s*(?:\d+%\s*(?:Completed\s*)?)?(?:\|[^|]*)?\|\s*(?P<done>[0-9]+)/(?P<total>[0-9]+) \[(?P<elapsed>[0-9:]+)<"
"""A tqdm bar after its title: count, total and elapsed time; the rate behind `<` changes its unit and is left alone."""
