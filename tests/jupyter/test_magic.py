"""`%diag` in a real shell: verbs, names, errors, and the Python that does the same."""

from __future__ import annotations

import re
from typing import Any

import pytest

from infer_diag import diagnose, load, samples
from infer_diag.jupyter import cold_start_panel
from infer_diag.jupyter.panel import MAX_LINES, PLOTLY
from infer_diag.recording import Recording

LIMIT = "sample:captured/sequence_limit/server.log"
TWO = "sample:captured/two_starts/server.log"


def test_alone_it_lists_its_verbs(notebook: Any) -> None:
    text = notebook.ok("%diag").text
    for verb in ("load", "list", "summary", "coldstart", "batching", "report", "samples", "help"):
        assert f"  {verb} " in text
    assert "loaded: nothing yet" in text
    notebook.ok(f"%diag load {LIMIT}")
    assert "loaded: server" in notebook.ok("%diag").text


def test_help_tells_the_options_of_a_verb(notebook: Any) -> None:
    text = notebook.ok("%diag help coldstart").text
    assert text.startswith("%diag coldstart [--code] [--start START]")
    assert notebook.ok("%diag coldstart --help").text == text
    assert notebook.ok("%diag help").text == notebook.ok("%diag -h").text
    shown = notebook.shell.find_line_magic("diag").__doc__
    assert text.splitlines()[0] in shown


def test_a_recording_is_kept_under_its_name(notebook: Any) -> None:
    assert notebook.ok(f"%diag load {LIMIT} --as prod").text.startswith("loaded as prod\n")
    assert notebook.ok(f"%diag load {TWO}").text.startswith("loaded as server\n")
    listed = notebook.ok("%diag list").text.splitlines()
    assert [line.split(":")[0] for line in listed] == ["2 loaded", "server", "prod"]
    assert "two_starts/server.log" in notebook.ok("%diag summary").text
    assert "sequence_limit/server.log" in notebook.ok("%diag summary prod").text


def test_loading_again_replaces_and_another_path_gets_another_name(notebook: Any, tmp_path: Any) -> None:
    log = (samples.path("captured/sequence_limit") / "server.log").read_bytes()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "server.log").write_bytes(log)
    for cell, name in (("a", "server"), ("a", "server"), ("b", "server_2"), ("b", "server_2"), ("a", "server")):
        assert notebook.ok(f"%diag load {cell}/server.log").text.startswith(f"loaded as {name}\n")
    assert notebook.ok("%diag list").text.startswith("2 loaded\n")


def test_a_path_may_have_blanks_and_come_out_of_a_variable(notebook: Any, tmp_path: Any) -> None:
    folder = tmp_path / "my logs"
    folder.mkdir()
    (folder / "pod 1.log").write_bytes((samples.path("captured/sequence_limit") / "server.log").read_bytes())
    assert notebook.ok('%diag load "my logs/pod 1.log"').text.startswith("loaded as pod_1\n")
    notebook.ok("where = 'my logs/pod 1.log'")
    assert notebook.ok('%diag load "{where}" --as again').text.startswith("loaded as again\n")


def test_a_recording_in_a_variable_answers_to_its_name(notebook: Any) -> None:
    notebook.ok(f"import infer_diag as diag\nmine = diag.load('{LIMIT}')")
    assert (
        notebook.ok("%diag summary mine").text
        == notebook.ok(f"%diag load {LIMIT}\n%diag summary").bundles[-1]["text/plain"]
    )


def test_summary_shows_every_finding(notebook: Any) -> None:
    notebook.ok(f"%diag load {LIMIT}")
    (bundle,) = notebook.ok("%diag summary").bundles
    for finding in diagnose(load(LIMIT)).findings:
        assert f">{finding.id}<" in bundle["text/html"]
    assert len(bundle["text/plain"].splitlines()) <= MAX_LINES


def test_one_start_is_drawn_over_time_with_its_gaps(notebook: Any) -> None:
    notebook.ok(f"%diag load {LIMIT}")
    (bundle,) = notebook.ok("%diag coldstart").bundles
    assert bundle["text/plain"].startswith("Cold start start-1\nready, span ")
    assert "no line says what (after first line, before " in bundle["text/plain"]
    assert "start-1" in bundle[PLOTLY]["layout"]["title"]["text"]


def test_several_starts_are_compared_and_one_is_picked(notebook: Any) -> None:
    notebook.ok(f"%diag load {TWO}")
    (bars,) = notebook.ok("%diag coldstart").bundles
    assert bars["text/plain"].startswith("2 cold starts\n")
    assert bars[PLOTLY]["layout"]["barmode"] == "stack"
    (second,) = notebook.ok("%diag coldstart --start start-2").bundles
    assert second["text/plain"].startswith("Cold start start-2\n")
    assert "start-2" in second[PLOTLY]["layout"]["title"]["text"]


def test_serving_is_drawn_over_time(notebook: Any) -> None:
    notebook.ok(f"%diag load {LIMIT}")
    (bundle,) = notebook.ok("%diag batching").bundles
    assert re.search(r"^requests waiting: mean [\d.]+, from \d+ to \d+$", bundle["text/plain"], re.MULTILINE)
    assert {"running", "waiting"} <= {trace["name"] for trace in bundle[PLOTLY]["data"]}


def test_a_log_without_serving_or_start_is_answered_and_not_refused(notebook: Any) -> None:
    notebook.ok("%diag load sample:captured/killed_mid_load/server.log")
    (bundle,) = notebook.ok("%diag batching").bundles
    assert "these logs show no serving" in bundle["text/plain"]
    assert PLOTLY not in bundle
    panel = cold_start_panel(diagnose(Recording()))
    assert "no engine start" in panel.text
    assert panel.figure is None


def test_the_value_of_the_magic_is_a_panel(notebook: Any) -> None:
    notebook.ok(f"%diag load {LIMIT}")
    ran = notebook.ok("panel = %diag batching")
    assert ran.bundles == []
    panel = notebook.shell.user_ns["panel"]
    assert panel.frame.columns[0] == "measure"
    assert panel.figure.data
    assert panel.lines[0] == "Serving"
    assert notebook.ok("panel").text == panel.text


def test_the_report_is_written(notebook: Any, tmp_path: Any) -> None:
    notebook.ok(f"%diag load {LIMIT}")
    assert notebook.ok("%diag report --out r.html").text == "report\nwritten to r.html"
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!")
    notebook.ok("%diag report")
    assert (tmp_path / "report.html").read_bytes() == (tmp_path / "r.html").read_bytes()


def test_samples_are_listed(notebook: Any) -> None:
    text = notebook.ok("%diag samples").text
    for name in samples.names():
        assert f"sample:{name}  " in text


@pytest.mark.parametrize(
    "line",
    ["summary", "summary prod", "coldstart", "coldstart --start start-2", "batching prod", "report --out x.html"],
)
def test_code_is_python_that_does_the_same(notebook: Any, line: str) -> None:
    notebook.ok(f"%diag load {TWO} --as prod --year 2026")
    expected = notebook.ok(f"%diag {line}")
    code = notebook.ok(f"%diag {line} --code").text
    assert f"diag.load('{TWO}', year=2026)" in code
    again = notebook.ok(code)
    if not line.startswith("report"):
        assert again.text.splitlines()[:3] == expected.text.splitlines()[:3]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("laod x.log", "UsageError: there is no verb named 'laod' · did you mean load?"),
        ("load", "UsageError: the following arguments are required: PATH · see %diag help load"),
        ("load x.log --yaer 3", "UsageError: unrecognized arguments: --yaer"),
        ("load x.log --year soon", "UsageError: argument --year: invalid int value: 'soon' · see %diag help load"),
        ("load 'x.log", 'UsageError: No closing quotation in "load \'x.log"'),
        ("load x.log", "SourceError: x.log does not exist"),
        ("load sample:captured/plian", "UnknownNameError: there is no sample named 'captured/plian'"),
        ("help laod", "UsageError: argument VERB: invalid choice: 'laod'"),
        ("summary", "DiagError: no recording is loaded · %diag load PATH"),
        ("summary prod", "UnknownNameError: there is no recording named 'prod' · known: none"),
    ],
)
def test_an_error_is_one_line_and_fails_the_cell(notebook: Any, line: str, expected: str) -> None:
    ran = notebook.run(f"%diag {line}")
    assert ran.error is not None
    assert ran.bundles == []
    (shown,) = ran.printed.strip().splitlines()
    assert shown.startswith(expected)


def test_a_wrong_start_is_one_line_with_the_right_ones(notebook: Any) -> None:
    notebook.ok(f"%diag load {TWO}")
    ran = notebook.run("%diag coldstart --start start-9")
    assert ran.printed.startswith("UnknownNameError: there is no start named 'start-9' · did you mean start-")
    assert ran.error is not None


def test_text_out_of_a_log_stays_text(notebook: Any, tmp_path: Any) -> None:
    log = (samples.path("captured/sequence_limit") / "server.log").read_text(encoding="utf-8")
    (tmp_path / "<img src=x onerror=alert(1)>.log").write_text(log, encoding="utf-8")
    (loaded,) = notebook.ok('%diag load "<img src=x onerror=alert(1)>.log"').bundles
    (shown,) = notebook.ok("%diag summary").bundles
    (drawn,) = notebook.ok("%diag coldstart").bundles
    for html in (loaded["text/html"], shown["text/html"], str(drawn[PLOTLY])):
        assert "<img" not in html


def test_unloading_leaves_nothing_behind(notebook: Any) -> None:
    assert notebook.complete("%diag sum") == ["%diag summary"]
    notebook.ok("%unload_ext infer_diag")
    assert "diag" not in notebook.shell.magics_manager.magics["line"]
    assert notebook.complete("%diag sum") != ["%diag summary"]
    notebook.ok("%load_ext infer_diag")
    notebook.ok("%reload_ext infer_diag")
    assert notebook.complete("%diag sum") == ["%diag summary"]
    assert len(notebook.shell.Completer.custom_matchers) == 1
