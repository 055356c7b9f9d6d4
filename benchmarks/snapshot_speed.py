"""How fast a PyTorch memory snapshot becomes frames, beside plain `pickle.load` and sums by loops on the same file.

    python benchmarks/snapshot_speed.py SNAPSHOT [SNAPSHOT ...] [--runs 3]

Each figure is a process of its own: CPU seconds after the imports, and peak memory of the whole process with them. Both
ways find the same totals and the same peak, or the run stops. Quote the ratios; absolute figures are this machine's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from measuring import MEASURED

PLAIN = """
with open(path, "rb") as file:
    snapshot = pickle.load(file)
level = peak = allocs = frees = failures = 0
for trace in snapshot["device_traces"]:
    for event in trace:
        action = event["action"]
        if action == "alloc":
            allocs += 1
            level += event["size"]
            peak = max(peak, level)
        elif action == "free_completed":
            frees += 1
            level -= event["size"]
        elif action == "oom":
            failures += 1
totals = dict.fromkeys(("active_allocated", "active_pending_free", "inactive"), 0)
largest = 0
for segment in snapshot["segments"]:
    for block in segment["blocks"]:
        totals[block["state"]] += block["size"]
        if block["state"] == "inactive":
            largest = max(largest, block["size"])
reserved = sum(segment["total_size"] for segment in snapshot["segments"])
found = [reserved, totals["active_allocated"], totals["inactive"], largest, peak, allocs, frees, failures]
"""
OURS = """
recording = load(path)
blocks = block_summary(recording).row(0, named=True)
peak = allocator_peaks(recording).row(0, named=True)
found = [blocks[name] for name in ("reserved_bytes", "allocated_bytes", "idle_bytes", "largest_free_bytes")]
found += [peak[name] for name in ("peak_bytes", "alloc_count", "free_count", "oom_count")]
found = [int(each) for each in found]
"""
WAYS = {
    "plain pickle.load and loops": ("import pickle", PLAIN),
    "infer_diag": (
        "from infer_diag.loaders import load\n"
        "from infer_diag.attribution.block_map import allocator_peaks, block_summary",
        OURS,
    ),
}


def measured(imports: str, code: str, path: Path) -> tuple[float, float, list[int]]:
    """(CPU seconds, peak MiB, figures found) of one process."""
    program = MEASURED.format(imports=imports, code=code)
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True)
    cpu_s, peak_mib, found = json.loads(done.stdout)
    return cpu_s, peak_mib, found


def main() -> None:
    """Prints one row per file and way; the ways take turns, so that a busy machine slows both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshots", type=Path, nargs="+", metavar="SNAPSHOT")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(f"{'file':24}{'way':30}{'CPU s':>8}{'of plain':>10}{'peak MiB':>10}{'of plain':>10}")
    for path in options.snapshots:
        runs: dict[str, list[tuple[float, float, list[int]]]] = {way: [] for way in WAYS}
        for _ in range(options.runs):
            for way, (imports, code) in WAYS.items():
                runs[way].append(measured(imports, code, path))
        figures = {str(found) for way in WAYS for _, _, found in runs[way]}
        if len(figures) != 1:
            raise SystemExit(f"the ways disagree on {path}: {figures}")
        floor = None
        for way, done in runs.items():
            cpu_s, peak_mib = (statistics.median(each[place] for each in done) for place in (0, 1))
            floor = floor or (cpu_s, peak_mib)
            shares = f"{cpu_s / floor[0]:>10.2f}{peak_mib:10.0f}{peak_mib / floor[1]:>10.2f}"
            print(f"{path.name:24}{way:30}{cpu_s:8.2f}{shares}", flush=True)


if __name__ == "__main__":
    main()
