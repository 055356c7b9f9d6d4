"""The article's section 2.4 on CUDA graphs beside what the log, the roofline and a probe say."""

from __future__ import annotations

import polars as pl

from infer_diag.attribution.capture_sizes import Verdict
from infer_diag.probes.obtained import Obtained
from infer_diag.report.claims import Claim, Claims
from infer_diag.simulators.serving.hardware import GPUS, MODELS
from infer_diag.units import format_count, format_ratio, format_s

ARTICLE_STEPS = {(16, 256): (4.2e-3, 2.8e-3), (32, 512): (9.1e-3, 6.3e-3)}
"""(batch, sequence): seconds of a step launched kernel by kernel, and as a graph."""

ARTICLE_MODELS = ("Llama-2-13B", "Qwen2-7B", "Phi-3-mini")
ARTICLE_GPUS = ("A100-SXM-80GB", "H100-SXM", "H200-SXM")

_CHECKLIST = (
    (
        "capture after",
        "the first full forward and backward pass",
        "a forward pass on the stream that will capture, with the memory pool filled and every kernel loaded",
        "serving has no backward pass",
    ),
    (
        "the calls",
        "cudaGraphBeginCapture(stream, …), cudaGraphEndCapture(stream, &graph)",
        "cudaStreamBeginCapture and cudaStreamEndCapture, then cudaGraphInstantiate and cudaGraphLaunch",
        "the first two names do not exist; without the last two nothing runs; a graph object created beforehand leaks",
    ),
    (
        "the kernel in the capture",
        "launched on the default stream",
        "launched on the stream that captures",
        "beside a capturing blocking stream the default one ends the capture with error 906 and nothing is captured",
    ),
    (
        "parameters that change",
        "make the capture invalid",
        "are baked in: the graph replays the old values and addresses",
        "copy new inputs into the captured buffers; what invalidates a capture is a synchronisation or an unsafe call",
    ),
)


def memory_floors() -> pl.DataFrame:
    """The least time of a decode step on each of the article's GPUs, for its models and batches.

    Columns `model, gpu, batch_count, context_tokens, floor_s, article_s`: (weights + batch · context · KV bytes of a
    token) / memory bandwidth at its peak, in bfloat16. Nothing that reads all weights once is faster.
    """
    rows = []
    for (batch, context), (_, graph_s) in ARTICLE_STEPS.items():
        for model in (MODELS[name] for name in ARTICLE_MODELS):
            size = model.parameters * model.weight_bytes + batch * context * model.kv_bytes_per_token
            rows += [
                {
                    "model": model.name,
                    "gpu": gpu,
                    "batch_count": batch,
                    "context_tokens": context,
                    "floor_s": size / GPUS[gpu].memory_bytes_per_s,
                    "article_s": graph_s,
                }
                for gpu in ARTICLE_GPUS
            ]
    return pl.DataFrame(rows)


def floor_lines() -> list[str]:
    """One line per batch of the article: for which models and GPUs its step is possible at all."""
    lines = []
    for (batch, context), part in memory_floors().partition_by("batch_count", "context_tokens", as_dict=True).items():
        article_s = float(part["article_s"][0])
        fits = part.filter(pl.col("floor_s") <= article_s)
        told = [f"{model} on {', '.join(own['gpu'])}" for model, own in _by_model(fits)]
        lines.append(
            f"{format_s(article_s)} at batch {batch} and {context} tokens: possible for {'; '.join(told) or 'none'}"
        )
    return lines


def _by_model(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    parts = frame.partition_by("model", as_dict=True, maintain_order=True)
    return [(str(model), part) for (model,), part in parts.items()]


def graph_claims(got: Obtained, design: pl.DataFrame, article: pl.DataFrame, verdict: Verdict, place: str) -> Claims:
    """Every figure of the article's section 2.4 beside ours.

    Frames in: one row of CapturePlans each, the designed list and the article's grid, priced on the steps of `place`.
    """
    checklist = [Claim(*row[:3], "modelled", row[3], "CUDA's interface") for row in _CHECKLIST]
    return Claims([*checklist, *_size_claims(design, article, verdict, place), *_step_claims(got)])


def _size_claims(design: pl.DataFrame, article: pl.DataFrame, verdict: Verdict, place: str) -> list[Claim]:
    ours, theirs = design.row(0, named=True), article.row(0, named=True)
    sizes = ", ".join(map(str, ours["sizes"][:8])) + (" …" if len(ours["sizes"]) > 8 else "")
    padding = "" if theirs["padding_ratio"] is None else f", {format_ratio(theirs['padding_ratio'])} of them padding"
    return [
        Claim(
            "what to warm up",
            "batch 8, 16, 32 × sequence 128, 512, without what pads more than 70 %",
            f"batch {sizes}; the article's six graphs replay {format_ratio(theirs['covered_ratio'])} of the steps"
            f"{padding}",
            "modelled",
            "decode graphs know the batch alone, the context comes through the block table: the second dimension "
            "doubles the graphs for nothing",
            place,
        ),
        Claim(
            "expected padding",
            "none given",
            verdict.sentence,
            "modelled",
            "vLLM captures its list twice (piecewise and full) and pads a step to the next size",
            place,
        ),
    ]


def _step_claims(got: Obtained) -> list[Claim]:
    claims = []
    for (batch, context), (eager_s, graph_s) in ARTICLE_STEPS.items():
        floors = memory_floors().filter(batch_count=batch, context_tokens=context)
        least = floors.filter(pl.col("model") == "Qwen2-7B")["floor_s"].min()
        saved = format_s(eager_s - graph_s)
        claims.append(
            Claim(
                f"step at batch {batch}, {context} tokens",
                f"{format_s(eager_s)} → {format_s(graph_s)} ({saved} saved)",
                f"no less than {format_s(least if isinstance(least, float) else None)} for Qwen2-7B on H200",
                "bounded",
                "possible in bfloat16 only where the bound above is below it; what launching costs does not grow "
                "with the batch, so neither should the saving",
                "bytes over bandwidth",
            )
        )
    stats = got.result.frames["graph_stats"].tail(1).to_dicts() if got.result else []
    if not stats:
        return [*claims, Claim("what a replay saves", "1.50 and 1.44 times", None, "not_identifiable", got.said)]
    row = stats[0]
    each = row["eager_p50_s"] / row["replay_p50_s"]
    ours = f"{format_count(row['node_count'])} small kernels: {format_count(each)} times faster as a graph"
    return [*claims, Claim("what a replay saves", "1.50 and 1.44 times", ours, got.how, "", got.where)]
