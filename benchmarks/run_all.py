"""Run every benchmark of this folder and write `RESULTS.md` beside them, with versions and machine.

    python benchmarks/run_all.py [--inputs DIR] [--megabytes 1000] [--out FILE]

`--inputs` is a folder with the traces and generators that some of them read (`corpus/`, `bench/`); a benchmark whose
input is not there is named with what it lacks, and no figure stands for it.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = ("infer-diag", "polars", "numpy", "numba", "scipy", "msgspec", "prometheus_client")


@dataclass(frozen=True)
class Run:
    """One benchmark with its arguments; `{inputs}` and `{made}` stand for folders.

    `made` is a file that a generator under `{inputs}` writes first: its name, the script, and the number of events.
    """

    script: str
    arguments: tuple[str, ...] = ()
    made: tuple[tuple[str, str, int], ...] = ()


RUNS = (
    Run("speed.py", ("--megabytes", "{megabytes}", "--folder", "{made}")),
    Run("speed.py", ("--megabytes", "{megabytes}", "--folder", "{made}", "--block", "{inputs}/corpus/server_logs/"
        "vllm_0.15.0_gpt-oss-120b_tp4_server.log")),
    Run("scrape_speed.py"),
    Run("snapshot_speed.py", ("{made}/200k.pickle", "{made}/1m.pickle"), (
        ("200k.pickle", "gen_snapshot.py", 200_000), ("1m.pickle", "gen_snapshot.py", 1_000_000))),
    Run("memory_speed.py", ("{made}/1m.pickle",), (("1m.pickle", "gen_snapshot.py", 1_000_000),)),
    Run("kineto_speed.py", ("{inputs}/corpus/kineto/hta_cp__benchmark_result_493459_1694039959_trace.json.gz",)),
    Run("allocator_replay_speed.py"),
    Run("serving_simulator_speed.py", ("{inputs}/corpus/requests/azure_2023_conv.csv", "--raw-loop",
        "{inputs}/bench/raw_event_loop.py")),
)  # fmt: skip


def lacking(run: Run, folders: dict[str, str]) -> list[str]:
    """The inputs of a benchmark that are not there."""
    given = [Path(each.format(**folders)) for each in run.arguments if each.startswith("{inputs}")]
    scripts = [Path(folders["inputs"]) / "bench" / script for _, script, _ in run.made]
    return sorted({path.name for path in (HERE / run.script, *given, *scripts) if not path.exists()})


def output(run: Run, folders: dict[str, str]) -> str:
    """What the benchmark prints, or why it could not run."""
    if missing := lacking(run, folders):
        return f"left out: {', '.join(missing)} not there"
    for name, script, events in run.made:
        path = Path(folders["made"]) / name
        if not path.exists():
            generator = Path(folders["inputs"]) / "bench" / script
            command = [sys.executable, str(generator), "--events", str(events), "--seed", "7", "--out", str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, str(HERE / run.script), *(each.format(**folders) for each in run.arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr.strip().splitlines()[-1]}"


def machine() -> str:
    """Processor and its cores, memory, interpreter and packages."""
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        processor = names[0].split(":", 1)[1].strip() if names else processor
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"{processor}, {os.cpu_count()} cores, {memory_gib:.0f} GiB; Python {platform.python_version()}; {packages}"


def main() -> None:
    """Runs all and writes the file anew after each, so that an interrupted run leaves what it has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=Path, default=HERE.parent.parent / "shared")
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the logs of speed.py")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    options = parser.parse_args()
    written = [f"# Results\n\nWritten by `make bench` on {datetime.now(UTC):%Y-%m-%d}. {machine()}.\n"]
    with tempfile.TemporaryDirectory(prefix="infer_diag_bench_") as made:
        folders = {"inputs": str(options.inputs), "made": made, "megabytes": str(options.megabytes)}
        for run in RUNS:
            print(run.script, file=sys.stderr, flush=True)
            shown = folders | {"made": "made"}
            names = " ".join((run.script, *(Path(each.format(**shown)).name for each in run.arguments)))
            written.append(f"## `{names}`\n\n```\n{output(run, folders)}\n```\n")
            options.out.write_text("\n".join(written))


if __name__ == "__main__":
    main()
