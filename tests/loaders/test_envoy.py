"""Envoy's access logs: each request's arrival and end, whatever wraps the lines, and nothing that they do not tell."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import test_trace_spans as traces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_ugly_input import diagnosed, mutated

import infer_diag as diag
from infer_diag.errors import SourceError
from infer_diag.recording import Recording

BEGAN = datetime(2026, 3, 14, 9, 0, 0, 250_000, UTC)
CHAT = "/v1/chat/completions"


def access(at_s: float = 0.0, ms: int | str = 3210, **told: Any) -> dict[str, Any]:
    return {
        "at": (BEGAN + timedelta(seconds=at_s)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z",
        "duration": ms,
        "method": "POST",
        "path": CHAT,
        "code": 200,
        "flags": "-",
        "upstream": 95,
        "id": f"req-{at_s:g}",
        "agent": "python-httpx/0.28",
    } | told


def default(one: dict[str, Any]) -> str:
    """The line as Envoy's default format string prints it."""
    return (
        '[{at}] "{method} {path} HTTP/1.1" {code} {flags} 512 2048 {duration} {upstream} "10.0.0.7" "{agent}" "{id}" '
        '"llm.example" "10.1.2.3:8000"'
    ).format(**one)


def istio(one: dict[str, Any]) -> str:
    return (
        '[{at}] "{method} {path} HTTP/2" {code} {flags} via_upstream - "-" 512 2048 {duration} {upstream} "10.0.0.7" '
        '"{agent}" "{id}" "llm.example" "10.1.2.3:8000" outbound|8000||vllm.prod.svc.cluster.local 10.0.1.9:51000 '
        "10.2.0.1:8000 10.0.0.7:40212 - default"
    ).format(**one)


def as_json(one: dict[str, Any]) -> str:
    return json.dumps(
        {
            "start_time": one["at"],
            "method": one["method"],
            "path": one["path"],
            "response_code": one["code"],
            "response_flags": one["flags"],
            "duration": one["duration"],
            "upstream_service_time": str(one["upstream"]),
            "request_id": one["id"],
        }
    )


def docker(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stdout", "time": "2026-03-14T09:00:59.1Z"})


def cri(line: str) -> str:
    return f"2026-03-14T09:00:59.123456789Z stdout F {line}"


def loki(line: str) -> str:
    return json.dumps({"labels": {"app": "gateway"}, "line": line, "timestamp": "2026-03-14T09:00:59.1Z"})


WRITERS = {"default": default, "istio": istio, "json": as_json}
WRAPPERS = {
    "plain": str,
    "docker": docker,
    "cri": cri,
    "loki": loki,
    "kubectl": lambda line: f"[pod/gw-1/envoy] {line}",
}


def read(path: Path, lines: list[str], **options: Any) -> Recording:
    path.write_text("\n".join(lines) + "\n")
    return diag.load(path, **options)


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("write", WRITERS)
def test_arrival_and_end_are_envoy_s_own(tmp_path: Path, write: str, wrap: str) -> None:
    lines = [WRAPPERS[wrap](WRITERS[write](access(at))) for at in (0.0, 0.5, 2.0)]
    recording = read(tmp_path / "log", lines)
    assert recording.sources[0].format == "envoy" and recording.sources[0].rejected_lines == 0
    assert recording.sources[0].first_time == BEGAN
    rows = recording.requests
    assert rows["request_id"].to_list() == ["req-0", "req-0.5", "req-2"]
    assert rows["arrival_s"].to_list() == pytest.approx([0.0, 0.5, 2.0])
    assert rows["last_token_s"].to_list() == pytest.approx([3.21, 3.71, 5.21])
    assert rows["first_token_s"].null_count() == rows["output_tokens"].null_count() == 3
    assert rows["line"].to_list() == [1, 2, 3]


def test_what_loki_hands_out_newest_first_keeps_its_places(tmp_path: Path) -> None:
    values = [[str(1_773_478_859_000_000_000 + at), default(access(at))] for at in (2, 1, 0)]
    answer = {"data": {"resultType": "streams", "result": [{"stream": {"app": "gw"}, "values": values}]}}
    recording = read(tmp_path / "answer.json", [json.dumps(answer, indent=0)])
    assert recording.requests["request_id"].to_list() == ["req-0", "req-1", "req-2"]
    document = (tmp_path / "answer.json").read_text().splitlines()
    places = recording.sources[0].places
    assert places is not None
    near = [" ".join(document[places[line - 1] - 1 :][:3]) for line in recording.requests["line"]]
    assert [f"req-{number}" in each for number, each in enumerate(near)] == [True] * 3


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({}, None),
        ({"code": 503, "flags": "UH"}, "error"),
        ({"code": 504, "flags": "UT", "upstream": "-"}, "error"),
        ({"code": 0, "flags": "DC"}, "abort"),
        ({"code": 200, "flags": "DC"}, "abort"),
        ({"code": 200, "flags": "UC,DC"}, "abort"),
        ({"code": 429, "flags": "RL"}, "error"),
    ],
    ids=str,
)
def test_only_a_whole_answer_has_an_end(tmp_path: Path, told: dict[str, Any], reason: str | None) -> None:
    row = read(tmp_path / "log", [default(access(**told))]).requests.row(0, named=True)
    assert row["finish_reason"] == reason
    assert (row["last_token_s"] is None) == (reason is not None)


def test_other_paths_are_counted_and_left_out(tmp_path: Path) -> None:
    others = ["/health", "/metrics", "/v1/models", "/completions-of-mine", "/"]
    asked = [CHAT, "/v1/completions", "/api/chat", "/generate", "/v2/models/m/infer", "/gw/v1/embeddings?x=1"]
    lines = [default(access(at, path=path)) for at, path in enumerate([*others, *asked])]
    recording = read(tmp_path / "log", lines)
    assert len(recording.requests) == len(asked)
    assert any("5 requests to other paths" in note for note in recording.sources[0].notes)
    with pytest.raises(SourceError, match="looks like envoy, but none of its 5 lines"):
        read(tmp_path / "others", lines[: len(others)])


def test_what_has_no_column_is_told_in_notes(tmp_path: Path) -> None:
    lines = [default(access(0, 1000, upstream=250)), default(access(1, 3000, upstream=750))]
    notes = read(tmp_path / "log", [*lines, default(access(2, code=503, flags="UH"))]).sources[0].notes
    assert "25 % of the time of 2 answers passes before the upstream's headers come" in notes
    assert "response flags: UH 1" in notes


def test_a_request_without_an_id_is_called_by_its_place(tmp_path: Path) -> None:
    recording = read(tmp_path / "log", [default(access(0, id="-")), default(access(1))])
    assert recording.requests["request_id"].to_list() == ["1", "req-1"]


def test_a_request_that_passes_several_proxies_counts_once(tmp_path: Path) -> None:
    """A query over a mesh brings the line of the gateway and that of the sidecar, with one id."""
    gateway, sidecar = access(0, 3000, id="a"), istio(access(0.004, 2990, id="a"))
    again, unnamed = access(60, 1000, id="a"), access(0.001, 500, id="-")
    lines = [sidecar, default(gateway), default(again), default(unnamed), default(unnamed)]
    recording = read(tmp_path / "log", lines)
    assert recording.requests["line"].to_list() == [2, 3, 4, 5]
    assert any(note.startswith("1 lines tell of a request that another proxy") for note in recording.sources[0].notes)


def test_a_damaged_line_is_kept(tmp_path: Path) -> None:
    lines = [default(access(0)), default(access(1))[:80], default(access(2))]
    recording = read(tmp_path / "log", lines)
    assert recording.rejected["line"].to_list() == [2]
    assert recording.requests["line"].to_list() == [1, 3]


def test_the_proxy_is_no_second_server(tmp_path: Path) -> None:
    """Its requests are the engine's, told from the other end: they are not added to those that the engine tells of."""
    (tmp_path / "envoy.log").write_text("\n".join(default(access(at)) for at in range(4)) + "\n")
    (tmp_path / "spans.jsonl").write_text(json.dumps(traces.export(traces.request(0), traces.request(1))) + "\n")
    alone = diag.diagnose(diag.load(tmp_path / "envoy.log")).to_dict()["serving"]["requests"]
    assert alone["count"] == 4 and alone["ttft_s"] is None
    assert alone["e2e_s"]["mean"] == pytest.approx(3.21)
    both = diag.load(tmp_path / "envoy.log", tmp_path / "spans.jsonl")
    assert diag.diagnose(both).to_dict()["serving"]["requests"]["count"] == 4


TEXT = "\n".join(
    [*(default(access(at)) for at in range(3)), istio(access(4)), as_json(access(5)), docker(as_json(access(6)))]
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_mutated_log_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "mutated.log"
    path.write_bytes(mutated(TEXT.encode(), seed))
    diagnosed(path)
    diagnosed(path, format="envoy")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    agent=st.text(
        st.characters(blacklist_characters='"\n\r', blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=40
    ),
    ms=st.integers(0, 10**7),
    flags=st.sampled_from(["-", "UH", "UF,URX", "DC", "NR"]),
)
def test_what_a_client_sends_changes_no_time(tmp_path: Path, agent: str, ms: int, flags: str) -> None:
    line = default(access(0, ms, agent=agent.replace("\\", ""), flags=flags))
    row = read(tmp_path / "log", [line], format="envoy").requests.row(0, named=True)
    assert row["arrival_s"] == 0.0
    assert row["last_token_s"] == (None if flags == "DC" else pytest.approx(ms / 1000))


def test_all_stamps_are_utc(tmp_path: Path) -> None:
    recording = read(tmp_path / "log", [default(access(0))], tz="Asia/Shanghai")
    assert recording.sources[0].first_time == BEGAN
    assert isinstance(recording.requests.schema["arrival_s"], pl.Float64)


@pytest.mark.parametrize("duration", ["9" * 30, "1e300", "-5", "NaN", None, True, [1]])
def test_a_duration_that_is_none_leaves_the_end_open(tmp_path: Path, duration: object) -> None:
    line = as_json(access(0, 1, id="a") | {"duration": duration})
    text = line if duration is not None else line.replace('"duration": null', '"duration": "-"')
    row = read(tmp_path / "log", [text, as_json(access(1))]).requests.row(0, named=True)
    assert row["arrival_s"] == 0.0 and row["last_token_s"] is None
