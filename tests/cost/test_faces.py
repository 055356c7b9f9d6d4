"""The faces of a fleet: JSON, text, command line, `%diag`, charts and the report, for a planted fleet of text logs."""

from __future__ import annotations

import json
from pathlib import Path

import plotly.graph_objects as go
import polars as pl
import pytest
from deployment_logs import folder
from typer.testing import CliRunner

import infer_diag as diag
from infer_diag.attribution.cost import CAUSES
from infer_diag.attribution.cost.waterfall import waterfall
from infer_diag.charts.cost import cost_heatmap, cost_waterfall
from infer_diag.cli import app
from infer_diag.diagnose import FleetDiagnosis
from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.jupyter.grammar import grammar
from infer_diag.jupyter.magic import Magic
from infer_diag.jupyter.session import Session
from infer_diag.report import render

PEERS = [f"d{k}" for k in range(5)]
INVENTORY = "deployment,model,gpu,gpu_count,precision,price_per_gpu_h\n"
SECRET = "hf_" + "x" * 34


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five alike and a sixth that memory holds back; one folder holds nothing that can be read."""
    made = tmp_path_factory.mktemp("fleet") / "prod"
    for number, name in enumerate(PEERS):
        folder(made, name, minutes=30, running=16 + number % 2)
    folder(made, "sick", minutes=30, running=8, waiting=9, usage=98)
    (made / "broken").mkdir()
    (made / "broken" / "server.log").write_text("", encoding="utf-8")
    rows = [f"{name},Llama-2-13B,A100-SXM-80GB,2,float16,2.5" for name in (*PEERS, "sick")]
    (made / "deployments.csv").write_text(INVENTORY + "\n".join(rows), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def diagnosis(root: Path) -> FleetDiagnosis:
    return diag.diagnose(diag.load_fleet(root, workers=1, year=2026))


def test_the_sick_deployment_and_its_cause_are_named(diagnosis: FleetDiagnosis) -> None:
    finding = next(each for each in diagnosis.findings if "`sick`" in each.sentence)
    assert finding.id == "cost.fragmentation"
    assert finding.severity == "high"
    assert finding.status == "bounded"
    assert "Fixing this alone saves" in finding.sentence
    assert any(place.endswith(":6") for place in finding.evidence)
    assert [each.name for each in diagnosis.broken] == ["broken"]
    assert len(diagnosis.text().splitlines()) <= 12
    assert "6 compared (median)" in diagnosis.text()


def test_the_document_adds_up_and_every_refusal_names_a_log(diagnosis: FleetDiagnosis) -> None:
    document = json.loads(diagnosis.to_json())
    assert list(document) == ["schema_version", "fleet", "deployments", "broken", "findings"]
    assert document["broken"][0]["deployment"] == "broken"
    for each in document["deployments"]:
        assert [bar["cause"] for bar in each["causes"]] == list(CAUSES)
        for bar in each["causes"]:
            assert (bar["ln"] is None) == (bar["status"] == "not_identifiable")
            assert bar["status"] != "not_identifiable" or bar["missing"]
        for entry in each["ledger"].values():
            assert entry["status"] != "not_identifiable" or entry["missing"]
            assert entry["status"] != "not_identifiable" or entry["value"] is None
    excess = sum(row["excess_dollars_count"] for row in document["fleet"]["causes"])
    rows = [each for each in document["deployments"] if each["cost_ratio"]]
    spent = [r["dollars_per_million_tokens"] * (1 - 1 / r["cost_ratio"]) * r["delivered_tokens"] / 1e6 for r in rows]
    assert excess == pytest.approx(sum(spent), rel=1e-6)


def test_a_cluster_prints_the_same_document(root: Path, diagnosis: FleetDiagnosis) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        there = diag.diagnose(diag.load_fleet(root, client=client, year=2026))
    assert there.to_json() == diagnosis.to_json()


def test_one_deployment_gets_an_honest_partial_answer(root: Path) -> None:
    cost = diag.diagnose(diag.load(root / "sick")).to_dict()["cost"]
    assert cost["status"] == "bounded"
    assert cost["dollars_per_million_tokens"] is cost["upper_dollars_per_million_tokens"] is None
    assert cost["gpu_s_per_million_tokens"] > 0
    assert "pod events" in cost["next_log"]
    priced = diag.diagnose(diag.load(root / "sick"), facts=diag.Facts(price_per_gpu_h=3.6, gpu_count=1)).to_dict()[
        "cost"
    ]
    assert priced["lower_dollars_per_million_tokens"] == pytest.approx(priced["gpu_s_per_million_tokens"] / 1000)
    assert priced["upper_dollars_per_million_tokens"] is None


def test_wrong_questions_are_one_line(root: Path, diagnosis: FleetDiagnosis) -> None:
    fleet = diag.load_fleet(root, workers=1)
    with pytest.raises(UnknownNameError, match="did you mean sick"):
        diag.diagnose(fleet, "sik")
    with pytest.raises(UnknownNameError):
        diag.diagnose(fleet.only(["broken", "d0"]), "broken")
    with pytest.raises(DiagError, match="facts for each"):
        diag.diagnose(fleet, facts=diag.Facts())  # type: ignore[call-overload]


def test_the_waterfall_goes_from_reference_to_deployment(diagnosis: FleetDiagnosis) -> None:
    steps = waterfall(diagnosis.costs, "sick")
    row = diagnosis.costs.deployments.filter(deployment="sick").row(0, named=True)
    causes = steps.filter(pl.col("cause").is_not_null())
    assert steps["end_count"][0] == pytest.approx(row["dollars_per_million_tokens"] / row["cost_ratio"], rel=1e-9)
    assert causes["begin_count"][0] == pytest.approx(steps["end_count"][0], rel=1e-12)
    assert causes["end_count"][-1] == pytest.approx(row["dollars_per_million_tokens"], rel=1e-9)
    assert (causes["begin_count"][1:] - causes["end_count"][:-1]).abs().max() < 1e-12
    bars = cost_waterfall(steps).to_dict()["data"][0]
    assert sum(bars["x"][1:-1]) == pytest.approx(bars["x"][-1] - bars["x"][0], rel=1e-9)
    assert "prefix cache (cannot tell)" in bars["y"]
    assert isinstance(cost_waterfall(steps.clear()), go.Figure)


def test_the_heatmap_leaves_out_what_nobody_can_tell(diagnosis: FleetDiagnosis) -> None:
    cells = cost_heatmap(diagnosis.costs.bars, ["sick", "broken"], CAUSES).to_dict()["data"][0]
    told = dict(zip(CAUSES, cells["z"][0], strict=True))
    assert told["prefix_cache"] is None
    assert told["fragmentation"] > 0.2
    assert cells["z"][1] == [None] * len(CAUSES)
    assert cells["hovertext"][1][0] == "no comparison"


def test_the_report_ranks_draws_and_leads_to_evidence(diagnosis: FleetDiagnosis) -> None:
    html = render(diagnosis)
    assert html == render(diagnosis)
    ranking = html[html.index('id="ranking"') :]
    assert ranking.index(">sick<") < ranking.index(">d0<")
    assert html.count("chart-cost-") >= 6
    assert "chart-causes" in html
    assert "server.log:6" in html
    assert "http://" not in html.split("<script>")[0]


def test_text_of_logs_is_escaped_and_secrets_are_gone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder(tmp_path, name, minutes=12)
    rows = f"a,<script>alert(1)</script>,{SECRET},1,,2\nb,m,g,1,,2\n"
    (tmp_path / "deployments.csv").write_text(INVENTORY + rows, encoding="utf-8")
    html = render(diag.diagnose(diag.load_fleet(tmp_path, workers=1), "b"))
    assert "<script>alert(1)" not in html
    assert SECRET not in html


def test_the_command_line_answers_in_text_json_and_html(root: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    out = tmp_path / "fleet.html"
    shown = run(app, ["fleet", str(root), "--year", "2026", "--html", str(out), "-q"])
    assert shown.exit_code == 0
    assert "cost.fragmentation: `sick`" in shown.stdout
    assert "→" in shown.stdout
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    document = json.loads(run(app, ["fleet", f"{root}/d[01]", "--json", "--reference", "d0"]).stdout)
    assert document["fleet"]["reference"] == "d0"


def test_the_magic_knows_fleets_recordings_and_pairs(root: Path, diagnosis: FleetDiagnosis) -> None:
    fleet = diag.load_fleet(root, workers=1, year=2026)
    session = Session({"fleet": fleet})
    magic = Magic(grammar(session), session)
    assert magic.run("cost fleet").figure is not None
    one = magic.run("cost fleet --deployment sick --reference d0")
    assert "fragmentation: ln +" in one.text
    assert one.figure is not None
    assert magic.run("cost fleet --code").text.endswith("d = diag.diagnose(fleet, 'median')\nd.costs.bars")
    for name in ("sick", "d0"):
        magic.run(f"load {root}/{name} --as {name}")
    partial = magic.run("cost sick --price 2")
    assert "at least" in partial.text
    assert "switch on next" in partial.text
    compared = magic.run("compare sick d0")
    assert "times d0" in compared.text
    assert "fleet_of" in magic.run("compare sick d0 --code").text
    with pytest.raises(UnknownNameError):
        magic.run("cost fleet --deployment nobody")
