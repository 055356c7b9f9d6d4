"""The storage probe, measured on the machine that runs the tests, and its reading of sysfs and model folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag.errors import ProbeUnavailable, SourceError
from infer_diag.probes.result import framed, read_result
from infer_diag.probes.weights import advice, page_cache, reads
from infer_diag.probes.weights.block_device import BlockDevice, device_of, read_settings
from infer_diag.probes.weights.cache_steps import DONTNEED, ONE_WILLNEED, WILLNEED_STEPS
from infer_diag.probes.weights.model_files import resolve
from infer_diag.probes.weights.probe import probe_weights, rates_of

MIB = 1 << 20
linux = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the page cache can be probed on Linux alone")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose files have a block device with known read-ahead under them."""
    made = tmp_path_factory.mktemp("probe")
    device = device_of(made)
    if device.read_ahead_limit_bytes is None or device.name is None:
        pytest.skip("the file system of the temporary folder has no block device, so its cache does not obey fadvise")
    return made


@linux
def test_the_calls_do_to_the_page_cache_what_the_probe_says(folder: Path) -> None:
    limit = device_of(folder).read_ahead_limit_bytes
    assert limit is not None
    size = max(2 * limit, 16 * MIB)
    result = probe_weights(folder, size_bytes=size, repeats=1)
    steps = result.frames["cache_steps"].filter(pl.col("sequence") == "stepwise")
    seen = list(zip(steps["call"], steps["resident_bytes"], strict=True))
    assert seen[0] == ("read", size)
    assert seen[1] == (DONTNEED, 0)
    assert seen[2][0] == ONE_WILLNEED
    assert 0 < seen[2][1] <= limit
    assert seen[3] == (DONTNEED, 0)
    assert seen[4] == (WILLNEED_STEPS, size)
    article = result.frames["cache_steps"].filter(pl.col("sequence") == "article")
    assert article["resident_bytes"].to_list()[-1] <= limit
    assert "DONTNEED leaves 0.0%" in result.sentences[0]
    assert not list(folder.iterdir())


@linux
def test_the_scratch_file_takes_no_file_of_the_user(tmp_path: Path) -> None:
    mine = tmp_path / "scratch.bin"
    mine.write_bytes(b"mine")
    probe_weights(tmp_path, size_bytes=MIB, repeats=1)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"scratch.bin": b"mine"}


@linux
def test_a_model_whose_weights_are_empty_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(SourceError, match="is empty"):
        probe_weights(tmp_path, model=tmp_path, repeats=1)


@linux
def test_every_way_of_reading_is_measured_cold_and_warm(folder: Path) -> None:
    result = probe_weights(folder, size_bytes=9 * MIB + 5, repeats=2)
    runs = result.frames["read_runs"]
    assert set(zip(runs["method"], runs["cache"], strict=True)) == {
        (method, cache) for method in reads.METHODS for cache in ("cold", "warm")
    }
    assert runs.filter(pl.col("duration_s").is_null() & pl.col("refusal").is_null()).is_empty()
    assert runs.filter(pl.col("cache") == "warm")["resident_before_ratio"].min() == 1
    assert result.basis == "measured"
    path = result.write(folder)
    again = read_result(path)
    assert all(again.frames[name].equals(frame) for name, frame in result.frames.items())
    assert again.sentences == result.sentences


@linux
@pytest.mark.parametrize("size", [1, 4095, 4097, reads.BLOCK_BYTES, 3 * reads.BLOCK_BYTES + 12345])
@pytest.mark.parametrize("method", list(reads.METHODS))
def test_a_reading_reads_the_whole_file(
    tmp_path: Path, method: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    taken: list[int] = []
    real = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        count = real(descriptor, buffers, offset)
        taken.append(count)
        return count

    monkeypatch.setattr(os, "preadv", counted)
    try:
        assert reads.timed(method, path, 4096) > 0
    except OSError:
        pytest.skip(f"this file system has no {method}")
    if method != "mmap":
        assert sum(taken) == size


@linux
def test_a_user_who_may_not_be_told_gets_no_guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8192)
    assert page_cache.residency(path).resident_bytes == 8192
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert page_cache.residency(path).resident_bytes is None
    assert page_cache.residency(path).ratio is None


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    with pytest.raises(ProbeUnavailable, match="Linux alone"):
        probe_weights(tmp_path)


@linux
def test_a_full_disk_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ProbeUnavailable, match="too little room"):
        probe_weights(tmp_path, size_bytes=1 << 60)
    assert not list(tmp_path.iterdir())


def sysfs_device(root: Path, **settings: str) -> Path:
    queue = root / "queue"
    (queue / "iosched").mkdir(parents=True)
    for name, value in settings.items():
        (queue / name.replace("iosched_", "iosched/")).write_text(value + "\n")
    return root


def test_sysfs_is_read_in_base_units(tmp_path: Path) -> None:
    device = read_settings(
        sysfs_device(
            tmp_path / "sda",
            scheduler="none [mq-deadline] kyber",
            rotational="1",
            read_ahead_kb="128",
            max_sectors_kb="1280",
            nr_requests="64",
            iosched_read_expire="500",
        )
    )
    assert device == BlockDevice(
        name="sda",
        scheduler="mq-deadline",
        schedulers=("none", "mq-deadline", "kyber"),
        is_rotational=True,
        read_ahead_bytes=128 << 10,
        largest_request_bytes=1280 << 10,
        queue_depth_count=64,
        read_expire_s=0.5,
    )
    assert device.read_ahead_limit_bytes == 1280 << 10
    rows = {row["setting"]: row for row in advice.settings_rows(device)}
    assert "changes nothing" in rows["read_expire"]["reading"]
    assert "mq-deadline is its successor" in rows["scheduler"]["reading"]
    assert "at most 1.25 MiB" in rows["read_ahead"]["reading"]


def test_a_device_without_settings_leaves_them_unknown(tmp_path: Path) -> None:
    (tmp_path / "nvme0n1").mkdir()
    device = read_settings(tmp_path / "nvme0n1")
    assert device == BlockDevice(name="nvme0n1")
    assert device.read_ahead_limit_bytes is None
    assert framed("block_settings", advice.settings_rows(device))["value"].to_list() == [None] * 5


def test_a_changed_expiry_is_seen(tmp_path: Path) -> None:
    device = read_settings(sysfs_device(tmp_path / "sda", scheduler="[mq-deadline]", iosched_read_expire="100"))
    rows = {row["setting"]: row for row in advice.settings_rows(device)}
    assert "set it to 100 ms" in rows["read_expire"]["reading"]


def test_runs_that_were_not_cold_do_not_count_as_cold() -> None:
    rows = [
        {
            "repeat_id": place,
            "method": "read",
            "cache": "cold",
            "size_bytes": 100,
            "resident_before_ratio": before,
            "duration_s": 1.0,
            "bytes_per_s": rate,
            "refusal": None,
        }
        for place, (before, rate) in enumerate([(0.0, 100.0), (0.5, 900.0), (None, 900.0), (0.0, 200.0)])
    ]
    rates = rates_of(framed("read_runs", rows)).row(0, named=True)
    assert (rates["run_count"], rates["p50_bytes_per_s"], rates["is_wide"]) == (2, 150.0, None)


def test_a_file_that_does_not_fit_into_the_cache_has_no_warm_rate() -> None:
    rows = [
        {
            "repeat_id": number,
            "method": "read",
            "cache": "warm",
            "size_bytes": 10,
            "resident_before_ratio": held,
            "duration_s": 1.0,
            "bytes_per_s": 10.0 * number,
        }
        for number, held in enumerate((1.0, 0.5, None), 1)
    ]
    assert rates_of(framed("read_runs", rows)).select("run_count", "p50_bytes_per_s").rows() == [(1, 10.0)]
    assert rates_of(framed("read_runs", rows[1:])).is_empty()


@linux
def test_the_floor_of_a_model_without_all_of_its_shards_says_so(folder: Path) -> None:
    model = folder / "model"
    model.mkdir()
    names = ("model-1.safetensors", "model-2.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(enumerate(names))}))
    (model / names[0]).write_bytes(os.urandom(MIB))
    floors = probe_weights(folder, model=model, repeats=1).frames["load_floors"]
    assert floors["model"][0] == "this model without 1 absent shard"
    assert floors["size_bytes"][0] == MIB


@given(rate=st.floats(1e6, 1e12), size=st.integers(1, 1 << 40))
@settings(max_examples=30, deadline=None)
def test_the_floor_is_bytes_over_rate(rate: float, size: int) -> None:
    rates = framed(
        "read_rates", [{"method": "read", "cache": "cold", "run_count": 1, "p50_bytes_per_s": rate, "is_wide": None}]
    )
    rows = advice.floor_rows(size, rates, "mine")
    assert rows[0]["floor_s"] == pytest.approx(size / rate)
    assert [row["model"] for row in rows[1:]] == list(advice.ARTICLE_MODELS)
    assert advice.floor_rows(size, rates.filter(pl.col("cache") == "warm"), "mine") == []


def test_shards_come_from_the_index_and_missing_ones_are_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes(b"x" * 7)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 99)
    found = resolve(tmp_path)
    assert [file.name for file in found.files] == ["model-1.safetensors"]
    assert (found.missing, found.size_bytes) == (("model-2.safetensors",), 7)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 3)
    assert [file.name for file in resolve(tmp_path).files] == ["model.safetensors"]


def test_bins_come_after_safetensors_and_their_index_after_them(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "pytorch_model-1.bin"}}')
    (tmp_path / "pytorch_model-1.bin").write_bytes(b"x")
    assert resolve(tmp_path).layout == "pytorch_model.bin.index.json"
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert resolve(tmp_path).layout == "pytorch_model.bin"
    assert resolve(tmp_path / "pytorch_model.bin").layout == "file"


def test_a_hub_cache_leads_to_the_snapshot_of_main(tmp_path: Path) -> None:
    for name in ("aaa", "bbb"):
        (tmp_path / "snapshots" / name).mkdir(parents=True)
        (tmp_path / "snapshots" / name / "model.safetensors").write_bytes(b"x")
    with pytest.raises(SourceError, match="2 snapshots and no main one"):
        resolve(tmp_path)
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "main").write_text("bbb")
    assert resolve(tmp_path).files[0].parent.name == "bbb"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"weight_map": {"a": "../../etc/passwd"}}', "outside its folder"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "outside its folder"),
        ('{"weight_map": ["a"]}', "no index of shards"),
        ("[" * 100_000, "no index of shards"),
        ("{}", "no index of shards"),
        ('{"weight_map": {"a": "absent.safetensors"}}', "none of the 1 shards"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(SourceError, match=told):
        resolve(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no weights"):
        resolve(tmp_path)
    with pytest.raises(SourceError, match="there is no model folder"):
        resolve(tmp_path / "absent")
