"""How fast a memory snapshot is analysed as a whole, beside PyTorch's own `trace_plot` of the same file.

    python benchmarks/memory_speed.py SNAPSHOT [SNAPSHOT ...] [--torch-python PYTHON | --viz FILE] [--runs 3]

Ours: read the file, find what lived before the recording, follow the state over all events, take every metric at 1,000
instants, and write the figure of the block map. Theirs: `trace_plot` of `torch/cuda/_memory_viz.py`, which pickles the
file again into a page and analyses nothing; a viewer's script does so later. `--torch-python` is an interpreter with
torch (2.13 was measured), `--viz` the script itself, which needs none. Each figure is a process of its own: CPU seconds
after the imports, and peak memory of the whole process with them. Code that numba compiles is made beforehand, as it is
kept on disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from measuring import MEASURED

OURS_IMPORTS = """
from infer_diag.attribution.heap.bricks import trace_bricks
from infer_diag.attribution.heap.curves import trace_curves
from infer_diag.attribution.heap.trace import heap_traces, simulator
from infer_diag.charts import memory_chart
from infer_diag.loaders import load
simulator()
"""
OURS = """
(trace,) = heap_traces(load(path))
curves = trace_curves(trace, 1000)
figure = memory_chart(trace_bricks(trace), curves).to_json()
found = f"{trace.event_count:,} events, {len(curves):,} rows of curves, a figure of {len(figure) / 1e6:.2f} MB"
"""
THEIRS_IMPORTS = """
import importlib.util, pickle
if len(sys.argv) > 2:
    spec = importlib.util.spec_from_file_location("_memory_viz", sys.argv[2])
    viz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(viz)
else:
    import torch.cuda._memory_viz as viz
"""
THEIRS = """
with open(path, "rb") as file:
    page = viz.trace_plot(pickle.load(file))
found = f"a page of {len(page) / 1e6:.0f} MB"
"""


def measured(python: str, imports: str, code: str, *arguments: str) -> tuple[float, float, str]:
    """(CPU seconds, peak MiB, what was found) of one process."""
    program = MEASURED.format(imports=imports, code=code)
    done = subprocess.run([python, "-c", program, *arguments], check=True, capture_output=True, text=True)
    cpu_s, peak_mib, found = json.loads(done.stdout.splitlines()[-1])
    return cpu_s, peak_mib, found


def main() -> None:
    """Prints one row per file and way; the ways take turns, so that a busy machine slows both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshots", type=Path, nargs="+", metavar="SNAPSHOT")
    parser.add_argument("--torch-python", metavar="PYTHON", help="an interpreter that has torch")
    parser.add_argument("--viz", type=Path, metavar="FILE", help="torch's _memory_viz.py, loaded by its path")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(f"{'file':20}{'way':26}{'CPU s':>8}{'peak MiB':>10}  what came out")
    for path in options.snapshots:
        measured(sys.executable, OURS_IMPORTS, OURS, str(path))
        ways = {"infer_diag, all of it": (sys.executable, OURS_IMPORTS, OURS, str(path))}
        if options.torch_python or options.viz:
            script = [str(options.viz)] if options.viz else []
            python = options.torch_python or sys.executable
            ways["torch trace_plot"] = (python, THEIRS_IMPORTS, THEIRS, str(path), *script)
        runs: dict[str, list[tuple[float, float, str]]] = {way: [] for way in ways}
        for _ in range(options.runs):
            for way, call in ways.items():
                runs[way].append(measured(*call))
        for way, done in runs.items():
            cpu_s, peak_mib = (statistics.median(each[place] for each in done) for place in (0, 1))
            print(f"{path.name:20}{way:26}{cpu_s:8.2f}{peak_mib:10.0f}  {done[0][2]}", flush=True)


if __name__ == "__main__":
    main()
