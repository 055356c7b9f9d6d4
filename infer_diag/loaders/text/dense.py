"""Lines that a log holds by the million: divided where a literal stands, the parts before it read once per text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from infer_diag.loaders.text import prefixes
from infer_diag.loaders.text.needles import any_of
from infer_diag.loaders.text.records import ATTRIBUTES


@dataclass(frozen=True)
class DenseRule:
    """A kind of line that a log holds by the million, with a text so regular that one anchored pattern reads it.

    `needle` is the literal at which the line is divided: the head before it is parsed once per distinct text, the rest
    is matched by `pattern`. A line that does not fit goes the thorough way.
    """

    name: str
    needle: str
    pattern: str
    tag: str = ""
    """What may stand between the prefixes and the needle, as a pattern."""
    variable_tail: str = ""
    """End of the head that differs from line to line and says nothing (a client's port), as a pattern."""
    repeats: bool = False
    """Whether what follows the needle is one of few texts, so that each is matched once and not in every line."""

    @property
    def first_group(self) -> str:
        """The group that is there whenever the pattern fits."""
        return next(iter(re.compile(self.pattern).groupindex))


@dataclass(frozen=True)
class Divided:
    """Lines taken apart: `rows` by rule hold `line`, the rule's groups and `run`, the place of their run in `runs`.

    A run is of lines of one rule that follow each other and begin alike; `runs` are records of their first lines with
    nothing behind the needle, in the order of the file. `rest` are the lines that go the thorough way.
    """

    rows: dict[str, pl.DataFrame]
    runs: pl.DataFrame
    rest: pl.DataFrame


def divided(text: pl.DataFrame, rules: Sequence[DenseRule]) -> Divided:
    """The lines (`line`, `text`) taken apart at the first needle that stands in them."""
    kinds, rest = _by_rule(text, rules)
    # Neighbours mostly begin alike, and comparing two heads is cheaper than looking one up. Later on the same head may
    # stand for another day.
    begins = {rule: (lines["head"] != lines["head"].shift(1)).fill_null(True) for rule, lines in kinds.items()}
    runs = _runs({rule: lines.filter(begins[rule]).select("line", "head") for rule, lines in kinds.items()})
    rows: dict[str, pl.DataFrame] = {}
    for rule, lines in kinds.items():
        run = runs.filter(pl.col("rule") == rule.name)["run"].gather(begins[rule].cum_sum() - 1)
        read = pl.concat([lines.select("line", run), _matched(lines.select("rest"), rule)], how="horizontal")
        fits = read[rule.first_group].is_not_null() & runs["message"].is_not_null().gather(run)
        rows[rule.name] = read.filter(fits)
        rest = rest.vstack(lines.filter(~fits).select("line", "text"))
    return Divided(rows, runs.select("line", "message", *ATTRIBUTES), rest.sort("line"))


def attached(rows: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """The rows with what their run's head tells in place of `run`; `runs` as they were divided, row for row."""
    told = [name for name in runs.columns if name != "line" and (name == "rank" or name not in ATTRIBUTES)]
    return rows.drop("run").hstack(runs.select(told)[rows["run"]])


def _by_rule(text: pl.DataFrame, rules: Sequence[DenseRule]) -> tuple[dict[DenseRule, pl.DataFrame], pl.DataFrame]:
    """(`line`, `text`, `head` and `rest` of the lines in which a rule's needle comes first; the other lines)."""
    needles = [rule.needle.encode() for rule in rules]
    found = text.with_columns(pl.col("text").str.find(any_of(rule.needle for rule in rules)).alias("at"))
    mark = pl.col("text").cast(pl.Binary).bin.slice(pl.col("at"), max(map(len, needles), default=0))
    left = found.filter(pl.col("at").is_not_null()).with_columns(mark.alias("mark"))
    kinds = {}
    for rule, needle in zip(rules, needles, strict=True):
        mine = pl.col("mark").bin.starts_with(needle)
        lines = left.filter(mine)
        if not lines.is_empty():
            kinds[rule] = _halves(lines, rule)
            left = left.filter(~mine)
    return kinds, text.filter(found["at"].is_null())


def _halves(lines: pl.DataFrame, rule: DenseRule) -> pl.DataFrame:
    text = pl.col("text").cast(pl.Binary)
    head = text.bin.slice(0, pl.col("at")).cast(pl.String)
    return lines.select(
        "line",
        "text",
        (head.str.replace(f"{rule.variable_tail}$", "") if rule.variable_tail else head).alias("head"),
        text.bin.slice(pl.col("at") + len(rule.needle.encode())).cast(pl.String).alias("rest"),
    )


_RUNS = {"line": pl.UInt32, "head": pl.String, "rule": pl.String, "needle": pl.String}


def _runs(firsts: dict[DenseRule, pl.DataFrame]) -> pl.DataFrame:
    """All rules' runs in the order of the file, numbered by `run`, their heads peeled.

    `firsts`: `line` and `head` of the first lines of each rule's runs. Where anything but prefixes and the rule's tag
    stands before the needle, `message` is null.
    """
    parts = [
        frame.with_columns(pl.lit(rule.name).alias("rule"), pl.lit(rule.needle).alias("needle"))
        for rule, frame in firsts.items()
    ]
    runs = pl.concat([pl.DataFrame(schema=_RUNS), *parts]).sort("line").with_row_index("run")
    heads = runs.select("rule", "head", "needle").unique(maintain_order=True)
    # With the needle as its message a head looks like a whole record, which takes the short way through the prefixes.
    whole = prefixes.clean(pl.col("head") + pl.col("needle")).alias("text")
    plain = heads.filter(~pl.col("head").str.contains("\r", literal=True)).with_columns(whole)
    alone = [
        (pl.col("rule") == rule.name)
        & pl.col("message").str.contains(f"^(?:{rule.tag})?{re.escape(rule.needle.rstrip())}$")
        for rule in firsts
    ]
    peeled = prefixes.split_at_engine_stamp(plain).filter(pl.any_horizontal(pl.lit(False), *alone))
    return runs.join(peeled.drop("needle"), on=["rule", "head"], how="left", maintain_order="left")


def _matched(rest: pl.DataFrame, rule: DenseRule) -> pl.DataFrame:
    """The groups of the rule's pattern for each row of `rest`."""
    groups = pl.col("rest").str.extract_groups(prefixes.ascii_classes(rule.pattern)).alias("_g")
    if not rule.repeats:
        return rest.select(groups).unnest("_g")
    texts = rest.select(pl.col("rest").unique()).with_columns(groups).unnest("_g")
    return rest.join(texts, on="rest", how="left", maintain_order="left").drop("rest")
