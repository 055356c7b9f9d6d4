"""Speculative decoding as vLLM prints it, V0 to 0.32: beside the statistics line that it follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_shapes import read

from infer_diag.loaders.speculation import COLUMNS

STAMP = "(APIServer pid=11) INFO 03-14 09:{:02d}:00 [loggers.py:127] "
STATISTICS = (
    "Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: {}.5 tokens/s, Running: 2 reqs, "
    "Waiting: 0 reqs, GPU KV cache usage: 4.5%, Prefix cache hit rate: 0.0%"
)
TOLD = [
    (
        "SpecDecoding metrics: Mean acceptance length: 2.31, Accepted throughput: 10.00 tokens/s, Drafted throughput: "
        "20.00 tokens/s, Accepted: 100 tokens, Drafted: 200 tokens, Per-position acceptance rate: 0.800, 0.500, "
        "Avg Draft acceptance rate: 50.0%",
        (2.31, 0.5, 10.0, 20.0),
    ),
    (
        "SpecDecoding metrics: Draft acceptance rate: 88.8%, Mean acceptance length: 5.44, Accepted: 262 tokens, "
        "Drafted: 295 tokens, Per-position acceptance rate: 0.983, 0.949",
        (5.44, 0.888, None, None),
    ),
    ("SpecDecoding metrics: Draft acceptance rate: 100.0%, Accepted: 66 tokens, Drafted: 66 tokens", (None, 1.0, None, None)),
    (
        "Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, Number of speculative tokens: 3, "
        "Number of accepted tokens: 8547, Number of draft tokens: 13311, Number of emitted tokens: 10616.",
        (None, 0.642, None, None),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "values"), TOLD)
def test_a_line_goes_into_the_sample_before_it(tmp_path: Path, line: str, values: tuple[float | None, ...]) -> None:
    lines = []
    for minute in range(4):
        lines.append(STAMP.format(minute) + STATISTICS.format(minute))
        if minute in (1, 3):
            lines += ['INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK', STAMP.format(minute) + line]
    recording = read(tmp_path, lines)
    samples = recording.engine_samples
    assert samples["output_tokens_per_s"].to_list() == [0.5, 1.5, 2.5, 3.5]
    told = samples.select(COLUMNS).rows()
    assert told[1] == told[3] == pytest.approx(values)
    assert told[0] == told[2] == (None,) * 4
    assert recording.sources[0].unknown_lines == 0


def test_a_line_without_a_sample_is_known_and_makes_none_up(tmp_path: Path) -> None:
    lines = [STAMP.format(0) + TOLD[0][0], STAMP.format(1) + STATISTICS.format(1)]
    recording = read(tmp_path, lines)
    assert recording.engine_samples.select(COLUMNS).rows() == [(None,) * 4]
    assert recording.sources[0].unknown_lines == 0
