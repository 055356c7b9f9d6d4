"""Many starts in one frame: what they took, what caches save, who straggles, what the first request pays, the bill."""

from __future__ import annotations

from infer_diag.attribution.starts_together.first_request import Penalty, first_request_penalty, start_requests
from infer_diag.attribution.starts_together.readiness import Probe, ProbeAdvice, killed_count, probe_advice
from infer_diag.attribution.starts_together.together import (
    Together,
    cache_savings,
    phase_spreads,
    starts_together,
)

__all__ = [
    "Penalty",
    "Probe",
    "ProbeAdvice",
    "Together",
    "cache_savings",
    "first_request_penalty",
    "killed_count",
    "phase_spreads",
    "probe_advice",
    "start_requests",
    "starts_together",
]
