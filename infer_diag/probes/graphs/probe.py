"""The graph probe: the same kernels launched one by one, captured, and replayed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from infer_diag.errors import ProbeUnavailable
from infer_diag.probes import machine
from infer_diag.probes.budget import Budget
from infer_diag.probes.graphs.chain import CuPyGraphDevice, GraphDevice
from infer_diag.probes.result import ProbeResult, framed
from infer_diag.probes.settings import Settings
from infer_diag.probes.spread import spread
from infer_diag.units import format_bytes, format_s

NODES = (50, 200, 500, 1000)
REPEATS = 20
_STEPS = ("eager", "capture", "first_launch", "replay")


def run(out: Path, settings: Settings, budget: Budget) -> ProbeResult:
    """`probe_graphs` on the current GPU."""
    return probe_graphs(CuPyGraphDevice(), repeats=settings.repeats or REPEATS, budget=budget)


def probe_graphs(
    device: GraphDevice,
    *,
    nodes: tuple[int, ...] = NODES,
    repeats: int = REPEATS,
    budget: Budget | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> ProbeResult:
    """Launching, capturing and replaying chains of kernels, each to its end on the device, and what capturing refuses.

    Raises:
        ProbeUnavailable: a replay did not run every kernel, so its time would mean nothing.
    """
    limit = budget or Budget(45.0)
    rows: list[dict[str, Any]] = []
    for count in nodes:
        if rows and limit.spent:
            break
        rows += _chain(device, count, repeats, limit, clock)
    runs = framed("graph_runs", rows)
    stats = graph_stats(runs)
    checks = framed("capture_checks", list(_checks(device)))
    return ProbeResult(
        probe="graphs",
        basis=device.basis,
        machine=machine.facts(),
        device=device.facts(),
        frames={"graph_runs": runs, "graph_stats": stats, "capture_checks": checks},
        sentences=_sentences(stats, checks),
    )


def graph_stats(runs: pl.DataFrame) -> pl.DataFrame:
    """`frames.GraphStats`: medians, and (capture + first launch) / (eager − replay) as the break-even."""
    rows = []
    for (count,), part in runs.group_by("node_count", maintain_order=True):
        told = {step: spread(part.filter(pl.col("step") == step)["duration_s"].to_list()) for step in _STEPS}
        p50 = {f"{step}_p50_s": each.p50 for step, each in told.items() if each is not None}
        if len(p50) < len(_STEPS):
            continue
        saved = p50["eager_p50_s"] - p50["replay_p50_s"]
        paid = p50["capture_p50_s"] + p50["first_launch_p50_s"]
        taken = spread(part["taken_bytes"].drop_nulls().to_list())
        rows.append(
            {
                "node_count": count,
                **p50,
                "taken_bytes": None if taken is None else round(taken.p50),
                "break_even_count": paid / saved if saved > 0 else None,
            }
        )
    return framed("graph_stats", rows)


def _chain(
    device: GraphDevice, nodes: int, repeats: int, budget: Budget, clock: Callable[[], float]
) -> Iterator[dict[str, Any]]:
    """Rows of `frames.GraphRuns`; every repetition captures anew, and launches one by one before and after."""
    chain = device.chain(nodes)
    before, ran = chain.ran(), 0

    def timed(step: str, repeat: int, call: Callable[[], Any], taken: int | None = None) -> dict[str, Any]:
        begin = clock()
        call()
        seconds = clock() - begin
        return {"node_count": nodes, "step": step, "repeat_id": repeat, "duration_s": seconds, "taken_bytes": taken}

    for repeat in range(1, repeats + 1):
        if repeat > 1 and budget.spent:
            break
        yield timed("eager", repeat, chain.eager)
        held = device.used_bytes()
        begin = clock()
        graph = chain.capture()
        captured = clock() - begin
        first = timed("first_launch", repeat, graph.launch)
        now = device.used_bytes()
        yield {
            "node_count": nodes,
            "step": "capture",
            "repeat_id": repeat,
            "duration_s": captured,
            "taken_bytes": None if held is None or now is None else now - held,
        }
        yield first
        yield timed("replay", repeat, graph.launch)
        ran += 3
    if chain.ran() - before != ran * nodes:
        raise ProbeUnavailable(f"a captured chain of {nodes} kernels did not run them all", hint="update CuPy")


def _checks(device: GraphDevice) -> Iterator[dict[str, Any]]:
    for name, call in device.checks().items():
        try:
            call()
        except Exception as error:  # What a driver refuses in a capture is what is asked here, whatever its type.
            yield {"call": name, "allowed": False, "error": " ".join(str(error).split())[:200]}
        else:
            yield {"call": name, "allowed": True, "error": None}


def _sentences(stats: pl.DataFrame, checks: pl.DataFrame) -> tuple[str, ...]:
    said = []
    for row in stats.tail(1).to_dicts():
        eager, replay = format_s(row["eager_p50_s"]), format_s(row["replay_p50_s"])
        text = f"{row['node_count']:,} kernels take {eager} one by one and {replay} as a replayed graph"
        if row["break_even_count"] is None:
            text += "; here the graph saves nothing"
        else:
            paid = format_s(row["capture_p50_s"] + row["first_launch_p50_s"])
            text += (
                f"; capture and first launch ({paid}) pay for themselves after {row['break_even_count']:.1f} replays"
            )
        if row["taken_bytes"] is not None:
            text += f" and take {format_bytes(row['taken_bytes'])}"
        said.append(text + ".")
    if len(stats) > 1:
        first, last = stats.row(0, named=True), stats.row(-1, named=True)
        more = last["node_count"] - first["node_count"]
        each = [(last[name] - first[name]) / more for name in ("eager_p50_s", "replay_p50_s")]
        said.append(
            f"Each further kernel costs {format_s(each[0])} launched by itself and {format_s(each[1])} in a graph."
        )
    refused = checks.filter(~pl.col("allowed"))["call"].to_list()
    if refused:
        said.append(f"A capture refuses: {'; '.join(refused)}.")
    said.append("The call is cudaStreamBeginCapture; the cudaGraphBeginCapture of the article does not exist.")
    return tuple(said)
