"""A Prometheus server as a source: a real one that scraped a replayed engine, and others that misbehave."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from prometheus_server import ABSENT, PROMETHEUS, Exporter, PrometheusServer, waited_for
from typer.testing import CliRunner

import infer_diag as diag
from infer_diag.cli import app
from infer_diag.errors import DiagError, SourceError
from infer_diag.jupyter.grammar import grammar
from infer_diag.jupyter.magic import Magic
from infer_diag.jupyter.session import Session
from infer_diag.loaders.exposition import prometheus_api
from infer_diag.loaders.exposition import server as asking
from infer_diag.loaders.exposition.address import address
from infer_diag.loaders.exposition.moments import duration_s, epoch_s
from infer_diag.recording import Recording

PAGES = 12
RESET = 6
"""The page at which the first replica begins again."""
LIMITS = (0.1, 1.0, 10.0)
TTFT_S = (0.05, 0.4, 0.4, 4.0, 40.0)
"""What each request of a page took, over and over."""


def counted(replica: int, number: int) -> int:
    """Requests that a replica finished since it began, when it shows this page."""
    since = number - RESET if replica == 0 and number >= RESET else number
    return 10 + since * (5 + replica)


def page(replica: int, number: int) -> str:
    """What a replica shows; `num_requests_waiting` is the number of the page, so that a stored value tells its page."""
    labels = 'engine="0",model_name="some/model"'
    done = counted(replica, number)
    took = [TTFT_S[place % len(TTFT_S)] for place in range(done)]
    name = "vllm:time_to_first_token_seconds"
    buckets = [f'{name}_bucket{{{labels},le="{limit}"}} {sum(each <= limit for each in took)}' for limit in LIMITS]
    lines = [
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{labels}}} {3 + number % 4 + replica}",
        f"vllm:num_requests_waiting{{{labels}}} {number}",
        f"vllm:kv_cache_usage_perc{{{labels}}} {number / 16}",
        "# TYPE vllm:generation_tokens_total counter",
        f"vllm:generation_tokens_total{{{labels}}} {done * 128}",
        f"vllm:num_preemptions_total{{{labels}}} {done // 7}",
        f"# TYPE {name} histogram",
        *buckets,
        f'{name}_bucket{{{labels},le="+Inf"}} {done}',
        f"{name}_sum{{{labels}}} {sum(took)}",
        f"{name}_count{{{labels}}} {done}",
        f"vllm:nothing_of_ours_total{{{labels}}} {number}",
        f"python_gc_objects_collected_total {number * 9}",
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A server that scraped two replicas to their end, one of which began again, and itself not at all."""
    if PROMETHEUS is None:
        pytest.skip(ABSENT)
    pages = [[page(replica, number) for number in range(PAGES)] for replica in range(2)]
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        Exporter(pages[0]) as first,
        Exporter(pages[1]) as second,
        PrometheusServer(folder, {"vllm": [first.target], "other": [second.target]}, interval="500ms") as running,
    ):
        waited_for(lambda: first.done and second.done, "the last page")
        waited_for(lambda: len(stored(running)) == 2, "two replicas")
        yield running


def stored(server: PrometheusServer) -> dict[str, list[tuple[float, int]]]:
    """By replica the (time, page number) of every scrape that the server kept, by its own answer."""
    answer = server.get("query", query="vllm:num_requests_waiting[1h]")["data"]["result"]
    return {each["metric"]["job"]: [(at, int(number)) for at, number in each["values"]] for each in answer}


def replicas(server: PrometheusServer) -> dict[str, str]:
    answer = server.get("query", query="vllm:num_requests_waiting[1h]")["data"]["result"]
    return {each["metric"]["instance"]: each["metric"]["job"] for each in answer}


def url(server: PrometheusServer, query: str = "") -> str:
    return f"prometheus+http://{server.address}{query}"


NUMBER = {"vllm": 0, "other": 1}


def test_every_scrape_is_there_as_it_was(server: PrometheusServer) -> None:
    recording = diag.load(url(server))
    jobs = replicas(server)
    expected = {
        (round(at * 1e6), job, 3 + number % 4 + NUMBER[job], number, number / 16)
        for job, scrapes in stored(server).items()
        for at, number in scrapes
    }
    columns = ("time", "replica", "running_count", "waiting_count", "kv_usage_ratio")
    rows = recording.engine_samples.select(columns).with_columns(pl.col("time").dt.epoch("us")).rows()
    assert {(at, jobs[replica], *rest) for at, replica, *rest in rows} == expected
    assert len(rows) == len(expected) >= PAGES
    (source,) = recording.sources
    assert (source.format, source.engine, source.path) == ("prometheus", "vllm", url(server))
    assert source.dated
    assert any("hour up to now" in note for note in source.notes)
    assert any("as it was scraped" in note for note in source.notes)


def increase(job: str, numbers: list[int], of: Callable[[int], float] = float) -> float:
    """What a counter gained over these pages: after a restart, what it had since."""
    values = [of(counted(NUMBER[job], number)) for number in numbers]
    pairs = pairwise(values)
    return sum(after - before if after >= before else after for before, after in pairs)


def test_counters_gain_what_was_planted_and_begin_again_once(server: PrometheusServer) -> None:
    recording = diag.load(url(server))
    numbers = {job: [number for _, number in scrapes] for job, scrapes in stored(server).items()}
    assert recording.engine_samples["preemption_count"].sum() == sum(
        increase(job, each, lambda done: done // 7) for job, each in numbers.items()
    )
    (total,) = recording.request_totals.to_dicts()
    assert total["request_count"] == sum(increase(job, each) for job, each in numbers.items())
    assert sum(total["bucket_counts"]) == total["request_count"]
    assert total["bucket_max"] == [*LIMITS, None]
    restarts = recording.incidents.filter(pl.col("kind") == "restart")
    assert [replicas(server)[name] for name in restarts["replica"]] == ["vllm"]


def test_rates_times_their_intervals_are_the_tokens(server: PrometheusServer) -> None:
    samples = diag.load(url(server)).engine_samples.sort("replica", "time")
    span_s = pl.col("time").diff().dt.total_microseconds().over("replica") / 1e6
    gained = samples.select((pl.col("output_tokens_per_s") * span_s).sum()).item()
    expected = 0.0
    for job, scrapes in stored(server).items():
        values = [128 * counted(NUMBER[job], number) for _, number in scrapes]
        # No rate is taken over a restart.
        expected += sum(max(after - before, 0) for before, after in pairwise(values))
    assert gained == pytest.approx(expected)


def test_saved_answers_and_scrapes_tell_the_same(server: PrometheusServer, tmp_path: Path) -> None:
    """One server three ways: asked, its answer saved, and the pages that it scraped as files with their times."""
    asked = diag.load(url(server, '?match={job="other"}'))
    selector = '{__name__=~"vllm:.*",job="other"}[1h]'
    (tmp_path / "answer.json").write_text(json.dumps(server.get("query", query=selector)))
    saved = diag.load(tmp_path / "answer.json")
    folder = tmp_path / "scrapes"
    folder.mkdir()
    scrapes = stored(server)["other"]
    for at, number in scrapes:
        (folder / f"metrics-{round(at * 1e3)}.prom").write_text(page(1, number))
    files = diag.load(folder)
    text = "".join(f"# {at:.3f}\n{page(1, number)}" for at, number in scrapes)
    (tmp_path / "all.prom").write_text(text)
    whole = diag.load(tmp_path / "all.prom")
    for other in (saved, files, whole):
        assert_frame_equal(told(other), told(asked))
        totals = [each.request_totals.drop("line") for each in (other, asked)]
        assert_frame_equal(*totals)
    serving = [diag.diagnose(each).to_dict()["serving"] for each in (asked, saved, files, whole)]
    assert all(each == serving[0] for each in serving)


def told(recording: Recording) -> pl.DataFrame:
    return recording.engine_samples.drop("line", "replica")


def test_a_step_asks_for_a_value_per_step(server: PrometheusServer) -> None:
    recording = diag.load(url(server, '?step=1s&match=job="other"'))
    times = recording.engine_samples["time"].dt.epoch("ms")
    assert set((times.diff().drop_nulls()).to_list()) == {1000}
    assert any("query_range" in note and "1 s" in note for note in recording.sources[0].notes)
    pages = {number for _, number in stored(server)["other"]}
    assert set(recording.engine_samples["waiting_count"]) <= pages


def test_a_step_shorter_than_the_scrapes_is_refused(server: PrometheusServer) -> None:
    with pytest.raises(SourceError, match=r"shorter than the 0\.5 s between two scrapes"):
        diag.load(url(server, "?step=100ms"))


LARGEST_BYTES = 2600


@pytest.mark.parametrize("window_s", [1.0, 3600.0])
def test_windows_and_halves_lose_and_repeat_nothing(
    server: PrometheusServer, monkeypatch: pytest.MonkeyPatch, window_s: float
) -> None:
    times = [at for scrapes in stored(server).values() for at, _ in scrapes]
    span = {name: datetime.fromtimestamp(at, UTC) for name, at in (("start", min(times) - 2), ("end", max(times) + 1))}
    whole = diag.load(url(server), **span)
    buckets = server.get("query", query="vllm:time_to_first_token_seconds_bucket[1h]")
    assert len(json.dumps(buckets)) > LARGEST_BYTES
    monkeypatch.setattr(asking, "_WINDOW_S", window_s)
    monkeypatch.setattr(asking, "_MOST_WINDOWS", 900)
    monkeypatch.setattr(asking, "_LEAST_WINDOW_S", 0.5)
    monkeypatch.setattr(prometheus_api, "ANSWER_LIMIT", LARGEST_BYTES)
    pieces = diag.load(url(server), **span)
    order = ("time", "replica")
    assert_frame_equal(pieces.engine_samples.sort(order), whole.engine_samples.sort(order))
    assert_frame_equal(pieces.request_totals, whole.request_totals)


def test_the_span_is_what_was_asked_for(server: PrometheusServer) -> None:
    times = sorted(at for at, _ in stored(server)["vllm"])
    begin, end = (datetime.fromtimestamp(times[place], UTC) for place in (2, 5))
    margin = timedelta(milliseconds=1)
    found = diag.load(url(server, '?match=job="vllm"'), start=begin - margin, end=(end + margin).isoformat())
    assert found.engine_samples["time"].to_list() == [datetime.fromtimestamp(at, UTC) for at in times[2:6]]


def test_progress_grows_to_the_whole(server: PrometheusServer) -> None:
    seen: list[tuple[str, int, int]] = []
    diag.load(url(server), progress=lambda *told: seen.append(told))
    assert {path for path, _, _ in seen} == {url(server)}
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1][1] == seen[-1][2] > 0


@pytest.mark.parametrize(
    ("query", "options", "says"),
    [
        ('?match={job="nothing"}', {}, r"under match=\{job=.*vllm:"),
        ("", {"start": "-2h", "end": "-1h"}, "at other times"),
        ('?match={job=~"("}', {}, "does not take the query"),
    ],
)
def test_nothing_there_says_what_was_seen(
    server: PrometheusServer, query: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(SourceError, match=says) as told:
        diag.load(url(server, query), **options)
    assert told.value.hint


def test_a_server_beside_files_and_a_server_that_is_gone(server: PrometheusServer, tmp_path: Path) -> None:
    (tmp_path / "server.prom").write_text("vllm:num_requests_running 3\n")
    recording = diag.load(tmp_path / "server.prom", url(server), "prometheus+http://127.0.0.1:9")
    assert [source.path for source in recording.sources] == [str(tmp_path / "server.prom"), url(server)]
    (skipped,) = recording.skipped
    assert "cannot be reached" in skipped.reason


def test_the_command_line_and_the_magic_take_times(server: PrometheusServer) -> None:
    run = CliRunner().invoke(app, ["diagnose", url(server), "--start", "-1h", "--json", "--quiet"])
    assert run.exit_code == 0
    assert json.loads(run.stdout)["sources"][0]["path"] == url(server)
    session = Session()
    magic = Magic(grammar(session), session)
    secret = url(server).replace("//", "//somebody:pass-phrase@")
    panel = magic.run(f"load {secret} --start -1h --end now")
    assert "loaded as 127" in panel.text
    code = magic.run(f"load {secret} --start -1h --code").text
    assert "start='-1h'" in code
    assert "pass-phrase" not in panel.text + code


# A server that answers as it is told to.


@contextmanager
def answering(
    answer: Callable[[str, dict[str, str], dict[str, str]], tuple[int, Any, dict[str, str]]],
) -> Iterator[str]:
    """Its `host:port`; `answer` makes (status, body, headers) of (path, parameters, headers)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            status, body, headers = answer(parts.path, asked, dict(self.headers))
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


NOW = 1_770_000_000.0
TIME = {"status": "success", "data": {"resultType": "scalar", "result": [NOW, str(NOW)]}}


def one_metric(path: str, asked: dict[str, str], headers: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
    if path.endswith("/values"):
        return 200, {"status": "success", "data": ["vllm:num_requests_running", "up"]}, {}
    if asked["query"] == "time()":
        return 200, TIME, {}
    values = [[NOW - 30 + step * 15, str(step)] for step in range(3)]
    metric = {"__name__": "vllm:num_requests_running", "instance": "a:8000"}
    result = {"resultType": "matrix", "result": [{"metric": metric, "values": values}]}
    return 200, {"status": "success", "data": result, "warnings": ["one store is away"]}, {}


def test_the_servers_clock_and_its_warnings_count() -> None:
    with answering(one_metric) as place:
        recording = diag.load(f"prometheus+http://{place}/prefix/")
    assert recording.engine_samples["running_count"].to_list() == [0, 1, 2]
    (source,) = recording.sources
    assert "one store is away" in source.notes
    assert source.notes[0].startswith("samples from 2026-02-02T01:40:00Z to 2026-02-02T02:40:00Z")
    assert source.path == f"prometheus+http://{place}/prefix"


SECRET = "s3cr3t-Pa55phrase"


@pytest.mark.parametrize("way", ["user", "token", "environment", "environment user"])
def test_credentials_reach_the_server_and_no_output(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()

    def answer(path: str, asked: dict[str, str], headers: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        seen.add(headers.get("Authorization", ""))
        return one_metric(path, asked, headers)

    with answering(answer) as place:
        path = f"prometheus+http://{place}"
        if way == "user":
            path = f"prometheus+http://somebody:{SECRET}@{place}"
        elif way == "token":
            path += f"?token={SECRET}"
        elif way == "environment":
            monkeypatch.setenv("INFER_DIAG_PROMETHEUS_TOKEN", SECRET)
        else:
            monkeypatch.setenv("INFER_DIAG_PROMETHEUS_USER", "somebody")
            monkeypatch.setenv("INFER_DIAG_PROMETHEUS_PASSWORD", SECRET)
        recording = diag.load(path)
        shown = [repr(recording), repr(recording.sources), diag.diagnose(recording).to_json(), repr(address(path))]
    (header,) = seen
    assert header.startswith("Basic " if "user" in way else "Bearer ")
    assert not any(SECRET in text or header.split()[1] in text for text in shown)
    assert recording.sources[0].path == f"prometheus+http://{place}"


@pytest.mark.parametrize(
    ("status", "body", "headers", "says"),
    [
        (401, b"Unauthorized", {}, r"refuses access \(401\).*INFER_DIAG_PROMETHEUS_TOKEN"),
        (403, {"status": "error", "error": "no tenant"}, {}, r"refuses access \(403: no tenant\)"),
        (404, b"404 page not found", {}, "is no Prometheus server: it answers 404"),
        (200, b"<html>log in</html>", {}, "is no Prometheus server: its answer is no JSON"),
        (200, b"[" * 100_000, {}, "is no Prometheus server"),
        (200, {"hello": 1}, {}, "is no Prometheus server"),
        (302, b"", {"Location": "https://login.example/?token=abc123"}, "redirects to login.example"),
        (422, {"status": "error", "error": "bad\nthing"}, {}, r"does not take the query \(422: bad thing\)"),
        (503, {"status": "error", "error": "starting"}, {}, r"does not answer now \(503: starting\)"),
        (502, b"Bad Gateway", {}, r"does not answer now \(502\)"),
        (200, b'{"status"', {"Content-Length": "400"}, "(no JSON|breaks off)"),
        (200, b"no gzip", {"Content-Encoding": "gzip"}, "(cannot be reached|breaks off)"),
        (200, gzip.compress(b" " * (64 << 20)), {"Content-Encoding": "gzip"}, "more than 16 MiB"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(status: int, body: Any, headers: dict[str, str], says: str) -> None:
    with answering(lambda *_: (status, body, headers)) as place, pytest.raises(SourceError) as told:
        diag.load(f"prometheus+http://somebody:{SECRET}@{place}")
    assert re.search(says, str(told.value))
    assert told.value.hint
    assert "\n" not in str(told.value)
    assert SECRET not in str(told.value)


@pytest.mark.parametrize(
    "text",
    [
        "prometheus+http://",
        "prometheus+http://host:port",
        f"prometheus+http://somebody:{SECRET[:4]}/{SECRET}@host:9090",
        f"prometheus+http://somebody:{SECRET[:4]}?{SECRET}@host",
        "prometheus+https://host:99999",
        "prometheus+http://host?query=up",
        "prometheus+http://host?step=1s&step=2s",
        "prometheus+http://host?step=soon",
        'prometheus+http://host?match=up{job="a"}',
        'prometheus+http://host?match={job="a"} or vector(1)',
        f"prometheus+http://host?token={SECRET}%0aHost:x",
    ],
)
def test_a_wrong_address_is_refused_before_anything_is_asked(text: str) -> None:
    with pytest.raises(SourceError) as told:
        diag.load(text)
    assert told.value.hint
    assert SECRET not in str(told.value)


def test_an_address_is_taken_apart() -> None:
    found = address('Prometheus+HTTPS://u%40x:p%3A@[::1]:9090/base/?match={job=~"a.+%26",pod!="b",}&step=1m30s')
    assert found.base == "https://[::1]:9090/base"
    assert (found.matchers, found.step_s) == ('job=~"a.+&",pod!="b"', 90.0)
    assert "u%40x" not in found.label


def test_times_belong_to_a_server(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text("vllm:num_requests_running 3\n")
    with pytest.raises(DiagError, match="no path names one"):
        diag.load(tmp_path / "a.prom", start="-2h")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("-2h", NOW - 7200),
        ("now-1d12h", NOW - 129_600),
        ("-90s", NOW - 90),
        ("1700000000.5", 1_700_000_000.5),
        ("2026-02-02T02:40:00Z", NOW),
        ("2026-02-02 03:40:00+01:00", NOW),
        ("2026-02-02T10:40", NOW + 0),
    ],
)
def test_moments(text: str, expected: float) -> None:
    assert epoch_s(text, "start", NOW, "Asia/Shanghai") == expected


@pytest.mark.parametrize("text", ["", "soon", "-", "-2x", "2h", "12", "2026-02-30", "99999999999999999999"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(DiagError, match="start"):
        epoch_s(text, "start", NOW, None)


@given(st.integers(1, 10**7), st.sampled_from(["ms", "s", "m", "h", "d", "w"]))
def test_durations_are_read_as_they_are_written(number: int, unit: str) -> None:
    scale = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[unit]
    assert duration_s(f"{number}{unit}") == pytest.approx(number * scale)


@pytest.mark.parametrize("options", [{"start": "-1h", "end": "-2h"}, {"start": "2030-01-01"}])
def test_a_span_that_is_none(options: dict[str, str]) -> None:
    with answering(one_metric) as place, pytest.raises(DiagError, match="does not lie before end"):
        diag.load(f"prometheus+http://{place}", **options)
