"""Traffic of a simulated deployment: when requests come and how long they are, after published figures of real ones.

Medians and coefficients of variation are those of the Azure LLM inference traces of 2023 (conversation: prompt median
1,020 tokens, output median 129, gaps between arrivals with a coefficient of variation of 1.09; code: 1,469, 13, and
bursts). Every request here is drawn; none is copied.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from infer_diag.simulators.fleet.plan import Plan
from infer_diag.simulators.serving import Workload, gamma_arrivals, simulate, workload
from infer_diag.simulators.serving.state import END_S, ROW_EMITTED

Floats = NDArray[np.float64]

_STEP_S = 30.0
_SWING_RATIO = 0.04
"""The day's swing of one replica: the autoscaler takes most of it up by their number."""
_NOISE_SD = 0.18
_NOISE_KEPT = 0.9
_MOST_OUTPUT = 1500
_SATURATING = 600


def traffic(plan: Plan) -> Workload:
    """The requests of a deployment over its whole span.

    Arrivals: gaps of a gamma distribution in a time that runs with the rate, which swings over the day and wanders.
    """
    arrival_s = _arrivals(plan, replica_rate(plan))
    return _asked(plan, arrival_s)


def replica_rate(plan: Plan) -> float:
    """Requests per second that the autoscaler gives a replica: its share of what it carries when it never runs dry.

    What it carries is simulated: requests of the deployment's lengths, all there at once, between a tenth and eight
    tenths of their output.
    """
    settings = replace(plan.settings(), max_num_seqs=min(plan.max_num_seqs, plan.target_running))
    asked = _asked(plan, np.zeros(_SATURATING))
    done = simulate(asked, settings, plan.step_time(), sample_every_s=1e3)
    came = np.cumsum(done.outcome.rows[:, ROW_EMITTED], dtype=np.float64)
    begin, end = np.searchsorted(came, [0.1 * came[-1], 0.8 * came[-1]])
    times = done.outcome.times[:, END_S]
    tokens_per_s = (came[end] - came[begin]) / (times[end] - times[begin])
    return float(plan.load_ratio * tokens_per_s / (came[-1] / int(done.fits.sum())))


def _asked(plan: Plan, arrival_s: Floats) -> Workload:
    count = len(arrival_s)
    # A stream of its own for each column: more or fewer requests leave the first ones as they are.
    prompts, outputs, names = (np.random.default_rng(plan.seed(each)) for each in ("prompts", "outputs", "names"))
    longest = plan.max_model_len - _MOST_OUTPUT
    prompt = _lognormal(prompts, count, plan.prompt_median, plan.prompt_cv, longest)
    output = _lognormal(outputs, count, plan.output_median, plan.output_cv, _MOST_OUTPUT)
    ids = tuple(f"{value:032x}" for value in _numbers(names, count))
    return workload(
        arrival_s,
        prompt + plan.prefix_tokens,
        output,
        prefix_group=0 if plan.prefix_tokens else -1,
        prefix_tokens=plan.prefix_tokens,
        request_ids=ids,
    )


def _arrivals(plan: Plan, requests_per_s: float) -> Floats:
    edges, rates = _rates(plan, requests_per_s)
    passed = np.concatenate([[0.0], np.cumsum(rates * _STEP_S)])
    gaps = gamma_arrivals(1.0, float(passed[-1]), cv=plan.arrival_cv, seed=plan.seed("arrivals"))
    # A gap may end in an hour without traffic only at its edge, where the passed time stands still.
    return np.interp(gaps, passed, edges)


def _rates(plan: Plan, requests_per_s: float) -> tuple[Floats, Floats]:
    """(edges of steps, requests per second within each)."""
    random = np.random.default_rng(plan.seed("rate"))
    edges = np.arange(0.0, plan.span_s + _STEP_S, _STEP_S)
    noise = random.normal(0.0, _NOISE_SD * np.sqrt(1 - _NOISE_KEPT**2), len(edges) - 1)
    wander = np.zeros(len(noise))
    for step in range(1, len(noise)):
        wander[step] = _NOISE_KEPT * wander[step - 1] + noise[step]
    middle_h = (edges[:-1] + _STEP_S / 2) / 3600
    swing = 1 + _SWING_RATIO * np.sin(2 * np.pi * (middle_h + plan.seed("swing") % 24) / 24)
    asked = np.any([(middle_h >= begin) & (middle_h < end) for begin, end in plan.demand_h], axis=0)
    return edges, np.where(asked, requests_per_s * swing * np.exp(wander), 0.0)


def _lognormal(random: np.random.Generator, count: int, median: float, cv: float, most: int) -> NDArray[np.int64]:
    drawn = median * np.exp(np.sqrt(np.log1p(cv**2)) * random.standard_normal(count))
    return np.asarray(np.clip(np.rint(drawn), 1, most), np.int64)


def _numbers(random: np.random.Generator, count: int) -> list[int]:
    parts = random.integers(0, 1 << 63, size=(count, 2), dtype=np.int64)
    return [(int(high) << 64) | int(low) for high, low in parts]
