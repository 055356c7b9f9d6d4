"""Log text on its way out: secrets taken out, unseen characters too, and cut to a length that every backend takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from infer_diag.redact import shown

MOST_CHARACTERS = 2000
MOST_OF_A_LABEL = 128

Value = str | bool | int | float | list[str]


def cleaned(texts: Iterable[str], most: int) -> dict[str, str]:
    """Each of the texts as it may be handed on."""
    distinct = pl.Series("text", list(dict.fromkeys(texts)), dtype=pl.String)
    clean = pl.DataFrame({"text": distinct}).select(shown(pl.col("text"), most)).to_series()
    return dict(zip(distinct, clean, strict=True))


def texts_of(attributes: Mapping[str, Value]) -> Iterable[str]:
    """Every text among the values."""
    for value in attributes.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from value


def with_clean(attributes: Mapping[str, Value], clean: Mapping[str, str]) -> dict[str, Value]:
    """The attributes with every text that `clean` knows replaced."""

    def one(value: Value) -> Value:
        if isinstance(value, str):
            return clean.get(value, value)
        return [clean.get(text, text) for text in value] if isinstance(value, list) else value

    return {name: one(value) for name, value in attributes.items()}
