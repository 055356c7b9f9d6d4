"""What is done for speed changes nothing: dense lines, literals found in vain, borders of chunks and batches."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
import written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from infer_diag.loaders import files, load, vllm
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.text import needles, reader
from infer_diag.loaders.text.dense import divided
from infer_diag.loaders.text.lines import LINE_LIMIT, Chunk, Wrap
from infer_diag.loaders.text.needles import Needles
from infer_diag.recording import Recording

cheap = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

HEADS = ("INFO 03-14 09:26:53 [loggers.py:1] ", "(EngineCore pid=7) INFO 03-14 09:26:54 [core.py:9] ", "  note: ", "é ")
STEP = "Iteration(3): 1 context requests, 512 context tokens, 9 generation requests, 9 generation tokens, iteration elapsed time: 41.75 ms"
TAILS = (
    STEP,
    STEP.replace("41.75", "soon"),
    "Received request cmpl-1: prompt: 'Iteration(3): é'",
    "Received request cmpl-2.",
    "Received request cmpl-3: prompt: '\"POST /v1/completions HTTP/1.1\" 200 OK'",
    '192.0.2.7:4000 - "POST /v1/completions HTTP/1.1" 200 OK',
    "nothing of interest",
)


@cheap
@given(st.lists(st.tuples(st.sampled_from(HEADS), st.sampled_from(TAILS)), max_size=30))
def test_each_line_is_divided_at_its_first_needle_or_left_to_the_thorough_way(parts: list[tuple[str, str]]) -> None:
    lines = [head + tail for head, tail in parts]
    text = pl.DataFrame({"line": range(1, len(lines) + 1), "text": lines}, {"line": pl.UInt32, "text": pl.String})
    rules = vllm.ENGINE.text.dense
    found = divided(text, rules)
    told = {
        rule.name: dict(found.rows[rule.name].select("line", rule.first_group).iter_rows())
        for rule in rules
        if rule.name in found.rows
    }
    assert sorted([*found.rest["line"], *(line for rows in told.values() for line in rows)]) == text["line"].to_list()
    for number, line in enumerate(lines, 1):
        first = min(
            (rule for rule in rules if rule.needle in line), key=lambda rule: line.index(rule.needle), default=None
        )
        fits = first and re.match(first.pattern, line[line.index(first.needle) + len(first.needle) :])
        stamped = line.startswith(HEADS[:2])
        for rule in rules:
            expected = fits[rule.first_group] if fits and first is rule and stamped else None
            assert told.get(rule.name, {}).get(number) == expected


LITERAL = st.text(st.sampled_from("abc: "), min_size=1, max_size=9)


@cheap
@given(
    st.lists(LITERAL, min_size=1, max_size=8),
    st.lists(LITERAL, max_size=30),
    st.text(st.sampled_from("abc: "), max_size=5),
)
def test_literals_are_found_whatever_is_avoided(literals: list[str], vain: list[str], around: str) -> None:
    looked_for = Needles(tuple(literals[1:]), tuple(literals[:1]))
    chatter = [text for text in vain if not any(literal in text for literal in literals)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(needles, "_VAIN_LINES", 1)
        looked_for.avoid(pl.DataFrame({"text": chatter}, {"text": pl.String}))
    texts = pl.Series([around + literal + around for literal in literals])
    assert texts.str.contains(looked_for.likely).all()


def test_a_text_that_is_often_found_in_vain_is_looked_for_no_more() -> None:
    looked_for = Needles(("Loading weights took ", "loading finished"), ("Running: ",))
    chatter = pl.DataFrame(
        {"line": range(6000), "text": [f"DEBUG page {number} read while loading" for number in range(6000)]}
    )
    assert chatter["text"].str.contains(looked_for.likely).all()
    looked_for.avoid(chatter)
    assert not chatter["text"].str.contains(looked_for.likely).any()


@cheap
@given(st.binary(max_size=200).map(lambda data: data.replace(b"\r", b"\n")), st.integers(1, 60))
def test_a_large_file_comes_in_pieces_that_end_at_lines(tmp_path: Path, data: bytes, limit: int) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"x\n" + data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "HASHED_BYTES", 0)
        pieces = list(LogFile(str(path), "server.log", path.stat().st_size).chunks(limit))
    assert b"".join(pieces) == path.read_bytes()
    assert all(piece.endswith(b"\n") or len(piece) >= limit for piece in pieces[:-1])


def served(recording: Recording) -> dict[str, pl.DataFrame]:
    return {name: getattr(recording, name) for name in ("engine_steps", "engine_samples", "requests")}


@pytest.mark.parametrize("limit", [1_000, 7_919])
def test_borders_of_chunks_and_batches_show_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    path = tmp_path / "server.log"
    lines = written.vllm_lines()
    chatter = ["DEBUG 03-14 09:28:00 [pool.py:7] loading 3 blocks, é"] * 7
    path.write_text(
        "\n".join([*lines, *(line for serving in [*lines[-3:], *chatter] * 60 for line in (serving, *chatter))])
    )
    whole = load(path)
    monkeypatch.setattr(needles, "_VAIN_LINES", 5)
    monkeypatch.setattr(reader, "_BATCH_BYTES", 3 * limit)
    monkeypatch.setattr(LogFile.chunks, "__defaults__", (limit,))
    pieces = load(path)
    for name, frame in served(whole).items():
        assert_frame_equal(getattr(pieces, name), frame)
    assert len(whole.engine_steps) == 61
    assert pieces.sources[0].lines == whole.sources[0].lines
    assert pieces.starts.select("line", "ready_line", "served").equals(
        whole.starts.select("line", "ready_line", "served")
    )


def test_the_same_time_on_a_later_day_is_another_moment(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    answer = '[{:02d}:00:00] INFO:     192.0.2.7:4000 - "POST /generate HTTP/1.1" 200 OK'
    path.write_text(
        "\n".join(
            ["[03:00:00] server_args=ServerArgs(model_path='m', tp_size=1)", *map(answer.format, (4, 12, 20) * 3)]
        )
    )
    times = load(path, format="sglang").incidents.filter(kind="response")["time"]
    assert times.diff().drop_nulls().dt.total_hours().to_list() == [8] * 8


def test_what_surrounds_a_start_is_read_also_where_a_damaged_dense_line_tells_of_it(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    stamp = "INFO 03-14 09:26:53 [core.py:77] "
    took = "Loading weights took 10.25 seconds"
    path.write_text(
        "\n".join([f"{stamp}Iteration(9): {took}", "...", *["filler"] * 12_000, stamp + took, "...", "filler"])
    )
    cuts = load(path, format="vllm").incidents.filter(kind="cut")["line"].to_list()
    assert cuts == [2, 12_004]


def test_joined_lines_are_bounded_too() -> None:
    rows = b"\n".join([b"INFO begin", *[b"x" * 100] * 2000])
    (text,) = Chunk(rows, 1, Wrap(100, False, "^INFO")).matching("x")["text"]
    assert len(text) == LINE_LIMIT
