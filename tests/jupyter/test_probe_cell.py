"""`%%diag probe` in a real shell, with a simulated device in place of the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infer_diag.errors import ProbeUnavailable
from infer_diag.probes import device as devices
from infer_diag.probes.simulated_device import SimulatedDevice


@pytest.fixture
def watched(notebook: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A notebook that has `pool`, an allocator of the device that the probe finds."""
    device = SimulatedDevice(1 << 30)
    monkeypatch.setattr(devices, "current", lambda: device)
    notebook.shell.user_ns["pool"] = device.pools()["cupy"](1 << 28)
    return notebook


def test_a_cell_becomes_a_recording(watched: Any) -> None:
    text = watched.ok("%%diag probe --as churn\na = pool.malloc(1000)\npool.free(a)\nb = 1").text
    assert text.splitlines()[0] == "recorded as churn"
    assert "allocator_events 3" in text
    assert watched.shell.user_ns["b"] == 1
    assert watched.ok("%diag list").text.splitlines()[1].startswith("churn: ")
    assert not list(Path.cwd().glob("*.parquet"))


def test_the_events_are_kept_where_one_asks_for_it(watched: Any) -> None:
    watched.ok("%%diag probe --out kept\npool.malloc(10)")
    watched.ok("import infer_diag as diag\nrows = diag.load('kept/allocator_events.parquet').rows()")
    assert watched.shell.user_ns["rows"] == {"allocator_events": 2}


def test_a_failing_cell_fails_and_keeps_what_happened(watched: Any) -> None:
    ran = watched.run("%%diag probe --as broken\npool.malloc(10)\n1 / 0")
    assert "the cell failed (ZeroDivisionError)" in str(ran.error)
    assert "division by zero" in ran.printed
    assert "broken" in watched.ok("%diag list").text


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("%%diag probe\nb = 1", "no memory pool of CuPy did anything"),
        ("%%diag summary\nb = 1", "no verb of a cell named 'summary'"),
        ("%%diag\nb = 1", "known: probe"),
        ("%%diag probe --unheard-of\nb = 1", "unrecognized arguments"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(watched: Any, cell: str, told: str) -> None:
    assert told in str(watched.run(cell).error)


def test_without_a_gpu_the_cell_does_not_run(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ProbeUnavailable("CuPy finds no GPU", hint="run it on the GPU server")

    monkeypatch.setattr(devices, "current", refuse)
    assert isinstance(watched.run("%%diag probe\nran = True").error, ProbeUnavailable)
    assert "ran" not in watched.shell.user_ns


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%%diag ", ["%%diag probe"]),
        ("%%diag pro", ["%%diag probe"]),
        ("%%diag probe --", ["%%diag probe --as", "%%diag probe --out", "%%diag probe --code"]),
        ("%%diag probe --out kept --c", ["%%diag probe --out kept --code"]),
        ("%%diag probe --out ke", ["%%diag probe --out kept/"]),
    ],
)
def test_the_tab_key_knows_the_cell(watched: Any, line: str, offered: list[str]) -> None:
    Path("kept").mkdir()
    assert watched.complete(line) == offered


def test_the_code_does_the_same_and_the_cell_does_not_run(watched: Any) -> None:
    cell = 'text = """a\nb"""\nfor size in (10, 20):\n    pool.malloc(size)\n'
    code = watched.ok(f"%%diag probe --as churn --out kept --code\n{cell}").text
    assert "text" not in watched.shell.user_ns and not Path("kept").exists()
    watched.ok(code)
    assert watched.shell.user_ns["text"] == "a\nb"
    events = watched.shell.user_ns["churn"].allocator_events
    assert events.filter(action="alloc")["requested_bytes"].to_list() == [10, 20]


def test_unloading_takes_the_cell_magic_away(watched: Any) -> None:
    watched.ok("%unload_ext infer_diag")
    magics = watched.shell.magics_manager.magics
    assert "diag" not in magics["cell"]
    assert "diag" not in magics["line"]
