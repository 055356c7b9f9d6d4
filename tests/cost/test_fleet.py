"""A fleet gives the same answers here, in processes and on a Dask cluster, and one broken deployment costs itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from deployment_logs import folder

import infer_diag as diag
from infer_diag.errors import SourceError, UnknownNameError
from infer_diag.fleet import Deployment, Facts, Fleet, fleet_of
from infer_diag.fleet_paths import is_fleet, load_fleet
from infer_diag.recording import Recording


def rows_of(recording: Recording, facts: Facts) -> tuple[int, float | None]:
    return len(recording.engine_samples), facts.price_per_gpu_h


def dies_with_b(recording: Recording, facts: Facts) -> int:
    if any("/b/" in source.path for source in recording.sources):
        os.kill(os.getpid(), signal.SIGKILL)
    return len(recording.engine_samples)


def dies_once_with_b(recording: Recording, facts: Facts) -> int:
    """Kills the worker that reads `b`, the first time: a mark beside the log says that it has."""
    for source in recording.sources:
        mark = Path(source.path).with_name(".died")
        if "/b/" in source.path and not mark.exists():
            mark.write_text("", encoding="utf-8")
            os.kill(os.getpid(), signal.SIGKILL)
    return len(recording.engine_samples)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, name in enumerate(("a", "b", "c")):
        folder(tmp_path / "prod", name, minutes=2 + number)
    (tmp_path / "prod" / "deployments.csv").write_text(
        "deployment,gpu,gpu_count,price_per_gpu_h\na,H100-SXM,2,2.5\nb,H100-SXM,2,3\n", encoding="utf-8"
    )
    return tmp_path / "prod"


def test_a_folder_of_folders_is_a_fleet_and_the_inventory_gives_facts(root: Path) -> None:
    fleet = load_fleet(root, price_per_gpu_h=1.0)
    assert fleet.names() == ["a", "b", "c"]
    assert is_fleet(str(root))
    assert not is_fleet(str(root / "a"))
    assert fleet.deployment("b").facts == Facts(
        gpu="H100-SXM", gpu_count=2, price_per_gpu_h=3.0, evidence=f"{root}/deployments.csv:3"
    )
    assert fleet.deployment("c").facts.price_per_gpu_h == 1.0
    assert len(fleet["a"].engine_samples) == 11
    assert load_fleet(root / "*").names() == ["a", "b", "c"]
    assert load_fleet(root / "a").names() == ["a"]
    assert load_fleet(f"file://{root}").names() == ["a", "b", "c"]
    assert load_fleet(f"file://{root}/*").deployment("a").facts.gpu_count == 2
    given = load_fleet(root, facts={"a": Facts(price_per_gpu_h=9.0)}).deployment("a").facts
    assert (given.price_per_gpu_h, given.gpu) == (9.0, "H100-SXM")


def test_local_answers_are_the_same_in_processes_and_without(root: Path) -> None:
    told: list[tuple[int, int, str]] = []
    here = load_fleet(root, workers=1).map(rows_of)
    there = load_fleet(root, workers=2).map(rows_of, progress=lambda *each: told.append(each))
    assert here == there
    assert here.found == {"a": (11, 2.5), "b": (17, 3.0), "c": (23, None)}
    assert sorted(each[0] for each in told) == [1, 2, 3]
    assert {each[1] for each in told} == {3}


def test_a_deployment_that_cannot_be_read_or_kills_its_process_costs_only_itself(root: Path) -> None:
    (root / "a" / "server.log").write_text("", encoding="utf-8")
    answers = load_fleet(root, workers=2).map(dies_with_b)
    assert list(answers.found) == ["c"]
    assert {each.name: each.reason for each in answers.broken}.keys() == {"a", "b"}
    reasons = {each.name: each.reason for each in answers.broken}
    assert "died" in reasons["b"]
    assert "empty" in reasons["a"]


def test_a_cluster_that_loses_a_worker_gives_the_same_answers(root: Path) -> None:
    distributed = pytest.importorskip("distributed")
    here = load_fleet(root, workers=1).map(rows_of)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert load_fleet(root, client=client).map(rows_of) == here
        answers = load_fleet(root, client=client).map(dies_once_with_b)
    assert (root / "b" / ".died").exists()
    assert not answers.broken
    assert answers.found == {name: rows for name, (rows, _) in here.found.items()}


def test_a_fleet_of_recordings_is_asked_where_it_is(root: Path) -> None:
    recordings = {name: diag.load(root / name) for name in ("a", "c")}
    fleet = fleet_of(recordings, {"a": Facts(price_per_gpu_h=2.0)})
    assert fleet.map(rows_of).found == {"a": (11, 2.0), "c": (23, None)}
    assert fleet.only(["c"]).names() == list(fleet.only(["c"])) == ["c"]
    assert repr(fleet) == "Fleet(2 deployments: a, c)"
    with pytest.raises(UnknownNameError, match="did you mean"):
        fleet["aa"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("name,price_per_gpu_h\na,2\n", "no column 'deployment'"), ("deployment,price_per_gpu_h\na,-2\n", "above 0")],
)
def test_a_wrong_inventory_is_one_line(root: Path, text: str, message: str) -> None:
    (root / "deployments.csv").write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match=message):
        load_fleet(root)


def test_names_are_checked(root: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        load_fleet(tmp_path / "nowhere")
    with pytest.raises(SourceError, match="two deployments"):
        load_fleet(root, root / "a")
    with pytest.raises(UnknownNameError):
        load_fleet(root, facts={"z": Facts()})
    with pytest.raises(SourceError, match="no deployment"):
        load_fleet(*[])
    assert Fleet((Deployment("a", (str(root / "a"),)),)).map(rows_of).found["a"][0] == 11
