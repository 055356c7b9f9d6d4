"""What the tests of fleets share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(autouse=True)
def a_main_module_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of pytest-xdist run a main module without a spec, from which Python cannot spawn a process."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
