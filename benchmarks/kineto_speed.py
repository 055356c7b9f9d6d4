"""How fast a Kineto trace becomes kernels and busy time, beside `orjson` with polars on the same file.

    python benchmarks/kineto_speed.py TRACE [TRACE ...] [--runs 3] [--peers DIR] [--hta-python PYTHON]

Each figure is a process of its own: CPU seconds after the imports, and peak memory of the whole process with them. Both
ways find the same kernels and the same busy time, or the run stops. HolisticTraceAnalysis (PyPI) takes part where this
environment, the folder of `--peers` or the interpreter of `--hta-python` has it; elsewhere its row says "not
installed". It loads the trace and tells busy and idle time and the kernels' share, in whole microseconds and without
copies in between, so its figures are near ours and not the same. Quote the ratios; absolute figures are this machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from measuring import MEASURED

PLAIN = """
with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
    events = orjson.loads(file.read())["traceEvents"]
whole = [event for event in events if event.get("ph") == "X"]
args = [event.get("args") or {} for event in whole]
frame = pl.DataFrame(
    {
        "name": [event["name"] for event in whole],
        "cat": [event.get("cat") for event in whole],
        "ts": [float(event["ts"]) for event in whole],
        "dur": [float(event["dur"]) for event in whole],
        "stream": [str(each.get("stream")) for each in args],
        "correlation": [each.get("correlation") for each in args],
    }
)
acts = frame.filter(pl.col("cat").is_in(["kernel", "Kernel", "gpu_memcpy", "gpu_memset"])).sort("ts")
end = pl.col("ts") + pl.col("dur")
before = end.cum_max().shift(1).fill_null(float("-inf"))
busy = acts.select((end - pl.max_horizontal(pl.col("ts"), before)).clip(lower_bound=0).sum()).item() / 1e6
found = [len(acts), round(busy, 6)]
"""
OURS = """
activity = gpu_activity(load(path))
found = [int(activity["kernel_count"].sum() + activity["copy_count"].sum()), round(activity["busy_s"].sum(), 6)]
"""
HTA = """
logging.disable(logging.CRITICAL)
with tempfile.TemporaryDirectory() as folder:
    shutil.copy(path, folder)
    analysis = TraceAnalysis(trace_dir=folder)
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)
found = None
"""
PEER = "HolisticTraceAnalysis"
WAYS = {
    "orjson and polars": ("import gzip, orjson\nimport polars as pl", PLAIN),
    "infer_diag": (
        "from infer_diag.loaders import load\nfrom infer_diag.attribution.gpu_activity import gpu_activity",
        OURS,
    ),
    PEER: (
        "import logging, shutil, tempfile, warnings\nwarnings.simplefilter('ignore')\n"
        "from hta.trace_analysis import TraceAnalysis",
        HTA,
    ),
}

Run = tuple[float, float, list[float] | None]


def measured(imports: str, code: str, path: Path, peers: Path | None, python: str) -> Run | None:
    """(CPU seconds, peak MiB, figures found) of one process; None where a package is not installed."""
    program = MEASURED.format(imports=imports, code=code)
    # Appended, so that the environment's own packages come first.
    program = f"import sys; sys.path.append({str(peers)!r})\n{program}" if peers else program
    done = subprocess.run([python, "-c", program, str(path)], capture_output=True, text=True, env=os.environ)
    if "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        raise SystemExit(done.stderr)
    cpu_s, peak_mib, found = json.loads(done.stdout.strip().splitlines()[-1])
    return cpu_s, peak_mib, found


def main() -> None:
    """Prints one row per file and way; the ways take turns, so that a busy machine slows all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="folder with orjson or HolisticTraceAnalysis")
    parser.add_argument("--hta-python", default=sys.executable, help="interpreter that has HolisticTraceAnalysis")
    options = parser.parse_args()
    print(f"{'file':34}{'way':24}{'CPU s':>8}{'of ours':>10}{'peak MiB':>10}{'of ours':>10}")
    for path in options.traces:
        runs: dict[str, list[Run]] = {way: [] for way in WAYS}
        for _ in range(options.runs):
            for way, (imports, code) in WAYS.items():
                python = options.hta_python if way == PEER else sys.executable
                run = measured(imports, code, path, options.peers, python)
                runs[way] += [run] if run else []
        figures = {str(found) for way in WAYS for _, _, found in runs[way] if found is not None}
        if len(figures) != 1:
            raise SystemExit(f"the ways disagree on {path}: {figures}")
        middle = {
            way: tuple(statistics.median(each[place] for each in done) for place in (0, 1))
            for way, done in runs.items()
            if done
        }
        own_s, own_mib = middle["infer_diag"]
        for way in WAYS:
            if way not in middle:
                print(f"{path.name[:32]:34}{way:24} not installed")
                continue
            cpu_s, peak_mib = middle[way]
            shares = f"{cpu_s / own_s:>10.1f}{peak_mib:10.0f}{peak_mib / own_mib:>10.1f}"
            print(f"{path.name[:32]:34}{way:24}{cpu_s:8.2f}{shares}", flush=True)


if __name__ == "__main__":
    main()
