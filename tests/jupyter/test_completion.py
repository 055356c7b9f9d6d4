"""What the tab key offers."""

from __future__ import annotations

from typing import Any

import pytest

from infer_diag import samples
from infer_diag.loaders import FORMATS


@pytest.fixture
def loaded(notebook: Any) -> Any:
    """A shell with two recordings."""
    notebook.ok("%diag load sample:captured/two_starts/server.log --as prod")
    notebook.ok("%diag load sample:captured/sequence_limit/server.log --as test")
    return notebook


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%diag s", ["%diag summary", "%diag samples"]),
        ("%diag help cold", ["%diag help coldstart"]),
        ("p = %diag batch", ["p = %diag batching"]),
        ("%diag summary ", ["%diag summary test", "%diag summary prod", "%diag summary --code"]),
        ("%diag summary p", ["%diag summary prod"]),
        ("%diag summary prod ", ["%diag summary prod --code"]),
        ("%diag coldstart prod --", ["%diag coldstart prod --code", "%diag coldstart prod --start"]),
        ("%diag coldstart --start ", ["%diag coldstart --start start-1"]),
        ("%diag coldstart --start start-1 --c", ["%diag coldstart --start start-1 --code"]),
        (
            "%diag load x.log --format sgl",
            ["%diag load x.log --format sglang", "%diag load x.log --format sglang-bench"],
        ),
        ("%diag load sample:captured/pl", ["%diag load sample:captured/plain"]),
    ],
)
def test_words(loaded: Any, line: str, offered: list[str]) -> None:
    assert loaded.complete(line) == offered


def test_formats_and_samples_are_all_there(loaded: Any) -> None:
    assert len(loaded.complete("%diag load x --format ")) == len(FORMATS)
    assert len(loaded.complete("%diag load sample:")) == len(samples.names())


def test_paths(loaded: Any, tmp_path: Any) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "my server.log").touch()
    (tmp_path / "logs" / ".hidden").touch()
    assert loaded.complete("%diag load lo") == ["%diag load logs/"]
    assert loaded.complete("%diag load logs/") == ["%diag load logs/my\\ server.log"]
    assert loaded.complete("%diag load logs/.h") == ["%diag load logs/.hidden"]
    assert loaded.complete("%diag load a.log lo") == ["%diag load a.log logs/"]
    assert loaded.complete("%diag report prod --out logs/m") == ["%diag report prod --out logs/my\\ server.log"]
    assert loaded.complete("%diag load absent/") == []


def test_a_recording_in_a_variable_is_offered(loaded: Any) -> None:
    loaded.ok("import infer_diag\nvariable = infer_diag.Recording()")
    assert loaded.complete("%diag summary v") == ["%diag summary variable"]


def test_other_lines_are_left_to_others(loaded: Any) -> None:
    loaded.ok("diagonal = 1")
    assert "diagonal" in loaded.complete("diag")
    assert any(word.endswith("diag") for word in loaded.complete("%dia"))
