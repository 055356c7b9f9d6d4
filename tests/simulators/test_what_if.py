"""Other settings tried on a recording: how they are asked for, what comes back, what is refused, and the picture."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from infer_diag.attribution.what_if import RECORDED, RECORDING, what_if
from infer_diag.charts.what_if import what_if_bars
from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.loaders import load
from infer_diag.recording import Recording
from infer_diag.simulators.allocators import Allocator, AsyncSettings, CupySettings, TorchSettings
from infer_diag.simulators.allocators.parsing import KNOWN, alternatives

SNAPSHOTS = Path(__file__).parents[3] / "shared" / "corpus" / "snapshots"
MIB = 1 << 20


def pinned() -> Recording:
    """A live block pins a segment of 100 MiB, so that 80 MiB fail on a device of 160 MiB of which 130 are idle."""
    allocator = Allocator(limit_bytes=160 * MIB)
    whole = allocator.malloc(100 * MIB)
    assert whole is not None
    allocator.free(whole)
    allocator.malloc(30 * MIB)
    assert allocator.malloc(80 * MIB) is None
    return allocator.recording()


def test_each_setting_is_tried_by_itself_and_pytorchs_together() -> None:
    told = alternatives("expandable_segments,max_split_size_mb=128,allocator=cupy", TorchSettings())
    assert told.settings == (
        ("expandable_segments", TorchSettings(expandable_segments=True)),
        ("max_split_size_mb=128", TorchSettings(max_split_size_bytes=128 * MIB)),
        (
            "expandable_segments + max_split_size_mb=128",
            TorchSettings(expandable_segments=True, max_split_size_bytes=128 * MIB),
        ),
        ("cupy", CupySettings()),
    )
    assert told.limit_bytes is None


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("expandable_segments:True", TorchSettings(expandable_segments=True)),
        ("expandable_segments=False", TorchSettings()),
        ("roundup_power2_divisions=4", TorchSettings(roundup_power2_divisions=4)),
        (
            "roundup_power2_divisions:[256:1,512:2,>:8]",
            TorchSettings(roundup_power2_divisions=((256, 1), (512, 2), (None, 8))),
        ),
        ("memory_fraction=0.5", TorchSettings(memory_fraction=0.5)),
        (
            "garbage_collection_threshold=0.8, memory_fraction=0.9",
            TorchSettings(garbage_collection_threshold=0.8, memory_fraction=0.9),
        ),
        ("backend:cudaMallocAsync", AsyncSettings()),
        ("allocator=cuda_async,release_threshold=1GiB", AsyncSettings(1 << 30)),
        ("max_non_split_rounding_mb=64", TorchSettings(max_non_split_rounding_bytes=64 * MIB)),
    ],
)
def test_settings_are_read_as_pytorch_and_we_spell_them(text: str, settings: object) -> None:
    assert alternatives(text, TorchSettings()).settings[-1][1] == settings


def test_what_is_recorded_stays_where_nothing_else_is_asked_for() -> None:
    told = alternatives("max_split_size_mb=64", TorchSettings(expandable_segments=True))
    assert told.settings[0][1] == TorchSettings(expandable_segments=True, max_split_size_bytes=64 * MIB)
    assert alternatives("limit=24GiB,allocator=torch", CupySettings()).settings == (("torch", TorchSettings()),)


def test_the_drivers_pool_is_called_an_approximation() -> None:
    assert alternatives("allocator=cuda_async", TorchSettings()).settings[0][0] == "cuda_async (approximation)"


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="no setting named 'expandable'") as raised:
        alternatives("expandable,allocator=cupy", TorchSettings())
    assert all(name in str(raised.value) for name in KNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allocator=jemalloc", "no allocator named 'jemalloc'"),
        ("max_split_size_mb=large", "max_split_size_mb=large cannot be read"),
        ("garbage_collection_threshold=80", "cannot be read"),
        ("expandable_segments=maybe", "cannot be read"),
        ("roundup_power2_divisions=[256]", "cannot be read"),
        ("limit=24", "not a size with a unit"),
        ("limit", "limit needs a size"),
        ("arena_size=1GiB,allocator=cupy", "arena_size is a setting of rmm_arena"),
        (" , ", "nothing to try"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(DiagError, match=message):
        alternatives(text, TorchSettings())


def test_the_models_error_comes_first_and_a_failure_is_avoided() -> None:
    runs = what_if(pinned(), "expandable_segments,allocator=slab_classes")
    assert runs["settings"].to_list() == [RECORDING, RECORDED, "expandable_segments", "slab_classes"]
    assert runs["status"].to_list() == ["recorded", "simulated", "simulated", "simulated"]
    told, own, pages, _ = runs.to_dicts()
    assert told["failure_count"] == own["failure_count"] == 1
    assert own["placed_ratio"] == 1.0
    assert told["reserved_peak_bytes"] == own["reserved_peak_bytes"] == 100 * MIB
    assert (pages["failure_count"], pages["avoided_count"], pages["new_failure_count"]) == (0, 1, 0)
    assert runs["limit_bytes"].to_list() == [160 * MIB] * 4
    for row in runs.filter(pl.col("status") == "simulated").to_dicts():
        assert row["reserved_peak_bytes"] == row["allocated_at_reserved_peak_bytes"] + row["cached_at_peak_bytes"]


def test_a_limit_that_is_needed_and_unknown_costs_that_row_alone() -> None:
    allocator = Allocator()
    allocator.malloc(30 * MIB)
    recording = allocator.recording()
    refused = what_if(recording, "allocator=slab,expandable_segments").filter(pl.col("settings") == "slab")
    assert "say limit=24GiB" in refused["refusal"].item()
    assert refused["reserved_peak_bytes"].null_count() == 1
    served = what_if(recording, "allocator=slab,limit=1GiB").filter(pl.col("settings") == "slab")
    assert served["reserved_peak_bytes"].item() == 1 << 30


def test_rows_that_begin_anew_have_one_of_the_recorded_settings_to_compare_with() -> None:
    allocator = Allocator()
    allocator.malloc(30 * MIB)
    before = len(allocator.recording().allocator_events)
    allocator.malloc(5 * MIB)
    whole = allocator.recording()
    recording = whole.replace(allocator_events=whole.allocator_events.slice(before))
    runs = what_if(recording, "allocator=cupy,roundup_power2_divisions=4")
    assert runs.select("settings", "begin").rows() == [
        (RECORDING, None),
        (RECORDED, "reconstructed"),
        (RECORDED, "packed"),
        ("roundup_power2_divisions=4", "reconstructed"),
        ("cupy", "packed"),
    ]


def test_a_recording_that_the_model_does_not_reproduce_gets_no_figures() -> None:
    path = SNAPSHOTS / "mosaic__output.pickle"
    if not path.exists():
        pytest.skip("the real snapshots are not here")
    runs = what_if(load(str(path)), "max_split_size_mb=128,allocator=cupy")
    own, *others = runs.filter(pl.col("status") == "simulated").to_dicts()
    assert own["placed_ratio"] == 0
    assert all("does not reproduce the recording" in row["refusal"] for row in others)
    assert all(row["reserved_peak_bytes"] is None for row in others)


def test_a_recording_without_events_is_refused() -> None:
    with pytest.raises(DiagError, match="no allocator events to replay"):
        what_if(Recording(), "expandable_segments")


def test_the_picture_shows_what_the_frame_holds() -> None:
    runs = what_if(pinned(), "expandable_segments,allocator=rmm_arena,arena_size=1GiB")
    figure = what_if_bars(runs).to_dict()
    recorded, allocated, beyond = figure["data"]
    assert list(recorded["x"]) == [100 * MIB]
    own = runs.filter((pl.col("status") == "simulated") & pl.col("refusal").is_null())
    assert list(allocated["x"]) == own["allocated_at_reserved_peak_bytes"].to_list()
    assert list(beyond["x"]) == own["cached_at_peak_bytes"].to_list()
    notes = [note["text"] for note in figure["layout"]["annotations"]]
    assert len(notes) == len(runs)
    assert "not simulated: the arena is larger than the device" in notes[-1]
    assert "meets 100 % of its addresses" in figure["layout"]["title"]["subtitle"]["text"]
    assert len(set(figure["layout"]["yaxis"]["categoryarray"])) == len(runs)


def test_names_from_a_log_are_inert_in_the_picture() -> None:
    runs = what_if(pinned(), "expandable_segments").with_columns(pl.lit("<b>x</b>").alias("settings"))
    assert "<b>" not in str(what_if_bars(runs).to_dict())
