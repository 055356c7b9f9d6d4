"""A pod's events beside its engine's log: one clock, one start that knows when its device was assigned."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import written
from test_kubernetes import POD

import infer_diag as diag
from infer_diag.attribution.cold_start import start_frames

SCHEDULED = datetime(2026, 3, 14, 9, 24, 0, tzinfo=UTC)


def pod(name: str, scheduled: datetime = SCHEDULED) -> dict[str, object]:
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
