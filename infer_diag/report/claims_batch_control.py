"""The article's figures on a batch size under a burst (its section 3.1) beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable

import polars as pl

from infer_diag.report.claims import Claim, Claims
from infer_diag.simulators.batch_control import Plant, article_batch, corrected_batch
from infer_diag.simulators.batch_control.controllers import ARTICLE_LATENCY_MS, LONG_S, WINDOW_S
from infer_diag.simulators.batch_control.plant import ARTICLE_LIMIT, ARTICLE_POINTS
from infer_diag.simulators.batch_control.scenarios import BURST_PER_S, STEADY_PER_S
from infer_diag.units import format_count, format_ratio, format_s

ROWS = (("steady state", STEADY_PER_S, *ARTICLE_POINTS[0]), ("burst", BURST_PER_S, *ARTICLE_POINTS[1]))
"""(row of the article's table, requests per second offered, batch, requests per second served)."""
_SECONDS = {"p99_response_s", "recovery_s"}
_UNIT = "a rate times milliseconds is a number of requests only after / 1000; here it is the rate itself, cut to 128"


def needed_latency_ms(qps: float, batch: int) -> float:
    """The latency at which the article's formula would print this batch at this rate."""
    return batch * 100 / qps


def replicas(plant: Plant, qps: float) -> int:
    """How many such servers can serve this rate."""
    return math.ceil(qps / plant.capacity_per_s)


def backlog_s(plant: Plant, burst_s: float, before: float = STEADY_PER_S, qps: float = BURST_PER_S) -> float:
    """Seconds to work off what a burst leaves: (λ_burst − capacity) · length / (capacity − λ). Without any drop.

    Raises:
        ValueError: the capacity is no more than the load after the burst.
    """
    if plant.capacity_per_s <= before:
        raise ValueError("the backlog is never worked off")
    return max(qps - plant.capacity_per_s, 0.0) * burst_s / (plant.capacity_per_s - before)


def told(summary: pl.DataFrame, scenario: str, policy: str, measure: str) -> str | None:
    """Mean and interval of one measure in words; null where a seed has none.

    Frame in: `simulators.batch_control.frames.ControlSummary`.
    """
    row = summary.filter(scenario=scenario, policy=policy, measure=measure).row(0, named=True)
    if row["mean"] is None:
        return None
    form = format_ratio if measure.endswith("_ratio") else format_s if measure in _SECONDS else format_count
    spread = "" if row["lower"] is None else f" ({form(max(row['lower'], 0.0))} to {form(row['upper'])})"
    return f"{form(row['mean'])}{spread}"


def batch_control_claims(summary: pl.DataFrame, plant: Plant, *, burst: str, burst_s: float, blamed: int) -> Claims:
    """Every figure of the article's section 3.1 beside ours.

    Frame in: `simulators.batch_control.frames.ControlSummary`. `burst` names the scenario of the article's burst,
    `burst_s` is its length, `blamed` the batch at which a controller ends that takes waiting for too large a batch.
    """
    seeds = max(summary.filter(scenario=burst)["seed_count"])
    where = f"{seeds} seeds, 95 % interval"
    return Claims(
        [*_formula_claims(), *_plant_claims(plant), *_burst_claims(summary, plant, burst, burst_s, where, blamed)]
    )


def _formula_claims() -> list[Claim]:
    claims = [
        Claim(f"the formula's batch, {name}", str(batch), str(article_batch(qps)), "measured", _UNIT, "by running it")
        for name, qps, batch, _ in ROWS
    ]
    latency_s = ARTICLE_LATENCY_MS / 1000
    claims += [
        Claim(
            f"the same by Little's law, {name}",
            str(batch),
            format_count(corrected_batch(qps, latency_s)),
            "modelled",
            f"requests in the server at {qps:g}/s and {format_s(latency_s)}; the table's {batch} needs a latency of "
            f"{needed_latency_ms(qps, batch):.3g} ms in the article's formula",
        )
        for name, qps, batch, _ in ROWS
    ]
    window = (STEADY_PER_S * (WINDOW_S - LONG_S) + BURST_PER_S * LONG_S) / WINDOW_S
    return [
        Claim(
            "the trigger",
            "over 300 % within 500 ms",
            f"{STEADY_PER_S:g}/s to {BURST_PER_S:g}/s is {format_ratio(BURST_PER_S / STEADY_PER_S - 1)} more",
            "modelled",
            "the table's burst meets it",
            "arithmetic",
        ),
        *claims,
        Claim(
            "how far the target is off in the burst",
            "67 % too low",
            f"{format_ratio(article_batch(BURST_PER_S) / corrected_batch(BURST_PER_S, latency_s) - 1)} too high",
            "modelled",
            "with a static latency and the unit error the formula over-estimates. What is too low is the rate: half a "
            f"second into the burst a window of {WINDOW_S:g} s reads {format_count(window)}/s, "
            f"{format_ratio(1 - window / BURST_PER_S)} less than what arrives; the batch is {ARTICLE_LIMIT} either way",
            f"against λ · {format_s(latency_s)}",
        ),
    ]


def _plant_claims(plant: Plant) -> list[Claim]:
    fixed_s, each_s = plant.seconds[0], plant.seconds[2] - plant.seconds[1]
    return [
        Claim(
            "time of a batch",
            "not given",
            f"{fixed_s * 1e3:.1f} ms + {each_s * 1e3:.2f} ms · b",
            "modelled",
            "the one line through the table's two rows, b / X(b); two points fix a line and cannot test it",
            "from the article's own table",
        ),
        Claim(
            "the most that it serves",
            "850/s asked for",
            f"{plant.capacity_per_s:.0f}/s at b = {plant.limit_count}, {1 / each_s:.0f}/s without a limit",
            "bounded",
            f"no controller serves the burst: it is short of capacity, and {replicas(plant, BURST_PER_S)} such servers "
            "or shedding are the remedy",
            "from the article's own table",
        ),
    ]


def _burst_claims(
    summary: pl.DataFrame, plant: Plant, burst: str, burst_s: float, where: str, blamed: int
) -> list[Claim]:
    of = _teller(summary, burst)
    table, greedy = of("article table", "burst_served_per_s"), of("greedy", "burst_served_per_s")
    return [
        Claim(
            "served in the burst",
            "104/s",
            f"{table}/s with the table's batches, {greedy}/s with the largest that the SLO allows",
            "simulated",
            "smaller batches lower the throughput when it is needed; the formula as printed is as good as greedy here, "
            "because the server never waits for a batch to fill",
            where,
        ),
        Claim(
            "what a slope of the rate adds",
            "its lack is the flaw",
            f"{of('slope-aware', 'burst_served_per_s')}/s with it, {of('corrected', 'burst_served_per_s')}/s without",
            "simulated",
            "it sees the burst sooner, and the server is as full; what is short is capacity",
            where,
        ),
        Claim(
            "the batch is pressed to 1",
            "by a window that lags",
            f"{blamed} by a controller that judges batches by response time",
            "simulated",
            "a late rate cannot do it, and max(1, …) at 200/s is far above. What does it is a feedback that takes "
            "waiting for too large a batch: overload makes misses, misses make batches small, small batches serve less",
            "AIMD on response time, after the burst",
        ),
        *_lateness_claims(of, plant, burst_s, where),
    ]


def _teller(summary: pl.DataFrame, burst: str) -> Callable[[str, str], str]:
    def of(policy: str, measure: str) -> str:
        return told(summary, burst, policy, measure) or "more than is seen"

    return of


def _lateness_claims(of: Callable[[str, str], str], plant: Plant, burst_s: float, where: str) -> list[Claim]:
    return [
        Claim(
            "within the SLO, the burst included",
            "not given",
            f"greedy {of('greedy', 'in_slo_ratio')}, early drop {of('early drop', 'in_slo_ratio')}, "
            f"no controller above {of('greedy', 'most_in_slo_ratio')}",
            "simulated",
            "first come, first served makes everybody late after an overload; dropping those that are late anyway "
            f"keeps the others in time ({of('early drop', 'dropped_count')} dropped)",
            where,
        ),
        Claim(
            "how long the burst is felt",
            "not given",
            f"{of('greedy', 'recovery_s')} greedy, {of('early drop', 'recovery_s')} early drop",
            "simulated",
            f"what the burst leaves takes {format_s(backlog_s(plant, burst_s))} to work off at full speed; batches of "
            "λ · t(b) serve exactly what arrives and never work it off",
            where,
        ),
    ]
