"""A workload through a simulated engine: the frames that a log of it would give, marked as simulated."""

from __future__ import annotations

import numpy as np

from infer_diag.errors import DiagError
from infer_diag.simulators.serving.result import Simulation
from infer_diag.simulators.serving.settings import MOST_BLOCKS, EngineSettings
from infer_diag.simulators.serving.state import REQUEST, Engine, Ints, Outcome, Requests, new_engines
from infer_diag.simulators.serving.static_batches import batched
from infer_diag.simulators.serving.step_time import EVEN, StepScatter, StepTime
from infer_diag.simulators.serving.workload import Workload

LONGEST_TOKENS = 1 << 22
"""No request is longer: hundreds of them still have their contexts summed in whole numbers of 32 bits."""
MOST_PLACES = 1 << 30
"""Blocks that the running requests of all engines could hold at most, 4 bytes each."""
MOST_SAMPLES = 10_000_000


def simulate(
    asked: Workload,
    settings: EngineSettings,
    step_time: StepTime,
    *,
    sample_every_s: float = 1.0,
    scatter: StepScatter = EVEN,
) -> Simulation:
    """What an engine with these settings and step times does with these requests. Simulated.

    The same arguments give the same frames: nothing is drawn here. `scatter` is of engines whose batch is continuous.
    Requests that can never run, because they are longer than the pool, than a step's budget without chunked prompts or
    than 4,194,304 tokens, are refused: `finish_reason` says so.

    Raises:
        DiagError: every request is refused, steps take no time, `sample_every_s` is not above 0 or gives more than ten
            million samples, or the engines' sequences and their lengths together are too many to simulate.
    """
    if not step_time.seconds(1.0, 1.0, 1.0, 1.0) > 0:
        raise DiagError("steps of the simulated engine take no time", hint="give seconds above 0 for some part")
    if not sample_every_s > 0:
        raise DiagError(f"samples cannot be {sample_every_s} s apart", hint="give seconds above 0")
    if asked.arrival_s[-1] / sample_every_s * settings.data_parallel_size > MOST_SAMPLES:
        span_s = float(asked.arrival_s[-1])
        raise DiagError(
            f"requests arrive over {span_s:,.0f} s, too long for samples {sample_every_s:g} s apart",
            hint="check the clock of the arrivals, or raise sample_every_s",
        )
    fits = _fits(asked, settings)
    if not fits.any():
        raise DiagError(
            "no request fits the engine: each is longer than its pool or its token budget",
            hint="raise kv_cache_tokens or max_num_batched_tokens",
        )
    served = asked if fits.all() else asked.where(fits)
    if settings.continuous:
        outcome, _ = continuous(served, settings, step_time, scatter)
    else:
        outcome = batched(requests_of(served, settings)[0], settings, step_time)
    return Simulation(asked, fits, outcome, settings, step_time, sample_every_s)


def _fits(asked: Workload, settings: EngineSettings) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    whole = _held_tokens(asked, settings)
    fits = whole <= LONGEST_TOKENS
    if settings.pool_blocks is not None and settings.continuous:
        blocks = settings.pool_blocks - settings.limits(settings.pool_blocks).watermark_blocks
        fits &= -(-whole // settings.block_tokens) <= blocks
    if settings.continuous and settings.scheduler in ("vllm-v1", "vllm-v0", "punica"):
        chunked = settings.scheduler == "vllm-v1" and settings.chunked_prefill
        if not chunked:
            # A preempted request computes its prompt and its outputs at once.
            fits &= whole <= settings.max_num_batched_tokens
    return fits


def _held_tokens(asked: Workload, settings: EngineSettings) -> Ints:
    """The most tokens that each request has room for: Orca reserves what its client declares."""
    reserves = settings.scheduler.startswith("orca")
    return asked.prompt_tokens + (asked.max_output_tokens if reserves else asked.output_tokens)


def continuous(
    asked: Workload, settings: EngineSettings, step_time: StepTime, scatter: StepScatter = EVEN
) -> tuple[Outcome, Engine]:
    """(what came out, the engines as they are at the end)."""
    from infer_diag.simulators.serving.loop import simulation_loop

    requests, contents = requests_of(asked, settings)
    longest = int((-(-_held_tokens(asked, settings) // settings.block_tokens)).max())
    blocks = settings.pool_blocks
    if blocks is None:
        most = min(settings.max_num_seqs, len(asked)) * longest
        blocks = most + settings.limits(2 * most).watermark_blocks + 1
    limits = settings.limits(blocks)
    limits = limits._replace(max_seqs=min(limits.max_seqs, len(asked)))
    engine_count = settings.data_parallel_size
    if engine_count * blocks > MOST_BLOCKS or engine_count * limits.max_seqs * longest > MOST_PLACES:
        raise DiagError(
            f"{limits.max_seqs:,} requests of up to {longest * settings.block_tokens:,} tokens at once in each of "
            f"{engine_count} engines are too many to simulate",
            hint="lower max_num_seqs or data_parallel_size",
        )
    engines = new_engines(requests, limits, engine_count, blocks, contents, longest)
    scattered = (scatter.decode_s, scatter.prompt_s, np.zeros(2))
    times, rows = simulation_loop()(requests, limits, np.array(step_time.parameters), engines, scattered)
    pool = None if settings.pool_blocks is None else blocks
    outcome = Outcome(times, rows, requests, pool)
    return outcome, engines


def requests_of(asked: Workload, settings: EngineSettings) -> tuple[Requests, int]:
    """(the requests as the loop takes them, number of different blocks that they fill)."""
    block = settings.block_tokens
    blocks = -(-(asked.prompt_tokens + asked.output_tokens) // block)
    groups, place = np.unique(asked.prefix_group, return_inverse=True)
    in_group = (asked.prefix_group >= 0) & (asked.prefix_tokens >= block)
    shared = np.where(in_group, asked.prefix_tokens // block, 0)
    longest = np.zeros(len(groups), np.int64)
    np.maximum.at(longest, place, shared)
    requests = np.zeros(len(asked), REQUEST)
    requests["arrival_s"], requests["key"] = asked.arrival_s, _keys(asked, settings)
    requests["prompt"], requests["output"] = asked.prompt_tokens, asked.output_tokens
    requests["reserved"], requests["adapter"] = asked.max_output_tokens, asked.adapter
    requests["own_content"] = np.cumsum(blocks - shared) - (blocks - shared) + longest.sum()
    requests["shared_content"] = (np.cumsum(longest) - longest)[place]
    requests["shared_blocks"] = shared
    for name in ("slot", "behind", "ahead"):
        requests[name] = -1
    for name in ("queued_s", "scheduled_s", "first_s", "last_s"):
        requests[name] = np.nan
    return requests, int(longest.sum() + (blocks - shared).sum())


def _keys(asked: Workload, settings: EngineSettings) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What an ordered queue is ordered by, the least first."""
    if settings.order == "priority":
        return asked.priority * (2.0 * (1.0 + float(asked.arrival_s[-1]))) + asked.arrival_s
    if settings.order == "aging":
        return asked.deadline_s + settings.aging * asked.arrival_s
    return asked.deadline_s
