"""What of the work met its promise to the user."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from infer_diag.attribution.requests import durations, of_one_teller
from infer_diag.errors import DiagError
from infer_diag.recording import Recording

_Z = 1.959964
_EVENTS = ("arrival_s", "queued_s", "scheduled_s", "first_token_s", "last_token_s")


@dataclass(frozen=True)
class Slo:
    """What a request has to meet, all of it, limits inclusive; null asks nothing.

    Raises:
        DiagError: no limit at all, or one that is not above 0.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        limits = [each for each in (self.ttft_s, self.tpot_s, self.e2e_s) if each is not None]
        if not limits or not all(each > 0 for each in limits):
            raise DiagError("an SLO needs a limit above 0", hint="Slo(ttft_s=1.0, tpot_s=0.05)")


@dataclass(frozen=True)
class Goodput:
    """Requests that met the SLO; those that never finished count as missed. Ends: Wilson's 95 % interval of the share.

    `refusal` says why none can be told.
    """

    met_count: int = 0
    request_count: int = 0
    unfinished_count: int = 0
    met_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None
    goodput_requests_per_s: float | None = None
    goodput_output_tokens_per_s: float | None = None
    refusal: str | None = None


def goodput(recording: Recording, slo: Slo) -> Goodput:
    """Requests per second that meet every limit of the SLO, and the output tokens of these. Measured.

    Frame in: Requests. TTFT counts from arrival (from when the engine takes the request in where no arrival is told),
    TPOT = (last − first token) / (output tokens − 1) and is met by a single token. The window is the first begin to the
    last event of any request. Where a client and its server tell of the same requests, those of one of them count.
    """
    needed = [("ttft_s", "first_token_s"), ("tpot_s", "last_token_s"), ("e2e_s", "last_token_s")]
    asked = [(limit, event) for limit, event in needed if getattr(slo, limit) is not None]
    begun = of_one_teller(recording, *(event for _, event in asked))
    begun = begun.with_columns(arrival_s=pl.coalesce("arrival_s", "queued_s")).drop_nulls("arrival_s")
    lacking = [event for _, event in asked if not begun[event].count()]
    if begun.is_empty() or lacking:
        return Goodput(refusal="no request tells " + " and ".join(dict.fromkeys(lacking or ["its arrival"])))
    each = durations(begun).with_columns(begun["output_tokens"].alias("tokens"), begun["last_token_s"])
    kept = [pl.col(limit) <= getattr(slo, limit) for limit, _ in asked]
    kept = [
        rule | (pl.col("output_tokens") == 1) if limit == "tpot_s" else rule
        for rule, (limit, _) in zip(kept, asked, strict=True)
    ]
    done = pl.col("last_token_s").is_not_null()
    good = each.filter(done & pl.all_horizontal(rule.fill_null(False) for rule in kept))
    span_s = begun.select(pl.max_horizontal(pl.col(*_EVENTS).max()) - pl.col("arrival_s").min()).item()
    count, met = len(begun), len(good)
    low, high = _wilson(met, count)
    return Goodput(
        met_count=met,
        request_count=count,
        unfinished_count=count - begun["last_token_s"].count(),
        met_ratio=met / count,
        low_ratio=low,
        high_ratio=high,
        goodput_requests_per_s=met / span_s if span_s else None,
        goodput_output_tokens_per_s=float(good["tokens"].sum()) / span_s if span_s else None,
    )


def _wilson(met: int, count: int) -> tuple[float, float]:
    """Wilson's interval of a share (Wilson, JASA 22, 1927)."""
    share, spread = met / count, _Z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
