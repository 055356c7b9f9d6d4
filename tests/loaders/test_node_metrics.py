"""kubelet's metrics: allocations by device plugins, registrations, sandboxes, pulls and pods, as sums over starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import infer_diag as diag
from infer_diag.recording import Recording

BOUNDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]


def histogram(name: str, labels: str, values: list[float]) -> list[str]:
    """A histogram as kubelet exposes it."""
    inside = f"{labels}," if labels else ""
    around = f"{{{labels}}}" if labels else ""
    lines = [f"# HELP {name} [ALPHA] x", f"# TYPE {name} histogram"]
    for bound in BOUNDS:
        lines.append(f'{name}_bucket{{{inside}le="{bound:g}"}} {sum(value <= bound for value in values)}')
    lines.append(f'{name}_bucket{{{inside}le="+Inf"}} {len(values)}')
    return [*lines, f"{name}_sum{around} {sum(values)}", f"{name}_count{around} {len(values)}"]


def read(tmp_path: Path, *scrapes: list[str]) -> Recording:
    path = tmp_path / "kubelet.prom"
    parts = [f"# 2026-03-14T09:{number:02d}:00Z\n" + "\n".join(lines) for number, lines in enumerate(scrapes)]
    path.write_text("\n".join(parts) + "\n")
    return diag.load(path)


GPU, MIG = 'resource_name="nvidia.com/gpu"', 'resource_name="nvidia.com/mig-1g.10gb"'
ALLOCATION = "kubelet_device_plugin_alloc_duration_seconds"


def test_allocations_by_resource_with_their_buckets(tmp_path: Path) -> None:
    recording = read(tmp_path, [*histogram(ALLOCATION, GPU, [0.004, 0.2, 7.0]), *histogram(ALLOCATION, MIG, [0.02])])
    rows = {row["resource"]: row for row in recording.start_totals.iter_rows(named=True)}
    assert set(rows) == {"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}
    gpu = rows["nvidia.com/gpu"]
    assert (gpu["step"], gpu["event_count"], gpu["mean_s"]) == ("device_allocation", 3, pytest.approx(7.204 / 3))
    assert gpu["bucket_max_s"] == [*BOUNDS, None]
    held = dict(zip(gpu["bucket_max_s"], gpu["bucket_counts"], strict=True))
    assert {bound: count for bound, count in held.items() if count} == {0.005: 1, 0.25: 1, 10.0: 1}
    assert recording.sources[0].engine == "kubelet"
    assert recording.request_totals.is_empty() and recording.engine_samples.is_empty()


def test_registrations_are_counted_and_have_no_length(tmp_path: Path) -> None:
    name = "kubelet_device_plugin_registration_total"
    recording = read(tmp_path, [f"# TYPE {name} counter", f"{name}{{{GPU}}} 4"])
    (row,) = recording.start_totals.iter_rows(named=True)
    assert (row["step"], row["resource"], row["event_count"], row["mean_s"]) == (
        "device_registration",
        "nvidia.com/gpu",
        4,
        None,
    )


def test_only_what_happened_between_the_scrapes_counts(tmp_path: Path) -> None:
    recording = read(tmp_path, histogram(ALLOCATION, GPU, [2.0]), histogram(ALLOCATION, GPU, [2.0, 0.5, 1.0]))
    (row,) = recording.start_totals.iter_rows(named=True)
    assert (row["event_count"], row["mean_s"]) == (2, pytest.approx(0.75))


def test_steps_of_a_start_and_no_other_operation(tmp_path: Path) -> None:
    operation = "kubelet_runtime_operations_duration_seconds"
    recording = read(
        tmp_path,
        [
            *histogram(operation, 'operation_type="pull_image"', [61.5]),
            *histogram(operation, 'operation_type="start_container"', [1.5, 2.5]),
            *histogram(operation, 'operation_type="container_status"', [0.01] * 50),
            *histogram("kubelet_run_podsandbox_duration_seconds", 'runtime_handler="nvidia"', [0.75]),
            *histogram("kubelet_pod_start_duration_seconds", "", [70.0]),
            *histogram("kubelet_pod_start_sli_duration_seconds", "", [8.0]),
        ],
    )
    means = {row["step"]: row["mean_s"] for row in recording.start_totals.iter_rows(named=True)}
    assert means == {
        "image_pull": 61.5,
        "container_start": 2.0,
        "sandbox": 0.75,
        "pod_start": 70.0,
        "pod_start_without_pulls": 8.0,
    }


def test_an_engine_beside_a_kubelet_keeps_its_own(tmp_path: Path) -> None:
    engine = histogram("vllm:time_to_first_token_seconds", 'model_name="m"', [0.5, 1.5])
    recording = read(tmp_path, [*engine, *histogram(ALLOCATION, GPU, [0.5])])
    assert recording.request_totals["mean"].to_list() == [1.0]
    assert recording.start_totals["mean_s"].to_list() == [0.5]
    assert diag.diagnose(recording).to_json()
