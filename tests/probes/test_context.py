"""The context probe on a driver of Python objects, and what it says where there is none."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from infer_diag.errors import ProbeUnavailable
from infer_diag.probes.budget import Budget
from infer_diag.probes.context import readings
from infer_diag.probes.context.child import DRIVER, MAP_HOST, NVML, PTX, Start, UsedMemory, measured
from infer_diag.probes.context.probe import launch, probe_context
from infer_diag.probes.result import framed, read_result

STEPS = [
    *("load_driver", "init", "discovery", "context", "map_host", "first_allocation", "module_load"),
    *("first_kernel", "second_kernel", "cublas_handle"),
]


class FakeDriver:
    """A driver whose calls take a known time each and may fail."""

    def __init__(self, failing: str = "") -> None:
        self.now, self.failing, self.calls, self.used = 0, failing, [], 1000

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any) -> int:
            self.calls.append((name, words))
            self.now += 1_000_000 * len(name)
            self.used += 10 if name == "cuMemAlloc_v2" else 0
            if name == "cuDeviceGetName":
                words[0].value = b"Fake GPU"
            if name == "cuDeviceGetCount":
                words[0]._obj.value = 2
            if name == "nvmlDeviceGetMemoryInfo":
                words[1][2] = self.used
            return 100 if name == self.failing else 0

        return call

    def load(self, name: str) -> FakeDriver:
        if name.startswith("libcublas") and not name.endswith("12"):
            raise OSError(name)
        return self


def test_every_step_is_timed_by_its_own_calls() -> None:
    driver = FakeDriver()
    start = Start(driver.load, flags=MAP_HOST)
    rows = measured(start, None, None, clock=lambda: driver.now)
    assert [row["step"] for row in rows] == STEPS
    assert all(row["refusal"] is None and row["taken_bytes"] is None for row in rows)
    seconds = {row["step"]: row["duration_s"] for row in rows}
    assert seconds["init"] == pytest.approx(0.006)
    assert seconds["context"] == pytest.approx(0.014)
    assert start.told["name"] == "Fake GPU"
    assert start.told["device_count"] == 2
    (words,) = (words for name, words in driver.calls if name == "cuCtxCreate_v2")
    assert words[1].value == MAP_HOST


def test_a_failing_call_ends_the_start_with_its_name() -> None:
    driver = FakeDriver("cuMemAlloc_v2")
    rows = measured(Start(driver.load, 0), None, None, clock=lambda: driver.now)
    assert rows[-1]["step"] == "first_allocation"
    assert rows[-1]["refusal"] == "cuMemAlloc_v2 returned 100"
    assert rows[-1]["duration_s"] is None


def test_memory_is_told_in_place_of_time() -> None:
    driver = FakeDriver()
    rows = measured(Start(driver.load, 0), UsedMemory(driver.load, "0000:01:00.0"), None)
    taken = {row["step"]: row["taken_bytes"] for row in rows}
    assert taken["first_allocation"] == 10
    assert taken["context"] == 0
    assert all(row["duration_s"] is None for row in rows)
    with pytest.raises(OSError, match="does not know"):
        UsedMemory(FakeDriver("nvmlInit_v2").load, "x")


def test_a_start_may_end_early() -> None:
    rows = measured(Start(FakeDriver().load, 0), None, "context")
    assert [row["step"] for row in rows] == STEPS[:4]


class FakeLaunch:
    """Processes with known times; the flag costs `effect_s`."""

    def __init__(self, effect_s: float = 0.0, nvml: bool = True, refusal: str | None = None) -> None:
        self.effect_s, self.nvml, self.refusal, self.order, self.count = effect_s, nvml, refusal, [], 0

    def __call__(self, what: str, flags: int, bus: str, until: str) -> dict[str, Any]:
        self.order.append((what, flags))
        self.count += 1
        noise = 0.001 * (self.count * 7 % 5)
        if what == "memory" and not self.nvml:
            raise ProbeUnavailable("no NVML")
        names = STEPS[: STEPS.index(until) + 1] if until else STEPS
        steps = []
        for name in names:
            seconds = 0.1 + noise + (self.effect_s if flags and name == "context" else 0)
            steps.append(
                {
                    "step": name,
                    "duration_s": seconds if what == "timing" else None,
                    "taken_bytes": 500 if what == "memory" else None,
                    "refusal": None,
                }
            )
        if self.refusal:
            steps = [{"step": "init", "duration_s": None, "taken_bytes": None, "refusal": self.refusal}]
        return {"steps": steps, "device": {"name": "Fake"}, "bus": "0000:01:00.0"}


def test_medians_quartiles_and_memory_come_out_of_separate_processes(tmp_path: Path) -> None:
    result = probe_context(start=FakeLaunch(), basis="simulated")
    stats = result.frames["context_step_stats"]
    assert stats["step"].to_list() == STEPS
    assert set(stats["run_count"]) == {20}
    assert stats["p50_bytes"].to_list() == [500.0] * 10
    assert stats["p50_s"].is_between(0.1, 0.105).all()
    assert stats["is_wide"].to_list() == [False] * 10
    steps = result.frames["context_steps"]
    assert steps.filter(pl.col("duration_s").is_not_null() & pl.col("taken_bytes").is_not_null()).is_empty()
    assert read_result(result.write(tmp_path)).frames["flag_pairs"].equals(result.frames["flag_pairs"])
    article = result.frames["context_article"]
    assert article["a100_over_h100_ratio"].round(2).to_list() == [1.61, 1.6, 1.64]


def test_a_flag_without_effect_shows_none() -> None:
    (row,) = probe_context(start=FakeLaunch()).frames["flag_effect"].to_dicts()
    assert row["pair_count"] == 30
    assert row["lower_s"] <= 0 <= row["upper_s"]
    assert row["upper_s"] < row["article_s"]
    assert any("CU_CTX_MAP_HOST shows no effect" in text for text in probe_context(start=FakeLaunch()).sentences)


def test_a_planted_effect_is_found_and_the_pairs_alternate() -> None:
    launched = FakeLaunch(effect_s=0.012)
    result = probe_context(start=launched)
    (row,) = result.frames["flag_effect"].to_dicts()
    assert row["lower_s"] > 0
    assert row["lower_s"] <= 0.012 <= row["upper_s"]
    order = [flags for what, flags in launched.order if what == "timing"][21:]
    assert order[:6] == [0, MAP_HOST, MAP_HOST, 0, 0, MAP_HOST]
    assert result.frames["flag_pairs"]["with_flag_first"].to_list()[:3] == [False, True, False]


def test_few_pairs_give_no_interval() -> None:
    result = probe_context(start=FakeLaunch(), pairs=5)
    assert result.frames["flag_effect"].is_empty()
    assert not any("CU_CTX_MAP_HOST" in text for text in result.sentences)


def test_without_nvml_the_memory_stays_unknown() -> None:
    stats = probe_context(start=FakeLaunch(nvml=False)).frames["context_step_stats"]
    assert stats["p50_bytes"].to_list() == [None] * 10


def test_a_spent_budget_still_gives_one_of_each() -> None:
    now = [0.0]
    budget = Budget(1, clock=lambda: now[0])
    now[0] = 5.0
    result = probe_context(start=FakeLaunch(), budget=budget)
    assert set(result.frames["context_step_stats"]["run_count"]) <= {1, 20}
    assert len(result.frames["flag_pairs"]) == 1


def test_scattered_steps_are_named() -> None:
    rows = [
        {"repeat_id": place, "step": "context", "duration_s": value, "taken_bytes": None, "refusal": None}
        for place, value in enumerate([0.1, 0.2, 0.3, 0.4])
    ]
    stats = readings.step_stats(framed("context_steps", rows))
    assert stats["is_wide"].to_list() == [True]
    said = readings.sentences(stats, framed("flag_effect", []))
    assert any("do not agree on context" in text for text in said)


@pytest.mark.parametrize(
    ("steps", "reached"),
    [
        (("context", "first_kernel", "cublas_handle"), "first kernel and library handle"),
        (("context", "first_kernel"), "first kernel, without a library handle"),
        (("context", "module_load"), "step module load, where they ended"),
    ],
)
def test_the_sum_says_how_far_the_processes_came(steps: tuple[str, ...], reached: str) -> None:
    rows = [{"repeat_id": 1, "step": step, "duration_s": 0.1, "taken_bytes": None, "refusal": None} for step in steps]
    stats = readings.step_stats(framed("context_steps", rows))
    assert f"up to its {reached} (sum" in readings.sentences(stats, framed("flag_effect", []))[0]


def test_what_the_driver_refuses_is_said() -> None:
    with pytest.raises(ProbeUnavailable, match="no CUDA context can be made here: init: cuInit returned 100"):
        probe_context(start=FakeLaunch(refusal="cuInit returned 100"))


@pytest.fixture
def no_driver() -> None:
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return
    pytest.skip("there is a CUDA driver here")


def test_a_fresh_process_without_a_driver_says_so(no_driver: None) -> None:
    told = launch("timing", 0, "", "")
    assert [row["step"] for row in told["steps"]] == ["load_driver"]
    assert DRIVER in told["steps"][0]["refusal"]
    with pytest.raises(ProbeUnavailable, match=NVML):
        launch("memory", 0, "0000:01:00.0", "")


def test_the_kernel_of_the_probe_compiles(tmp_path: Path) -> None:
    compiler = shutil.which("ptxas", path=os.environ.get("CUDA_HOME", "") + "/bin" + os.pathsep + os.environ["PATH"])
    if compiler is None:
        pytest.skip("there is no ptxas here")
    (tmp_path / "touch.ptx").write_bytes(PTX)
    assert os.spawnl(os.P_WAIT, compiler, "ptxas", "-arch=sm_90", str(tmp_path / "touch.ptx"), "-o", "/dev/null") == 0


@pytest.mark.gpu
def test_a_real_context_costs_time_and_memory() -> None:
    try:
        result = probe_context(processes=2, pairs=1)
    except ProbeUnavailable as error:
        pytest.skip(str(error))
    seconds = dict(result.frames["context_step_stats"].select("step", "p50_s").iter_rows())
    assert seconds["context"] > 1e-3
    assert seconds["second_kernel"] < seconds["module_load"] + seconds["first_kernel"]
