"""The quantisation probe: first and later launches of the kernels that unpack each format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from infer_diag.errors import ProbeUnavailable
from infer_diag.probes import machine
from infer_diag.probes.budget import Budget
from infer_diag.probes.quantisation.four_bit import GROUP
from infer_diag.probes.quantisation.launches import CuPyLauncher, Launcher, Layer, is_right, layers
from infer_diag.probes.quantisation.sizes import scale_rows
from infer_diag.probes.result import ProbeResult, framed
from infer_diag.probes.settings import Settings
from infer_diag.probes.spread import spread
from infer_diag.units import format_bytes, format_s

INPUTS = OUTPUTS = 4096
LAUNCHES = 50
ARTICLE_S = {"awq": (18.7e-3, 9.2e-3), "gptq": (22.3e-3, 3.1e-3), "fp8": (2.1e-3, 0.8e-3)}
"""First decompression and warm-up as the article has them."""


def run(out: Path, settings: Settings, budget: Budget) -> ProbeResult:
    """`probe_quantisation` on the current GPU."""
    return probe_quantisation(CuPyLauncher(), launches=settings.repeats or LAUNCHES, budget=budget)


def probe_quantisation(
    launcher: Launcher,
    *,
    inputs: int = INPUTS,
    outputs: int = OUTPUTS,
    launches: int = LAUNCHES,
    budget: Budget | None = None,
) -> ProbeResult:
    """Seconds of every launch of every format's kernel on one weight, each checked against the numpy reference.

    Raises:
        ProbeUnavailable: a kernel wrote something else than the reference, so its time would mean nothing.
    """
    limit = budget or Budget(60.0)
    rows: list[dict[str, Any]] = []
    for name, make in layers(inputs, outputs).items():
        if rows and limit.spent:
            break
        layer = make()
        seconds, written = launcher.launches(layer, name, launches)
        if not is_right(layer, written):
            raise ProbeUnavailable(f"the kernel of {name} does not agree with its reference", hint="report it")
        rows += _rows(name, layer, seconds)
    runs = framed("kernel_runs", rows)
    return ProbeResult(
        probe="quantisation",
        basis=launcher.basis,
        machine=machine.facts(),
        device=launcher.facts(),
        frames={"kernel_runs": runs},
        sentences=_sentences(runs, inputs),
    )


def _rows(name: str, layer: Layer, seconds: list[float]) -> list[dict[str, Any]]:
    moved = {"read_bytes": layer.read_bytes, "written_bytes": layer.written_bytes}
    return [
        {"kernel": name, "launch_id": place, "duration_s": each, **moved, "bytes_per_s": sum(moved.values()) / each}
        for place, each in enumerate(seconds, 1)
    ]


def _sentences(runs: pl.DataFrame, inputs: int) -> tuple[str, ...]:
    said = []
    for (name,), part in runs.group_by("kernel", maintain_order=True):
        later = spread(part.filter(pl.col("launch_id") > 1)["duration_s"].to_list())
        first = float(part["duration_s"][0])
        if later is None:
            continue
        rate = float(part["read_bytes"][0] + part["written_bytes"][0]) / later.p50
        said.append(
            f"{str(name).replace('_', ' ')}: first launch {format_s(first)} with compilation, then "
            f"{format_s(later.p50)} ({format_bytes(rate)}/s)."
        )
    groups = np.arange(inputs, dtype=np.int32) // GROUP
    mixed = np.random.default_rng(0).permutation(groups)
    said.append(
        f"A first launch compiles; the weights are unpacked in every forward pass. Act-order makes a block load "
        f"{scale_rows(mixed):,} rows of scales where sequential groups need {scale_rows(groups):,} (counted)."
    )
    return tuple(said)
