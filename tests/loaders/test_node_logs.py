"""kubelet's and containerd's logs: what a node did with a pod before its engine printed a line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.attribution.cold_start import start_frames
from infer_diag.errors import DiagError
from infer_diag.recording import Recording

BEGIN = datetime(2026, 3, 14, 9, 27, 3, 123456, tzinfo=UTC)
SANDBOX, CONTAINER = "5a0dbb" + "0" * 57 + "1", "c0ffee" + "0" * 57 + "1"
IMAGE = "registry.example/llm:1"

Told = list[tuple[float, str]]


def kubelet(pod: str = "llm-0") -> Told:
    """What kubelet prints of a pod, with the seconds at which it does."""
    mount = f'volume \\"models\\" (UniqueName: \\"csi/x\\") pod \\"{pod}\\" (UID: \\"d1\\") " pod="default/{pod}"'
    return [
        (0.0, f'kubelet.go:2421] "SyncLoop ADD" source="api" pods=["default/{pod}"]'),
        (0.25, f'reconciler_common.go:251] "operationExecutor.VerifyControllerAttachedVolume started for {mount}'),
        (18.75, f'operation_generator.go:721] "MountVolume.SetUp succeeded for {mount}'),
        (19.0, f'util.go:30] "No sandbox for pod can be found. Need to start a new one" pod="default/{pod}"'),
    ]


def later(pod: str = "llm-0") -> Told:
    probe = f'"Probe failed" probeType="Readiness" pod="default/{pod}" podUID="d1" containerName="server"'
    found = f'"SyncLoop (PLEG): event for pod" pod="default/{pod}" event={{"ID":"d1","Type":"ContainerStarted","Data":'
    return [
        (21.0, f'kubelet.go:2453] {found}"{SANDBOX}"}}'),
        (263.0, f'kubelet.go:2453] {found}"{CONTAINER}"}}'),
        (270.0, f'prober.go:107] {probe} probeResult="failure" output="HTTP probe failed with statuscode: 503"'),
        (280.0, f'prober.go:107] {probe} probeResult="failure" output="HTTP probe failed with statuscode: 503"'),
        (370.0, f'kubelet.go:2542] "SyncLoop (probe)" probe="readiness" status="ready" pod="default/{pod}"'),
    ]


def summary(zone_hours: int = 0, pod: str = "llm-0") -> Told:
    """kubelet's account of the whole start, which prints its own moment with a zone."""

    def at(seconds: float) -> str:
        moment = BEGIN + timedelta(seconds=seconds, hours=zone_hours)
        return f"{moment:%Y-%m-%d %H:%M:%S.%f}000 {zone_hours:+03d}00 ZONE m=+5.5"

    created = f"{BEGIN - timedelta(seconds=10.123456):%Y-%m-%d %H:%M:%S} +0000 UTC"
    return [
        (
            264.0,
            f'pod_startup_latency_tracker.go:104] "Observed pod startup duration" pod="default/{pod}" '
            f'podStartSLOduration=32.4 podStartE2EDuration="4m33.4s" podCreationTimestamp="{created}" '
            f'firstStartedPulling="{at(20.5)}" lastFinishedPulling="{at(261.0)}" observedRunningTime="{at(263.5)}" '
            f'watchObservedRunningTime="{at(264.0)}"',
        )
    ]


def containerd(pod: str = "llm-0", sandbox: str = SANDBOX, container: str = CONTAINER, attempt: int = 0) -> Told:
    """What containerd tells of a pod."""
    box = f"RunPodSandbox for &PodSandboxMetadata{{Name:{pod},Uid:d1,Namespace:default,Attempt:0,}}"
    create = f'CreateContainer within sandbox "{sandbox}" for'
    name = f"&ContainerMetadata{{Name:server,Attempt:{attempt},}}"
    return [
        (19.25, box),
        (20.0, f'{box} returns sandbox id "{sandbox}"'),
        (20.5, f'PullImage "{IMAGE}"'),
        (
            261.0,
            f'Pulled image "{IMAGE}" with image id "sha256:ae", repo tag "{IMAGE}", repo digest "x@sha256:2f", '
            'size "9000000000" in 4m0.5s',
        ),
        (261.001, f'PullImage "{IMAGE}" returns image reference "sha256:ae"'),
        (261.25, f"{create} container {name}"),
        (261.5, f'{create} {name} returns container id "{container}"'),
        (261.625, f'StartContainer for "{container}"'),
        (262.5, f'StartContainer for "{container}" returns successfully'),
    ]


def klog(told: Told, zone_hours: int = 0) -> list[tuple[float, str]]:
    return [
        (second, f"I{BEGIN + timedelta(seconds=second, hours=zone_hours):%m%d %H:%M:%S.%f}    1234 {text}")
        for second, text in told
    ]


def logfmt(told: Told) -> list[tuple[float, str]]:
    lines = []
    for second, text in told:
        quoted = text.replace('"', '\\"')
        stamp = f"{BEGIN + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S.%f}000Z"
        lines.append((second, f'time="{stamp}" level=info msg="{quoted}"'))
    return lines


def journal(lines: list[tuple[float, str]], zone_hours: int = 0) -> list[tuple[float, str]]:
    """The lines as journalctl prints them."""
    return [
        (
            second,
            f"{BEGIN + timedelta(seconds=second, hours=zone_hours):%b %d %H:%M:%S} node-b "
            f"{'containerd[900]' if text.startswith('time=') else 'kubelet[1234]'}: {text}",
        )
        for second, text in lines
    ]


def read(tmp_path: Path, lines: list[tuple[float, str]], name: str = "node.log", **options: object) -> Recording:
    path = tmp_path / name
    path.write_text("\n".join(text for _, text in sorted(lines, key=lambda line: line[0])) + "\n")
    return diag.load(path, **options)


def phases(recording: Recording) -> dict[str, float | None]:
    (start,) = diag.diagnose(recording).to_dict()["starts"]
    return dict(start["phases_s"])


WHOLE = {"schedule": 10.123456, "volume_mount": 18.5, "image_pull": 240.5, "container_start": 1.5}


@pytest.mark.parametrize("wrap", [journal, lambda lines: lines], ids=["journalctl", "plain"])
def test_a_node_tells_all_that_a_pod_waits_for(tmp_path: Path, wrap: object) -> None:
    lines = [*klog([*kubelet(), *later(), *summary()]), *logfmt(containerd())]
    recording = read(tmp_path, wrap(lines))  # type: ignore[operator]
    assert recording.sources[0].format == "kubelet"
    assert phases(recording) == pytest.approx(WHOLE)
    row = start_frames(recording).summary.row(0, named=True)
    assert (row["outcome"], row["hold_s"]) == ("ready", pytest.approx(370.0))
    slices = start_frames(recording).slices
    assert slices["duration_s"].sum() == pytest.approx(row["span_s"], abs=1e-9)
    assert recording.incidents.filter(kind="probe_failure")["fields"].to_list() == ["2 times: Readiness probe failed"]
    assert recording.phases.filter(pl.col("phase") == "image_pull")["size_bytes"].to_list() == [9e9]


def test_kubelet_alone_tells_it_to_its_own_second(tmp_path: Path) -> None:
    got = phases(read(tmp_path, klog([*kubelet(), *later(), *summary()])))
    assert got == pytest.approx(WHOLE | {"container_start": 2.0})


def test_containerd_alone_tells_pull_and_start(tmp_path: Path) -> None:
    recording = read(tmp_path, logfmt(containerd()))
    assert phases(recording) == pytest.approx({"image_pull": 240.5, "container_start": 1.5})
    assert recording.sources[0].first_time == BEGIN + timedelta(seconds=19.25)


def test_containerd_as_json_is_the_same(tmp_path: Path) -> None:
    lines = [
        (second, json.dumps({"level": "info", "msg": text, "time": (BEGIN + timedelta(seconds=second)).isoformat()}))
        for second, text in containerd()
    ]
    assert phases(read(tmp_path, lines)) == pytest.approx({"image_pull": 240.5, "container_start": 1.5})


def test_events_that_kubelet_prints_are_believed_before_others(tmp_path: Path) -> None:
    sent = 'object="default/llm-0" fieldPath="spec.containers{server}" kind="Pod" apiVersion="v1" type="Normal"'
    events = [
        (20.5, f'event.go:389] "Event occurred" {sent} reason="Pulling" message="Pulling image \\"{IMAGE}\\""'),
        (
            262.0,
            f'event.go:389] "Event occurred" {sent} reason="Pulled" message="Successfully pulled image \\"{IMAGE}\\" '
            'in 3m0.5s (4m1.5s including waiting)"',
        ),
        (264.0, f'event.go:389] "Event occurred" {sent} reason="Started" message="Started container server"'),
    ]
    got = phases(read(tmp_path, klog([*kubelet(), *later(), *summary(), *events])))
    assert (got["image_pull"], got["image_pull_queue"], got["container_start"]) == pytest.approx((180.5, 61.0, 2.0))


def test_pods_that_ran_before_have_no_start(tmp_path: Path) -> None:
    found = 'event={"ID":"d1","Type":"ContainerStarted","Data":"abcd"}'
    again: Told = [
        (0.0, 'kubelet.go:2421] "SyncLoop ADD" source="api" pods=["default/old-0","default/old-1"]'),
        (0.5, f'kubelet.go:2453] "SyncLoop (PLEG): event for pod" pod="default/old-0" {found}'),
        (1.5, f'kubelet.go:2453] "SyncLoop (PLEG): event for pod" pod="default/old-0" {found.replace("abcd", "beef")}'),
        (2.0, 'kubelet.go:2542] "SyncLoop (probe)" probe="readiness" status="ready" pod="default/old-1"'),
    ]
    recording = read(tmp_path, [*klog(again), *klog([*kubelet(), *later(), *summary()])])
    assert recording.starts["replica"].to_list() == [None]


def test_pods_of_the_cluster_itself_are_left_out(tmp_path: Path) -> None:
    system = [(second, text.replace("default/", "kube-system/")) for second, text in kubelet("proxy-1")]
    recording = read(tmp_path, klog([*system, *kubelet(), *later(), *summary()]))
    assert len(recording.starts) == 1


def test_a_pull_that_may_be_of_two_pods_is_of_none(tmp_path: Path) -> None:
    other = containerd("llm-1", SANDBOX.replace("5a", "5b"), CONTAINER.replace("c0", "c1"))
    other = [(second + 0.1, text) for second, text in other if "PullImage" not in text and "Pulled" not in text]
    recording = read(tmp_path, logfmt([*containerd(), *other]))
    assert recording.phases.filter(pl.col("phase") == "image_pull").is_empty()
    assert recording.starts["replica"].to_list() == ["llm-0", "llm-1"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f'TaskOOM event container_id:"{CONTAINER}"', "oom_killed"),
        (f"TaskOOM event &TaskOOM{{ContainerID:{CONTAINER},XXX_unrecognized:[],}}", "oom_killed"),
    ],
)
def test_a_container_killed_for_its_memory_is_its_pods(tmp_path: Path, text: str, kind: str) -> None:
    recording = read(tmp_path, logfmt([*containerd(), (300.0, text)]))
    assert recording.incidents.filter(kind=kind)["start_id"].to_list() == ["start-1"]
    assert start_frames(recording).summary["outcome"].to_list() == ["failed"]


def test_the_kernels_own_line_of_a_kill_names_the_container(tmp_path: Path) -> None:
    scope = f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{CONTAINER}.scope"
    kernel = (
        f"Mar 14 09:32:03 node-b kernel: oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg={scope},task=python3,pid=7"
    )
    recording = read(tmp_path, [*journal(logfmt(containerd())), (300.0, kernel)])
    assert recording.incidents["kind"].cast(pl.String).to_list() == ["oom_killed"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('eviction_manager.go:595] "Eviction manager: pod is evicted successfully" pod="default/llm-0"', "eviction"),
        (
            'pod_workers.go:1324] "Error syncing pod, skipping" err="failed to \\"StartContainer\\" for \\"server\\" with '
            'ImagePullBackOff: \\"Back-off pulling image\\"" pod="default/llm-0" podUID="d1"',
            "failed",
        ),
    ],
)
def test_troubles_that_kubelet_tells_of(tmp_path: Path, text: str, kind: str) -> None:
    recording = read(tmp_path, klog([*kubelet(), (60.0, text), (90.0, text)]))
    assert kind in recording.incidents["kind"].cast(pl.String).to_list()
    assert start_frames(recording).summary["outcome"].to_list() == ["failed"]


def test_a_restarted_container_is_a_restart(tmp_path: Path) -> None:
    again = [(second + 400, text) for second, text in containerd(container=CONTAINER[:-1] + "2", attempt=2)[5:]]
    recording = read(tmp_path, logfmt([*containerd(), *again]))
    assert "restart" in recording.incidents["kind"].cast(pl.String).to_list()


def engine_lines(seconds: float) -> list[tuple[float, str]]:
    """An engine's log whose first line comes so many seconds after BEGIN, behind a runtime's stamps."""
    shift = BEGIN + timedelta(seconds=seconds) - written.BEGIN.replace(tzinfo=UTC)

    def wrap(at: datetime, line: str) -> str:
        return f"{at + shift:%Y-%m-%dT%H:%M:%S.%f}000Z stderr F {line}"

    return [(float(number), line) for number, line in enumerate(written.vllm_lines(written.VLLM_START, wrap=wrap))]


@pytest.mark.parametrize("zone_hours", [0, 8, -5])
def test_a_nodes_log_and_an_engines_are_one_start_whatever_the_nodes_zone(tmp_path: Path, zone_hours: int) -> None:
    read(tmp_path, klog([*kubelet(), *later(), *summary(zone_hours)], zone_hours), "kubelet.log")
    read(tmp_path, engine_lines(270.0), "engine.log")
    recording = diag.load(tmp_path)
    got = phases(recording)
    assert {name: got[name] for name in WHOLE} == pytest.approx(WHOLE | {"container_start": 2.0})
    assert got["weights_load"] == pytest.approx(14.5)


def test_without_a_zone_a_nodes_log_is_not_joined(tmp_path: Path) -> None:
    read(tmp_path, klog([*kubelet(), *later()]), "kubelet.log", year=2026)
    read(tmp_path, engine_lines(270.0), "engine.log")
    assert len(diag.load(tmp_path, year=2026).starts) == 2


def test_a_zone_that_the_user_names_joins_them(tmp_path: Path) -> None:
    read(tmp_path, klog([*kubelet(), *later()], 8), "kubelet.log", year=2026)
    read(tmp_path, engine_lines(270.0), "engine.log")
    assert len(diag.load(tmp_path, year=2026, tz="Asia/Shanghai").starts) == 1


LINES = [text for _, text in [*klog([*kubelet(), *later(), *summary()]), *logfmt(containerd())]]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(LINES) | st.text(max_size=30) | st.sampled_from(LINES).map(lambda line: line[:60])))
def test_any_lines_are_read_or_refused(tmp_path: Path, lines: list[str]) -> None:
    try:
        recording = read(tmp_path, list(enumerate(lines)), format="kubelet")  # type: ignore[arg-type]
    except DiagError:
        return
    assert diag.diagnose(recording).to_json()
