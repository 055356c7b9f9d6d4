"""How many requests of a trace the serving simulator does in a CPU second, beside a bare event loop in the same run.

    python benchmarks/serving_simulator_speed.py TRACE.csv [--raw-loop raw_event_loop.py] [--runs 3]

The trace is Azure's conversation trace of 2023 (19,366 requests). Ours is vLLM V1's policy with everything on: chunked
prompts, paged KV with prefix caching, preemption, a sequence limit and asynchronous scheduling, and the frames of
requests, steps and samples at the end. The bare loop (a script of its own, given as an argument) has no preemption, no
cache, no priority and no frames: it is a floor of work, not a rival. Each figure is a process of its own, CPU seconds
after a first small simulation that loads or compiles the loop; peak memory is of the whole process.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys

OURS = """
import json, resource, sys, time
import infer_diag as diag
from infer_diag.simulators.serving import EngineSettings, StepTime, replay, simulate, workload
settings = EngineSettings(max_num_seqs=128, max_num_batched_tokens=2048, kv_cache_tokens=128_000)
step_time = StepTime(0.005, 2e-5, 0.0, 6e-8)
simulate(workload([0.0], [10], [2]), settings, step_time).requests
requests = diag.load(sys.argv[1]).requests
began = time.process_time()
simulated = simulate(replay(requests).scaled(float(sys.argv[2])), settings, step_time)
looped = time.process_time() - began
frames = simulated.recording.rows()
spent = time.process_time() - began
peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([looped, spent, peak_mib, frames["requests"], frames["engine_steps"]]))
"""
AIM_REQUESTS_PER_S = 20_000
AIM_PEAK_MIB = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--raw-loop", help="the bare event loop's script; it gets the trace as its argument")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    bare = bare_loop(options.raw_loop, options.trace) if options.raw_loop else None
    for rate in (1.0, 2.0):
        found = [measured(options.trace, rate) for _ in range(options.runs)]
        looped, spent, peak, requests, steps = (statistics.median(each) for each in zip(*found, strict=True))
        rate_of = requests / spent
        print(f"trace at {rate:g} x its rate: {requests:,.0f} requests, {steps:,.0f} steps")
        print(f"  loop {looped:.3f} CPU s, with frames {spent:.3f} CPU s: {rate_of:,.0f} requests per CPU second")
        print(f"  aim {AIM_REQUESTS_PER_S:,}: {'met' if rate_of >= AIM_REQUESTS_PER_S else 'missed'}")
        print(f"  peak {peak:.0f} MiB, aim {AIM_PEAK_MIB}: {'met' if peak <= AIM_PEAK_MIB else 'missed'}")
        if bare:
            print(f"  {rate_of / bare:.3f} of the bare loop's {bare:,.0f} requests per CPU second")


def measured(trace: str, rate: float) -> list[float]:
    command = [sys.executable, "-c", OURS, trace, str(rate)]
    found: list[float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def bare_loop(script: str, trace: str) -> float:
    """Requests per CPU second of the bare loop on as many requests as the trace has."""
    shown = subprocess.run([sys.executable, script, trace], capture_output=True, text=True, check=True).stdout
    told = re.search(r"numba continuous batching 19366 req .*?req/cpu-s (\d+)", shown)
    if told is None:
        raise SystemExit(f"{script} printed no figure for 19,366 requests")
    return float(told[1])


if __name__ == "__main__":
    main()
