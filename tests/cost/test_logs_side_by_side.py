"""Several files of one replica are one replica, and what no file tells of is neither idle nor a start."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from deployment_logs import engine_log, pod_events
from served_hours import batch_line, scraped, served_lines, start_lines

import infer_diag as diag
from infer_diag.attribution.cost.ledger import Observed, observed
from infer_diag.fleet import Facts
from infer_diag.loaders.log_files import log_file_name

FACTS = Facts("Llama-2-13B", gpu="A100-SXM-80GB", gpu_count=2, precision="float16", price_per_gpu_h=2.0)
HOUR = 3600.0


def seen_in(folder: Path, files: dict[str, str]) -> Observed:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return observed(diag.load(folder, year=2026, tz="UTC"), FACTS)


def value(seen: Observed, name: str) -> float | None:
    return seen.ledger[name].value


def test_rotated_files_of_one_engine_are_one_replica(tmp_path: Path) -> None:
    files = {
        "server.log.2.gz": start_lines(0) + served_lines(70, HOUR),
        "server.log.1": served_lines(HOUR + 10, 2 * HOUR) + start_lines(2 * HOUR + 10) + served_lines(7280, 3 * HOUR),
        "server.log": served_lines(3 * HOUR + 10, 4 * HOUR),
    }
    seen = seen_in(tmp_path, files)
    whole = seen_in(tmp_path / "one", {"server.log": "".join(files.values())})
    assert value(seen, "held") == value(whole, "held") == 2 * 4 * HOUR
    for name in ("cold", "starts", "idle", "computed_decode", "computed_prefill"):
        assert value(seen, name) == pytest.approx(value(whole, name)), name


def test_files_that_overlap_are_replicas_and_each_is_held(tmp_path: Path) -> None:
    one = start_lines(0) + served_lines(70, HOUR)
    seen = seen_in(tmp_path, {"a.log": one, "b.log": start_lines(30) + served_lines(100, HOUR)})
    assert value(seen, "held") == 2 * (HOUR + HOUR - 30)
    assert value(seen, "starts") == 2
    # One of them rotated: still two.
    parts = {"a.log.1": start_lines(0) + served_lines(70, 1800), "a.log": served_lines(1810, HOUR)}
    rotated = seen_in(tmp_path / "rotated", {**parts, "b.log": start_lines(30) + served_lines(100, HOUR)})
    assert value(rotated, "held") == value(seen, "held")
    assert value(rotated, "computed_decode") == pytest.approx(value(seen, "computed_decode"))


def test_a_replica_without_a_start_in_its_log_is_held_too(tmp_path: Path) -> None:
    files = {"a.log": start_lines(0) + served_lines(70, HOUR), "b.log": served_lines(0, HOUR)}
    assert value(seen_in(tmp_path, files), "held") == 2 * 2 * HOUR


def test_two_pods_rotated_in_one_folder_are_two(tmp_path: Path) -> None:
    files = {}
    for pod in ("llm-0", "llm-1"):
        files[f"{pod}.log.1"] = start_lines(0) + served_lines(70, 1800)
        files[f"{pod}.log"] = served_lines(1810, HOUR)
    seen = seen_in(tmp_path, files)
    assert value(seen, "held") == 2 * 2 * HOUR
    assert value(seen, "starts") == 2


def test_logs_that_follow_each_other_without_a_name_in_common_are_a_lower_bound(tmp_path: Path) -> None:
    files = {
        "alpha.log": start_lines(0) + served_lines(70, HOUR),
        "beta.log": start_lines(7200) + served_lines(7270, 9000),
    }
    seen = seen_in(tmp_path, files)
    assert value(seen, "held") == 2 * (HOUR + 1800)
    assert seen.ledger["held"].status == "bounded"
    assert any("nothing names their pods" in note for note in seen.notes)
    # A single pod in the cluster's events says that they are one, which kept its GPUs between.
    files["events.json"] = pod_events(scheduled_s=-90)
    joined = seen_in(tmp_path / "pod", files)
    assert value(joined, "held") == 2 * (9000 + 90)


def test_files_of_which_one_is_missing_do_not_make_idle_time(tmp_path: Path) -> None:
    hours = [served_lines(HOUR * number + 80, HOUR * (number + 1)) for number in range(4)]
    files = {
        "server.log.3": start_lines(0) + hours[0] + served_lines(HOUR + 10, HOUR + 10, running=0),
        "server.log.1": hours[2],
        "server.log": hours[3],
    }
    missing = seen_in(tmp_path, files)
    assert value(missing, "held") == 2 * 4 * HOUR
    assert missing.ledger["idle"].status == "not_identifiable"
    assert "covers too little" in str(missing.ledger["idle"].missing)
    assert missing.ledger["starts"].status == "bounded"
    # The same silence in a series without a missing file is idle time: nothing ran when it began.
    files["server.log.2"] = files.pop("server.log.3")
    assert value(seen_in(tmp_path / "whole", files), "idle") == pytest.approx(2 * (HOUR + 70), abs=60)


def test_a_hole_in_a_log_is_unknown_and_silence_after_the_last_request_is_idle(tmp_path: Path) -> None:
    busy = start_lines(0) + served_lines(70, HOUR)
    later = served_lines(HOUR + 600, 2 * HOUR)
    hole = seen_in(tmp_path, {"server.log": busy + later})
    idle = hole.ledger["idle"]
    assert (idle.value, idle.status) == (0.0, "bounded")
    assert idle.upper == pytest.approx(2 * 600, abs=50)
    assert hole.ledger["ready_and_busy"].status == "bounded"
    asleep = seen_in(tmp_path / "asleep", {"server.log": busy + served_lines(HOUR + 10, HOUR + 10, running=0) + later})
    assert value(asleep, "idle") == pytest.approx(2 * 590, abs=1)
    assert asleep.ledger["idle"].status == "measured"


def test_an_engine_that_prints_while_it_is_idle_is_never_silent_for_that(tmp_path: Path) -> None:
    quiet = served_lines(HOUR + 10, HOUR + 300, running=0)
    text = start_lines(0) + served_lines(70, HOUR) + quiet + served_lines(HOUR + 1200, 2 * HOUR)
    idle = seen_in(tmp_path, {"server.log": text}).ledger["idle"]
    assert idle.value == pytest.approx(2 * 300, abs=40)
    assert idle.status == "bounded"
    assert idle.upper == pytest.approx(2 * 1190, abs=40)


def test_silence_between_batches_is_idle_where_the_next_one_finds_nothing_running(tmp_path: Path) -> None:
    def batches(begin: int, end: int, running: int) -> str:
        return "".join(batch_line(at, "Decode", running) for at in range(begin, end))

    first = batch_line(0, "Prefill", 0) + batches(1, 600, 3)
    woken = seen_in(tmp_path, {"server.log": first + batch_line(900, "Prefill", 0) + batches(901, 1500, 3)})
    assert value(woken, "idle") == pytest.approx(2 * 300, abs=6)
    lost = seen_in(tmp_path / "lost", {"server.log": first + batches(700, 1500, 3)})
    assert lost.ledger["idle"].status == "bounded"
    assert (lost.ledger["idle"].lower, lost.ledger["idle"].upper) == (0.0, pytest.approx(2 * 100, abs=6))


def test_scrapes_tell_of_the_time_after_a_logs_last_line(tmp_path: Path) -> None:
    log = start_lines(0) + served_lines(70, HOUR) + served_lines(HOUR + 10, HOUR + 10, running=0)
    scrapes = scraped(0, 3 * HOUR, lambda at: 8 if 60 <= at <= HOUR or at > 2 * HOUR else 0)
    seen = seen_in(tmp_path, {"server.log": log, "query_range.json": scrapes})
    assert value(seen, "held") == 2 * 3 * HOUR
    assert value(seen, "idle") == pytest.approx(2 * HOUR, rel=0.01)
    assert seen.ledger["idle"].status == "measured"
    assert value(seen_in(tmp_path / "log", {"server.log": log}), "held") == pytest.approx(2 * HOUR, rel=0.01)


def test_scrapes_on_another_clock_do_not_lengthen_the_time_held(tmp_path: Path) -> None:
    local = start_lines(2 * HOUR) + served_lines(2 * HOUR + 70, 5 * HOUR)
    (tmp_path / "server.log").write_text(local)
    (tmp_path / "query_range.json").write_text(scraped(60, 3 * HOUR, lambda at: 8))
    seen = observed(diag.load(tmp_path, year=2026), FACTS)
    assert value(seen, "held") == 2 * 3 * HOUR
    assert value(seen, "computed_decode") == pytest.approx(320 * (3 * HOUR - 60), rel=0.01)
    assert any("one clock" in note and "query_range.json" in note for note in seen.notes)


def test_pod_events_without_a_ready_condition_do_not_make_all_of_it_a_start(tmp_path: Path) -> None:
    (tmp_path / "events.json").write_text(pod_events(scheduled_s=-90))
    alone = observed(diag.load(tmp_path), FACTS)
    assert value(alone, "cold") is None
    assert alone.ledger["cold"].status == "not_identifiable"
    assert "Ready condition" in str(alone.ledger["cold"].missing)
    # Scrapes of an engine that works show that it was ready by then, and not since when.
    (tmp_path / "query_range.json").write_text(scraped(300, 2 * HOUR, lambda at: 8))
    cold = observed(diag.load(tmp_path), FACTS).ledger["cold"]
    assert (cold.status, cold.value) == ("bounded", 2 * 390.0)
    assert "Ready condition" in str(cold.missing)


def test_a_log_that_breaks_off_in_a_start_is_a_start_only_as_far_as_it_goes(tmp_path: Path) -> None:
    log = start_lines(0).rsplit("INFO", 1)[0]
    seen = seen_in(tmp_path, {"server.log": log, "events.json": pod_events(scheduled_s=-90)})
    assert value(seen, "cold") == 2 * 130.0


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("server.log", "server.log"),
        ("server.log.1", "server.log"),
        ("server.log.12.gz", "server.log"),
        ("server.log-20260301", "server.log"),
        ("server.log.2026-03-01.zst", "server.log"),
        ("server-2026-03-01.log", "server.log"),
        ("server.2026-03-01T08.log.gz", "server.log"),
        ("server.previous.log", "server.log"),
        ("0.log", "container"),
        ("0.log.20260301-080000.gz", "container"),
        ("server-1.log", "server-1.log"),
        ("llm-0.log", "llm-0.log"),
        ("v0.11.0", "v0.11.0"),
    ],
)
def test_names_of_rotated_files(name: str, series: str) -> None:
    assert log_file_name(f"logs/{name}").series == ("logs", series)


def test_dates_in_names_say_what_adjoins() -> None:
    days = [log_file_name(f"server.log.2026-03-0{day}") for day in (1, 2, 4)]
    assert days[0].adjoins(days[1], None)
    assert not days[1].adjoins(days[2], None)
    assert log_file_name("s.log.2").adjoins(log_file_name("s.log.1.gz"), None)
    assert not log_file_name("s.log.3").adjoins(log_file_name("s.log.1"), None)


def test_a_deployment_of_one_file_reads_as_before(tmp_path: Path) -> None:
    seen = seen_in(tmp_path, {"server.log": engine_log(30)})
    assert value(seen, "held") == 2 * 1850.0
    assert value(seen, "idle") == pytest.approx(2 * 140.0)


def test_a_copy_of_a_log_beside_it_changes_nothing(tmp_path: Path) -> None:
    text = start_lines(0) + served_lines(70, HOUR)
    alone = seen_in(tmp_path, {"server.log": text})
    twice = seen_in(tmp_path / "twice", {"server.log": text, "server.log.gz": text})
    for name in ("held", "cold", "starts", "idle", "computed_decode"):
        assert value(twice, name) == pytest.approx(value(alone, name)), name


def test_a_new_year_between_rotated_files_without_a_year_is_no_year_of_held_gpus(tmp_path: Path) -> None:
    def moved(text: str, day: str) -> str:
        return text.replace("INFO 03-01", f"INFO {day}")

    files = {
        "server.log.1": moved(start_lines(0) + served_lines(70, 15.9 * HOUR, every_s=60.0), "12-31"),
        "server.log": moved(served_lines(-7.9 * HOUR, HOUR, every_s=60.0), "01-01"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    seen = observed(diag.load(tmp_path), FACTS)
    assert value(seen, "held") == pytest.approx(2 * 25 * HOUR, rel=0.02)


def test_engines_of_two_kinds_are_two_replicas(tmp_path: Path) -> None:
    batches = batch_line(0, "Prefill", 0) + "".join(batch_line(at, "Decode", 3) for at in range(1, 1800))
    files = {"vllm.log": start_lines(0) + served_lines(70, 1800), "sglang.log": batches}
    assert value(seen_in(tmp_path, files), "held") == pytest.approx(2 * 3600, rel=0.01)


def test_pods_that_follow_each_other_are_not_held_side_by_side(tmp_path: Path) -> None:
    def one(name: str, at_s: int) -> list[object]:
        return json.loads(pod_events(scheduled_s=at_s).replace("llm-0", name))["items"]  # type: ignore[no-any-return]

    items = [event for number in range(4) for event in one(f"llm-7c9-{number}", 3600 * number)]
    (tmp_path / "events.json").write_text(json.dumps({"kind": "List", "items": items}))
    (tmp_path / "query_range.json").write_text(scraped(200, 4 * HOUR, lambda at: 8))
    held = observed(diag.load(tmp_path), FACTS).ledger["held"]
    assert held.value == pytest.approx(2 * 4 * HOUR, rel=0.01)
    assert held.status == "bounded"


def test_a_pod_that_is_taken_away_releases_its_gpus(tmp_path: Path) -> None:
    items = json.loads(pod_events(scheduled_s=0))["items"]
    killed = {**items[0], "reason": "Killing", "message": "Stopping container vllm"}
    killed |= {"firstTimestamp": "2026-03-01T09:00:00Z", "lastTimestamp": "2026-03-01T09:00:00Z"}
    (tmp_path / "events.json").write_text(json.dumps({"kind": "List", "items": [*items, killed]}))
    (tmp_path / "query_range.json").write_text(scraped(200, 2 * HOUR, lambda at: 8))
    assert value(observed(diag.load(tmp_path), FACTS), "held") == 2 * HOUR


def test_a_start_that_names_no_engine_is_the_start_of_each_data_parallel_one(tmp_path: Path) -> None:
    one = served_lines(70, HOUR)
    log = start_lines(0) + one + one.replace("Engine 000", "Engine 001")
    seen = seen_in(tmp_path, {"server.log": log})
    assert value(seen, "held") == 2 * 2 * HOUR
    assert value(seen, "cold") == 2 * 2 * 60
    assert value(seen, "starts") == 2
