"""Where an engine's time went: parts that add up, the gates before them, and what a change would have saved."""

from infer_diag.attribution.throughput_loss.frames import (
    PARTS,
    USEFUL,
    Bursts,
    KneeLevels,
    LossGates,
    LossParts,
    TokenBudgets,
)
from infer_diag.attribution.throughput_loss.goodput import Goodput, Slo, goodput
from infer_diag.attribution.throughput_loss.knee import Knee, Usl, saturation_knee
from infer_diag.attribution.throughput_loss.length_effect import LengthEffect, length_effect
from infer_diag.attribution.throughput_loss.padding import Padding, padding
from infer_diag.attribution.throughput_loss.parts import ThroughputLoss, throughput_loss
from infer_diag.attribution.throughput_loss.queueing import BurstsSeen, bursts_seen
from infer_diag.attribution.throughput_loss.token_budget import BudgetWhatIf, token_budget_what_if

__all__ = [
    "PARTS",
    "USEFUL",
    "BudgetWhatIf",
    "Bursts",
    "BurstsSeen",
    "Goodput",
    "Knee",
    "KneeLevels",
    "LengthEffect",
    "LossGates",
    "LossParts",
    "Padding",
    "Slo",
    "ThroughputLoss",
    "TokenBudgets",
    "Usl",
    "bursts_seen",
    "goodput",
    "length_effect",
    "padding",
    "saturation_knee",
    "throughput_loss",
    "token_budget_what_if",
]
