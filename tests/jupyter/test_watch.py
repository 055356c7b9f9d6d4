"""A watch: what it asks, what it keeps, how it ends, and what it says of a start that is still going on."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from served_pages import running

from infer_diag.errors import DiagError, ProbeUnavailable, SourceError
from infer_diag.watch import live, target, watching
from infer_diag.watch.fetching import Fetcher

BEGIN = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
BAR = "Loading safetensors checkpoint shards:  {percent}% Completed | {done}/{total} [{clock}<?, ?it/s]"


class FakeClock:
    """Time that passes only while somebody waits, and what happens meanwhile."""

    def __init__(self, stop_after: int = 10_000, meanwhile: Callable[[int], None] = lambda _: None) -> None:
        self.at_s = 1000.0
        self.waits: list[float] = []
        self._stop_after, self._meanwhile = stop_after, meanwhile

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.at_s - 1000.0)

    def steady_s(self) -> float:
        return self.at_s

    def wait(self, seconds: float, stop: threading.Event) -> None:
        self.waits.append(seconds)
        self.at_s += seconds
        self._meanwhile(len(self.waits))
        if len(self.waits) >= self._stop_after:
            stop.set()


def page(seconds: float, *, running: int = 8, waiting: int = 0, kv: float = 0.4, preempted: int = 0) -> bytes:
    """A metrics page of vLLM after so many seconds of 100 output tokens each."""
    labels = '{engine="0",model_name="m"}'
    return (
        f"# HELP vllm:num_requests_running Number of requests.\n# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{labels} {running}.0\n"
        f"vllm:num_requests_waiting{labels} {waiting}.0\n"
        f"vllm:kv_cache_usage_perc{labels} {kv}\n"
        f"vllm:num_preemptions_total{labels} {preempted}.0\n"
        f"vllm:prompt_tokens_total{labels} {seconds * 50}\n"
        f"vllm:generation_tokens_total{labels} {seconds * 100}\n"
        f"process_resident_memory_bytes 1e9\n"
    ).encode()


class Server:
    """A local server that answers each request with the next of its pages; the last one is repeated."""

    def __init__(self) -> None:
        self.answers: list[Any] = [page(0)]
        self.asked: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(dict(self.headers))
                outer.paths.append(self.path)
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                if callable(answer):
                    answer(self)
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    """A server on loopback."""
    made = Server()
    with running(made.server):
        yield made
        made.release.set()


def watched(url: str, folder: Path, clock: FakeClock, **options: Any) -> tuple[Any, list[Any]]:
    """A watch that has run to its end, and every view that it showed."""
    views: list[Any] = []
    running = live([target(url)], folder, clock=clock, **options)
    running.run(threading.Event(), views.append)
    return running, views


def test_an_engine_is_scraped_and_kept_as_a_recording(server: Server, tmp_path: Path) -> None:
    server.answers = [page(second, preempted=7 + (second > 4)) for second in (0, 2, 4, 6, 8)]
    running, views = watched(server.url, tmp_path, FakeClock(), every_s=2.0, for_s=8.0)
    assert server.paths == ["/metrics"] * 5
    recording = running.recording()
    assert recording is not None
    told = recording.engine_samples
    assert told["time"].to_list() == [BEGIN + timedelta(seconds=each) for each in (0, 2, 4, 6, 8)]
    assert told["output_tokens_per_s"].to_list() == [None, 100.0, 100.0, 100.0, 100.0]
    (drawn,) = [rows for _, rows in views[-1].samples]
    assert drawn["output_tokens_per_s"].to_list() == told["output_tokens_per_s"].to_list()
    assert drawn["preemption_count"].to_list() == [None, 0, 0, 1, 0]
    assert views[-1].over == "8 s are over"
    assert [len(view.samples[0][1]) for view in views] == [1, 2, 3, 4, 5, 5]


def test_only_what_fills_a_frame_is_kept(server: Server, tmp_path: Path) -> None:
    running, _ = watched(server.url, tmp_path, FakeClock(stop_after=1))
    (kept,) = tmp_path.glob("*.prom.txt")
    text = kept.read_text()
    assert "process_resident_memory_bytes" not in text
    assert text.startswith("# scrape 2026-03-14T09:26:53.000Z\nvllm:num_requests_running")
    assert running.recording().evidence(0, 2).endswith(f"{kept.name}:2")


def test_an_earlier_watch_in_the_same_folder_is_left_alone(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        running, _ = watched(server.url, tmp_path, FakeClock(stop_after=2))
    assert len(list(tmp_path.glob("*.prom.txt"))) == 2
    assert len(running.recording().engine_samples) == 2


def test_findings_come_while_it_goes_on(server: Server, tmp_path: Path) -> None:
    server.answers = [page(2 * n, waiting=40, kv=0.99, preempted=n * 5) for n in range(40)]
    _, views = watched(server.url, tmp_path, FakeClock(), every_s=2.0, for_s=24.0)
    counts = [len(view.diagnosis.findings) for view in views if view.diagnosis is not None]
    assert counts[0] < counts[-1]
    told = {finding.id for view in views[:-1] if view.diagnosis for finding in view.diagnosis.findings}
    assert any(name.startswith("batching.") for name in told)


def test_the_whole_is_diagnosed_less_often_as_it_grows(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    nothing = SimpleNamespace(findings=())
    monkeypatch.setattr(watching, "diagnose", lambda recording: calls.append(len(recording.engine_samples)) or nothing)
    server.answers = [page(second) for second in range(75)]
    watched(server.url, tmp_path, FakeClock(), every_s=1.0, for_s=70.0)
    assert calls[-1] == 71
    assert sum(calls) < 15 * calls[-1]


def test_an_engine_that_does_not_answer_is_asked_less_often_and_waited_for(tmp_path: Path) -> None:
    answers = iter([SourceError("connection refused")] * 7)
    clock = FakeClock(stop_after=9)
    running = live([target("http://127.0.0.1:9/metrics")], tmp_path, every_s=2.0, clock=clock)

    def fetch() -> bytes:
        for error in answers:
            raise error
        return page(clock.at_s)

    running._watched[0]._fetch = fetch
    views: list[Any] = []
    running.run(threading.Event(), views.append)
    assert clock.waits == [4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 2.0, 2.0]
    assert views[1].states[0][1] == "connection refused (2 times in a row); next try in 8 s"
    assert views[0].diagnosis is None
    assert len(running.recording().engine_samples) == 2


def test_nothing_seen_is_no_recording(tmp_path: Path) -> None:
    running, views = watched("http://127.0.0.1:1/metrics", tmp_path, FakeClock(stop_after=2))
    assert running.recording() is None
    assert "connection refused" in views[-1].lines[1]


def answer_code(code: int, **headers: str) -> Callable[[Any], None]:
    """An answer without a body."""

    def send(handler: Any) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return send


def bodied(body: bytes, **headers: str) -> Callable[[Any], None]:
    """An answer with these headers."""

    def send(handler: Any) -> None:
        answer_code(200, **headers)(handler)
        handler.wfile.write(body)

    return send


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (answer_code(401), "it answers 401, access is refused"),
        (answer_code(503), "it answers 503"),
        (answer_code(302, Location="http://192.0.2.1/metrics"), "it redirects to another server (302)"),
        (answer_code(302, Location="file:///etc/passwd"), "it redirects to another server (302)"),
        (b"", "an empty answer"),
        (b"<html><script>alert(1)</script>\x1b[31m\n", "with no metric that infer_diag reads (it begins '<html>"),
        (bodied(b"\x1f\x8bnot gzip at all", **{"Content-Encoding": "gzip"}), "damaged"),
        (bodied(b"vllm:x", **{"Content-Length": "1000"}), "damaged"),
        (bodied(b"\xff\xfe\x00" * 50), "no metric"),
    ],
)
def test_what_a_server_does_wrong_is_one_line(server: Server, tmp_path: Path, answer: Any, told: str) -> None:
    server.answers = [answer]
    running, views = watched(server.url, tmp_path, FakeClock(stop_after=1))
    assert told in views[0].states[0][1]
    assert "\x1b" not in "".join(views[0].lines)
    assert running.recording() is None


def test_a_redirect_on_the_same_server_is_followed(server: Server, tmp_path: Path) -> None:
    server.answers = [answer_code(307, Location="/metrics/"), page(0)]
    running, _ = watched(server.url, tmp_path, FakeClock(stop_after=1))
    assert server.paths == ["/metrics", "/metrics/"]
    assert len(running.recording().engine_samples) == 1


def test_a_page_without_end_is_cut_off(server: Server) -> None:
    def flood(handler: Any) -> None:
        answer_code(200)(handler)
        with pytest.raises(OSError):
            while True:
                handler.wfile.write(b"x" * (1 << 20))

    server.answers = [flood]
    with pytest.raises(SourceError, match="longer than 16 MiB"):
        Fetcher(server.url, limit_s=60)()


def test_a_drip_is_given_up_as_a_whole_and_not_asked_again_meanwhile(server: Server) -> None:
    def drip(handler: Any) -> None:
        answer_code(200)(handler)
        handler.wfile.write(b"vllm:")
        handler.wfile.flush()
        server.release.wait(20)

    server.answers = [drip]
    fetch = Fetcher(server.url, limit_s=0.2)
    begin = time.monotonic()
    with pytest.raises(SourceError, match=r"within 0\.2 s"):
        fetch()
    assert time.monotonic() - begin < 10


def test_half_a_number_at_the_end_of_a_page_is_no_number(server: Server, tmp_path: Path) -> None:
    server.answers = [page(12345)[: -len(b"process_resident_memory_bytes 1e9\n") - 6]]
    watched(server.url, tmp_path, FakeClock(stop_after=1))
    (kept,) = tmp_path.glob("*.prom.txt")
    assert "generation_tokens" not in kept.read_text()
    assert "prompt_tokens" in kept.read_text()


def test_a_password_goes_to_the_server_and_nowhere_else(server: Server, tmp_path: Path) -> None:
    url = server.url.replace("http://", "http://me:s3cret-word@")
    _, views = watched(url, tmp_path, FakeClock(stop_after=1))
    assert server.asked[0]["Authorization"] == "Basic bWU6czNjcmV0LXdvcmQ="
    kept = "".join(path.read_text() + path.name for path in tmp_path.iterdir())
    assert "s3cret" not in "".join(views[-1].lines) + kept
    assert "s3cret" not in repr(target(url)).replace(repr(target(url).authorization), "")


@pytest.mark.parametrize("text", ["ftp://host/x", "http://", "http://host:notaport", "http://me:pw@ho st/", "s3://b/x"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(DiagError) as raised:
        target(text)
    assert "pw" not in str(raised.value)


class Nvml:
    """NVML with one GPU whose used memory grows."""

    class NVMLError(Exception):
        """What NVML raises."""

    nvmlMemory_v2 = 2

    def __init__(self, count: int = 1, driver: bool = True) -> None:
        self.count, self.driver, self.used, self.on = count, driver, 0, 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.on += 1

    def nvmlShutdown(self) -> None:
        self.on -= 1

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, _: int, version: int = 1) -> Any:
        self.used += 1 << 30
        return SimpleNamespace(used=self.used, free=(80 << 30) - self.used, reserved=1 << 29)

    def nvmlDeviceGetPowerUsage(self, _: int) -> int:
        return 300_000


def test_gpus_are_sampled(tmp_path: Path) -> None:
    nvml = Nvml()
    running, views = watched("gpu", tmp_path, FakeClock(), every_s=1.0, for_s=3.0, nvml=nvml)
    used = running.recording().gpu_samples["used_bytes"].to_list()
    assert [later - first for first, later in itertools.pairwise(used)][:3] == [1 << 30] * 3
    assert views[-1].gpus["used_bytes"].to_list() == used
    assert nvml.on == 0


@pytest.mark.parametrize("nvml", [Nvml(driver=False), Nvml(count=0)])
def test_without_a_gpu_the_refusal_says_what_to_do(tmp_path: Path, nvml: Nvml) -> None:
    with pytest.raises(ProbeUnavailable, match="watch the engine"):
        live([target("gpu")], tmp_path, nvml=nvml)
    assert nvml.on == 0


def stamped(second: float, text: str) -> str:
    """A line of vLLM's engine so many seconds after the begin."""
    return f"(EngineCore_DP0 pid=42) INFO {BEGIN + timedelta(seconds=second):%m-%d %H:%M:%S} [core.py:77] {text}\n"


HEAD = stamped(0, "Initializing a V1 LLM engine (v0.11.2) with config: model='org/some-8b', dtype=bf16") + stamped(
    1, "Starting to load model org/some-8b..."
)


def bar(done: int, total: int, seconds: int) -> str:
    """A reading of the bar of a load."""
    return (
        BAR.format(percent=100 * done // total, done=done, total=total, clock=f"{seconds // 60:02d}:{seconds % 60:02d}")
        + "\n"
    )


def log_watch(tmp_path: Path, script: dict[int, str], looks: int, every_s: float = 5.0) -> list[Any]:
    """The verdicts at each look at a log to which the script adds text after so many looks."""
    path = tmp_path / "server.log"

    def meanwhile(count: int) -> None:
        if count in script:
            with path.open("a") as file:
                file.write(script[count])

    views: list[Any] = []
    clock = FakeClock(looks, meanwhile)
    meanwhile(0)
    live([target(str(path))], tmp_path / "kept", every_s=every_s, clock=clock).run(threading.Event(), views.append)
    return [view.verdicts[0][1] if view.verdicts else None for view in views]


def test_a_slow_load_is_told_from_a_stalled_one(tmp_path: Path) -> None:
    script = {0: HEAD, 2: bar(1, 30, 10), 4: bar(2, 30, 20), 6: bar(3, 30, 30)}
    told = log_watch(tmp_path, script, looks=40)
    words = [each.word for each in told]
    assert words[0] == "moving"
    assert words[6:14] == ["moving"] * 8
    assert words[-1] == "stalled"
    assert "3 of 30 parts done at 10 s each" in told[7].sentence
    assert told[7].status == "modelled"
    assert "the slowest before took 10 s" in told[-1].sentence
    assert told[-1].evidence[0].endswith("server.log:5")
    assert "py-spy" in told[-1].remedy


def test_a_start_that_goes_on_to_its_end(tmp_path: Path) -> None:
    ready = "(APIServer pid=11) INFO:     Application startup complete.\n"
    told = log_watch(tmp_path, {0: HEAD, 1: bar(1, 2, 10), 3: bar(2, 2, 20), 4: ready}, looks=5)
    assert told[-1].word == "ready"
    assert told[-1].evidence[0].endswith(":5")


def test_a_silent_phase_without_progress_is_left_open(tmp_path: Path) -> None:
    told = log_watch(tmp_path, {0: HEAD}, looks=20)
    assert told[0].word == "moving"
    assert told[-1].word == "open"
    assert told[-1].status == "not_identifiable"
    assert "cannot tell slow from hung" in told[-1].sentence


def test_a_failed_start_is_called_so(tmp_path: Path) -> None:
    failed = stamped(9, "EngineCore failed to start.").replace("INFO", "ERROR")
    assert log_watch(tmp_path, {0: HEAD, 1: failed}, looks=2)[-1].word == "failed"


def test_a_log_that_is_absent_empty_or_begun_anew_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    steps = {1: lambda: path.write_text(""), 2: lambda: path.write_text("nothing of an engine\n"),
             3: lambda: path.write_text(HEAD + bar(1, 30, 10)), 4: lambda: path.write_text(HEAD)}  # fmt: skip
    views: list[Any] = []
    clock = FakeClock(5, lambda count: steps.get(count, lambda: 0)())
    live([target(str(path))], tmp_path / "kept", clock=clock).run(threading.Event(), views.append)
    states = [view.states[0][1] for view in views]
    assert states[0] == "does not exist yet"
    assert "nothing to read yet" in states[1]
    assert "no format" in states[2]
    assert "1 of 30" in states[3]
    assert "1 of 30" not in states[4]


def test_an_interrupt_ends_it_with_what_was_seen(server: Server, tmp_path: Path) -> None:
    def interrupt(count: int) -> None:
        if count == 3:
            raise KeyboardInterrupt

    running, views = watched(server.url, tmp_path, FakeClock(meanwhile=interrupt))
    assert views[-1].over == "interrupted"
    assert len(running.recording().engine_samples) == 3


def test_a_watch_ends_when_it_has_kept_too_much(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "KEPT_BYTES", 1000)
    _, views = watched(server.url, tmp_path, FakeClock())
    assert "were kept" in views[-1].over


def test_looks_that_follow_too_closely_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="too often"):
        live([target("x.log")], tmp_path, every_s=0.01)


def test_several_things_together(server: Server, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(HEAD + bar(3, 30, 30))
    views: list[Any] = []
    both = live([target(server.url), target(str(log))], tmp_path / "kept", clock=FakeClock(3))
    both.run(threading.Event(), views.append)
    assert set(both.recording().rows()) >= {"starts", "progress", "engine_samples"}
    assert len(views[-1].states) == 2
