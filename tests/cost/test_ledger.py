"""The ledger of one deployment from its own logs: what is known, bounded and refused, and the log that would tell."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from deployment_logs import engine_log, folder, pod_events
from hypothesis import given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.attribution.cost.analysis import costs
from infer_diag.attribution.cost.ledger import Observed, observed
from infer_diag.attribution.cost.spread import merged, microseconds, spread, uncovered, width_us
from infer_diag.fleet import Facts
from infer_diag.recording import Recording

FACTS = Facts("Llama-2-13B", gpu="A100-SXM-80GB", gpu_count=2, precision="float16", price_per_gpu_h=2.0)


def loaded(path: Path) -> Recording:
    return diag.load(path, year=2026, tz="UTC")


def amounts(seen: Observed) -> dict[str, float | None]:
    return {name: entry.value for name, entry in seen.ledger.items()}


def test_an_engine_log_alone_bounds_what_it_cannot_know(tmp_path: Path) -> None:
    seen = observed(loaded(folder(tmp_path, "a")), FACTS)
    told = amounts(seen)
    assert told["held"] == 2 * 1250.0
    assert told["cold"] == 2 * 60.0
    assert told["starts"] == 1
    assert told["idle"] == pytest.approx(2 * 90.0)
    assert told["stall"] is told["undelivered_output"] is told["padded"] is None
    assert seen.ledger["held"].status == seen.ledger["cold"].status == "bounded"
    assert seen.ledger["held"].lower == 2500.0
    assert "pod events" in str(seen.ledger["held"].missing)
    assert "iteration" in str(seen.ledger["step"].missing)
    assert seen.ledger["cold"].evidence == (f"{tmp_path}/a/server.log:1",)
    assert seen.group == "Llama-2-13B · A100-SXM-80GB · 2 GPU · float16"


def test_pod_events_make_the_time_held_a_measurement(tmp_path: Path) -> None:
    made = folder(tmp_path, "a")
    (made / "events.json").write_text(pod_events(scheduled_s=-90), encoding="utf-8")
    seen = observed(loaded(made), FACTS)
    assert amounts(seen)["held"] == 2 * 1340.0
    assert amounts(seen)["cold"] == 2 * 150.0
    assert seen.ledger["held"].status == seen.ledger["cold"].status == "measured"


def test_the_identity_closes_and_windows_sum_to_the_ledger(tmp_path: Path) -> None:
    seen = observed(loaded(folder(tmp_path, "a", waiting=3, usage=97)), FACTS)
    told, sums = amounts(seen), seen.windows.sum().row(0, named=True)
    assert sums["held_gpu_s"] == pytest.approx(told["held"], rel=1e-12)
    assert sums["cold_gpu_s"] == pytest.approx(told["cold"], rel=1e-12)
    assert told["ready_and_busy"] == pytest.approx(told["held"] - told["cold"] - told["idle"], rel=1e-12)  # type: ignore[operator]
    assert seen.windows["bound_ratio"].max() == 1.0
    analysed = costs({"a": seen}, "a")
    chain = analysed.chain["deployment_ratio"].product()
    assert chain == pytest.approx(2.0 * 1e6 / 3600 * told["held"] / told["delivered_output"], rel=1e-9)  # type: ignore[operator]


def test_a_bill_replaces_the_logged_hours(tmp_path: Path) -> None:
    billed = Facts(gpu_count=2, held_gpu_h=1.0, evidence="deployments.csv:2").over(FACTS)
    seen = observed(loaded(folder(tmp_path, "a")), billed)
    assert amounts(seen)["held"] == pytest.approx(3600.0)
    assert seen.ledger["held"].status == "measured"
    assert seen.ledger["held"].evidence == ("deployments.csv:2",)


def test_an_unknown_number_of_gpus_is_a_lower_bound(tmp_path: Path) -> None:
    stated = observed(loaded(folder(tmp_path, "stated"))).ledger["gpus_per_replica"]
    assert (stated.value, stated.status) == (2.0, "measured")
    made = folder(tmp_path, "a")
    lines = [line for line in (made / "server.log").read_text().split("\n") if "parallel" not in line]
    (made / "server.log").write_text("\n".join(lines))
    seen = observed(loaded(made))
    assert seen.ledger["gpus_per_replica"].status == "bounded"
    assert seen.ledger["price"].status == "not_identifiable"
    assert any("lower bound" in note for note in seen.notes)
    row = costs({"a": seen}, "a").deployments.row(0, named=True)
    assert row["dollars_per_million_tokens"] is None
    assert row["gpu_s_per_million_tokens"] > 0
    assert row["status"] == "bounded"


def test_another_start_after_a_failed_allocation_is_told_apart(tmp_path: Path) -> None:
    made = folder(tmp_path, "a", minutes=6)
    text = (made / "server.log").read_text()
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    oom += "79.15 GiB of which 1.05 GiB is free."
    again = engine_log(6).replace("03-01 08:0", "03-01 08:1")
    (made / "server.log").write_text(f"{text}ERROR 03-01 08:07:30 [core.py:700] {oom}\n{again}", encoding="utf-8")
    told = amounts(observed(loaded(made), FACTS))
    assert told["starts"] == 2
    assert told["starts_after_oom"] == 1
    # The GPU stays with the pod while the engine is down, so that time belongs to the second start.
    assert told["cold"] > told["cold_after_oom"] > 2 * 60.0  # type: ignore[operator]


def test_logs_without_engine_or_clock_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"id": "a", "prompt_tokens": 5, "output_tokens": 7}\n' * 3, encoding="utf-8")
    recording = diag.load(
        path, format="table", columns={"prompt_tokens": "prompt_tokens", "output_tokens": "output_tokens"}
    )
    seen = observed(recording, FACTS)
    assert seen.windows.is_empty()
    assert seen.ledger["held"].status == "not_identifiable"
    assert "billed" in str(seen.ledger["held"].missing)
    assert "no engine" in costs({"a": seen}, "roofline").refused["a"]


def test_a_longer_start_is_never_a_smaller_cold_share(tmp_path: Path) -> None:
    cold = [amounts(observed(loaded(folder(tmp_path, f"s{s}", ready_s=s)), FACTS))["cold"] for s in (60, 100, 160)]
    assert cold == sorted(cold)  # type: ignore[type-var]


moments = st.integers(0, 5_000_000)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(moments, moments), max_size=12), st.integers(1, 900_000))
def test_cutting_intervals_loses_nothing(pairs: list[tuple[int, int]], width: int) -> None:
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    frame = pl.DataFrame(
        {"begin": [min(pair) for pair in pairs], "end": [max(pair) for pair in pairs]},
        schema={"begin": pl.Int64, "end": pl.Int64},
    ).cast(pl.Datetime("us", "UTC"))
    zero = pl.Series([0]).cast(pl.Datetime("us", "UTC"))[0]
    cut = spread(frame, zero, width)
    whole = sum(high - low for low, high in (sorted(pair) for pair in pairs))
    assert cut["seconds"].sum() == pytest.approx(whole / 1e6, abs=1e-9)
    assert cut["seconds"].max() is None or cut["seconds"].max() <= width / 1e6 + 1e-12  # type: ignore[operator]
    joined = merged(frame)
    day = pl.DataFrame({"begin": [0], "end": [5_000_000]}).cast(pl.Datetime("us", "UTC"))
    free = uncovered(day, frame)
    lengths = [int((part["end"] - part["begin"]).dt.total_microseconds().sum()) for part in (joined, free)]
    assert sum(lengths) == 5_000_000
    assert spread(pl.concat([joined, free]), zero, width)["seconds"].sum() == pytest.approx(5.0, abs=1e-9)


def test_windows_are_as_few_as_the_samples_ask() -> None:
    assert width_us(1000.0, 1.0) == 5_000_000
    assert width_us(86_400.0, 15.0) == 300_000_000
    assert width_us(400 * 86_400.0 * 2, None) == 172_800_000_000
    assert microseconds(pl.Series([1]).cast(pl.Datetime("us", "UTC"))[0]) == 1


def test_a_batch_read_off_gauges_says_how_far_its_steps_are_off(tmp_path: Path) -> None:
    made = folder(tmp_path, "one", minutes=30)
    exact = observed(diag.load(made, year=2026)).windows
    assert exact["step_variance_count"].sum() < 1e-3 * exact["step_count"].sum()
    log = (made / "server.log").read_text(encoding="utf-8")
    (made / "server.log").write_text(re.sub(r"Running: 18 reqs", "Running: 12 reqs", log), encoding="utf-8")
    blurred = observed(diag.load(made, year=2026)).windows
    assert blurred["step_variance_count"].sum() > 5 * blurred["step_count"].sum()
