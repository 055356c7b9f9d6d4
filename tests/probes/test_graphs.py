"""The graph probe on a chain with known times, and the names that it expects of CuPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infer_diag.errors import ProbeUnavailable
from infer_diag.probes.budget import Budget
from infer_diag.probes.graphs.chain import CuPyGraphDevice
from infer_diag.probes.graphs.probe import probe_graphs
from infer_diag.probes.result import read_result


class FakeGraphs:
    """A device on which a kernel costs 4 us by itself and `replay_us` in a graph; a capture costs 1 ms and 1 MiB."""

    basis = "simulated"

    def __init__(self, replay_us: float = 1.0, lost: int = 0) -> None:
        self.now, self.replay_us, self.lost, self.held = 0.0, replay_us, lost, 0

    def facts(self) -> dict[str, str | int]:
        return {"name": "fake"}

    def used_bytes(self) -> int:
        return self.held

    def chain(self, nodes: int) -> FakeChain:
        return FakeChain(self, nodes)

    def checks(self) -> dict[str, Callable[[], None]]:
        def refuse() -> None:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported:\n not permitted")

        return {"kernel": lambda: None, "wait": refuse}


class FakeChain:
    def __init__(self, device: FakeGraphs, nodes: int) -> None:
        self.device, self.nodes, self.count = device, nodes, nodes

    def eager(self) -> None:
        self.device.now += 4e-6 * self.nodes
        self.count += self.nodes

    def capture(self) -> FakeChain:
        self.device.now += 1e-3
        self.device.held += 1 << 20
        return self

    def launch(self) -> None:
        self.device.now += self.device.replay_us * 1e-6 * self.nodes
        self.count += self.nodes - self.device.lost

    def ran(self) -> int:
        return self.count


def probed(device: FakeGraphs, **named: Any) -> Any:
    return probe_graphs(device, clock=lambda: device.now, **named)


def test_the_break_even_is_what_the_capture_costs_over_what_a_replay_saves(tmp_path: Path) -> None:
    result = probed(FakeGraphs(), nodes=(100, 1000))
    small, large = result.frames["graph_stats"].to_dicts()
    assert small["eager_p50_s"] == pytest.approx(400e-6)
    assert small["replay_p50_s"] == pytest.approx(100e-6)
    assert small["break_even_count"] == pytest.approx((1e-3 + 100e-6) / 300e-6)
    assert large["break_even_count"] == pytest.approx((1e-3 + 1e-3) / 3e-3)
    assert large["taken_bytes"] == 1 << 20
    assert any(
        "Each further kernel costs 4 µs launched by itself and 1 µs in a graph" in text for text in result.sentences
    )
    assert read_result(result.write(tmp_path)).frames["graph_stats"].equals(result.frames["graph_stats"])


def test_a_graph_that_saves_nothing_has_no_break_even() -> None:
    result = probed(FakeGraphs(replay_us=5.0), nodes=(100,))
    assert result.frames["graph_stats"]["break_even_count"].to_list() == [None]
    assert "saves nothing" in result.sentences[0]


def test_a_replay_that_loses_kernels_is_no_measurement() -> None:
    with pytest.raises(ProbeUnavailable, match="did not run them all"):
        probed(FakeGraphs(lost=1), nodes=(100,))


def test_refused_calls_are_listed_with_what_the_driver_said() -> None:
    result = probed(FakeGraphs(), nodes=(10,))
    assert result.frames["capture_checks"].rows() == [
        ("kernel", True, None),
        ("wait", False, "cudaErrorStreamCaptureUnsupported: not permitted"),
    ]
    assert "A capture refuses: wait." in result.sentences


def test_a_spent_budget_gives_one_repetition_of_the_first_chain() -> None:
    now = [0.0]
    budget = Budget(1, clock=lambda: now[0])
    now[0] = 2.0
    runs = probed(FakeGraphs(), budget=budget).frames["graph_runs"]
    assert set(runs["node_count"]) == {50}
    assert set(runs["repeat_id"]) == {1}


def test_the_names_of_cupy_are_those_of_the_installed_library() -> None:
    module = pytest.importorskip("cupy", reason="CuPy is not installed")
    assert hasattr(module, "RawKernel")
    assert {"begin_capture", "end_capture", "synchronize"} <= set(dir(module.cuda.Stream))
    assert "launch" in dir(module.cuda.Graph)
    assert hasattr(module.cuda.runtime, "deviceSynchronize")
    assert hasattr(module.cuda.memory, "Memory")


@pytest.mark.gpu
def test_a_real_graph_replays_every_kernel() -> None:
    try:
        device = CuPyGraphDevice()
    except ProbeUnavailable as error:
        pytest.skip(str(error))
    result = probe_graphs(device, nodes=(50, 200), repeats=3)
    assert result.frames["graph_stats"]["replay_p50_s"].min() > 0
    checks = dict(result.frames["capture_checks"].select("call", "allowed").iter_rows())
    assert checks["kernel on the captured stream"]
    assert not checks["wait for the stream"]
