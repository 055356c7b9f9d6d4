"""How long an engine step takes at a batch: a curve fitted to a group of deployments, or any other of the same shape.

Step of n prefill tokens and b sequences in decode, each with L tokens of context:
s = a0 + a1·n + (a2 + a3·L)·b seconds (fixed, prefill, sequence, context).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy

from infer_diag.simulators.serving.step_time import StepTime

Floats = npt.NDArray[np.float64]

LEAST_LEVELS = 8
"""Batch levels that a fit needs: fewer cannot tell the fixed part of a step from the part per sequence."""
LEAST_SPREAD = 1.5
"""Greatest over least batch; closer together, every curve through one point fits."""
LEAST_RELIABILITY = 0.3
"""Share of what tells the fixed part of a step that has to be more than the error of sampling the batch."""
SCALE_SD = 0.1
"""How far deployments of one model and hardware lie apart in speed before the data say more (ln)."""
_ROUNDS = 200
_TERMS = 4


class StepCurve(Protocol):
    """Seconds of one decode step at a batch, and of one prefill token, on one replica."""

    def step_s(self, batch: Floats, context_tokens: float) -> Floats:
        """Seconds of a step of `batch` sequences in decode."""

    @property
    def prefill_token_s(self) -> float:
        """Seconds that a prefill token adds to the step that holds it."""


@dataclass(frozen=True)
class LinearSteps:
    """The fitted curve; `levels` are the batch levels behind it and `spread` the greatest over the least of them."""

    fixed_s: float
    prefill_token_s: float = 0.0
    sequence_s: float = 0.0
    context_token_s: float = 0.0
    levels: int = 0
    spread: float = 1.0

    def step_s(self, batch: Floats, context_tokens: float) -> Floats:
        """a0 + (a2 + a3·L)·b."""
        found: Floats = self.fixed_s + (self.sequence_s + self.context_token_s * context_tokens) * batch
        return found

    def batch_for(self, tokens_per_s: Floats, context_tokens: float, prefill_s: float = 0.0) -> Floats:
        """The batch whose decode keeps up with a demand g, infinite beyond the limit: g·a0 / (1 − g·(a2 + a3·L + p)).

        p: seconds of prefill that each decode token brings with it.
        """
        slope = self.sequence_s + self.context_token_s * context_tokens + prefill_s
        room = 1 - tokens_per_s * slope
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(room > 0, tokens_per_s * self.fixed_s / room, np.inf)


@dataclass(frozen=True)
class RooflineSteps:
    """The time that published constants allow, as the simulators model it.

    It knows no latency limit and no overhead that is not modelled: a ratio to it is always large and says little alone.
    """

    modelled: StepTime

    def step_s(self, batch: Floats, context_tokens: float) -> Floats:
        """host + max(bytes moved / bandwidth, operations / throughput)."""
        return self.modelled.decode_s(batch, context_tokens)

    @property
    def prefill_token_s(self) -> float:
        """2 · parameters / throughput."""
        return self.modelled.per_prefill_token_s


def terms(
    step_s: Floats, decode_tokens: Floats, prefill_tokens: Floats, batch: Floats, context_tokens: Floats
) -> Floats:
    """Rows for `fitted`: what each coefficient is multiplied by in a window, over its step time: errors are relative.

    Steps of a window are its decode tokens over its batch. Windows without decode or step time give no row.
    """
    good = (step_s > 0) & (decode_tokens > 0) & (batch > 0)
    steps = decode_tokens[good] / batch[good]
    columns = [steps, prefill_tokens[good], decode_tokens[good], decode_tokens[good] * context_tokens[good]]
    return np.stack(columns, axis=1) / step_s[good][:, None]


@dataclass(frozen=True, eq=False)
class Sampled:
    """What one deployment gives to the fit: rows as `terms` makes them, its batches, and how far its steps are off.

    `noise`: Σ over the rows of the variance of the steps over the squared step time; 0 where the steps were counted.
    """

    rows: Floats
    batch: Floats
    noise: float = 0.0


def fitted(made: Sequence[Sampled]) -> LinearSteps | None:
    """One curve for deployments of one model and hardware; null where their batches are too few, too alike or unsure.

    Each deployment has a speed of its own, κ·s(b), near 1, so that a throttled one bends no other's curve: non-negative
    least squares and the κ are solved in turn. Steps that are told by a sampled batch carry its error, which would draw
    the fixed part of a step to 0: its variance is taken off the squares (least squares with errors in a variable whose
    variance is known; Fuller, "Measurement Error Models", 1987, section 2.2). Where little but that error is left, a
    deployment tells nothing of the curve and is left out.
    """
    made = [each for each in made if _reliability(each.rows.T @ each.rows, each.noise) >= LEAST_RELIABILITY]
    seen = np.concatenate([each.batch[each.batch > 0] for each in made]) if made else np.empty(0)
    if not len(seen):
        return None
    spread = float(np.percentile(seen, 95) / np.percentile(seen, 5))
    levels = len(np.unique(np.round(seen, 1)))
    if levels < LEAST_LEVELS or spread < LEAST_SPREAD:
        return None
    squares = np.stack([each.rows.T @ each.rows for each in made])
    noise = np.array([each.noise for each in made])
    squares[:, 0, 0] -= noise
    sums = np.stack([each.rows.sum(axis=0) for each in made])
    counts = np.array([len(each.rows) for each in made], dtype=np.float64)
    found = _alternate(squares, sums, counts)
    if found is None:
        return None
    fixed, prefill, sequence, context = map(float, found)
    return LinearSteps(fixed, prefill, sequence, context, levels, spread)


def _reliability(squares: Floats, noise: float) -> float:
    """Share of what the number of steps says beyond the other terms that is no error of sampling."""
    others = squares[1:, 1:]
    used = np.diag(others) > 0
    along = squares[0, 1:][used]
    own = float(squares[0, 0] - along @ np.linalg.lstsq(others[np.ix_(used, used)], along)[0])
    return 1 - noise / own if own > 0 else 0.0


def _alternate(squares: Floats, sums: Floats, counts: Floats) -> Floats | None:
    scale = np.ones(len(counts))
    theta = np.zeros(_TERMS)
    for _ in range(_ROUNDS):
        before = theta
        theta = _nonnegative(np.einsum("d,dij->ij", scale**2, squares), scale @ sums)
        if not theta.any():
            return None
        power = np.einsum("i,dij,j->d", theta, squares, theta)
        along = sums @ theta
        error = float((counts - 2 * scale * along + scale**2 * power).sum() / counts.sum())
        pull = max(error, 1e-9) / SCALE_SD**2
        scale = (along + pull) / (power + pull)
        scale = scale / np.median(scale)
        if np.allclose(theta, before, rtol=1e-10, atol=0.0):
            break
    return theta


def _nonnegative(squares: Floats, sums: Floats) -> Floats:
    """Non-negative least squares from normal equations, each column first brought to one size."""
    size = np.sqrt(np.diag(squares))
    used = size > 0
    if not used.any():
        return np.zeros(len(size))
    gram = squares[np.ix_(used, used)] / np.outer(size[used], size[used])
    values, vectors = np.linalg.eigh(gram)
    keep = values > values.max() * 1e-12
    root = (vectors[:, keep] * np.sqrt(values[keep])).T
    target = (vectors[:, keep] / np.sqrt(values[keep])).T @ (sums[used] / size[used])
    solved, _ = scipy.optimize.nnls(root, target)
    theta = np.zeros(len(size))
    theta[used] = solved / size[used]
    return theta


def prompt_token_weight(curve: StepCurve, batch: float, context_tokens: float) -> float | None:
    """ω: what a prompt token costs in decode tokens, a1 / (a2 + a3·L + a0/b); null where the curve tells no prefill."""
    decode = float(curve.step_s(np.array([batch]), context_tokens)[0]) / batch
    return curve.prefill_token_s / decode if curve.prefill_token_s > 0 and decode > 0 else None
