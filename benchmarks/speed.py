"""How fast a large vLLM log is diagnosed, beside the floors of the same input in the same run.

    python benchmarks/speed.py [--megabytes 1000] [--folder DIR] [--block LOG] [--repeats 3]

Each figure is of processes of their own: CPU seconds (user + system) and peak memory as the operating system counts
them. Other work on the machine only adds to the time, so the least of `--repeats` rounds through all commands is shown,
with the highest peak. Quote the ratios to the floors; absolute figures are this machine's.

`sparse`: about one line in ten carries information (statistics, requests, a start now and then), the rest are health
checks, metrics scrapes and debug chatter. `dense`: a log with per-iteration lines, repeated as it is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DENSE_BLOCK = ROOT / "sample_logs" / "captured" / "plain" / "server.log"
SEVEN_GROUPS = (
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) (ms)"
)
SERVED_PER_START = 16
"""So often the block's serving is repeated after one start: some 8,000 requests for a log of 513, since nobody starts a
server anew for each few hundred."""

COMMANDS = {
    "floor: count lines (polars scan_lines)": (
        "import polars as pl; print(pl.scan_lines({path!r}).select(pl.len()).collect().item())"
    ),
    "floor: seven-group regex (polars)": (
        "import polars as pl; lines = pl.scan_lines({path!r}, name='t');"
        "g = lines.select(pl.col('t').str.extract_groups(" + repr(SEVEN_GROUPS) + ").alias('g'));"
        "print(g.select(pl.col('g').struct.field('1').count()).collect(engine='streaming').item())"
    ),
    "load": "import infer_diag as d; print(d.load({path!r}))",
    "diagnose": "import infer_diag as d; print(len(d.diagnose(d.load({path!r})).to_json()))",
}


def sparse_block(block: Path) -> bytes:
    """The block's start and many times its serving: the lines that carry information, nine others after each."""
    start = (b"took", b"Initializing", b"startup complete")
    told = (b"Avg prompt throughput", b"Received request", b'"POST ', *start)
    kept = [line for line in block.read_bytes().splitlines() if any(mark in line for mark in told)]
    up = 1 + max(number for number, line in enumerate(kept) if any(mark in line for mark in start))
    kept = kept[:up] + SERVED_PER_START * kept[up:]
    chatter = (
        b'INFO:     192.0.2.32:45746 - "GET /metrics HTTP/1.1" 200 OK',
        b'INFO:     192.0.2.48:37148 - "GET /health HTTP/1.1" 200 OK',
        b"DEBUG 11-29 20:36:01 [v1/core/kv_cache_manager.py:211] allocated 3 blocks for a request, 912 blocks are free",
        b"DEBUG 11-29 20:36:01 [v1/engine/core.py:812] EngineCore loop active.",
        b"INFO 11-29 20:36:01 [chat_utils.py:420] Using the chat template that the tokenizer brings.",
        b"DEBUG 11-29 20:36:02 [distributed/device_communicators/shm_broadcast.py:456] broadcast of 4,096 bytes done",
        b'INFO:     192.0.2.33:50840 - "GET /v1/models HTTP/1.1" 200 OK',
        b"DEBUG 11-29 20:36:02 [v1/worker/gpu_model_runner.py:1044] batch of 17 padded to 24 for the captured graph",
        b"DEBUG 11-29 20:36:03 [engine/metrics.py:77] one more line that tells nothing of starts or of serving",
    )
    return b"".join(line + b"\n" + b"\n".join(chatter) + b"\n" for line in kept)


def written(path: Path, block: bytes, size: int) -> Path:
    """A file of about `size` bytes made of whole blocks."""
    if not path.exists() or path.stat().st_size < size:
        with path.open("wb") as out:
            for _ in range(size // len(block) + 1):
                out.write(block)
    return path


def measured(code: str) -> tuple[float, float]:
    """(CPU seconds, peak GiB) of one Python process that runs the code."""
    # As its users have it: with the byte code that a first run leaves behind.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, env=kept)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"failed: {code}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / (1 << 20)


def main() -> None:
    """Writes the inputs and prints one row per input and command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "infer_diag_speed")
    parser.add_argument("--block", type=Path, default=DENSE_BLOCK, help="log to repeat (default: a recorded sample)")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    size = options.megabytes * 10**6
    name = options.block.parent.name + "-" + options.block.stem
    inputs = {
        "sparse": written(options.folder / f"sparse-{name}.log", sparse_block(options.block), size),
        "dense": written(options.folder / f"dense-{name}.log", options.block.read_bytes(), size),
    }
    print(f"{'input':8}{'command':42}{'CPU s':>8}{'MB per CPU s':>14}{'of floor':>10}{'peak GiB':>10}")
    for kind, path in inputs.items():
        codes = {label: code.format(path=str(path)) for label, code in COMMANDS.items()}
        rounds = [{label: measured(code) for label, code in codes.items()} for _ in range(options.repeats)]
        floor = None
        for label in codes:
            spent, peaks = zip(*(found[label] for found in rounds), strict=True)
            cpu_s, peak_gib = min(spent), max(peaks)
            rate = path.stat().st_size / 1e6 / cpu_s
            floor = rate if label.startswith("floor: seven") else floor
            share = f"{rate / floor:.2f}" if floor else "-"
            print(f"{kind:8}{label:42}{cpu_s:8.1f}{rate:14.0f}{share:>10}{peak_gib:10.2f}", flush=True)


if __name__ == "__main__":
    main()
