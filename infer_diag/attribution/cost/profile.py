"""A deployment's windows as the parts of its cost: what the identity needs, over any choice of windows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from infer_diag.attribution.cost.demand import Demand, Load, cap, demanded, quantiles
from infer_diag.attribution.cost.ledger import Observed
from infer_diag.attribution.cost.mechanisms import Mechanisms
from infer_diag.attribution.cost.step_time import Sampled, StepCurve, terms

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class NoCost(Exception):
    """A deployment has no cost per token: it delivered nothing, or served never."""


@dataclass(frozen=True, eq=False)
class Profile:
    """One deployment as columns of numbers, with what its windows cannot tell as null."""

    name: str
    seen: Observed
    columns: dict[str, Floats | None]
    price_per_gpu_h: float
    gpu_count: float

    @property
    def count(self) -> int:
        """Windows."""
        return len(self.seen.windows)

    def total(self, name: str, keep: Mask) -> float | None:
        """Sum of a column over the windows kept; null where the logs cannot tell."""
        column = self.columns[name]
        return None if column is None else float(column[keep].sum())


def profile(name: str, seen: Observed) -> Profile:
    """The columns of a deployment's windows.

    Frame in: CostWindows.
    """
    columns: dict[str, Floats | None] = {}
    for column in seen.windows.columns:
        values = seen.windows[column]
        known = values.count() > 0
        columns[column] = values.fill_null(0.0).cast(pl.Float64).to_numpy() if known else None
    return Profile(name, seen, columns, seen.facts.price_per_gpu_h or 1.0, float(seen.facts.gpu_count or 1))


def fit_rows(told: Profile, keep: Mask) -> Sampled:
    """What the fit of the step curve is given; nothing where batch or busy time are unknown, or tokens not counted."""
    busy, decode = _busy(told), told.columns["decode_tokens"]
    batch = _batch(told)
    counted = told.seen.ledger.get("computed_decode")
    if busy is None or decode is None or batch is None or (counted is not None and counted.status != "measured"):
        # What finished requests got is less than what the engine computed, and no base for the time of its steps.
        return Sampled(np.empty((0, 4)), np.empty(0), 0.0)
    prefill = _or_zero(told, "prefill_tokens")
    context = _context(told, keep)
    good = keep & (batch > 0) & (busy > 0) & (decode > 0)
    step_s = busy[good] / told.gpu_count
    rows = terms(step_s, decode[good], prefill[good], batch[good], context[good])
    noise = float((_or_zero(told, "step_variance_count")[good] / step_s**2).sum())
    return Sampled(rows, batch[good], noise)


def batch_and_context(told: Profile, keep: Mask) -> tuple[float, float] | None:
    """Harmonic mean batch and mean context over the tokens of the windows kept; null where no batch is told."""
    batch, decode = _batch(told), told.columns["decode_tokens"]
    if batch is None or decode is None:
        return None
    good = keep & (batch > 0) & (decode > 0)
    if not good.any():
        return None
    weight = decode[good]
    return float(weight.sum() / (weight / batch[good]).sum()), float(
        np.average(_context(told, keep)[good], weights=weight)
    )


def log_measured(told: Profile, keep: Mask) -> float:
    """ln of $ per 1M delivered output tokens, p·H/Y.

    Raises:
        NoCost: nothing was held, or nothing delivered.
    """
    held, output = told.total("held_gpu_s", keep), told.total("output_tokens", keep)
    if not held or not output:
        raise NoCost("no GPU time is known" if not held else "no delivered token is known")
    return math.log(told.price_per_gpu_h * 1e6 / 3600) + math.log(held) - math.log(output)


def equivalent_tokens(told: Profile, keep: Mask, weight: float) -> float:
    """Y_out + ω·(Y_in − Y_hit); prompts as computed where the delivered ones are not told."""
    return (told.total("output_tokens", keep) or 0.0) + weight * _computed_prompts(told, keep)[0]


def mechanisms(
    told: Profile, keep: Mask, curve: StepCurve | None, weight: float | None, demand: Demand = "point"
) -> Mechanisms:
    """The parts of the cost over the windows kept, closed by the residual so that their product is the measured cost.

    Raises:
        NoCost: there is no cost per token, or no time in which the deployment served.
    """
    measured = log_measured(told, keep)
    unknown: set[str] = set()
    held = told.total("held_gpu_s", keep) or 0.0
    values = _start_values(told, keep, held, unknown)
    cold, idle = told.total("cold_gpu_s", keep), told.total("idle_gpu_s", keep)
    busy = held - (cold or 0.0) - (idle or 0.0)
    if busy <= 0:
        raise NoCost("all of the time held was start or idle")
    values["idle_ratio"] = (held - (cold or 0.0)) / busy
    step = told.total("step_gpu_s", keep)
    values["stall_ratio"] = busy / step if step else 1.0
    unknown |= {key for key, column in (("idle", idle), ("stall", step or None)) if column is None}
    omega = weight or 0.0
    values |= _token_values(told, keep, omega, unknown)
    values |= _batch_values(told, keep, curve, demand, unknown)
    if told.seen.facts.price_per_gpu_h is None:
        unknown.add("price")
    bare = Mechanisms(
        price_per_gpu_h=told.price_per_gpu_h,
        gpu_count=told.gpu_count,
        curve=curve,
        prompt_token_weight=omega,
        unknown=frozenset(unknown),
        **values,  # type: ignore[arg-type]
    )
    return bare.closed(measured)


def _start_values(told: Profile, keep: Mask, held: float, unknown: set[str]) -> dict[str, object]:
    cold, starts = told.total("cold_gpu_s", keep), told.total("start_count", keep)
    if cold is None or starts is None:
        unknown.add("cold_start")
        return {}
    if cold <= 0:
        return {}
    # A start may begin in a window that is left out and hold GPUs in one that is kept.
    starts = max(starts, 1.0)
    after_oom = min(told.total("oom_start_count", keep) or 0.0, starts)
    return {
        "hold_gpu_s": cold / starts,
        "start_per_gpu_s": (starts - after_oom) / held,
        "oom_start_per_gpu_s": after_oom / held,
    }


def _computed_prompts(told: Profile, keep: Mask) -> tuple[float, bool]:
    """Y_in − Y_hit, and whether requests told it."""
    prompts = told.total("prompt_tokens", keep)
    if prompts is not None:
        return prompts - (told.total("cached_tokens", keep) or 0.0), True
    computed = told.total("prefill_tokens", keep) or 0.0
    return max(computed - (told.total("recomputed_tokens", keep) or 0.0), 0.0), False


def _token_values(told: Profile, keep: Mask, omega: float, unknown: set[str]) -> dict[str, object]:
    """W, X and M: each the work with the loss over the work without it."""
    output = told.total("output_tokens", keep) or 0.0
    decode = told.total("decode_tokens", keep) or output
    prefill = told.total("prefill_tokens", keep)
    if prefill is None or omega == 0:
        unknown.add("mix")
    prefill = prefill or 0.0
    work = decode + omega * prefill
    again, lost = told.total("recomputed_tokens", keep), told.total("undelivered_tokens", keep)
    padded = told.total("padded_tokens", keep) or 0.0
    values: dict[str, object] = {"prefill_ratio": prefill / decode if decode else 0.0}
    unknown |= {key for key, column in (("recompute", again), ("undelivered", lost)) if column is None}
    for name, part in (
        ("padding_ratio", padded),
        ("recompute_ratio", omega * (again or 0.0)),
        ("undelivered_ratio", lost or 0.0),
    ):
        values[name] = work / (work - part) if 0 < part < work else 1.0
        work -= part if 0 < part < work else 0.0
    computed, by_request = _computed_prompts(told, keep)
    cached = told.total("cached_tokens", keep) if by_request else None
    if cached is None:
        unknown.add("prefix_cache")
    whole = output + omega * (computed + (cached or 0.0))
    values["hit_ratio"] = (output + omega * computed) / whole
    values["mix_ratio"] = whole / output
    return values


def _batch_values(
    told: Profile, keep: Mask, curve: StepCurve | None, demand: Demand, unknown: set[str]
) -> dict[str, object]:
    batch, decode = _batch(told), told.columns["decode_tokens"]
    good = np.zeros(told.count, dtype=bool) if batch is None or decode is None else keep & (batch > 0) & (decode > 0)
    if batch is None or decode is None or not good.any() or curve is None:
        unknown.add("batching")
        return {}
    context = float(np.average(_context(told, keep)[good], weights=decode[good]))
    busy = _busy(told)
    load = Load(
        batch,
        decode,
        _or_zero(told, "prefill_tokens"),
        _or_zero(told, "bound_ratio"),
        _or_zero(told, "waiting_count"),
        told.columns["offered_tokens"],
        None if busy is None else busy / told.gpu_count,
    )
    wanted = demanded(load, curve, context, demand)
    return {
        "wanted": quantiles(wanted[good], decode[good]),
        "cap_count": cap(load, good, context, told.seen.kv_tokens, demand),
        "context_tokens": context,
    }


def _batch(told: Profile) -> Floats | None:
    decode, steps = told.columns["decode_tokens"], told.columns["step_count"]
    if decode is None or steps is None:
        return None
    return np.divide(decode, steps, out=np.zeros_like(decode), where=steps > 0)


def _busy(told: Profile) -> Floats | None:
    step = told.columns["step_gpu_s"]
    return step if step is not None else _ready_busy(told)


def _ready_busy(told: Profile) -> Floats | None:
    held, idle = told.columns["held_gpu_s"], told.columns["idle_gpu_s"]
    if held is None or idle is None:
        return None
    return np.maximum(held - _or_zero(told, "cold_gpu_s") - idle, 0.0)


def _context(told: Profile, keep: Mask) -> Floats:
    """Tokens in the KV cache per sequence by window: by KV use where the pool is known, else by the mean request."""
    prompts, output, requests = (told.total(name, keep) for name in ("prompt_tokens", "output_tokens", "request_count"))
    mean = (prompts + output / 2) / requests if prompts and output and requests else 0.0
    used = _or_zero(told, "context_tokens")
    return np.where(used > 0, used, mean)


def _or_zero(told: Profile, name: str) -> Floats:
    column = told.columns[name]
    return np.zeros(told.count) if column is None else column
