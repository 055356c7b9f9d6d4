"""`%diag cost` and `%diag compare`: a fleet, a deployment of it, one recording, or two of them beside each other."""

from __future__ import annotations

import argparse

import polars as pl

from infer_diag.attribution.cost import CAUSES
from infer_diag.attribution.cost.entries import ledger_rows
from infer_diag.attribution.cost.frames import LedgerRows
from infer_diag.attribution.cost.waterfall import waterfall
from infer_diag.charts.cost import cost_heatmap, cost_waterfall
from infer_diag.diagnose import Diagnosis, FleetDiagnosis, diagnose
from infer_diag.diagnose.cost_document import cost_sentence, deployment_document
from infer_diag.diagnose.cost_findings import deployment_line
from infer_diag.errors import UnknownNameError
from infer_diag.fleet import Facts, Fleet, fleet_of
from infer_diag.fleet_paths import is_fleet, load_fleet
from infer_diag.jupyter.panel import Panel
from infer_diag.jupyter.session import Session
from infer_diag.units import format_ratio

_IMPORT = "import infer_diag as diag"


def cost_verb(session: Session, options: argparse.Namespace) -> Panel:
    """What tokens cost and why: a fleet (folder or variable), or one recording as far as its logs tell."""
    fleet = _fleet(session, options)
    if fleet is None:
        loaded = session.get(options.recording)
        return ledger_panel(diagnose(loaded.recording, facts=Facts(price_per_gpu_h=options.price)))
    return cost_panel(diagnose(fleet, options.reference), options.deployment)


def cost_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag cost`."""
    price = "" if options.price is None else f"price_per_gpu_h={options.price!r}"
    if _fleet(session, options) is None:
        facts = f", facts=diag.Facts({price})" if price else ""
        return f"{_IMPORT}\n{session.get(options.recording).code}\ndiag.diagnose(recording{facts}).cost.ledger"
    named = isinstance(session.variables.get(options.recording), Fleet)
    made = options.recording if named else f"diag.load_fleet({options.recording!r}{', ' * bool(price)}{price})"
    return f"{_IMPORT}\nd = diag.diagnose({made}, {options.reference!r})\nd.costs.bars"


def compare_verb(session: Session, options: argparse.Namespace) -> Panel:
    """Two recordings beside each other: what makes the first dearer than the second."""
    return cost_panel(diagnose(_two(session, options), options.other), options.one)


def compare_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag compare`."""
    return (
        f"{_IMPORT}\nfrom infer_diag.fleet import fleet_of\n"
        f"fleet = fleet_of({{{options.one!r}: {options.one}, {options.other!r}: {options.other}}})\n"
        f"diag.diagnose(fleet, {options.other!r}).costs.bars"
    )


def cost_panel(diagnosis: FleetDiagnosis, deployment: str | None = None) -> Panel:
    """A fleet as a map of causes, or one deployment of it as a waterfall.

    Raises:
        UnknownNameError: no deployment of the fleet has this name.
    """
    told = diagnosis.costs
    if deployment is not None:
        if deployment not in told.deployments["deployment"]:
            raise UnknownNameError("deployment", deployment, diagnosis.names)
        return _deployment_panel(diagnosis, deployment)
    ranked = told.deployments.sort("equivalent_ratio", "deployment", descending=[True, False], nulls_last=True)
    lines = diagnosis.text().splitlines()
    figure = cost_heatmap(told.bars, ranked["deployment"].to_list(), CAUSES) if len(told.bars) else None
    return Panel("Cost", lines[0], tuple(lines[1:]), told.bars, figure)


def ledger_panel(diagnosis: Diagnosis) -> Panel:
    """What one deployment's logs tell of its cost: what is known, bounded and refused, and the log to add next."""
    told = deployment_document(diagnosis.cost)
    frame = pl.DataFrame(
        ledger_rows({"": diagnosis.cost.ledger}), schema=LedgerRows.create_empty().schema, orient="row"
    ).drop("deployment")
    if told is None:
        return Panel("Cost", "these logs tell neither of GPU time nor of tokens", frame=frame)
    lines = [_entry(row) for row in frame.iter_rows(named=True) if row["amount_count"] is not None]
    lines += [f"cannot tell: {', '.join(frame.filter(pl.col('status') == 'not_identifiable')['entry'])}"]
    after = [f"the log to switch on next: {told['next_log']}"] if told["next_log"] else []
    return Panel("Cost of one deployment", cost_sentence(told), (*after, *lines), frame)


def _deployment_panel(diagnosis: FleetDiagnosis, name: str) -> Panel:
    told = diagnosis.costs
    row = told.deployments.row(by_predicate=pl.col("deployment") == name, named=True)
    bars = told.bars.filter(deployment=name)
    if bars.is_empty():
        return Panel(f"Cost of {name}", told.refused.get(name, "no comparison"), tuple(row["notes"]))
    steps = waterfall(told, name)
    lines = [_bar(bar) for bar in bars.iter_rows(named=True) if bar["log_ratio"] != 0.0]
    figure = cost_waterfall(steps) if len(steps) else None
    return Panel(f"Cost of {name}", deployment_line(row), (*row["notes"][:2], *lines), bars, figure)


def _bar(bar: dict[str, object]) -> str:
    cause = str(bar["cause"]).replace("_", " ")
    if bar["log_ratio"] is None:
        return f"{cause}: cannot tell ({bar['missing']})"
    ends = bar["lower_ratio"], bar["upper_ratio"]
    spread = f" ({ends[0]:+.3f} to {ends[1]:+.3f})" if None not in ends else ""
    saves = format_ratio(bar["saves_ratio"])  # type: ignore[arg-type]
    return f"{cause}: ln {bar['log_ratio']:+.3f}{spread}, fixing it alone saves {saves} · {bar['status']}"


def _entry(row: dict[str, object]) -> str:
    return f"{str(row['entry']).replace('_', ' ')}: {row['amount_count']:,.6g} {row['unit']} · {row['status']}"


def _fleet(session: Session, options: argparse.Namespace) -> Fleet | None:
    """The fleet that is meant: a variable that holds one, or a folder of deployments; null for a recording."""
    name = options.recording
    held = session.variables.get(name) if name is not None else None
    if isinstance(held, Fleet):
        return held
    if name is None or name in session.names() or not is_fleet(name):
        return None
    return load_fleet(name, price_per_gpu_h=options.price)


def _two(session: Session, options: argparse.Namespace) -> Fleet:
    price = Facts(price_per_gpu_h=options.price)
    recordings = {name: session.get(name).recording for name in (options.one, options.other)}
    return fleet_of(recordings, dict.fromkeys(recordings, price))
