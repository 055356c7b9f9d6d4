"""Every finding on serving, engine by engine and for the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from infer_diag.attribution.serving import Serving
from infer_diag.attribution.streams import Stream, streams
from infer_diag.diagnose import bursts, padding, pool, queueing, request_time, step_time
from infer_diag.diagnose.finding import RANK, Finding
from infer_diag.recording import Recording

Rule = Callable[[Stream], Finding | None]
EXPLAINS_A_QUEUE = {
    "batching.kv_saturation",
    "batching.concurrency_cap",
    "batching.scheduler_stall",
    "batching.burst",
    "batching.prefill_bound",
    "batching.queue",
}
"""Findings beside which a bare "requests wait" would say nothing new."""


def findings(recording: Recording, serving: Serving | None) -> list[Finding]:
    """Findings with ids `batching.*`, the most specific first; none where nothing was served.

    `batching.padding` is found only of engines that batch whole requests: no line tells padded from real tokens.
    """
    if serving is None:
        return []
    engines = streams(recording)
    found = _of_the_whole(recording, serving) + _of_engines(recording, serving, engines)
    found = _one_per_id(found)
    if not EXPLAINS_A_QUEUE & {finding.id for finding in found}:
        found += _worst(recording, engines, lambda stream: queueing.queue(recording, serving, stream))
    if not found:
        found += _worst(recording, engines, lambda stream: queueing.underfilled(recording, stream))
    return found or _all_healthy(recording, engines)


def _of_the_whole(recording: Recording, serving: Serving) -> list[Finding]:
    rules = (
        queueing.watchdog,
        pool.no_room,
        pool.preemption,
        pool.recomputation,
        padding.padded,
        step_time.prefill_starves_decode,
        step_time.prefill_bound_steps,
        request_time.queue_of_requests,
        request_time.prefill_of_requests,
        step_time.host_stall,
        step_time.slow_steps,
        request_time.length_variance,
    )
    return [finding for rule in rules if (finding := rule(recording, serving)) is not None]


def _of_engines(recording: Recording, serving: Serving, engines: list[Stream]) -> list[Finding]:
    rules: tuple[Rule, ...] = (
        lambda stream: queueing.scheduler_stall(recording, stream),
        lambda stream: queueing.standstill(recording, stream),
        lambda stream: pool.kv_saturation(recording, stream),
        lambda stream: pool.swapped_out(recording, serving, stream),
        lambda stream: pool.preemption_suspected(recording, serving, stream),
        lambda stream: queueing.concurrency_cap(recording, serving, stream),
        lambda stream: bursts.burst(recording, serving, stream),
        lambda stream: step_time.prefill_bound_batches(recording, stream),
    )
    return [finding for rule in rules for finding in _worst(recording, engines, rule)]


def _worst(recording: Recording, engines: list[Stream], rule: Rule) -> list[Finding]:
    found = [(stream, finding) for stream in engines if (finding := rule(stream)) is not None]
    if not found:
        return []
    stream, worst = min(found, key=lambda pair: RANK[pair[1].severity])
    if len(engines) == 1:
        return [worst]
    name = f"replica {stream.replica}" if stream.replica is not None else recording.sources[stream.source_id].path
    others = f" The same holds for {len(found) - 1} of {len(engines) - 1} others." if len(found) > 1 else ""
    return [replace(worst, sentence=f"{name}: {worst.sentence}{others}")]


def _all_healthy(recording: Recording, engines: list[Stream]) -> list[Finding]:
    each = [queueing.healthy(recording, stream) for stream in engines]
    if not each or any(finding is None for finding in each):
        return []
    return _worst(recording, engines, lambda stream: queueing.healthy(recording, stream))


def _one_per_id(found: list[Finding]) -> list[Finding]:
    worst: dict[str, Finding] = {}
    for finding in found:
        known = worst.get(finding.id)
        if known is None or RANK[finding.severity] < RANK[known.severity]:
            worst[finding.id] = finding
    return list(worst.values())
