"""The command line: a clean answer on standard output, one line on standard error, an exit status to rely on."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from served_pages import growing_page

import infer_diag
from infer_diag.cli import main
from infer_diag.loaders import FORMATS

SAMPLE = "sample:captured/sequence_limit/server.log"


@dataclass
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class Command:
    """`infer-diag` in this process, because a process of its own for every line costs a second each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.chdir(folder)

    def __call__(self, *words: str) -> Done:
        """Run it with these words."""
        self._monkeypatch.setattr(sys, "argv", ["infer-diag", *words])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        shown = self._capsys.readouterr()
        return Done(int(ended.value.code or 0), shown.out, shown.err)

    def failure(self, *words: str) -> str:
        """The one line that a refusal prints."""
        done = self(*words)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("infer-diag: ")
        return line


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command line in an empty folder."""
    return Command(monkeypatch, capsys, tmp_path)


def test_it_is_a_command_of_its_own() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("infer-diag"), "diagnose", "absent.log"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("infer-diag: absent.log does not exist")
    assert len(done.stderr.splitlines()) == 1


def test_json_is_the_whole_of_standard_output(run: Command) -> None:
    done = run("diagnose", SAMPLE, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document == infer_diag.diagnose(infer_diag.load(SAMPLE)).to_dict()
    assert document["findings"]


def test_the_text_names_every_finding_with_its_remedy_and_a_line(run: Command) -> None:
    done = run("diagnose", SAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    for finding in infer_diag.diagnose(infer_diag.load(SAMPLE)).findings:
        assert finding.sentence in done.stdout
        assert finding.remedy is None or finding.remedy in done.stdout
        assert not finding.evidence or finding.evidence[0] in done.stdout


def test_the_readme_quotes_what_is_printed(run: Command) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    command, quoted = readme.split("```\n$ infer-diag ")[1].split("```")[0].split("\n", 1)
    printed = " ".join(run(*command.split()).stdout.split())
    assert printed.startswith(" ".join(quoted.split()).removesuffix(", …"))


def test_a_terminal_gets_colour() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "infer_diag", "diagnose", SAMPLE, "--quiet"]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    shown = b""
    while chunk := _chunk(ours):
        shown += chunk
    os.close(ours)
    assert process.communicate()[1] == b""
    assert process.returncode == 0
    assert b"\x1b[1;31mhigh\x1b[0m" in shown


def _chunk(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says so where a terminal's other side has gone
        return b""


def test_the_report_is_written_and_its_place_said(run: Command, tmp_path: Path) -> None:
    done = run("report", SAMPLE)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"report: {tmp_path / 'report.html'}\n"
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!")
    other = run("diagnose", SAMPLE, "--html", "other.html", "--json", "--quiet")
    assert (other.returncode, other.stderr) == (0, "")
    assert json.loads(other.stdout)
    assert (tmp_path / "other.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_a_report_that_cannot_be_written_is_one_line(run: Command, tmp_path: Path) -> None:
    assert "cannot be written" in run.failure("report", SAMPLE, "--out", str(tmp_path / "absent" / "r.html"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["diagnose", "absent.log"], "absent.log does not exist"),
        (["diagnose", "empty.log"], "is empty"),
        (["diagnose", "picture.bin"], "is a binary file"),
        (["diagnose", "poem.txt"], "is in no format that infer_diag reads"),
        (["diagnose", "sample:captured/plian", "--json"], "did you mean captured/plain"),
        (["diagnose", SAMPLE, "--format", "vlm"], "did you mean vllm"),
        (["diagnose", SAMPLE, "--tz", "Mars/Olympus"], "there is no time zone named 'Mars/Olympus'"),
        (["report", "absent.log"], "absent.log does not exist"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_status_2(
    run: Command, tmp_path: Path, words: list[str], expected: str
) -> None:
    (tmp_path / "empty.log").touch()
    (tmp_path / "picture.bin").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "poem.txt").write_text("Shall I compare thee\nto a summer's day?\n" * 20)
    assert expected in run.failure(*words)


def test_an_error_cannot_write_to_the_terminal(run: Command, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("\x1b]0;owned\x07 nothing here\n" * 5)
    line = run.failure("diagnose", "x.log")
    assert "\x1b" not in line
    assert "\x07" not in line


def test_no_secret_reaches_the_terminal(run: Command, tmp_path: Path) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz123456"
    log = (infer_diag.samples.path("captured/sequence_limit") / "server.log").read_bytes()
    (tmp_path / f"{secret}.log").write_bytes(log)
    done = run("diagnose", f"{secret}.log")
    assert done.returncode == 0
    assert secret not in done.stdout
    assert secret not in run.failure("diagnose", f"{secret}.txt")


def test_wrong_words_are_status_2(run: Command) -> None:
    for words in (["diagnose"], ["diagnos", "x"], ["diagnose", "x", "--jsn"], ["diagnose", "x", "--year", "soon"]):
        done = run(*words)
        assert done.returncode == 2
        assert done.stdout == ""
        assert "Usage" in done.stderr


@pytest.mark.parametrize("verb", ["diagnose", "report", "formats", "samples", "watch"])
def test_help_tells_every_verb(run: Command, verb: str) -> None:
    assert verb in run("--help").stdout
    done = run(verb, "-h")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_help_shows_how(run: Command) -> None:
    assert (
        "  infer-diag diagnose pod.log.gz --year 2026 --tz Asia/Shanghai --html report.html"
        in run("diagnose", "-h").stdout
    )


def test_version_formats_and_samples(run: Command) -> None:
    assert run("--version").stdout == f"infer-diag {infer_diag.__version__}\n"
    heads = [line for line in run("formats").stdout.splitlines() if not line.startswith(" ")]
    assert [line.partition(":")[0] for line in heads] == list(FORMATS)
    assert [listed["name"] for listed in json.loads(run("formats", "--json").stdout)["formats"]] == list(FORMATS)
    listed = run("samples").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [f"sample:{name}" for name in infer_diag.samples.names()]


def test_a_diagnosis_in_text_loads_no_chart_and_no_notebook() -> None:
    code = (
        "import sys; from infer_diag.cli import main; sys.argv = ['infer-diag', 'diagnose', sys.argv[1], '--json']\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, SAMPLE], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert "polars" in loaded
    assert not loaded & {"plotly", "IPython", "jinja2", "rich", "cupy", "pynvml"}


@pytest.fixture
def engine() -> Iterator[str]:
    """The address of an engine's metrics, whose counters grow with every scrape."""

    def page_of(count: int) -> bytes:
        labels = '{engine="0",model_name="m"}'
        values = {"num_requests_running": 3, "generation_tokens_total": 100 * count}
        return "".join(f"vllm:{name}{labels} {value}\n" for name, value in values.items()).encode()

    with growing_page(page_of) as address:
        yield address


def test_a_watch_of_an_engine_ends_by_itself_and_keeps_what_it_saw(run: Command, engine: str, tmp_path: Path) -> None:
    done = run("watch", engine, "--every", "200ms", "--for", "1s", "--out", "seen")
    assert (done.returncode, done.stderr) == (0, "")
    assert "scrapes" in done.stdout and "1 s are over" in done.stdout
    recorded = infer_diag.load(tmp_path / "seen")
    assert recorded.rows()["engine_samples"] > 1
    assert set(recorded.engine_samples["running_count"]) == {3}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--every", "2"], "unit"),
        (["--for", "soon"], "soon"),
        (["--every", "100ms"], "from 200 ms on"),
    ],
)
def test_a_watch_that_cannot_begin_is_one_line(run: Command, words: list[str], told: str) -> None:
    assert told in run.failure("watch", "server.log", "--for", "300ms", *words)


def test_a_watch_that_saw_nothing_is_status_2(run: Command) -> None:
    done = run("watch", "absent.log", "--every", "200ms", "--for", "300ms")
    assert done.returncode == 2
    assert "absent.log" in done.stdout


def test_a_report_is_markdown_or_html_as_it_is_named(run: Command, tmp_path: Path) -> None:
    text = run("report", SAMPLE, "--format", "md", "--out", "-").stdout
    assert text.startswith("# Inference diagnosis") and "## Findings" in text
    assert run("report", SAMPLE, "--format", "md").stderr == f"report: {tmp_path / 'report.md'}\n"
    assert run("report", SAMPLE, "--out", "ticket.md").returncode == 0
    for name in ("report.md", "ticket.md"):
        assert (tmp_path / name).read_text(encoding="utf-8") == text
    assert "--log-format" in run.failure("report", SAMPLE, "--format", "vllm")
    assert run("report", SAMPLE, "--log-format", "vllm", "--out", "r.html").returncode == 0
    assert "only Markdown is printed" in run.failure("report", SAMPLE, "--format", "html", "--out", "-")


def test_a_notebook_is_written_alone_or_beside(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, dict[str, Any]]] = []
    package = sys.modules["infer_diag.report"]
    monkeypatch.setattr(package, "write_notebook", lambda _, target, options: asked.append((target, options)))
    done = run("report", SAMPLE, "--notebook", "r.ipynb", "--tz", "UTC")
    assert (done.returncode, list(tmp_path.iterdir())) == (0, [])
    assert asked[0][0] == Path("r.ipynb")
    assert {name: value for name, value in asked[0][1].items() if value} == {"paths": [SAMPLE], "tz": "UTC"}
    run("report", SAMPLE, "--notebook", "r.ipynb", "--out", "r.md")
    assert [path.name for path in tmp_path.iterdir()] == ["r.md"]
    assert len(asked) == 2


def test_a_crash_loop_is_counted(run: Command, tmp_path: Path) -> None:
    begin = "INFO 06-13 11:3{0}:32 [x.py:244] Initializing a V1 LLM engine (v0.9.1) with config: model='a'"
    end = "ERROR 06-13 11:3{0}:52 [core.py:515] EngineCore failed to start."
    (tmp_path / "loop.log").write_text("\n".join(f"{begin}\n{end}".format(number) for number in range(6)))
    assert "… 6 starts in all" in run("diagnose", "loop.log").stdout.splitlines()
