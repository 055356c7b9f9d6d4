"""A pod's events beside its engine's log: one clock, one start that knows when its device was assigned."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import written
from test_kubernetes import POD

import infer_diag as diag
from infer_diag.attribution.cold_start import start_frames
from infer_diag.recording import combine

SCHEDULED = datetime(2026, 3, 14, 9, 24, 0, tzinfo=UTC)


def pod(name: str, scheduled: datetime = SCHEDULED) -> dict[str, Any]:
    copy = json.loads(json.dumps(POD))
    copy["metadata"]["name"] = name
    copy["metadata"]["creationTimestamp"] = f"{scheduled - timedelta(seconds=20):%Y-%m-%dT%H:%M:%SZ}"
    for condition in copy["status"]["conditions"]:
        condition["lastTransitionTime"] = f"{scheduled:%Y-%m-%dT%H:%M:%SZ}"
    copy["status"]["conditions"] = copy["status"]["conditions"][:1]
    return copy


def recorded(tmp_path: Path, log: list[str], *pods: dict[str, object]) -> diag.Recording:
    (tmp_path / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(pods)}))
    (tmp_path / "server.log").write_text("\n".join(log) + "\n")
    return diag.load(tmp_path / "pods.json", tmp_path / "server.log")


def engine_rows(recording: diag.Recording) -> list[dict[str, object]]:
    summary = start_frames(recording).summary
    own = {
        row["start_id"]
        for row in recording.starts.iter_rows(named=True)
        if recording.sources[row["source_id"]].engine == "vllm"
    }
    return [row for row in summary.iter_rows(named=True) if row["start_id"] in own]


def ready(log: list[str]) -> list[str]:
    return [*log, log[-1].split(" (")[0] + " (APIServer pid=11) INFO:     Application startup complete."]


def stamped(second_offset: float = 0.0) -> list[str]:
    """The engine's log behind UTC stamps, as kubectl logs --timestamps prints it."""

    def wrap(at: datetime, line: str) -> str:
        return f"{at + timedelta(seconds=second_offset):%Y-%m-%dT%H:%M:%S}.000000000Z {line}"

    return written.vllm_lines(written.VLLM_START, wrap=wrap)


def test_the_hold_counts_from_the_pods_place_to_the_ready_server(tmp_path: Path) -> None:
    (row,) = engine_rows(recorded(tmp_path, ready(stamped()), pod("llm-0")))
    begin = written.BEGIN.replace(tzinfo=UTC)
    last = begin + timedelta(seconds=written.VLLM_START[-1][0])
    assert row["hold_s"] == pytest.approx((last - SCHEDULED).total_seconds())


def test_without_a_zone_two_clocks_are_not_compared(tmp_path: Path) -> None:
    (row,) = engine_rows(recorded(tmp_path, written.vllm_lines(written.VLLM_START), pod("llm-0")))
    assert row["hold_s"] is None


def test_an_engine_that_began_before_its_pod_was_placed_is_another_one(tmp_path: Path) -> None:
    late = written.BEGIN.replace(tzinfo=UTC) + timedelta(minutes=1)
    (row,) = engine_rows(recorded(tmp_path, ready(stamped()), pod("llm-0", late)))
    assert row["hold_s"] is None


def test_of_two_pods_only_the_named_one_is_joined(tmp_path: Path) -> None:
    pods = [pod("llm-0"), pod("llm-1", SCHEDULED + timedelta(seconds=30))]
    (row,) = engine_rows(recorded(tmp_path, ready(stamped()), *pods))
    assert row["hold_s"] is None


def test_replicas_are_joined_by_the_names_of_their_pods(tmp_path: Path) -> None:
    pods = [pod("llm-0"), pod("llm-1", SCHEDULED + timedelta(seconds=30))]
    lines = ready(stamped())
    log = [f"[pod/{name}/server] {line}" for line in lines for name in ("llm-0", "llm-1")]
    rows = engine_rows(recorded(tmp_path, log, *pods))
    holds = {str(row["replica"]).split("/")[0]: row["hold_s"] for row in rows}
    assert holds["llm-0"] == pytest.approx(holds["llm-1"] + 30)


PULLED = 'Successfully pulled image "registry.example/llm:1" in 1m30.5s. Image size: 9000000000 bytes.'


def event(name: str, reason: str, message: str, at: datetime) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {"kind": "Pod", "name": name, "namespace": "default"},
        "metadata": {"name": f"{name}.{reason}", "uid": f"uid-{name}-{reason}"},
        "reason": reason,
        "message": message,
        "firstTimestamp": f"{at:%Y-%m-%dT%H:%M:%SZ}",
        "lastTimestamp": f"{at:%Y-%m-%dT%H:%M:%SZ}",
        "count": 1,
    }


STARTED = written.BEGIN.replace(tzinfo=UTC) - timedelta(seconds=7)


def story(name: str, started: datetime = STARTED) -> list[dict[str, object]]:
    """What the API server tells of a pod whose container started at this moment."""
    placed = pod(name, started - timedelta(seconds=95))
    placed["status"].pop("containerStatuses")
    return [
        placed,
        event(name, "Pulling", 'Pulling image "registry.example/llm:1"', started - timedelta(seconds=94)),
        event(name, "Pulled", PULLED, started - timedelta(seconds=3)),
        event(name, "Started", "Started container server", started),
    ]


def one_start(recording: diag.Recording) -> dict[str, object]:
    (row,) = diag.diagnose(recording).to_dict()["starts"]
    return dict(row)


def test_a_pods_phases_and_its_engines_are_one_start_that_adds_up(tmp_path: Path) -> None:
    recording = recorded(tmp_path, ready(stamped()), *story("llm-0"))
    start = one_start(recording)
    own = one_start(diag.load(tmp_path / "server.log"))
    assert start["phases_s"] == own["phases_s"] | {"schedule": 20.0, "image_pull": 90.5, "container_start": 3.0}
    created = STARTED - timedelta(seconds=115)
    last = written.BEGIN.replace(tzinfo=UTC) + timedelta(seconds=written.VLLM_START[-1][0])
    assert start["span_s"] == pytest.approx((last - created).total_seconds())
    slices = start_frames(recording).slices
    assert slices["duration_s"].sum() == pytest.approx(start["span_s"], abs=1e-9)
    # placed → pull, and container → first line: nothing tells what happens there.
    gaps = {(gap["after"], gap["before"]): gap["seconds"] for gap in start["gaps"]}
    assert gaps["schedule", "image_pull"] == pytest.approx(95 - 3 - 90.5)
    (silence,) = [gap for gap in start["gaps"] if gap["after"] == "container_start"]
    assert silence["seconds"] >= 7
    assert [place.rpartition("/")[2].partition(":")[0] for place in silence["evidence"]] == ["pods.json", "server.log"]
    told_by = {phase["phase"]: phase["evidence"][0].rpartition("/")[2].partition(":")[0] for phase in start["phases"]}
    assert told_by["image_pull"] == "pods.json" and told_by["weights_load"] == "server.log"


def test_a_cause_on_the_cluster_is_found_in_the_joined_start(tmp_path: Path) -> None:
    diagnosis = diag.diagnose(recorded(tmp_path, ready(stamped()), *story("llm-0")))
    (pull,) = [finding for finding in diagnosis.findings if finding.id == "cold_start.image_pull"]
    assert pull.saves == pytest.approx(90.5)
    assert all("pods.json" in place for place in pull.evidence)


def kept_apart(recording: diag.Recording) -> str:
    """The one note on why a pod and an engine's log were not joined."""
    assert len(recording.starts) > 1
    (note,) = [note for source in recording.sources for note in source.notes if "not joined" in note]
    return note


def test_clocks_that_disagree_are_not_joined(tmp_path: Path) -> None:
    recording = recorded(tmp_path, ready(stamped(-60)), *story("llm-0"))
    assert "clocks disagree" in kept_apart(recording)
    (row,) = engine_rows(recording)
    assert row["span_s"] == pytest.approx(one_start(diag.load(tmp_path / "server.log"))["span_s"])


def test_a_container_that_ran_for_hours_before_is_not_joined(tmp_path: Path) -> None:
    assert "what ran between" in kept_apart(recorded(tmp_path, ready(stamped(3 * 3600)), *story("llm-0")))


def test_a_pod_that_was_placed_hours_before_is_not_joined(tmp_path: Path) -> None:
    placed = story("llm-0")[:1]
    assert "what ran between" in kept_apart(recorded(tmp_path, ready(stamped(3 * 3600)), *placed))


def test_two_engines_side_by_side_are_not_both_in_one_pod(tmp_path: Path) -> None:
    recorded(tmp_path, ready(stamped()), *story("llm-0"))
    (tmp_path / "other.log").write_text("\n".join(ready(stamped(20))) + "\n")
    recording = diag.load(tmp_path)
    assert len(recording.starts) == 3
    assert {row["hold_s"] for row in engine_rows(recording)} == {None}


def test_a_container_that_was_started_again_is_not_joined(tmp_path: Path) -> None:
    told = story("llm-0")
    told[-1] |= {"count": 3, "lastTimestamp": f"{STARTED + timedelta(minutes=30):%Y-%m-%dT%H:%M:%SZ}"}
    assert "more than once" in kept_apart(recorded(tmp_path, ready(stamped()), *told))


def test_a_pod_that_failed_under_a_log_that_just_ends_is_not_joined(tmp_path: Path) -> None:
    killed = event("llm-0", "OOMKilling", "Memory cgroup out of memory", STARTED + timedelta(seconds=40))
    assert "failed" in kept_apart(recorded(tmp_path, stamped()[:6], *story("llm-0"), killed))


def test_without_a_name_one_of_two_pods_is_not_guessed(tmp_path: Path) -> None:
    recording = recorded(tmp_path, ready(stamped()), *story("llm-0"), *story("llm-1"))
    assert len(recording.starts) == 3


def test_a_log_named_after_its_pod_is_that_pods(tmp_path: Path) -> None:
    recorded(tmp_path, ready(stamped()), *story("llm-1"), *story("llm-10"))
    (tmp_path / "server.log").rename(tmp_path / "llm-1.log")
    recording = diag.load(tmp_path)
    assert recording.starts["replica"].to_list() in ([None, "llm-10"], ["llm-10", None])
    (joined,) = [row for row in diag.diagnose(recording).to_dict()["starts"] if row["replica"] is None]
    assert joined["phases_s"]["image_pull"] == pytest.approx(90.5)


def test_replicas_have_each_their_own_pods_phases(tmp_path: Path) -> None:
    pods = [*story("llm-0"), *story("llm-1", STARTED - timedelta(seconds=30))]
    lines = [f"[pod/{name}/server] {line}" for line in ready(stamped()) for name in ("llm-0", "llm-1")]
    recording = recorded(tmp_path, lines, *pods)
    spans = {row["replica"]: row["span_s"] for row in diag.diagnose(recording).to_dict()["starts"]}
    assert set(spans) == {"llm-0/server", "llm-1/server"}
    assert spans["llm-1/server"] == pytest.approx(spans["llm-0/server"] + 30)


def test_a_pod_told_of_by_two_files_is_one_pod(tmp_path: Path) -> None:
    whole = one_start(recorded(tmp_path, ready(stamped()), *story("llm-0")))
    told = story("llm-0")
    parts = {"pods.json": told[:1], "events.json": told[1:]}
    for name, items in parts.items():
        (tmp_path / name).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    split = one_start(diag.load(tmp_path))
    assert (split["phases_s"], split["span_s"]) == (whole["phases_s"], whole["span_s"])


def test_joined_recordings_can_be_combined_again(tmp_path: Path) -> None:
    recording = recorded(tmp_path, ready(stamped()), *story("llm-0"))
    again = combine([recording, recording])
    assert again.starts["start_id"].to_list() == ["start-1", "start-2"]
