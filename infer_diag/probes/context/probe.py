"""The context probe: fresh processes, one step after the other, and pairs of them with and without a flag."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from infer_diag.errors import ProbeUnavailable
from infer_diag.probes import machine
from infer_diag.probes.budget import Budget
from infer_diag.probes.context import readings
from infer_diag.probes.context.child import MAP_HOST
from infer_diag.probes.result import ProbeResult, framed
from infer_diag.probes.settings import Settings

PROCESSES, MEMORY_PROCESSES, PAIRS = 20, 5, 30
_CHILD = Path(__file__).with_name("child.py")
_LONGEST_S = 60.0

Launch = Callable[[str, int, str, str], dict[str, Any]]
"""(`timing` or `memory`, flags, PCI address, last step) to what the process printed."""


def run(out: Path, settings: Settings, budget: Budget) -> ProbeResult:
    """`probe_context` on the first GPU."""
    return probe_context(processes=settings.repeats or PROCESSES, pairs=settings.repeats or PAIRS, budget=budget)


def launch(what: str, flags: int, bus: str, until: str) -> dict[str, Any]:
    """What one fresh process measured.

    Raises:
        ProbeUnavailable: it died or hung.
    """
    words = [sys.executable, "-I", str(_CHILD), what, str(flags), bus, until]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ProbeUnavailable("a CUDA context took longer than a minute", hint="look at nvidia-smi") from error
    if done.returncode or not done.stdout.strip():
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ProbeUnavailable(f"the process of the context probe died: {said[:200]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def probe_context(
    *,
    processes: int = PROCESSES,
    pairs: int = PAIRS,
    budget: Budget | None = None,
    start: Launch = launch,
    basis: str = "measured",
) -> ProbeResult:
    """Steps of a context in fresh processes, the memory that each takes, and pairs with and without `CU_CTX_MAP_HOST`.

    One process goes ahead and is not counted: it brings the libraries into the page cache. Memory is read by NVML in
    processes of their own, since NVML holds the device open and would make the others' steps cheaper.

    Raises:
        ProbeUnavailable: there is no driver or no device.
    """
    limit = budget or Budget(120.0)
    ahead = start("timing", 0, "", "")
    _require(ahead["steps"])
    rows = _steps(start, processes, str(ahead.get("bus", "")), limit)
    found = _pairs(start, pairs, limit)
    steps = framed("context_steps", rows)
    stats = readings.step_stats(steps)
    effect = readings.flag_effect(found)
    return ProbeResult(
        probe="context",
        basis=basis,
        machine=machine.facts(),
        device=ahead["device"],
        frames={
            "context_steps": steps,
            "context_step_stats": stats,
            "context_article": framed("context_article", readings.article_rows(stats)),
            "flag_pairs": found,
            "flag_effect": effect,
        },
        sentences=readings.sentences(stats, effect),
    )


def _require(steps: list[dict[str, Any]]) -> None:
    for row in steps:
        if row["refusal"] is not None and row["step"] in ("load_driver", "init", "discovery", "context"):
            raise ProbeUnavailable(
                f"no CUDA context can be made here: {row['step'].replace('_', ' ')}: {row['refusal']}",
                hint="run it on the GPU server; nvidia-smi there must list a device",
            )


def _steps(start: Launch, processes: int, bus: str, budget: Budget) -> list[dict[str, Any]]:
    """Two thirds of the time at most go to the steps, so that the pairs get their share."""
    rows: list[dict[str, Any]] = []
    kept = budget.left_s / 3
    for repeat in range(1, processes + 1):
        if repeat > 1 and budget.left_s < kept:
            break
        rows += [{"repeat_id": repeat, **row} for row in start("timing", 0, "", "")["steps"]]
    for repeat in range(processes + 1, processes + 1 + min(MEMORY_PROCESSES, processes)):
        try:
            told = start("memory", 0, bus, "")
        except ProbeUnavailable:
            break  # Without NVML the times stand, and the memory stays unknown.
        rows += [{"repeat_id": repeat, **row} for row in told["steps"]]
    return rows


def _pairs(start: Launch, pairs: int, budget: Budget) -> pl.DataFrame:
    """Each pair begins with the other kind than the last one, so that a drift falls on both."""
    rows = []
    for number in range(1, pairs + 1):
        if number > 1 and budget.spent:
            break
        order = (0, MAP_HOST) if number % 2 else (MAP_HOST, 0)
        seconds = {flags: _of_context(start("timing", flags, "", "context")) for flags in order}
        if None in seconds.values():
            continue
        rows.append(
            {
                "pair_id": number,
                "without_flag_s": seconds[0],
                "with_flag_s": seconds[MAP_HOST],
                "with_flag_first": order[0] == MAP_HOST,
            }
        )
    return framed("flag_pairs", rows)


def _of_context(told: dict[str, Any]) -> float | None:
    return next((row["duration_s"] for row in told["steps"] if row["step"] == "context"), None)
