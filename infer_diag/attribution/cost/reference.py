"""Against what a deployment is compared, and when nothing is fit to compare it with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from infer_diag.attribution.cost import REFERENCES
from infer_diag.attribution.cost.jackknife import block_of
from infer_diag.attribution.cost.ledger import UNKNOWN_FACT
from infer_diag.attribution.cost.mechanisms import Mechanisms, middle
from infer_diag.attribution.cost.profile import Mask, NoCost, Profile, equivalent_tokens, log_measured
from infer_diag.attribution.cost.step_time import RooflineSteps
from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.simulators.serving.hardware import gpu_named, model_named
from infer_diag.simulators.serving.step_time import roofline

LEAST_PEERS = 5
"""Fewer peers have no median that one of them would not make."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A deployment and what it is compared with, or why there is nothing: then `reference` is null."""

    deployment: Mechanisms
    reference: Mechanisms | None
    label: str
    comparable: bool = True


def check(how: str, names: Sequence[str]) -> None:
    """`how` is a kind of reference or a deployment's name.

    Raises:
        UnknownNameError: it is neither.
    """
    if how not in REFERENCES and how not in names:
        raise UnknownNameError("reference", how, [*REFERENCES, *names])


def pairs(
    parts: Mapping[str, Mechanisms], groups: Mapping[str, str], how: str, best: Mapping[str, str | None]
) -> dict[str, Pair]:
    """Each deployment beside its reference.

    `median`: every part the median of the comparable peers', itself among them; below 5 peers of the whole fleet's,
    where the hardware's part then stands in a bar of its own. `best`: the peer that was cheapest in the other half of
    the time. `roofline`: itself without cold start, idle time and stalls, at the speed of published constants.
    """
    found = {}
    medians: dict[str, Pair] = {}
    for name, own in parts.items():
        group = groups[name]
        if how == "median":
            if group not in medians:
                medians[group] = _median(parts, groups, group)
            found[name] = replace(medians[group], deployment=own)
        elif how == "roofline":
            found[name] = _roofline(own, group)
        else:
            peer = best.get(name) if how == "best" else how
            there = parts.get(peer) if peer is not None else None
            label = f"the best peer, {peer}" if how == "best" else str(peer)
            same = peer is not None and groups.get(peer) == group
            found[name] = Pair(own, there, label if there is not None else _few(groups, group), same)
    return found


def _median(parts: Mapping[str, Mechanisms], groups: Mapping[str, str], group: str) -> Pair:
    own = [part for name, part in parts.items() if groups[name] == group]
    comparable = len(own) >= LEAST_PEERS
    peers = own if comparable else list(parts.values())
    nothing = own[0]
    if len(peers) < LEAST_PEERS:
        return Pair(nothing, None, _few(groups, group))
    known = UNKNOWN_FACT not in group.split(" · ")[:2]
    if comparable:
        what = f"{len(peers)} comparable peers" if known else f"{len(peers)} peers whose model or GPU no log names"
    else:
        what = f"the whole fleet ({len(peers)}), for want of comparable peers"
    return Pair(nothing, middle(peers), f"the median of {what}", comparable and known)


def _few(groups: Mapping[str, str], group: str) -> str:
    count = sum(each == group for each in groups.values())
    return f"{count} comparable deployments, {LEAST_PEERS} are needed; name a reference or take the roofline"


def _roofline(own: Mechanisms, group: str) -> Pair:
    model, gpu = group.split(" · ")[:2]
    try:
        curve = RooflineSteps(roofline(model_named(model), gpu_named(gpu), gpu_count=int(own.gpu_count)))
    except DiagError as error:
        return Pair(own, None, f"no roofline: {error.message}")
    if own.wanted is None:
        return Pair(own, None, "no roofline: the batch is not known")
    here = replace(own, curve=curve, unknown=own.unknown - {"batching"}).closed(own.log_cost())
    ideal = replace(
        here,
        start_per_gpu_s=0.0,
        oom_start_per_gpu_s=0.0,
        idle_ratio=1.0,
        stall_ratio=1.0,
        padding_ratio=1.0,
        recompute_ratio=1.0,
        undelivered_ratio=1.0,
        cap_count=math.inf,
        residual_ratio=1.0,
    )
    return Pair(here, ideal, "the roofline of published constants, without a latency limit", True)


def halves(count: int, blocks: int) -> tuple[Mask, Mask]:
    """Windows on which a best peer is chosen, and those on which it is then judged: every other block of time."""
    owner = block_of(count, blocks)
    choosing: Mask = owner % 2 == 0
    return choosing, ~choosing


def best_peers(
    told: Mapping[str, Profile],
    choosing: Mapping[str, Mask],
    groups: Mapping[str, str],
    weight: float,
    blocks: int,
) -> dict[str, str | None]:
    """For each deployment its cheapest comparable peer on the choosing half, per equivalent token; null below 5 peers.

    Costs are drawn to their mean by how noisy each is, B = v/(v + τ²), since the best of many is best by luck too.
    """
    logs: dict[str, float] = {}
    noise: dict[str, float] = {}
    for name, each in told.items():
        try:
            logs[name] = _log_equivalent(each, choosing[name], weight)
            noise[name] = _variance(each, choosing[name], weight, blocks)
        except NoCost:
            continue
    found: dict[str, str | None] = {}
    for name in told:
        peers = [peer for peer in logs if groups[peer] == groups[name]]
        found[name] = None
        if len(peers) >= LEAST_PEERS:
            values = np.array([logs[peer] for peer in peers])
            variance = np.array([noise[peer] for peer in peers])
            spread = max(float(values.var(ddof=1)) - float(variance.mean()), 1e-12)
            shrunk = values.mean() + spread / (spread + variance) * (values - values.mean())
            found[name] = peers[int(np.argmin(shrunk))]
    return found


def _log_equivalent(told: Profile, keep: Mask, weight: float) -> float:
    output = told.total("output_tokens", keep) or 0.0
    tokens = equivalent_tokens(told, keep, weight)
    return log_measured(told, keep) - math.log(tokens / output)


def _variance(told: Profile, keep: Mask, weight: float, blocks: int) -> float:
    owner = block_of(told.count, 2 * blocks)
    left = []
    for block in np.unique(owner[keep]):
        try:
            left.append(_log_equivalent(told, keep & (owner != block), weight))
        except NoCost:
            return math.inf
    return float((len(left) - 1) / len(left) * ((np.array(left) - np.mean(left)) ** 2).sum()) if left else math.inf
