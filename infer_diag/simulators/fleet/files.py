"""A run as the files that a team has of it, and the inventory beside all of them."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from infer_diag.simulators.fleet.llama_text import llama_log
from infer_diag.simulators.fleet.metric_names import names_of
from infer_diag.simulators.fleet.pipeline_text import application_log, snapshot, start_traces
from infer_diag.simulators.fleet.plan import Plan
from infer_diag.simulators.fleet.pod_events import pod_events
from infer_diag.simulators.fleet.run import Run
from infer_diag.simulators.fleet.scrapes import pages, query_range, scraped
from infer_diag.simulators.fleet.sglang_text import sglang_log
from infer_diag.simulators.fleet.spans import application_spans, engine_spans
from infer_diag.simulators.fleet.tensorrt_text import tensorrt_log
from infer_diag.simulators.fleet.tgi_text import tgi_log
from infer_diag.simulators.fleet.vllm_text import vllm_log

ENGINE_LOGS: Mapping[str, Callable[[Run], str]] = {
    "vllm": vllm_log,
    "vllm-v0": vllm_log,
    "sglang": sglang_log,
    "tgi": tgi_log,
    "tensorrt-llm": tensorrt_log,
    "llama.cpp": llama_log,
    "pipeline": application_log,
}
INVENTORY = ("deployment", "model", "gpu", "gpu_count", "precision", "price_per_gpu_h", "held_gpu_h")
_LEAST_ZIPPED = 1 << 14


def deployment_files(run: Run) -> dict[str, bytes]:
    """The files of one deployment by name; logs and metrics are gzipped where they are long."""
    plan = run.plan
    texts = {"server.log": ENGINE_LOGS[plan.engine](run)} if "log" in plan.keeps else {}
    if "events" in plan.keeps:
        texts["events.json"] = pod_events(run)
    if plan.keeps & {"scrapes", "pages"}:
        found = scraped(run, names_of(plan))
        if "pages" in plan.keeps:
            texts["metrics.prom.txt"] = pages(found)
        else:
            texts["query_range.json"] = query_range(found, plan.name)
    if "spans" in plan.keeps:
        texts["traces.otlp.jsonl"] = application_spans(run) if plan.engine == "pipeline" else engine_spans(run)
    if plan.keeps & {"starts", "first_start"}:
        traces = start_traces(run)
        texts |= traces if "starts" in plan.keeps else {"start-0.jsonl": traces["start-0.jsonl"]}
    files = {"meta.json": _meta(plan)}
    for name, text in texts.items():
        files |= _kept(name, text.encode())
    failed = [part.wear for part in run.parts if part.wear is not None and part.wear.failed_s is not None]
    if "snapshot" in plan.keeps and failed:
        files |= _kept("oom_snapshot.pickle", snapshot(failed[-1]), zipped=False)
    return files


def _meta(plan: Plan) -> bytes:
    told = {"shows": f"{plan.model} on {plan.gpu_count} x {plan.gpu}, {plan.engine}: {plan.about}", "simulated": True}
    return (json.dumps(told, indent=1) + "\n").encode()


def _kept(name: str, data: bytes, *, zipped: bool = True) -> dict[str, bytes]:
    if not zipped or len(data) < _LEAST_ZIPPED:
        return {name: data}
    packed = io.BytesIO()
    # No name and no time in the header, so that the same text gives the same bytes.
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=9, mtime=0) as file:
        file.write(data)
    return {f"{name}.gz": packed.getvalue()}


def inventory(runs: Iterable[Run]) -> bytes:
    """The table of what each deployment runs on; the hours billed stand where no events tell them."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(INVENTORY)
    for run in runs:
        plan = run.plan
        price = plan.price_per_gpu_h if "prices" in plan.keeps else ""
        billed = "" if "events" in plan.keeps else f"{run.held_gpu_s / 3600:.2f}"
        table.writerow([plan.name, plan.model, plan.gpu, plan.gpu_count, plan.precision, price, billed])
    return out.getvalue().encode()


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Files into a folder, which is made; what lay there under other names is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.is_file() and old.name not in files:
            old.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
