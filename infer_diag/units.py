"""Unit suffixes of columns, and numbers as people read them.

Stored frames hold base units only (seconds, bytes, tokens, ratios 0 to 1); scaling happens here, for text and axes.
"""

from __future__ import annotations

import re

from infer_diag.errors import DiagError

SUFFIXES: dict[str, str] = {
    "_s": "seconds",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_blocks": "blocks",
    "_count": "a number of things",
    "_ratio": "a ratio, 0 to 1 unless said otherwise",
    "_per_s": "per second",
    "_per_gpu_h": "per GPU and hour",
    "_w": "watts",
    "_id": "an identifier, not a quantity",
}
"""What a numeric column's last part says about its unit; a test holds every schema to it."""

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SCALE_S = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SCALE_BYTES = {name: 1024**power for power, name in enumerate(_BINARY)}


def format_s(seconds: float | None) -> str:
    """Seconds with three significant digits: `1.25 s`, `83 ms`, `14 min 11 s`, `2 h 52 min`; null is `unknown`."""
    if seconds is None:
        return "unknown"
    size = abs(seconds)
    # Three digits of what lies just below a unit would round up to 1,000 of the smaller one.
    if size and size < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if size and size < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if size < 600:
        return f"{seconds:.3g} s"
    sign, whole = ("-" if seconds < 0 else ""), round(size)
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60} s"
    return f"{sign}{whole // 3600} h {whole % 3600 // 60} min"


def format_bytes(size: float | None) -> str:
    """Bytes as text in binary units: `17.2 GiB`; null is `unknown`."""
    if size is None:
        return "unknown"
    value, power = float(size), 0
    while abs(value) >= 1024 and power < len(_BINARY) - 1:
        value, power = value / 1024, power + 1
    return f"{_three_digits(value)} {_BINARY[power]}"


def format_count(value: float | None) -> str:
    """A count with thousands separators, or three significant digits where it is no whole number; null is `unknown`."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if float(value).is_integer() else _three_digits(value)


def _three_digits(value: float) -> str:
    """Three significant digits; from 1,000 on whole numbers with separators, never an exponent."""
    return f"{value:,.0f}" if round(abs(value)) >= 1000 else f"{value:.3g}"


def format_ratio(ratio: float | None) -> str:
    """A ratio as percent with three significant digits: `93.2 %`; null is `unknown`."""
    return "unknown" if ratio is None else f"{_three_digits(ratio * 100)} %"


def parse_duration_s(text: str) -> float:
    """Seconds in `500ms`, `2s`, `1.5h`.

    Raises:
        DiagError: no unit, or an unknown one; a bare number is refused because its unit would be a guess.
    """
    return _parse(text, _SCALE_S, "a duration", "500ms, 2s or 1.5h")


def parse_bytes(text: str) -> int:
    """Bytes in `512MiB`, `2GiB`.

    Raises:
        DiagError: no unit, or an unknown one.
    """
    return round(_parse(text, _SCALE_BYTES, "a size", "512MiB or 2GiB"))


def _parse(text: str, scale: dict[str, float] | dict[str, int], what: str, example: str) -> float:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ]+)\s*", text)
    if match is None or match[2] not in scale:
        raise DiagError(f"{text[:40]!r} is not {what} with a unit", hint=f"write it like {example}")
    return float(match[1]) * scale[match[2]]
