"""Lines that a container runtime cut into pieces: what was one line is read as one."""

from __future__ import annotations

import itertools
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
import written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_shapes import read

from infer_diag.loaders.text.partials import HELD_BYTES, whole_lines

HEAD = "2026-03-14T09:26:{:02d}.000000000Z {} {} {}"


def pieces(number: int, line: str, cuts: list[int], stream: str = "stderr") -> list[str]:
    places = sorted({0, *(cut % (len(line) + 1) for cut in cuts), len(line)})
    parts = [line[begin:end] for begin, end in itertools.pairwise(places)] or [""]
    return [
        HEAD.format(number % 60, stream, "F" if place == len(parts) - 1 else "P", part)
        for place, part in enumerate(parts)
    ]


LINES = written.vllm_lines()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 200), max_size=3), min_size=len(LINES), max_size=len(LINES)))
def test_cuts_change_nothing(tmp_path: Path, cuts: list[list[int]]) -> None:
    cut = [piece for number, line in enumerate(LINES) for piece in pieces(number, line, cuts[number])]
    plain = [piece for number, line in enumerate(LINES) for piece in pieces(number, line, [])]
    found, expected = read(tmp_path, cut), read(tmp_path, plain)
    assert found.rows() == expected.rows()
    for name in ("phases", "engine_samples", "engine_steps"):
        drop = ["line", "time", "begin", "end"]
        rows = [getattr(recording, name).drop(drop, strict=False) for recording in (found, expected)]
        assert rows[0].equals(rows[1])


def test_a_number_in_two_pieces_is_one_and_stands_on_its_first_line(tmp_path: Path) -> None:
    lines = [
        HEAD.format(1, "stderr", "F", "noise"),
        HEAD.format(2, "stderr", "P", "INFO 03-14 09:26:53 [core.py:77] Model loading took 14.99 GiB and 12."),
        HEAD.format(2, "stdout", "F", "noise of another stream"),
        HEAD.format(2, "stderr", "P", "7"),
        HEAD.format(2, "stderr", "F", "50000 seconds"),
        HEAD.format(
            3,
            "stderr",
            "F",
            "INFO 03-14 09:26:54 [core.py:77] init engine (profile, create kv cache, warmup model) took 5.50 seconds",
        ),
    ]
    phases = read(tmp_path, lines).phases
    assert phases.select("line", "duration_s").rows() == [(2, 12.75), (6, 5.5)]


def joined(*chunks: str) -> list[str]:
    return b"".join(whole_lines(chunk.encode() for chunk in chunks)).decode().split("\n")


@pytest.mark.parametrize("boundary", range(1, 5))
def test_a_chunk_may_end_between_pieces(boundary: int) -> None:
    lines = [
        HEAD.format(1, "stdout", "F", "a"),
        HEAD.format(2, "stdout", "P", "b"),
        HEAD.format(2, "stderr", "P", "x"),
        HEAD.format(2, "stdout", "F", "c"),
        HEAD.format(2, "stderr", "F", "y"),
    ]
    text = [f"{line}\n" for line in lines]
    found = joined("".join(text[:boundary]), "".join(text[boundary:]))
    assert found == [lines[0], HEAD.format(2, "stdout", "F", "bc"), HEAD.format(2, "stderr", "F", "xy"), "", "", ""]


def test_a_last_piece_that_never_comes_costs_nothing_else() -> None:
    line = HEAD.format(1, "stdout", "P", "b" * 100)
    many = [HEAD.format(2, "stderr", "F", "x" * 100)] * (HELD_BYTES // 100)
    assert joined("\n".join([line, *many]) + "\n") == [line, *many, ""]
    assert joined(f"{line}\n") == [line, ""]


def test_text_of_another_shape_is_left_alone() -> None:
    text = "INFO x stdout P y\n" * 3
    assert list(whole_lines([text.encode()])) == [text.encode()]


def test_pieces_keep_the_stamp_of_the_first(tmp_path: Path) -> None:
    long = written.BEGIN + timedelta(seconds=3)
    lines = [
        f"{long:%Y-%m-%dT%H:%M:%S}.000000000Z stderr P INFO 03-14 09:26:56 [core.py:77] Model loading took 1.5 GiB and ",
        f"{long + timedelta(seconds=9):%Y-%m-%dT%H:%M:%S}.000000000Z stderr F 2.25 seconds",
    ]
    phases = read(tmp_path, lines).phases
    assert phases["end"].to_list() == [pl.Series([long]).dt.replace_time_zone("UTC")[0]]
