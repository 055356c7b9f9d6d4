"""What every format says of itself holds: its example is recognised and read, and it fills the frames that it lists."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import infer_diag as diag
from infer_diag import schema
from infer_diag.loaders import LOADERS
from infer_diag.loaders.sniff import by_magic, sniffed

HERE = Path(__file__).parent
WITH_EXAMPLE = [name for name, loader in LOADERS.items() if loader.example is not None]
SIGNATURES = [(loader.name, loader.signature) for loader in LOADERS.values()]


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_an_example_is_recognised_and_fills_frames_that_the_format_lists(name: str, tmp_path: Path) -> None:
    loader = LOADERS[name]
    path = tmp_path / "example"
    path.write_text(f"{loader.example}\n", encoding="utf-8")
    assert sniffed(path.read_bytes(), SIGNATURES) == name
    recording = diag.load(path)
    assert recording.sources[0].rejected_lines == 0
    assert recording.rows() and set(recording.rows()) <= set(loader.frames)


@pytest.mark.parametrize("name", sorted(set(LOADERS) - set(WITH_EXAMPLE)))
def test_a_format_without_an_example_is_told_by_its_first_bytes(name: str) -> None:
    (magic, *_) = LOADERS[name].signature.magic
    # Parquet files are shared by two formats, which their columns tell apart.
    assert by_magic(magic, SIGNATURES) in (name, "allocator-events")


@pytest.mark.parametrize("name", list(LOADERS))
def test_a_format_says_all_of_itself_in_short(name: str) -> None:
    loader = LOADERS[name]
    assert 20 < len(loader.about) < 120 and 1 < len(loader.versions) < 80
    assert loader.frames == tuple(frame for frame in schema.FRAMES if frame in loader.frames)
    assert loader.frames and "rejected" not in loader.frames


def test_the_frames_of_a_format_are_those_that_the_tests_fill(
    filled: dict[str, set[str]], request: pytest.FixtureRequest
) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Other workers have read other texts: none may have filled a frame that is not told.
        assert all(frames - {"rejected"} <= set(LOADERS[name].frames) for name, frames in filled.items())
        return
    ran = {Path(item.path).name for item in request.session.items}
    if missing := {path.name for path in HERE.glob("test_*.py")} - ran:
        pytest.skip(f"needs the texts of all tests of this folder; {len(missing)} files were left out of this run")
    found = {name: tuple(frame for frame in schema.FRAMES if frame in filled.get(name, set())) for name in LOADERS}
    told = {name: tuple(frame for frame in frames if frame != "rejected") for name, frames in found.items()}
    assert told == {name: loader.frames for name, loader in LOADERS.items()}
