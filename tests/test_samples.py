"""The recorded logs that travel with the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infer_diag import samples
from infer_diag.errors import SourceError, UnknownNameError

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "sample_logs"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Samples of our own, laid out as an installed wheel has them."""
    folder = tmp_path / "infer_diag" / "_sample_logs"
    (folder / "captured" / "one").mkdir(parents=True)
    (folder / "captured" / "two").mkdir()
    (folder / "captured" / "one" / "server.log").write_text("INFO one\n")
    (folder / "captured" / "one" / "meta.json").write_text('{"shows": "nothing much"}')
    (folder / "captured" / "two" / "server.log").write_text("INFO two\n")
    (folder / "captured" / "README.md").write_text("no sample")
    (folder / "registry.txt").write_text(samples.registry_of(folder))
    monkeypatch.setattr(samples, "_HERE", folder.parent)
    samples._root.cache_clear()
    samples._registry.cache_clear()
    yield folder
    samples._root.cache_clear()
    samples._registry.cache_clear()


def test_names_are_folders(copy: Path) -> None:
    assert samples.names() == ["captured/one", "captured/two"]


def test_a_sample_is_a_folder_and_its_files_are_reached_by_name(copy: Path) -> None:
    assert samples.path("captured/one") == copy / "captured" / "one"
    assert samples.path("captured/one/server.log").read_text() == "INFO one\n"
    assert samples.path("captured") == copy / "captured"


def test_what_a_sample_shows(copy: Path) -> None:
    assert samples.about("captured/one") == "nothing much"
    assert samples.about("captured/two") == ""


@pytest.mark.parametrize(
    "name", ["captured/onw", "", "/", "captured/o", "../infer_diag", "registry.txt", "captured/one/.."]
)
def test_an_unknown_name_is_refused(copy: Path, name: str) -> None:
    with pytest.raises(UnknownNameError, match="there is no sample named"):
        samples.path(name)


def test_a_close_name_is_offered(copy: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean captured/one"):
        samples.path("captured/onw")


def test_an_altered_file_is_refused(copy: Path) -> None:
    (copy / "captured" / "one" / "server.log").write_text("INFO tampered\n")
    with pytest.raises(SourceError, match=r"captured/one/server\.log is not the one that was shipped"):
        samples.path("captured/one")
    assert samples.path("captured/two")


def test_an_absent_file_is_refused(copy: Path) -> None:
    (copy / "captured" / "two" / "server.log").unlink()
    with pytest.raises(SourceError, match="is absent"):
        samples.path("captured/two")


def test_an_installation_without_samples_says_so(tmp_path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_HERE", tmp_path / "nowhere")
    samples._root.cache_clear()
    samples._registry.cache_clear()
    with pytest.raises(SourceError, match="carries no sample logs"):
        samples.names()


def test_the_registry_holds_exactly_what_is_shipped() -> None:
    assert (SHIPPED / "registry.txt").read_text() == samples.registry_of(SHIPPED), "run: make registry"


def test_every_shipped_sample_can_be_had() -> None:
    assert samples.names()
    for name in samples.names():
        assert samples.path(name).is_dir()
        assert samples.about(name)
        assert f"`{name}`" in (SHIPPED / "README.md").read_text(), "sample_logs/README.md tells where each comes from"


def test_the_wheel_carries_samples_types_and_templates(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    assert {"infer_diag/py.typed", "infer_diag/_sample_logs/registry.txt", "infer_diag/report/report.html.j2"} <= names
    assert not [name for name in names if name.startswith(("tests/", "notebooks/"))]
    asked = "import infer_diag; print(infer_diag.__file__); print(*infer_diag.samples.names())\n"
    asked += "from infer_diag.report.notebook import template; print(template())"
    shown = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path / "site", check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert Path(shown[0]).is_relative_to(tmp_path)
    assert shown[1].split() == samples.names()
    assert Path(shown[2]).parent == tmp_path / "site" / "infer_diag" / "_notebooks"
    shutil.rmtree(tmp_path / "site")
