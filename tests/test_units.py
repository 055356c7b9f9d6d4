"""Numbers as people read them, and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_diag.errors import DiagError
from infer_diag.units import format_bytes, format_count, format_ratio, format_s, parse_bytes, parse_duration_s


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0.0, "0 s"),
        (4.2e-5, "42 µs"),
        (0.083, "83 ms"),
        (0.9996, "1 s"),
        (9.996e-4, "1 ms"),
        (1.25, "1.25 s"),
        (599.4, "599 s"),
        (851, "14 min 11 s"),
        (10_320, "2 h 52 min"),
        (-3.0, "-3 s"),
        (-851, "-14 min 11 s"),
    ],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert format_s(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (17.25 * 1024**3, "17.2 GiB"),
        (1 << 60, "1,024 PiB"),
    ],
)
def test_bytes(size: float | None, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "unknown"), (0, "0"), (7241, "7,241"), (2.5, "2.5"), (999.7, "1,000"), (1234.5, "1,234")]
)
def test_counts(value: float | None, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(None, "unknown"), (0.0, "0 %"), (0.9321, "93.2 %"), (1.0, "100 %"), (12.34, "1,234 %")]
)
def test_ratios(ratio: float | None, text: str) -> None:
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("2s", 2.0), ("1.5h", 5400.0), ("3 min", 180.0), (" 4m ", 240.0), ("7us", 7e-6)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["500", "", "ms", "-2s", "1e3s", "2 parsecs", "2s 3s", "٣s"])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(DiagError, match="write it like 500ms"):
        parse_duration_s(text)


def test_sizes_are_read_and_refused() -> None:
    assert parse_bytes("2GiB") == 2 * 1024**3
    for text in ("2", "2GB", "2G"):
        with pytest.raises(DiagError, match="write it like 512MiB"):
            parse_bytes(text)


@given(st.floats(min_value=1e-9, max_value=599, allow_nan=False))
def test_a_short_duration_survives_its_text_to_three_digits(seconds: float) -> None:
    value, unit = re.fullmatch(r"([0-9.e-]+) (µs|ms|s)", format_s(seconds)).groups()  # type: ignore[union-attr]
    assert float(value) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit] == pytest.approx(seconds, rel=6e-3)
