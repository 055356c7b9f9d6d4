"""Gates that every simulated run passes: Little's law, a ledger of its tokens, and who had to wait for others."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass

import numpy as np

from infer_diag.simulators.serving.result import Simulation
from infer_diag.simulators.serving.state import (
    DECODE_TOKENS,
    END_S,
    PREFILL_TOKENS,
    REPLICA,
    ROW_RECOMPUTED,
    ROW_RUNNING,
    ROW_SWAPPED,
    ROW_WAITING,
)


@dataclass(frozen=True)
class Little:
    """Mean number of requests in the engine, from its steps, and arrival rate · mean time in it, from the requests."""

    mean_count: float
    rate_times_stay: float


@dataclass(frozen=True)
class TokenLedger:
    """Tokens that the steps computed and what they were for; `unexplained_tokens` is what is left of the sum.

    computed = prompts and outputs of requests, less what the cache held and the last output of each (whose KV nobody
    needs), + recomputed + padding + unexplained.
    """

    computed_tokens: int
    needed_tokens: int
    recomputed_tokens: int
    cached_tokens: int
    padding_tokens: int
    delivered_tokens: int
    unexplained_tokens: int


@dataclass(frozen=True)
class Starvation:
    """How unevenly a policy lets requests wait.

    `overtaken_count`: the most later requests that began before one that was already there. `starved_count`: requests
    that more others overtook than the engine has places, or that never began; first come, first served has none.
    `jain_ratio` = (Σx)² / (n·Σx²) of x = output tokens / time in the engine: 1 where all are served alike.
    """

    longest_wait_s: float
    longest_wait_id: str
    overtaken_count: int
    starved_count: int
    unfinished_count: int
    jain_ratio: float


def little(simulated: Simulation) -> Little:
    """Both sides of Little's law over the whole run, which begins and ends empty."""
    times, rows, fared = simulated.outcome.times, simulated.outcome.rows, simulated.outcome.requests
    area = 0.0
    for engine in np.unique(rows[:, REPLICA]):
        mine, queued = rows[:, REPLICA] == engine, fared["queued_s"][fared["replica"] == engine]
        ends = times[mine, END_S]
        present = rows[mine][:, [ROW_RUNNING, ROW_WAITING, ROW_SWAPPED]].sum(axis=1)
        # Between two ends the number grows by those that came in after the first of them.
        following = np.minimum(np.searchsorted(ends, queued, side="right"), len(ends) - 1)
        area += float((present[:-1] * np.diff(ends)).sum() + (ends[following] - queued).sum())
    span = float(times[-1, END_S])
    stay = float(np.mean(fared["last_s"] - fared["queued_s"]))
    return Little(area / span, len(fared) / span * stay)


def token_ledger(simulated: Simulation) -> TokenLedger:
    """What the computed tokens of the run were for."""
    rows, fared = simulated.outcome.rows, simulated.outcome.requests
    computed = int(rows[:, PREFILL_TOKENS].sum(dtype=np.int64) + rows[:, DECODE_TOKENS].sum(dtype=np.int64))
    needed = int(fared["furthest"].sum(dtype=np.int64))
    cached = int(fared["cached"].sum(dtype=np.int64))
    again = int(rows[:, ROW_RECOMPUTED].sum(dtype=np.int64))
    padding = 0 if simulated.settings.continuous else computed - needed
    delivered = int(fared["emitted"][~np.isnan(fared["last_s"])].sum(dtype=np.int64))
    left = computed - (needed - cached) - again - padding
    return TokenLedger(computed, needed, again, cached, padding, delivered, left)


def starvation(simulated: Simulation) -> Starvation:
    """Who waited longest, who was overtaken, and how alike requests were served."""
    fared = simulated.outcome.requests
    begun = np.where(np.isnan(fared["scheduled_s"]), np.inf, fared["scheduled_s"])
    overtaken = _overtaken(begun)
    end_s = float(simulated.outcome.times[-1, END_S])
    waited = np.minimum(begun, end_s) - fared["arrival_s"]
    longest = int(np.argmax(waited))
    done = ~np.isnan(fared["last_s"])
    speed = fared["output"][done] / np.maximum(fared["last_s"][done] - fared["queued_s"][done], 1e-9)
    served_ids = [name for name, fits in zip(simulated.asked.request_ids, simulated.fits, strict=True) if fits]
    settings = simulated.settings
    places = settings.data_parallel_size * (settings.max_num_seqs if settings.continuous else settings.batch_size)
    return Starvation(
        longest_wait_s=float(waited[longest]),
        longest_wait_id=served_ids[longest],
        overtaken_count=int(overtaken.max()),
        starved_count=int(((overtaken > places) | np.isinf(begun)).sum()),
        unfinished_count=int((~done).sum()),
        jain_ratio=float(speed.sum() ** 2 / (len(speed) * (speed**2).sum())) if len(speed) else 0.0,
    )


def _overtaken(begun_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each request in order of arrival, how many later ones began before it."""
    later: list[float] = []
    counts = np.zeros(len(begun_s), np.int64)
    for index in range(len(begun_s) - 1, -1, -1):
        moment = float(begun_s[index])
        counts[index] = bisect_right(later, np.nextafter(moment, -np.inf))
        insort(later, moment)
    return counts
