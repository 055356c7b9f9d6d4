"""What the tests of this folder load, kept for the test that holds each format to the frames that it says it fills."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import infer_diag.loaders
from infer_diag.loaders.files import LogFile
from infer_diag.recording import Recording

LAST = "test_the_frames_of_a_format_are_those_that_the_tests_fill"

FILLED: dict[str, set[str]] = {}
"""Format → frames that any file of it has filled in this run."""


@pytest.fixture(scope="session", autouse=True)
def _kept() -> Iterator[None]:
    placed = infer_diag.loaders.placed

    def keeping(recording: Recording, file: LogFile) -> Recording:
        FILLED.setdefault(recording.sources[0].format, set()).update(recording.rows())
        return placed(recording, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(infer_diag.loaders, "placed", keeping)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the test that looks at all the others at the end."""
    items.sort(key=lambda item: item.name == LAST)


@pytest.fixture
def filled() -> dict[str, set[str]]:
    """Format → frames that the tests before this one have filled."""
    return FILLED
