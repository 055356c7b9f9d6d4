"""How fast scrapes of a vLLM server become frames, beside the Prometheus client's own parser on the same file.

    python benchmarks/scrape_speed.py [--mb 40] [--runs 3]

The file is made first: one page after the other as vLLM answers `/metrics`, with hundreds of families that are none of
its own (a collector's in the same process), each page a scrape with its time; and once more as a folder with a file a
page, the time in its name. Each figure is a process of its own: CPU seconds after the imports, and peak memory of the
whole process with them. All ways find the same number of scrapes and the same last value of a counter, or the run
stops. The client's parser only parses; ours also makes the frames. Quote the ratios; absolute figures are the
machine's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measuring import MEASURED

LABELS = 'engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"'
GAUGES = (
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_swapped",
    "kv_cache_usage_perc",
    "lora_requests_info",
    "engine_sleep_state",
)
COUNTERS = (
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "external_prefix_cache_hits",
    "external_prefix_cache_queries",
    "mm_cache_queries",
    "mm_cache_hits",
)
HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "iteration_tokens_total",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
)
LIMITS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
UNRELATED_FAMILIES = 250

CLIENT = """
scrapes, tokens = 0, 0.0
with open(path, encoding="utf-8") as file:
    for family in text_fd_to_metric_families(file):
        for sample in family.samples:
            if sample.name == "vllm:generation_tokens_total":
                scrapes, tokens = scrapes + 1, sample.value
found = [scrapes, tokens]
"""
OURS = """
recording = load(path)
samples = recording.engine_samples
span_s = pl.col("time").diff().dt.total_microseconds() / 1e6
grown = samples.select((pl.col("output_tokens_per_s") * span_s).sum()).item()
found = [len(samples), round(grown + 37.0, 3)]
"""
WAYS = {
    "prometheus_client": ("from prometheus_client.parser import text_fd_to_metric_families", CLIENT),
    "infer_diag": ("import polars as pl\nfrom infer_diag.loaders import load", OURS),
    "infer_diag, folder": ("import polars as pl\nfrom infer_diag.loaders import load", OURS),
}

Run = tuple[float, float, list[float]]


def page(number: int) -> Iterator[str]:
    """The lines of one scrape, 15 seconds after the one before; every value depends on its number alone."""
    minutes, seconds = divmod(number * 15, 60)
    yield f"# scrape 2026-03-{1 + minutes // 1440:02d}T{minutes // 60 % 24:02d}:{minutes % 60:02d}:{seconds:02d}Z"
    for name in GAUGES:
        yield from (f"# HELP vllm:{name} A value of now.", f"# TYPE vllm:{name} gauge")
        yield f"vllm:{name}{{{LABELS}}} {number * 7 % 97 / 97:.6g}"
    for name in COUNTERS:
        yield from (f"# HELP vllm:{name}_total What was counted so far.", f"# TYPE vllm:{name}_total counter")
        yield f"vllm:{name}_total{{{LABELS}}} {37.0 * (number + 1)}"
        yield f"vllm:{name}_created{{{LABELS}}} 1.7725e+09"
    for place, name in enumerate(HISTOGRAMS):
        yield from (f"# HELP vllm:{name} Seconds or tokens of requests.", f"# TYPE vllm:{name} histogram")
        for rank, limit in enumerate(LIMITS):
            yield f'vllm:{name}_bucket{{{LABELS},le="{limit}"}} {float(number * (rank + 1) // (place + 2))}'
        yield f'vllm:{name}_bucket{{{LABELS},le="+Inf"}} {float(number * 22)}'
        yield f"vllm:{name}_count{{{LABELS}}} {float(number * 22)}"
        yield f"vllm:{name}_sum{{{LABELS}}} {number * 123.5}"
    for family in range(UNRELATED_FAMILIES):
        name = f"collector_stage_{family:03d}_operations_total"
        yield from (f"# HELP {name} Operations of a stage of the collector.", f"# TYPE {name} counter")
        for method in ("GET", "POST"):
            yield f'{name}{{handler="/v1/chat/completions",method="{method}",status="2xx"}} {float(number + family)}'


def write(path: Path, folder: Path, size_bytes: int) -> int:
    """Writes pages to the file, and each to a file in the folder, until that many bytes; returns their number."""
    written = number = 0
    folder.mkdir()
    with path.open("w", encoding="utf-8") as file:
        while written < size_bytes:
            mark, *lines = page(number)
            body = "\n".join(lines) + "\n"
            (folder / f"metrics-{mark.split()[-1].replace(':', '')}.prom").write_text(body, encoding="utf-8")
            written += file.write(f"{mark}\n{body}")
            number += 1
    return written


def measured(imports: str, code: str, path: Path) -> Run:
    """(CPU seconds, peak MiB, figures found) of one process."""
    program = MEASURED.format(imports=imports, code=code)
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    cpu_s, peak_mib, found = json.loads(done.stdout.strip().splitlines()[-1])
    return cpu_s, peak_mib, found


def main() -> None:
    """Prints one row per way; the ways take turns, so that a busy machine slows all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=40.0, help="megabytes of scrapes")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        path, pages = Path(folder) / "metrics.prom", Path(folder) / "pages"
        megabytes = write(path, pages, int(options.mb * 1e6)) / 1e6
        for _ in range(options.runs):
            for way, (imports, code) in WAYS.items():
                runs[way].append(measured(imports, code, pages if way.endswith("folder") else path))
    figures = {str(found) for done in runs.values() for _, _, found in done}
    if len(figures) != 1:
        raise SystemExit(f"the ways disagree: {figures}")
    print(f"{megabytes:.0f} MB, {runs['infer_diag'][0][2][0]:.0f} scrapes")
    print(f"{'way':20}{'CPU s':>8}{'MB per CPU s':>14}{'peak MiB':>10}")
    for way, done in runs.items():
        cpu_s, peak_mib = (statistics.median(each[place] for each in done) for place in (0, 1))
        print(f"{way:20}{cpu_s:8.2f}{megabytes / cpu_s:14.1f}{peak_mib:10.0f}", flush=True)


if __name__ == "__main__":
    main()
