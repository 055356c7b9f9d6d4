"""Scrapes that lie in a file each: one series out of them where they are one, and never where they are not."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fsspec
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import infer_diag as diag
from infer_diag.loaders.exposition.file_times import named
from infer_diag.loaders.files import LogFile
from infer_diag.recording import Recording
from infer_diag.report.excerpts import excerpts

CAPTURED = Path(__file__).resolve().parents[2] / "sample_logs" / "captured" / "kv_preempts" / "metrics.prom.txt"
BEGIN = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
EVERY = timedelta(seconds=15)


def scrape(tokens: float, running: int = 3, place: str = "") -> str:
    """A page with a counter, a gauge and a histogram of which every 100 tokens are one request of two seconds."""
    done = int(tokens // 100)
    name = "vllm:e2e_request_latency_seconds"
    labels = f'{{engine="0",model_name="m"{place}}}'
    return (
        f"# HELP vllm:generation_tokens_total Tokens.\nvllm:generation_tokens_total{labels} {tokens}\n"
        f"vllm:num_requests_running{labels} {running}\n"
        f"{name}_sum{labels} {2.0 * done}\n{name}_count{labels} {done}\nother_total 7\n"
    )


def moment(number: int) -> datetime:
    return BEGIN + number * EVERY


TOKENS = (1000, 1600, 2200, 300, 900)
RATES = [None, 40.0, 40.0, None, 40.0]
"""The fourth scrape is of an engine that began again."""


def spread(folder: Path, name: Callable[[int], str]) -> Path:
    for number, tokens in enumerate(TOKENS):
        path = folder / name(number)
        path.write_text(scrape(tokens))
        stamp = moment(number).timestamp()
        os.utime(path, (stamp, stamp))
    return folder


def times(recording: Recording) -> list[datetime]:
    return recording.engine_samples["time"].to_list()


NAMES: dict[str, Callable[[int], str]] = {
    "ISO": lambda number: f"metrics-{moment(number):%Y-%m-%dT%H:%M:%SZ}.prom",
    "ISO with dashes": lambda number: f"{moment(number):%Y-%m-%d_%H-%M-%S}.txt",
    "compact": lambda number: f"scrape.{moment(number):%Y%m%dT%H%M%S}.prom.txt",
    "compact and a fraction": lambda number: f"vllm0_{moment(number):%Y%m%d-%H%M%S}_000",
    "zone": lambda number: f"m {moment(number) + timedelta(hours=8):%Y-%m-%dT%H%M%S}+0800.prom",
    "seconds": lambda number: f"metrics.{int(moment(number).timestamp())}",
    "milliseconds": lambda number: f"metrics_{int(moment(number).timestamp() * 1e3)}.prom",
}


@pytest.mark.parametrize("shape", NAMES)
def test_times_come_from_the_names(tmp_path: Path, shape: str) -> None:
    recording = diag.load(spread(tmp_path, NAMES[shape]))
    (source,) = recording.sources
    assert times(recording) == [moment(number) for number in range(len(TOKENS))]
    assert recording.engine_samples["output_tokens_per_s"].to_list() == RATES
    assert recording.incidents["time"].to_list() == [moment(3)]
    (total,) = recording.request_totals.to_dicts()
    assert (total["request_count"], total["mean"]) == (12 + 3 + 6, 2.0)
    assert f"{len(TOKENS)} files as one series" in source.notes
    assert any("names of the files" in note for note in source.notes)
    assert source.dated


def test_a_name_without_a_zone_is_taken_at_the_one_that_is_given(tmp_path: Path) -> None:
    folder = spread(tmp_path, NAMES["compact"])
    (source,) = diag.load(folder).sources
    assert any("tz=" in note for note in source.notes)
    assert times(diag.load(folder, tz="Asia/Shanghai"))[0] == BEGIN - timedelta(hours=8)


def test_numbered_files_are_not_later_than_they_were_written(tmp_path: Path) -> None:
    recording = diag.load(spread(tmp_path, "scrape_{:04d}.prom".format))
    assert times(recording) == [moment(number) for number in range(len(TOKENS))]
    assert any("not later than" in note for note in recording.sources[0].notes)


def test_a_rotation_counts_backwards(tmp_path: Path) -> None:
    """The first is the last one, as the times say at which the files were written."""
    recording = diag.load(spread(tmp_path, lambda number: f"metrics.prom.{len(TOKENS) - number}"))
    assert recording.engine_samples.sort("time")["output_tokens_per_s"].to_list() == RATES


def test_files_that_were_copied_tell_an_order_and_no_times(tmp_path: Path) -> None:
    folder = spread(tmp_path, "scrape_{:04d}.prom".format)
    for path in folder.iterdir():
        os.utime(path, (BEGIN.timestamp(), BEGIN.timestamp()))
    recording = diag.load(folder)
    assert times(recording) == [None] * len(TOKENS)
    assert recording.engine_samples["output_tokens_per_s"].null_count() == len(TOKENS)
    assert recording.request_totals["request_count"].to_list() == [12 + 3 + 6]
    assert any("no times" in note for note in recording.sources[0].notes)


def test_without_times_what_shrinks_is_no_series(tmp_path: Path) -> None:
    for number, tokens in enumerate((900, 800, 700, 600)):
        (tmp_path / f"{number}.prom").write_text(scrape(tokens))
        os.utime(tmp_path / f"{number}.prom", (BEGIN.timestamp(), BEGIN.timestamp()))
    assert len(diag.load(tmp_path).sources) == 4


@pytest.mark.parametrize(
    "names",
    [
        ("vllm-0.prom", "vllm-1.prom"),
        ("10.0.0.3.prom", "10.0.0.4.prom"),
        ("a.prom", "b.prom"),
        ("pod-a-20260314T092653.prom", "pod-b-20260314T092708.prom"),
    ],
)
def test_other_engines_stay_apart(tmp_path: Path, names: tuple[str, ...]) -> None:
    for number, name in enumerate(names):
        (tmp_path / name).write_text(scrape(1000 * (number + 1)))
        os.utime(tmp_path / name, (moment(number).timestamp(),) * 2)
    assert sorted(source.path for source in diag.load(tmp_path).sources) == sorted(
        str(tmp_path / name) for name in names
    )


def test_two_engines_of_one_folder_are_two_series(tmp_path: Path) -> None:
    for number, tokens in enumerate(TOKENS):
        for pod in ("a", "b"):
            (tmp_path / f"pod-{pod}-{moment(number):%Y%m%dT%H%M%SZ}.prom").write_text(scrape(tokens))
    recording = diag.load(tmp_path)
    assert len(recording.sources) == 2
    for _, samples in recording.engine_samples.group_by("source_id"):
        assert samples["output_tokens_per_s"].to_list() == RATES


def test_files_that_overlap_in_time_are_no_series(tmp_path: Path) -> None:
    for number in range(2):
        marks = [f"# {moment(2 * place + number):%Y-%m-%dT%H:%M:%SZ}\n{scrape(100 * place)}" for place in range(3)]
        (tmp_path / f"metrics-{number}.prom").write_text("".join(marks))
    assert len(diag.load(tmp_path).sources) == 2


def test_files_of_a_day_each_go_on_from_one_to_the_next(tmp_path: Path) -> None:
    marks = [f"# {moment(place):%Y-%m-%dT%H:%M:%SZ}\n{scrape(tokens)}" for place, tokens in enumerate(TOKENS)]
    (tmp_path / "metrics-2026-03-13.prom").write_text("".join(marks[:2]))
    (tmp_path / "metrics-2026-03-14.prom").write_text("".join(marks[2:]))
    recording = diag.load(tmp_path)
    assert len(recording.sources) == 1
    assert recording.engine_samples["output_tokens_per_s"].to_list() == RATES


def test_a_folder_tells_what_one_file_of_the_same_scrapes_tells(tmp_path: Path) -> None:
    marks = re.split(r"(?m)^# scrape (.*)$", CAPTURED.read_text(encoding="utf-8"))
    for stamp, body in zip(marks[1::2], marks[2::2], strict=True):
        (tmp_path / f"metrics-{stamp.replace(':', '-')}.prom").write_text(body)
    one, many = diag.load(CAPTURED), diag.load(tmp_path)
    assert_frame_equal(one.engine_samples.drop("line"), many.engine_samples.drop("line"))
    assert_frame_equal(one.request_totals.drop("line"), many.request_totals.drop("line"))
    documents = [diag.diagnose(each).to_dict() for each in (one, many)]
    assert documents[0]["serving"] == documents[1]["serving"]
    assert [each["id"] for each in documents[0]["findings"]] == [each["id"] for each in documents[1]["findings"]]


def test_a_figure_leads_to_its_file_and_line(tmp_path: Path) -> None:
    recording = diag.load(spread(tmp_path, NAMES["compact"]))
    lines = recording.engine_samples["line"].to_list()
    places = [recording.evidence(0, line) for line in lines]
    names = [NAMES["compact"](number) for number in range(len(TOKENS))]
    assert places == [f"{tmp_path / name}:2" for name in names]
    shown = excerpts(recording, places)
    assert all("generation_tokens" in shown[place][1].text for place in places)


def test_what_is_no_scrape_is_left_out_of_the_series_and_named(tmp_path: Path) -> None:
    folder = spread(tmp_path, NAMES["compact"])
    failed = folder / NAMES["compact"](7)
    failed.write_text("503 Service Unavailable\n")
    (folder / NAMES["compact"](8)).write_bytes(b"")
    recording = diag.load(folder)
    assert recording.engine_samples["output_tokens_per_s"].to_list() == RATES
    assert {Path(skipped.path).name for skipped in recording.skipped} == {failed.name, NAMES["compact"](8)}


def test_damaged_lines_are_counted_over_all_files(tmp_path: Path) -> None:
    folder = spread(tmp_path, NAMES["compact"])
    path = folder / NAMES["compact"](2)
    path.write_text('vllm:num_requests_waiting{a="b} 3\n' + path.read_text())
    recording = diag.load(folder)
    (row,) = recording.rejected.to_dicts()
    assert recording.evidence(row["source_id"], row["line"]) == f"{path}:1"
    assert recording.sources[0].rejected_lines == 1


def test_compressed_files_and_files_elsewhere(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for number, tokens in enumerate(TOKENS):
        name = NAMES["compact"](number) + ".gz"
        (tmp_path / name).write_bytes(gzip.compress(scrape(tokens).encode()))
        memory.pipe(f"/scrapes/{name}", (tmp_path / name).read_bytes())
    for recording in (diag.load(tmp_path), diag.load("memory://scrapes/*.gz")):
        assert len(recording.sources) == 1
        assert recording.engine_samples["output_tokens_per_s"].to_list() == RATES


def test_one_scrape_takes_the_time_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / NAMES["compact"](0)
    path.write_text(scrape(1000))
    recording = diag.load(path)
    assert times(recording) == [BEGIN]
    path = path.rename(tmp_path / "scrape_0001.prom")
    assert times(diag.load(path)) == [None]


def test_an_engines_log_beside_them_stays_itself(tmp_path: Path) -> None:
    folder = spread(tmp_path, NAMES["compact"])
    for name in ("server.log", "server-1.log"):
        (folder / name).write_bytes((CAPTURED.parent / "server.log").read_bytes()[: 1 << 16])
    assert sorted(source.engine for source in diag.load(folder).sources) == ["vllm"] * 3


def test_instances_of_a_scrape_are_told_apart(tmp_path: Path) -> None:
    for number, tokens in enumerate(TOKENS):
        pods = "".join(scrape(tokens * share, place=f',pod="p{share}"') for share in (1, 2))
        (tmp_path / NAMES["seconds"](number)).write_text(pods)
    samples = diag.load(tmp_path).engine_samples
    for share in (1, 2):
        rates = samples.filter(pl.col("replica") == f"p{share}")["output_tokens_per_s"].to_list()
        assert rates == [rate and rate * share for rate in RATES]


@pytest.mark.parametrize("name", ["metrics.prom", "server.log", "vllm-0", "rank3.prom", "v0.11.2.prom", "10.0.0.3"])
def test_a_name_that_counts_nothing(name: str) -> None:
    assert named(LogFile(f"folder/{name}", f"folder/{name}")) is None
