"""The article's figures on setting up a CUDA context (its section 2.1) beside what a probe found."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.probes.context.readings import ARTICLE_FLAG_S, ARTICLE_S
from infer_diag.probes.obtained import Obtained
from infer_diag.report.claims import Claim, Claims
from infer_diag.units import format_ratio, format_s

ARTICLE_SAVING_RATIO = 0.18
"""What the article says that a start saves without `CU_CTX_MAP_HOST`."""

_STAGES = {
    "discovery": "enumerating devices asks the driver; it trains no link and allocates no pool",
    "context creation": (
        "no public source with such a table was found; reports reach from tens of milliseconds to seconds. "
        "It grows with the host and device memory that the unified address space maps, not with the PCIe generation"
    ),
    "mapping": "the article does not say what is mapped; ours pins and maps 64 MiB of host memory",
}
_LINK = (
    "a PCIe link is trained when the machine boots or a device changes its power state, not by a process. What a "
    "process waits for is the device (persistence mode avoids it) and its own context; no memory pool is preallocated"
)
_FLAG = (
    "NVIDIA lists the flag as deprecated since CUDA 11.0 and without effect: every context since CUDA 3.2 behaves as "
    "if it were given. There is nothing to switch off, no TLB flushes that it could cause, and no copy that gets slower"
)


def one_factor(article: dict[str, tuple[str, float, float]] = ARTICLE_S) -> tuple[float, float]:
    """(sum of the A100 stages over sum of the H100 ones, largest relative error of the H100 stages from that alone)."""
    pairs = [(a100, h100) for _, a100, h100 in article.values()]
    factor = sum(a100 for a100, _ in pairs) / sum(h100 for _, h100 in pairs)
    return factor, max(abs(a100 / factor - h100) / h100 for a100, h100 in pairs)


def flag_shares() -> dict[str, float]:
    """The article's cost of the flag as a share of its context creation, and of its three stages together."""
    a100 = {stage: seconds for stage, (_, seconds, _) in ARTICLE_S.items()}
    return {
        "context creation": ARTICLE_FLAG_S / a100["context creation"],
        "all three stages": ARTICLE_FLAG_S / sum(a100.values()),
    }


def context_claims(got: Obtained) -> Claims:
    """Every figure of the article's section 2.1 beside ours; without a result those of a GPU are not identifiable."""
    frames = got.result.frames if got.result else {}
    stats = {row["step"]: row["p50_s"] for row in _rows(frames, "context_step_stats")}
    effect = next(iter(_rows(frames, "flag_effect")), None)
    stages = [
        _of_gpu(got, stage, _both(a100, h100), _seconds(stats.get(step)), _STAGES[stage])
        for stage, (step, a100, h100) in ARTICLE_S.items()
    ]
    return Claims([*stages, *_table_claims(got, stats), *_flag_claims(got, effect), _reuse(got, stats)])


def _table_claims(got: Obtained, stats: dict[str, float]) -> list[Claim]:
    known = [stats.get(step) for step, _, _ in ARTICLE_S.values()]
    whole = [seconds for seconds in known if seconds is not None]
    factor, error = one_factor()
    ratios = ", ".join(f"{a100 / h100:.2f}" for _, a100, h100 in ARTICLE_S.values())
    a100, h100 = sum(row[1] for row in ARTICLE_S.values()), sum(row[2] for row in ARTICLE_S.values())
    return [
        _of_gpu(got, "the three stages together", _both(a100, h100), _seconds(sum(whole)) if all(known) else None, ""),
        Claim(
            "A100 over H100, stage by stage",
            ratios,
            f"× {factor:.2f} alone gives every H100 figure within {format_ratio(error)}",
            "modelled",
            "bus, driver and page tables have no common factor: the columns look computed from each other",
            "from the article's own table",
        ),
        _of_gpu(
            got,
            "what dominates",
            "PCIe link negotiation and mapping",
            f"{format_ratio(stats['context'] / sum(whole))} is context creation" if all(known) else None,
            _LINK,
        ),
    ]


def _flag_claims(got: Obtained, effect: dict[str, Any] | None) -> list[Claim]:
    ours = None
    if effect is not None:
        ours = (
            f"{format_s(effect['difference_s'])}, 95 % interval {format_s(effect['lower_s'])} to "
            f"{format_s(effect['upper_s'])}, {effect['pair_count']} pairs"
        )
    shares = ", ".join(f"{format_ratio(share)} of {name}" for name, share in flag_shares().items())
    return [
        _of_gpu(
            got, "CU_CTX_MAP_HOST costs", f"{format_s(ARTICLE_FLAG_S)} (A100), a storm of TLB flushes", ours, _FLAG
        ),
        Claim(
            "a start without the flag saves",
            format_ratio(ARTICLE_SAVING_RATIO),
            f"at most {shares}",
            "bounded",
            "the article's own 12 ms cannot save 18 % of any of its figures",
            "by the article's own table",
        ),
    ]


def _reuse(got: Obtained, stats: dict[str, float]) -> Claim:
    kernels = [stats.get(name) for name in ("first_kernel", "second_kernel")]
    told = f"first kernel {format_s(kernels[0])}, second {format_s(kernels[1])}" if all(kernels) else None
    right = "right: a process has one primary context; make it once, before the first request, and keep the process"
    return _of_gpu(got, "reuse of a context", "do it once at the start", told, right)


def _of_gpu(got: Obtained, subject: str, article: str, ours: str | None, correction: str) -> Claim:
    if ours is None:
        return Claim(subject, article, None, "not_identifiable", correction, "without a GPU")
    return Claim(subject, article, ours, got.how, correction, f"on {got.where}")


def _both(a100: float, h100: float) -> str:
    return f"{a100 * 1e3:.1f} ms (A100), {h100 * 1e3:.1f} ms (H100)"


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else format_s(seconds)


def _rows(frames: dict[str, pl.DataFrame], name: str) -> list[dict[str, Any]]:
    return frames[name].to_dicts() if name in frames else []
