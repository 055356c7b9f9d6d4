"""Events, pods and nodes of a cluster: what a start waited for before its engine printed a line."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.attribution.cold_start import start_frames
from infer_diag.errors import DiagError, LogFormatError, SourceError
from infer_diag.loaders.kubernetes.amounts import age_s, age_step_s, go_duration_s, go_resolution_s
from infer_diag.recording import Recording

PULLED = 'Successfully pulled image "registry.example/llm:1" in {0}. Image size: 9000000000 bytes.'
DESCRIBED = """Name:             llm-0
Namespace:        default
Status:           Running
Events:
  Type     Reason            Age    From               Message
  ----     ------            ----   ----               -------
  Warning  FailedScheduling  9m50s  default-scheduler  0/3 nodes are available: 3 Insufficient nvidia.com/gpu.
  Normal   Scheduled         8m20s  default-scheduler  Successfully assigned default/llm-0 to node-b
  Normal   Pulling           8m19s  kubelet            Pulling image "registry.example/llm:1"
  Normal   Pulled            2m9s   kubelet            {pulled}
  Normal   Created           2m9s   kubelet            Created container: server
  Normal   Started           2m6s   kubelet            Started container server
  Warning  Unhealthy         30s (x5 over 110s)  kubelet  Readiness probe failed: HTTP probe failed with statuscode: 503
"""
LISTED = """LAST SEEN   TYPE      REASON      OBJECT          MESSAGE
126s        Normal    Started     pod/llm-0       Container started
129s        Normal    Created     pod/llm-0       Container created
8m19s       Normal    Pulling     pod/llm-0       Pulling image "registry.example/llm:1"
129s        Normal    Pulled      pod/llm-0       {pulled}
8m20s       Normal    Scheduled   pod/llm-0       Successfully assigned default/llm-0 to node-b
30s         Warning   Unhealthy   pod/llm-0       Readiness probe failed: HTTP probe failed with statuscode: 503
59m         Normal    SuccessfulRescale   horizontalpodautoscaler/llm   New size: 6
"""


def read(tmp_path: Path, text: str, name: str = "events.txt", **options: object) -> Recording:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return diag.load(path, **options)


def walls(recording: Recording) -> dict[str, float | None]:
    rows = start_frames(recording).phases.filter(pl.col("rank").is_null() & pl.col("chosen"))
    return dict(rows.select(pl.col("phase").cast(pl.String), "duration_s").iter_rows())


def bounds(recording: Recording, phase: str) -> tuple[float | None, float | None]:
    return start_frames(recording).phases.filter(pl.col("phase") == phase).select("lower_s", "upper_s").row(0)


def findings(recording: Recording) -> dict[str, str]:
    return {finding.id: finding.sentence for finding in diag.diagnose(recording).findings}


@pytest.mark.parametrize(
    ("text", "seconds", "resolution"),
    [
        ("4m47.129s", 287.129, 0.0005),
        ("1h2m3s", 3723.0, 0.5),
        ("313ms", 0.313, 0.0005),
        ("1.594s", 1.594, 0.0005),
        ("62.345678901s", 62.345678901, 0.5e-9),
        ("456.7µs", 456.7e-6, 0.05e-6),
        ("2m", 120.0, 30.0),
    ],
)
def test_go_durations(text: str, seconds: float, resolution: float) -> None:
    got = pl.select(go_duration_s(pl.lit(text)).alias("s"), go_resolution_s(pl.lit(text)).alias("r")).row(0)
    assert got == (pytest.approx(seconds), pytest.approx(resolution))


@pytest.mark.parametrize(
    ("text", "seconds", "step"),
    [
        ("19s", 19, 1),
        ("5m31s", 331, 1),
        ("26m", 1560, 60),
        ("5h10m", 18600, 60),
        ("12h", 43200, 3600),
        ("3d4h", 273600, 3600),
        ("2y30d", 65664000, 86400),
        ("<unknown>", None, None),
    ],
)
def test_ages(text: str, seconds: int | None, step: int | None) -> None:
    assert pl.select(age_s(pl.lit(text)).alias("a"), age_step_s(pl.lit(text)).alias("b")).row(0) == (seconds, step)


@pytest.mark.parametrize("table", [DESCRIBED, LISTED], ids=["describe", "get events"])
@pytest.mark.parametrize(
    ("printed", "pull", "queue"),
    [
        ("4m0.5s (6m10.25s including waiting)", 240.5, 129.75),
        ("4m0.5s (4m0.5s including waiting)", 240.5, None),
        ("4m0.5s", 240.5, None),
    ],
)
def test_a_pull_is_told_apart_from_its_queue(
    tmp_path: Path, table: str, printed: str, pull: float, queue: float | None
) -> None:
    recording = read(tmp_path, table.format(pulled=PULLED.format(printed)))
    wall = walls(recording)
    assert wall["image_pull"] == pytest.approx(pull)
    assert wall.get("image_pull_queue") == (pytest.approx(queue) if queue else None)
    assert wall["container_start"] == pytest.approx(3.0)
    assert len(recording.starts) == 1
    assert recording.phases.filter(pl.col("phase") == "image_pull")["size_bytes"].to_list() == [9e9]


def test_scheduling_lasts_from_the_first_refusal_to_the_place(tmp_path: Path) -> None:
    recording = read(tmp_path, DESCRIBED.format(pulled=PULLED.format("4m0.5s")))
    assert walls(recording)["schedule"] == pytest.approx(90.0)
    assert recording.starts["acquire_time"].null_count() == 0
    assert "cold_start.no_gpu_resource" not in findings(recording)


def test_failed_probes_of_a_starting_server_are_no_failure(tmp_path: Path) -> None:
    recording = read(tmp_path, DESCRIBED.format(pulled=PULLED.format("4m0.5s")))
    assert start_frames(recording).summary["outcome"].to_list() == ["unknown"]
    probes = recording.incidents.filter(kind="probe_failure")
    assert probes["fields"].str.contains("5 times").to_list() == [True]
    assert "cold_start.failed" not in findings(recording)


def test_ages_are_no_dates(tmp_path: Path) -> None:
    document = diag.diagnose(read(tmp_path, DESCRIBED.format(pulled=PULLED.format("4m0.5s")))).to_dict()
    assert document["sources"][0]["first_time"] is None
    assert "data.clock_missing" not in [finding["id"] for finding in document["findings"]]


def test_coarse_ages_bound_a_phase_and_measure_none(tmp_path: Path) -> None:
    text = """Events:
  Type    Reason     Age   From               Message
  ----    ------     ----  ----               -------
  Normal  Scheduled  59m   default-scheduler  Successfully assigned default/llm-0 to node-b
  Normal  Pulled     59m   kubelet            Container image "llm:1" already present on machine
  Normal  Started    57m   kubelet            Started container server
"""
    recording = read(tmp_path, text)
    assert walls(recording)["container_start"] is None
    assert bounds(recording, "container_start") == (pytest.approx(60.0), pytest.approx(180.0))


def test_a_pod_without_a_place_waits_at_least_as_long_as_its_first_refusal_is_old(tmp_path: Path) -> None:
    text = """  Type     Reason            Age                 From               Message
  ----     ------            ----                ----               -------
  Warning  FailedScheduling  2m (x9 over 40m)    default-scheduler  0/2 nodes are available: 2 Insufficient amd.com/gpu.
"""
    recording = read(tmp_path, text)
    assert bounds(recording, "schedule")[0] == pytest.approx(2400.0)
    assert "amd.com/gpu" in findings(recording)["cold_start.no_gpu_resource"]
    assert start_frames(recording).summary["outcome"].to_list() == ["unfinished"]


def test_lack_of_another_resource_is_not_lack_of_a_gpu(tmp_path: Path) -> None:
    text = "  Warning  FailedScheduling  2m  default-scheduler  0/2 nodes are available: 2 Insufficient memory.\n"
    assert "cold_start.no_gpu_resource" not in findings(read(tmp_path, text))


def test_a_described_node_tells_why_no_gpu_is_free(tmp_path: Path) -> None:
    node = """Name:               node-a
Roles:              <none>
Capacity:
  cpu:                64
  memory:             2113385224Ki
Allocatable:
  cpu:                64
  memory:             2113282824Ki
System Info:
  Machine ID:  1234
"""
    pods = (
        "  Warning  FailedScheduling  2m  default-scheduler  0/1 nodes are available: 1 Insufficient nvidia.com/gpu.\n"
    )
    read(tmp_path, node, "node.txt")
    read(tmp_path, pods, "pod.txt")
    sentence = findings(diag.load(tmp_path))["cold_start.no_gpu_resource"]
    assert "node-a offers no accelerator" in sentence
    offered = node.replace("  cpu:                64\n  memory:             2113282824Ki", "  nvidia.com/gpu:     8")
    (tmp_path / "node.txt").write_text(offered.replace("Name:               node-a", "Name:   node-b"))
    assert "either none offers it" in findings(diag.load(tmp_path / "pod.txt"))["cold_start.no_gpu_resource"]
    with pytest.raises(SourceError):
        diag.load(tmp_path / "node.txt")


def test_a_node_that_withholds_accelerators_is_found_in_either_form(tmp_path: Path) -> None:
    described = "Name:   node-a\nCapacity:\n  nvidia.com/gpu:  8\nAllocatable:\n  nvidia.com/gpu:  {}\nSystem Info:\n"
    amounts = {"cpu": "64", "nvidia.com/gpu": "8"}, {"cpu": "63", "nvidia.com/gpu": "6"}
    status = dict(zip(("capacity", "allocatable"), amounts, strict=True))
    as_object = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}, "status": status})
    for text, name in ((described.format(6), "node.txt"), (as_object, "node.json")):
        sentence = findings(read(tmp_path, text, name))["cold_start.no_gpu_resource"]
        assert sentence.startswith("node-a offers 6 of its 8 accelerators")
    with pytest.raises(SourceError):
        read(tmp_path, described.format(8), "healthy.txt")


def test_a_count_that_cannot_be_read_is_not_none(tmp_path: Path) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}
    amounts = {"cpu": "64", "nvidia.com/gpu": "many"}
    with pytest.raises(SourceError):
        read(tmp_path, json.dumps({**node, "status": {"capacity": amounts, "allocatable": amounts}}), "node.json")


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        (
            "Warning  BackOff  9s (x4 over 60s)  kubelet  Back-off restarting failed container server in pod llm-0",
            "failed",
        ),
        ('Warning  Failed   9s  kubelet  Failed to pull image "llm:1": not found', "failed"),
        ("Warning  Evicted  9s  kubelet  The node was low on resource: ephemeral-storage.", "failed"),
        ("Normal   Killing  9s  kubelet  Container server failed startup probe, will be restarted", "failed"),
        ("Normal   Killing  9s  kubelet  Stopping container server", "unknown"),
        ("Warning  FailedMount  9s  kubelet  MountVolume.SetUp failed for volume x", "unknown"),
    ],
)
def test_what_counts_as_a_failed_start(tmp_path: Path, line: str, outcome: str) -> None:
    text = f"""  Normal   Scheduled  100s  default-scheduler  Successfully assigned default/llm-0 to node-b
  Normal   Started    90s   kubelet            Started container server
  {line}
"""
    recording = read(tmp_path, text)
    assert start_frames(recording).summary["outcome"].to_list() == [outcome]


def test_a_failure_that_was_overcome_is_none(tmp_path: Path) -> None:
    text = """  Normal   Scheduled  100s  default-scheduler  Successfully assigned default/llm-0 to node-b
  Warning  Failed     90s   kubelet            Failed to pull image "llm:1": i/o timeout
  Normal   Pulled     20s   kubelet            Successfully pulled image "llm:1" in 12.5s (12.5s including waiting)
  Normal   Started    19s   kubelet            Started container server
"""
    assert start_frames(read(tmp_path, text)).summary["outcome"].to_list() == ["unknown"]


def event(reason: str, message: str, at: str, **values: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {"kind": "Pod", "name": "llm-0", "namespace": "default"},
        "metadata": {"name": f"llm-0.{reason}", "uid": f"uid-{reason}", "creationTimestamp": at},
        "reason": reason,
        "message": message,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        **values,
    }


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "llm-0", "uid": "uid-pod", "creationTimestamp": "2026-03-14T09:26:53Z"},
    "status": {
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-14T09:27:03Z"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-14T09:33:13Z"},
        ],
        "containerStatuses": [
            {"name": "server", "restartCount": 0, "state": {"running": {"startedAt": "2026-03-14T09:31:13Z"}}}
        ],
    },
}


def test_json_events_and_a_pod_make_one_start_with_dates(tmp_path: Path) -> None:
    items = [
        event("Pulled", PULLED.format("4m0.5s (4m5s including waiting)"), "2026-03-14T09:31:10Z"),
        event("Started", "Started container server", "2026-03-14T09:31:13Z"),
        event(
            "Scheduled", "assigned", "2026-03-14T09:27:03Z", firstTimestamp=None, eventTime="2026-03-14T09:27:03.25Z"
        ),
        POD,
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2)
    recording = read(tmp_path, text, "events.json")
    wall = walls(recording)
    assert wall["schedule"] == pytest.approx(10.0)
    assert (wall["image_pull"], wall["image_pull_queue"]) == (pytest.approx(240.5), pytest.approx(4.5))
    assert wall["container_start"] == pytest.approx(3.0)
    summary = start_frames(recording).summary.row(0, named=True)
    assert (summary["outcome"], summary["hold_s"]) == ("ready", pytest.approx(370.0))
    document = diag.diagnose(recording).to_dict()
    assert document["sources"][0]["first_time"] == "2026-03-14T09:26:53+00:00"
    line = text.splitlines().index('        "uid": "uid-Pulled",') + 1
    assert recording.phases.filter(pl.col("phase") == "image_pull")["line"].to_list() == [line]


def test_a_restarted_container_hides_its_first_start(tmp_path: Path) -> None:
    pod = json.loads(json.dumps(POD))
    pod["status"]["containerStatuses"] = [
        {
            "name": "server",
            "restartCount": 3,
            "state": {"running": {"startedAt": "2026-03-14T12:00:00Z"}},
            "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-03-14T11:59:00Z"}},
        }
    ]
    recording = read(tmp_path, json.dumps(pod), "pod.json")
    assert recording.starts["ready_time"].null_count() == 1
    kinds = set(recording.incidents["kind"].cast(pl.String))
    assert {"restart", "oom_killed"} <= kinds


@pytest.mark.parametrize("text", ['{"apiVersion": "v1", "items": [', '{"apiVersion":"v1","items":' + "[" * 20_000])
def test_broken_and_bottomless_json_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceError, match="JSON"):
        read(tmp_path, text, "events.json")


def test_rows_that_do_not_fit_are_kept_as_rejected(tmp_path: Path) -> None:
    text = DESCRIBED.format(pulled=PULLED.format("4m0.5s")) + "  Normal   Started\n"
    recording = read(tmp_path, text)
    assert recording.sources[0].rejected_lines == 1
    with pytest.raises(LogFormatError, match=r"events\.txt:14"):
        read(tmp_path, text, strict=True)


def test_an_engine_named_in_a_message_does_not_change_the_format(tmp_path: Path) -> None:
    text = '  Normal   Pulled   9s   kubelet   Container image "lmsysorg/sglang:v1" already present on machine\n'
    assert read(tmp_path, text).sources[0].format == "kubernetes"


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("Running", "unknown"), ("Waiting\n      Reason:       CrashLoopBackOff", "failed")],
)
def test_a_container_killed_for_its_memory(tmp_path: Path, state: str, outcome: str) -> None:
    text = f"""Name:             llm-0
Containers:
  server:
    State:          {state}
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Restart Count:  3
Events:
  Normal   Scheduled  90s  default-scheduler  Successfully assigned default/llm-0 to node-b
  Normal   Started    19s (x4 over 80s)  kubelet   Started container server
"""
    recording = read(tmp_path, text)
    assert start_frames(recording).summary["outcome"].to_list() == [outcome]
    kinds = recording.incidents["kind"].cast(pl.String).to_list()
    assert "oom_killed" in kinds and "restart" in kinds
    assert "host memory" in findings(recording)["memory.host_memory"]


WIDE = """NAMESPACE   LAST SEEN   TYPE      REASON      OBJECT      SUBOBJECT                 SOURCE                MESSAGE                                  FIRST SEEN   COUNT   NAME
default     30s         Warning   Unhealthy   pod/llm-0   spec.containers{server}   kubelet, node-b       Readiness probe failed: not yet          90s          7       llm-0.17
default     100s        Normal    Scheduled   pod/llm-0                             default-scheduler     Successfully assigned default/llm-0      100s         1       llm-0.18
default     20s         Normal    Scheduled   pod/llm-1                             default-scheduler     Successfully assigned default/llm-1      20s          1       llm-1.19
"""


def test_wide_listings_of_several_pods(tmp_path: Path) -> None:
    recording = read(tmp_path, WIDE)
    assert recording.starts["replica"].to_list() == ["llm-0", "llm-1"]
    probe = recording.incidents.filter(kind="probe_failure").row(0, named=True)
    assert probe["fields"] == "7 times: Readiness probe failed: not yet"
    assert (probe["start_id"], probe["replica"]) == ("start-1", "llm-0")


def test_secrets_in_messages_are_redacted(tmp_path: Path) -> None:
    secret = "hf_" + "a1B2" * 9
    text = f"  Warning  Unhealthy  3s  kubelet  Startup probe failed: HF_TOKEN={secret}\n"
    recording = read(tmp_path, text + "  Normal   Started  9s  kubelet  Started container server\n")
    assert not recording.incidents["fields"].str.contains(secret).any()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([*DESCRIBED.splitlines(), *LISTED.splitlines(), "", "Name:"]) | st.text(max_size=40)))
def test_any_text_is_read_or_refused(tmp_path: Path, lines: list[str]) -> None:
    try:
        recording = read(tmp_path, "\n".join(lines), format="kubernetes")
    except DiagError:
        return
    assert diag.diagnose(recording).to_json()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "items",
                        "kind",
                        "metadata",
                        "status",
                        "name",
                        "conditions",
                        "containerStatuses",
                        "state",
                        "type",
                        "involvedObject",
                        "count",
                        "series",
                        "terminated",
                        "firstTimestamp",
                        "allocatable",
                    ]
                ),
                inner | st.sampled_from(["Pod", "Event", "Node", "List", "PodScheduled"]),
                max_size=6,
            )
        ),
        max_leaves=30,
    )
)
def test_any_json_is_read_or_refused(tmp_path: Path, value: object) -> None:
    try:
        recording = read(tmp_path, json.dumps({"items": value, "apiVersion": "v1"}), "x.json", format="kubernetes")
    except DiagError:
        return
    assert diag.diagnose(recording).to_json()
