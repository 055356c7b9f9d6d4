"""The simulated fleet: its files are written again byte for byte, and loaders get back what was simulated."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import polars as pl
import pytest

from infer_diag import samples
from infer_diag.attribution.cold_start import start_phases
from infer_diag.attribution.cost.ledger import observed
from infer_diag.errors import UnknownNameError
from infer_diag.fleet import Facts
from infer_diag.loaders import load
from infer_diag.recording import Recording
from infer_diag.simulators.fleet import PLANS, deployment_files, generate, plan_named, planted_run, run, truth
from infer_diag.simulators.fleet.files import inventory
from infer_diag.simulators.fleet.run import Run
from infer_diag.simulators.fleet.starts import first_life, next_life
from infer_diag.simulators.fleet.traffic import traffic

SHIPPED = Path(samples.path("fleet"))
TRUTH = json.loads((SHIPPED / "truth.json").read_bytes())
ENGINES = {
    "vllm": "vllm",
    "vllm-v0": "vllm",
    "sglang": "sglang",
    "tgi": "tgi",
    "tensorrt-llm": "tensorrt-llm",
    "llama.cpp": "llama.cpp",
    "pipeline": "pytorch",
}
QUICK = ("desk-llama", "batch-hf")
SHORT_H = 0.4
ONE_OF_EACH = ("agent-tools", "helpdesk", "assist-fr", "writer", "extract", "desk-llama", "batch-hf")


@cache
def short(name: str) -> Run:
    """A deployment over some minutes, with its causes."""
    return run(replace(plan_named(name).planted(), span_h=SHORT_H, pod_life_s=600.0 if name == "agent-tools" else None))


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recording]:
    """One short deployment of each engine, written and read again."""
    found = {}
    for name in ONE_OF_EACH:
        folder = tmp_path_factory.mktemp(name)
        for file, data in deployment_files(short(name)).items():
            (folder / file).write_bytes(data)
        found[name] = load(str(folder))
    return found


@pytest.mark.parametrize("name", QUICK)
def test_a_deployment_is_written_again_byte_for_byte(tmp_path: Path, name: str) -> None:
    generate(tmp_path, [name])
    made = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (tmp_path / name).iterdir()}
    shipped = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (SHIPPED / name).iterdir()}
    assert made == shipped, "run: make fleet"


def test_every_deployment_is_shipped_with_its_truth() -> None:
    assert len(PLANS) == 27
    assert sorted(TRUTH) == sorted(PLANS) == sorted(each.name for each in SHIPPED.iterdir() if each.is_dir())
    for name, told in TRUTH.items():
        assert set(told["causes"]) == set(plan_named(name).causes)
        parts = sum(each["log_ratio"] for each in told["causes"].values())
        assert parts == pytest.approx(told["log_ratio_to_no_cause"], abs=2e-6 * max(len(told["causes"]), 1))


def test_the_fleet_stays_small() -> None:
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) < 6 << 20


def test_no_log_names_a_cause() -> None:
    words = {b"cold_start", b"fragmentation_cause", b"planted", b"truth"}
    for file in SHIPPED.rglob("*"):
        if file.is_file() and file.parent != SHIPPED:
            data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            assert not [word for word in words if word in data], file


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_file_is_read_as_what_it_is(read: dict[str, Recording], name: str) -> None:
    plan, recording = plan_named(name), read[name]
    formats = {Path(source.path).name.removesuffix(".gz"): source for source in recording.sources}
    written = {file.removesuffix(".gz") for file in deployment_files(short(name))} - {"meta.json"}
    assert set(formats) == written
    if "server.log" in formats:
        assert formats["server.log"].engine == ENGINES[plan.engine]
        assert formats["server.log"].format == ENGINES[plan.engine]
    if "events.json" in formats:
        assert formats["events.json"].format == "kubernetes"
    assert recording.rejected.is_empty()


@pytest.mark.parametrize("name", ["agent-tools", "helpdesk", "assist-fr", "writer", "desk-llama"])
def test_starts_and_configuration_come_back(read: dict[str, Recording], name: str) -> None:
    recording, whole = read[name], short(name)
    engines = recording.starts.filter(pl.col("ready_time").is_not_null())
    assert len(engines) == len(whole.parts)
    if name not in ("helpdesk", "desk-llama"):  # the one prints blocks, the other the cells of all slots
        assert whole.plan.kv_tokens in recording.deployments["kv_cache_tokens"].to_list()
    if name != "helpdesk":  # its engine prints no time of the load
        loads = start_phases(recording).filter(pl.col("phase").cast(pl.String).is_in(["weights_load", "weights_read"]))
        longest = max(part.life.read_s for part in whole.parts)
        assert max(loads["duration_s"].drop_nulls()) == pytest.approx(longest, abs=3.0)


def test_pods_that_are_replaced_hold_their_gpus_from_acquired_to_released(read: dict[str, Recording]) -> None:
    whole, ledger = short("agent-tools"), ledger_of(read["agent-tools"], "agent-tools")
    assert len(whole.parts) == 2
    assert ledger["starts"].value == len(whole.parts)
    assert ledger["held"].value == pytest.approx(whole.held_gpu_s, rel=0.02)
    assert ledger["cold"].value == pytest.approx(whole.cold_gpu_s, rel=0.02)


@pytest.mark.parametrize("name", ["writer", "desk-llama", "extract", "batch-hf"])
def test_requests_and_tokens_come_back_one_by_one(read: dict[str, Recording], name: str) -> None:
    whole, ledger = short(name), ledger_of(read[name], name)
    assert ledger["delivered_output"].status == "measured"
    assert ledger["delivered_output"].value == whole.output_tokens
    done = sum(int(part.requests["done"].sum()) for part in whole.parts)
    told = max(read[name].requests.height, read[name].request_timings.height)
    assert told == done


@pytest.mark.parametrize("name", ["helpdesk", "agent-tools"])
def test_statistics_and_counters_tell_the_tokens_that_were_computed(read: dict[str, Recording], name: str) -> None:
    whole, ledger = short(name), ledger_of(read[name], name)
    computed = sum(int(part.steps["output_tokens"].sum()) for part in whole.parts)
    assert ledger["computed_decode"].value == pytest.approx(computed, rel=0.05)
    assert ledger["delivered_output"].value == pytest.approx(whole.output_tokens, rel=0.1)


def test_batches_of_sglang_tell_the_tokens_that_were_computed(read: dict[str, Recording]) -> None:
    whole, ledger = short("assist-fr"), ledger_of(read["assist-fr"], "assist-fr")
    steps = whole.parts[0].steps
    assert ledger["computed_decode"].value == pytest.approx(int(steps["output_tokens"].sum()), rel=0.05)
    assert ledger["computed_prefill"].value == pytest.approx(int(steps["prefill_tokens"].sum()), rel=0.01)
    assert ledger["idle"].value == pytest.approx(whole.idle_gpu_s, abs=60.0)


def ledger_of(recording: Recording, name: str) -> dict:  # type: ignore[type-arg]
    """The ledger of a recording with what the inventory says of the deployment."""
    plan = plan_named(name)
    return observed(recording, Facts(plan.model, plan.gpu, plan.gpu_count, plan.precision, 1.0)).ledger


def test_a_cause_that_is_switched_off_leaves_the_traffics_lengths_alone() -> None:
    plan = plan_named("forms")
    sick, well = traffic(plan.planted()), traffic(plan.planted(["mix"]))
    count = min(len(sick), len(well))
    assert count == len(sick)
    assert (sick.output_tokens == well.output_tokens[:count]).all()
    assert (sick.prompt_tokens == well.prompt_tokens[:count]).all()
    assert sick.request_ids == well.request_ids[:count]


def test_pods_follow_each_other_without_overlap() -> None:
    plan = plan_named("agent-tools").planted()
    life = first_life(plan)
    while (after := next_life(plan, life, life.pod + 1)) is not None:
        assert life.acquired_s < life.begun_s < life.ready_s < life.closes_s < life.ended_s <= after.acquired_s
        life = after
    assert life.ended_s == plan.span_s


def test_an_allocators_flag_decides_whether_allocations_fail() -> None:
    plan = plan_named("phi-sessions")
    sick, well = run(plan.planted()), run(plan.planted(["batching"]))
    assert [part.life.ends for part in sick.parts].count("oom") >= 1
    assert [part.life.ends for part in well.parts] == ["open"]
    assert sick.parts[0].wear is not None
    counts = sick.parts[0].wear.counters
    # What failed would have fitted into what was held and not handed out.
    assert counts.cached_bytes > sick.parts[0].wear.wanted_bytes


def test_the_snapshot_is_that_of_the_failed_allocation() -> None:
    recording = load(str(SHIPPED / "phi-sessions"))
    assert recording.ooms.height == TRUTH["phi-sessions"]["ledger"]["starts_after_oom"] + 1
    assert (
        recording.blocks["size_bytes"].sum()
        == recording.blocks.group_by("segment_id").agg(pl.col("segment_bytes").first())["segment_bytes"].sum()
    )


def test_truth_is_made_of_runs() -> None:
    plan = replace(plan_named("kb-chat"), span_h=SHORT_H)
    whole = planted_run(plan)
    told = truth(plan, whole)
    without = run(plan.planted(["cold_start"]))
    saved = told["causes"]["batching"]["fixing_alone_saves"]
    assert saved == pytest.approx(1 - math.exp(without.log_cost - whole.log_cost), abs=1e-6)
    held = whole.plan.price_per_gpu_h * whole.held_gpu_s / 3600
    assert told["ledger"]["dollars_per_million_output_tokens"] == pytest.approx(
        held / whole.output_tokens * 1e6, abs=1e-6
    )


def test_an_inventory_leaves_out_what_the_team_does_not_know() -> None:
    table = pl.read_csv(inventory([short("helpdesk"), short("assist-fr")]))
    assert table["held_gpu_h"].to_list() == [pytest.approx(SHORT_H, abs=0.01), None]


def test_an_unknown_deployment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="chat-eu"):
        generate(tmp_path, ["chat-ue"])
