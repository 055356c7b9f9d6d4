"""llama.cpp's server's own text, as builds of 2025 print it: its load, and some lines per request and slot."""

from __future__ import annotations

from heapq import heappop, heappush

from infer_diag.simulators.fleet.plan import Plan
from infer_diag.simulators.fleet.pod_log import PodLog
from infer_diag.simulators.fleet.run import Part, Run
from infer_diag.simulators.fleet.starts import Life

_MIB = float(1 << 20)
_DRIVER_NAMES = {"L4": "NVIDIA L4", "A10": "NVIDIA A10"}


def llama_log(run: Run) -> str:
    """The log of all pods."""
    log = PodLog(run.plan, "llama")
    for part in run.parts:
        log.enter(part.life.pod)
        _start(log, part.life)
        _requests(log, part)
        if part.life.ends == "taken":
            log.say(part.life.ended_s - 0.5, "srv    operator(): operator(): cleaning up before exit...")
    return log.text()


def weights_file(plan: Plan) -> str:
    """The file that the model was converted to."""
    return f"/models/{plan.model}-Instruct-Q4_K_M.gguf"


def _start(log: PodLog, life: Life) -> None:
    plan = log.plan
    path, shape = weights_file(plan), plan.shape
    context = plan.max_num_seqs * plan.max_model_len
    at = life.begun_s
    log.say(
        at,
        "ggml_cuda_init: found 1 CUDA devices:",
        f"  Device 0: {_DRIVER_NAMES[plan.gpu]}, compute capability 8.9, VMM: yes",
        f"build: {plan.version.removeprefix('b')} (a4569aba) with cc (Ubuntu 11.4.0) 11.4.0 for x86_64-linux-gnu",
    )
    at += 0.5 * life.import_s
    log.say(at, "main: loading model", f"srv    load_model: loading model '{path}'")
    layers = "loaded meta data with 33 key-value pairs and 292 tensors from"
    log.say(at + 0.2, f"llama_model_loader: {layers} {path} (version GGUF V3 (latest))")
    log.say(at + 0.2, "print_info: file type   = Q4_K - Medium")
    log.say(at + 0.4, "load_tensors: loading model tensors, this can take a while... (mmap = true)")
    at += 0.4 + life.read_s
    log.say(
        at,
        f"load_tensors: offloaded {shape.layers + 1}/{shape.layers + 1} layers to GPU",
        "load_tensors:   CPU_Mapped model buffer size =   281.81 MiB",
        f"load_tensors:        CUDA0 model buffer size = {plan.weight_bytes / _MIB:8.2f} MiB",
        "llama_context: constructing llama_context",
        f"llama_context: n_seq_max     = {plan.max_num_seqs}",
        f"llama_context: n_ctx         = {context}",
        f"llama_context: n_batch       = {plan.max_num_batched_tokens}",
    )
    kv = context * shape.kv_bytes_per_token / _MIB
    cells = f"size = {kv:7.2f} MiB ({context:6d} cells, {shape.layers} layers, {plan.max_num_seqs}/1 seqs)"
    log.say(at + 0.2, f"llama_kv_cache:      CUDA0 KV buffer size = {kv:8.2f} MiB", f"llama_kv_cache: {cells}")
    log.say(at + 0.3, "llama_context: graph splits = 2")
    warm = "common_init_from_params: warming up the model with an empty run - please wait ... (--no-warmup to disable)"
    log.say(at + 0.4, warm)
    slots = f"srv          init: initializing slots, n_slots = {plan.max_num_seqs}"
    log.say(life.ready_s - 0.2, slots, "main: model loaded")
    up = "main: server is listening on http://0.0.0.0:8000 - starting the main loop"
    log.say(life.ready_s, up, "srv  update_slots: all slots are idle")


def _requests(log: PodLog, part: Part) -> None:
    plan = log.plan
    free = list(range(plan.max_num_seqs))
    busy: list[tuple[float, int]] = []
    tasks = part.requests.filter(part.requests["scheduled_s"].is_not_null()).sort("scheduled_s")
    for number, row in enumerate(tasks.iter_rows(named=True)):
        while busy and (busy[0][0] <= row["scheduled_s"] or not free):
            free.append(heappop(busy)[1])
        slot = min(free)
        free.remove(slot)
        heappush(busy, (row["last_s"] if row["done"] else part.life.ended_s, slot))
        # Tasks are numbered with the steps between them.
        place = f"id {slot:2d} | task {number * 7} | "
        prompt, output = row["prompt_tokens"], row["output_tokens"]
        begun = f"new prompt, n_ctx_slot = {plan.max_model_len}, n_keep = 0, n_prompt_tokens = {prompt}"
        at = row["scheduled_s"]
        log.say(at, f"slot launch_slot_: {place}processing task", f"slot update_slots: {place}{begun}")
        if not row["done"]:
            continue
        prefill_ms, decode_ms = (row["first_s"] - at) * 1e3, (row["last_s"] - row["first_s"]) * 1e3
        log.say(
            row["last_s"],
            f"slot      release: {place}stop processing: n_past = {prompt + output - 1}, truncated = 0",
            f"slot print_timing: {place}",
            f"prompt eval time = {_time(prefill_ms, prompt)}",
            f"       eval time = {_time(decode_ms, output)}",
            f"      total time = {prefill_ms + decode_ms:10.2f} ms / {prompt + output:5d} tokens",
            "srv  log_server_r: request: POST /v1/chat/completions 10.42.3.9 200",
        )


def _time(milliseconds: float, tokens: int) -> str:
    per_token, per_s = milliseconds / tokens, 1e3 * tokens / max(milliseconds, 1e-3)
    return (
        f"{milliseconds:10.2f} ms / {tokens:5d} tokens ({per_token:8.2f} ms per token, {per_s:8.2f} tokens per second)"
    )
