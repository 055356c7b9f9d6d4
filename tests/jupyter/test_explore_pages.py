"""The cost page of the explorer, its device samples and its KV pool: what they say, refuse and follow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from infer_diag.diagnose import Diagnosis, diagnose
from infer_diag.fleet import Facts
from infer_diag.jupyter.explore import explore
from infer_diag.jupyter.explore.cost_model import CostModel
from infer_diag.jupyter.explore.device_model import COLS, DeviceModel, KvModel
from infer_diag.jupyter.explore.facts import Fact
from infer_diag.jupyter.explore.model import ExploreModel
from infer_diag.jupyter.explore.serving_model import ServingModel
from infer_diag.loaders import load
from infer_diag.recording import Clock, Recording, Source, combine
from infer_diag.schema import GpuSamples, KvBlocks

SAMPLE = "sample:captured/kv_preempts"
BEGIN = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)


def framed(schema: Any, frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with every column that it lacks as null."""
    missing = [name for name in schema.column_names() if name not in frame.columns]
    return schema.validate(frame.with_columns(pl.lit(None).alias(name) for name in missing), cast=True)


def devices(count: int = 100, begin: datetime = BEGIN) -> Recording:
    """Two GPUs, a sample each second: the first one fills, the second one stays as it is."""
    rows = pl.DataFrame({"second": np.repeat(np.arange(count), 2), "gpu": ["0", "1"] * count}).with_columns(
        pl.lit(0).alias("source_id"),
        (pl.int_range(pl.len()) + 2).alias("line"),
        (pl.lit(begin) + pl.duration(seconds="second")).alias("time"),
        pl.when(pl.col("gpu") == "0").then(pl.col("second") + 1).otherwise(7).alias("gib"),
    )
    frame = rows.select(
        "source_id", "line", "time", "gpu", pl.lit(None, pl.String).alias("instance"),
        (pl.col("gib") * (1 << 30)).alias("used_bytes"), (pl.col("gib") * 3.0).alias("power_w"),
    )  # fmt: skip
    made = Source("gpu.csv", "nvidia-smi", "gpu", first_time=begin, clocks=(Clock("inner", "x"),))
    return Recording(sources=(made,), gpu_samples=framed(GpuSamples, frame))


def pool(blocks: int = 20_000) -> Recording:
    """A pool whose first half is active at first, and whose whole is at last."""
    ids = np.arange(blocks)
    states = [["active"] * (blocks // 2) + ["free"] * (blocks - blocks // 2), ["active"] * blocks]
    frame = pl.DataFrame(
        {
            "time": [BEGIN] * blocks + [BEGIN + timedelta(seconds=60)] * blocks,
            "block_id": np.concatenate([ids, ids]),
            "state": states[0] + states[1],
        }
    ).with_columns(
        source_id=pl.lit(0),
        line=pl.int_range(pl.len()) + 1,
        filled_tokens=pl.when(pl.col("state") == "active").then(12),
    )
    made = Source("kv.parquet", "kv", "vllm", first_time=BEGIN, clocks=(Clock("inner", "x"),))
    return Recording(sources=(made,), kv_blocks=framed(KvBlocks, frame))


@pytest.fixture(scope="module")
def told() -> Diagnosis:
    """The diagnosis of a sample whose prices are given."""
    return diagnose(load(SAMPLE), facts=Facts(price_per_gpu_h=3.6))


@pytest.fixture
def cost(told: Diagnosis) -> CostModel:
    """Its cost."""
    return CostModel(told, ServingModel(told.recording).origin)


def text_of(facts: list[Fact], begin: str) -> str:
    """The one fact that begins so."""
    (found,) = [each.text for each in facts if each.text.startswith(begin)]
    return found


def test_every_entry_of_the_ledger_is_told_or_refused(told: Diagnosis, cost: CostModel) -> None:
    facts = {each.key: each for each in cost.facts()}
    assert list(facts) != sorted(facts, key=str) and set(facts) == set(told.cost.ledger)
    for name, entry in told.cost.ledger.items():
        if entry.value is None:
            assert "cannot tell" in facts[name].text and not any(each.isdigit() for each in facts[name].text)
            assert entry.missing is None or entry.missing in facts[name].note
        else:
            assert f"{entry.value:,.6g} {entry.unit} · {entry.status.replace('_', ' ')}" in facts[name].text
            assert facts[name].places == entry.evidence


def test_the_bars_are_the_time_held(told: Diagnosis, cost: CostModel) -> None:
    (boxes,) = cost.bars["panels"][0]["marks"]
    lengths = [end - begin for begin, end in zip(boxes["x0"], boxes["x1"], strict=True)]
    first = sum(length for length, row in zip(lengths, boxes["row"], strict=True) if row == 0)
    assert first == pytest.approx(told.cost.ledger["held"].value)
    busy = boxes["x0"][boxes["id"].index("ready_and_busy")]
    assert boxes["x0"][boxes["id"].index("step")] == pytest.approx(busy)
    assert cost.chosen(boxes["id"][0]).places and cost.chosen("no such entry") is None


def test_a_window_costs_what_its_windows_hold(told: Diagnosis, cost: CostModel) -> None:
    whole = cost.window_facts(None)
    assert text_of(whole, "held:") == f"held: {told.cost.ledger['held'].value:,.6g} GPU-s"
    model = ExploreModel(told)
    low, high = model.span
    parts = [cost.window_facts(each) for each in ((low - 900, high / 2), (high / 2 + 1e-9, high + 60))]
    held = [float(text_of(part, "held:").split()[1].replace(",", "")) for part in parts]
    assert sum(held) == pytest.approx(told.cost.ledger["held"].value)
    assert "$" in text_of(whole, "at least") and "per 1M output tokens" in text_of(whole, "at least")
    assert cost.window_facts((high + 900, high + 901))[0].text.startswith("no window of the cost lies in this time")


def test_what_no_log_tells_has_no_bar() -> None:
    empty = diagnose(Recording())
    silent = CostModel(empty, None)
    assert silent.bars is None and silent.timeline is None
    refused = [name for name, entry in empty.cost.ledger.items() if entry.value is None]
    assert {"held", "cold", "idle", "delivered_output", "price"} <= set(refused)
    assert [each.key for each in silent.facts() if "cannot tell" in each.text] == refused
    assert silent.window_facts(None)[0].text.startswith("no window of the cost")


def test_a_window_is_followed_by_every_page(told: Diagnosis) -> None:
    begin = told.recording.first_time
    explorer = explore(diagnose(combine([told.recording, devices(begin=begin), pool()])))
    assert explorer.model.pages == ["overview", "cold start", "batching", "memory", "cost"]
    for page in explorer.model.pages:
        explorer._names.value = page
        assert "cannot be shown" not in str(explorer._body.children)
    kinds = [type(page).__name__ for pages in explorer._following.values() for page in pages]
    assert kinds == ["ServingPage", "DevicePage", "KvPage", "CostPage"]
    serving, device, _, cost = (page for pages in explorer._following.values() for page in pages)
    low, high = explorer.model.span
    cost._timeline._receive(None, {"brush": [low + 10, low + 40]}, [])
    assert explorer.model.window == (low + 10, low + 40)
    explorer._names.value = "batching"
    assert tuple(serving._range.value) == (low + 10, low + 40)
    explorer._names.value = "memory"
    assert device._plot._scene["brush"] == [low + 10, low + 40]
    assert text_of(device._facts._facts, "GPU 0, used").startswith("GPU 0, used on the device: mean")
    device._plot._receive(None, {"brush": None}, [])
    assert explorer.model.window is None
    explorer._names.value = "cost"
    assert cost._timeline._scene["brush"] is None
    explorer._names.value = "batching"
    assert tuple(serving._range.value) == (low, high)


def test_samples_of_devices_tell_with_their_lines() -> None:
    recording = devices()
    model = DeviceModel(recording, ServingModel(recording))
    facts = model.facts((10.0, 19.0))
    assert text_of(facts, "GPU 0, used") == "GPU 0, used on the device: mean 15.5 GiB, from 11 GiB to 20 GiB"
    assert text_of(facts, "GPU 1, power") == "GPU 1, power: mean 21 W, from 21 W to 21 W"
    assert next(each.places for each in facts if each.text.startswith("GPU 0")) == ("gpu.csv:40", "gpu.csv:22")
    assert not [each for each in facts if "SMs" in each.text]
    (panel,) = model.timeline()["panels"]
    assert [mark["n"] for mark in panel["marks"]] == ["GPU 0", "GPU 1"]
    assert max(panel["marks"][0]["y"]) == pytest.approx(100 * (1 << 30), rel=1e-6)
    assert model.facts((500.0, 600.0))[0].text == "no sample of a GPU lies in this time"


def test_the_pool_is_that_of_the_moment() -> None:
    recording = pool()
    model = KvModel(recording, ServingModel(recording))
    before, after = model.facts((0.0, 30.0)), model.facts(None)
    assert text_of(before, "active") == "active: 10,000 blocks of 20,000 (50 %), 120,000 tokens in them"
    assert text_of(after, "active").startswith("active: 20,000 blocks of 20,000")
    scene, cells = model.raster((0.0, 30.0))
    each = -(-20_000 // (COLS * scene["rows"]))
    codes = np.frombuffer(cells, np.uint8)
    assert set(codes[: 10_000 // each]) == {1} and set(codes[10_000 // each + 1 : 20_000 // each]) == {3}
    assert set(codes[-(-20_000 // each) :]) == {0}
    assert model.blocks(None, 0)[0].text == "block 0: active, 12 tokens"
    assert model.blocks(None, COLS * 40 - 1)[0].text == "no block recorded here"
