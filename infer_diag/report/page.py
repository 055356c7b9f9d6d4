"""What stands on the page of a report, as plain values: every text in it is redacted, and nothing is HTML yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from infer_diag.redact import shown
from infer_diag.report.cost import cost_section
from infer_diag.report.excerpts import blocks, excerpts
from infer_diag.units import format_count, format_ratio, format_s

if TYPE_CHECKING:
    from infer_diag.diagnose import Diagnosis

MOST_DETAILED_STARTS = 4
MOST_ROWS = 200
MOST_REJECTED = 20
MOST_EVIDENCE = 5
MOST_CHARACTERS = 2000
_ANSWER_SENTENCES = 3

_SAMPLE_MEASURES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "output_tokens_per_s": ("output tokens per second", format_count),
    "prompt_tokens_per_s": ("prompt tokens per second", format_count),
    "running": ("requests running", format_count),
    "waiting": ("requests waiting", format_count),
    "kv_usage_ratio": ("KV cache used", format_ratio),
}
_REQUEST_MEASURES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "queue_s": ("queue", format_s),
    "prefill_s": ("prefill", format_s),
    "decode_s": ("decode", format_s),
    "ttft_s": ("time to first token", format_s),
    "tpot_s": ("time per output token", format_s),
    "e2e_s": ("whole request", format_s),
    "prompt_tokens": ("prompt tokens", format_count),
    "output_tokens": ("output tokens", format_count),
}


def page(diagnosis: Diagnosis) -> dict[str, Any]:
    """The content of the report without its charts."""
    document = diagnosis.to_dict()
    starts = list(document["starts"])
    one_source = len(diagnosis.recording.sources) == 1
    content = {
        "subject": _subject(diagnosis),
        "answer": _answer(diagnosis),
        "findings": _findings(diagnosis),
        "starts": [_start(start) for start in starts[:MOST_ROWS]],
        "start_count": len(starts),
        "has_hold": any(start["hold_s"] is not None for start in starts),
        "detailed": [_start_detail(start, one_source) for start in _most_telling(starts)],
        "serving": _serving(document["serving"]),
        "step_rows": _step_rows(diagnosis),
        "cost": cost_section(document["cost"]),
        "sources": [_source(source) for source in diagnosis.recording.sources],
        "skipped": [{"path": file.path, "reason": file.reason} for file in diagnosis.recording.skipped],
        "rejected": _rejected(diagnosis),
        "rejected_count": len(diagnosis.recording.rejected),
    }
    clean: dict[str, Any] = without_secrets(content)
    cited = [each.evidence[:MOST_EVIDENCE] for each in diagnosis.findings]
    found = excerpts(diagnosis.recording, (place for places in cited for place in places))
    for finding, places in zip(clean["findings"], cited, strict=True):
        finding["blocks"] = blocks(places, finding["evidence"], found)
        # Once no secret is in it: with another first letter one would no longer be known by its form.
        finding["remedy"] = finding["remedy"] and finding["remedy"][:1].upper() + finding["remedy"][1:]
    return clean


def _most_telling(starts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The longest starts; those of unknown length come after, in the order of the log."""
    longest = sorted(starts, key=lambda start: -(start["span_s"] or 0.0))[:MOST_DETAILED_STARTS]
    ids = {start["start_id"] for start in longest}
    return [start for start in starts if start["start_id"] in ids]


def _subject(diagnosis: Diagnosis) -> str:
    engines = dict.fromkeys(
        f"{each.engine} {each.engine_version or ''}".strip() for each in diagnosis.recording.sources
    )
    names = [each.path.replace("\\", "/").rsplit("/", 1)[-1] for each in diagnosis.recording.sources]
    files = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return " · ".join(part for part in (", ".join(engines), files) if part)


def _answer(diagnosis: Diagnosis) -> list[dict[str, str]]:
    """The gravest findings; what the data lacks is no answer, so those findings wait for their cards."""
    about_cost = [each for each in diagnosis.findings if not each.id.startswith("data.")]
    grave = [each for each in about_cost if each.severity in ("high", "medium")] or about_cost[:1]
    return [{"severity": each.severity, "sentence": each.sentence} for each in grave[:_ANSWER_SENTENCES]]


def _findings(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    return [
        {
            **each.to_dict(),
            "status": each.status.replace("_", " "),
            "saves": None if each.saves is None else format_s(each.saves),
            "evidence": list(each.evidence[:MOST_EVIDENCE]),
            "more_evidence": list(each.evidence[MOST_EVIDENCE:]),
        }
        for each in diagnosis.findings
    ]


def _start(start: dict[str, Any]) -> dict[str, Any]:
    caches = start.get("caches") or {}
    return {
        "start_id": start["start_id"],
        "outcome": start["outcome"],
        "replica": start.get("replica") or "",
        "span": format_s(start["span_s"]),
        "hold": format_s(start["hold_s"]),
        "unlogged": format_s(start["unlogged_s"]),
        "caches": ", ".join(f"{name} {how}" for name, how in caches.items() if how) or "unknown",
        "progress": _progress(start.get("progress")),
    }


def _progress(progress: dict[str, Any] | None) -> str:
    if progress is None:
        return ""
    text = f"{progress['done']} of {progress['total']} parts loaded"
    if progress.get("seconds_each") is not None:
        text += f", {format_s(progress['seconds_each'])} each"
    if progress.get("predicted_total_s") is not None:
        text += f", {format_s(progress['predicted_total_s'])} in all at that pace (modelled)"
    return text


def _start_detail(start: dict[str, Any], one_source: bool) -> dict[str, Any]:
    phases = [
        {
            "phase": phase["phase"].replace("_", " "),
            "rank": phase.get("rank") or "",
            "inside": (phase.get("inside") or "").replace("_", " "),
            "duration": _duration(phase),
            "status": phase["status"].replace("_", " "),
            "evidence": _short(phase["evidence"], one_source),
        }
        for phase in start["phases"]
    ]
    gaps = [
        {
            "after": (gap.get("after") or "the begin").replace("_", " "),
            "before": (gap.get("before") or "the end").replace("_", " "),
            "seconds": format_s(gap["seconds"]),
            "reason": "silent" if gap["reason"] == "silent" else "text missing",
            "evidence": _short(gap["evidence"], one_source),
        }
        for gap in start["gaps"]
    ]
    rest = max(len(phases) - MOST_ROWS, 0)
    return {**_start(start), "phases": phases[:MOST_ROWS], "more_phases": rest, "gaps": gaps[:MOST_ROWS]}


def _short(evidence: list[str], one_source: bool) -> str:
    """`12, 15`, with the file's name in front where there are several files."""
    split = [place.rpartition(":") for place in evidence[:3]]
    names = dict.fromkeys(path.replace("\\", "/").rsplit("/", 1)[-1] for path, _, _ in split)
    lines = ", ".join(line for _, _, line in split) + (" …" if len(evidence) > 3 else "")
    return lines if one_source or not split else f"{', '.join(names)}: {lines}"


def _duration(phase: dict[str, Any]) -> str:
    if phase["duration_s"] is not None:
        return format_s(phase["duration_s"])
    low, high = phase.get("lower_s"), phase.get("upper_s")
    if low is not None and high is not None:
        return f"{format_s(low)} to {format_s(high)}"
    if low is not None:
        return f"at least {format_s(low)}"
    return "unknown" if high is None else f"at most {format_s(high)}"


def _serving(serving: dict[str, Any] | None) -> dict[str, Any] | None:
    if serving is None:
        return None
    requests = serving.get("requests") or {}
    shares = {name: share for name, share in (serving.get("shares") or {}).items() if share is not None}
    return {
        "samples": format_count(serving["samples"]),
        "window": "an unknown time" if serving["window_s"] is None else format_s(serving["window_s"]),
        "preemptions": "the log cannot tell"
        if serving["preemptions"] is None
        else format_count(serving["preemptions"]),
        "requests": format_count(requests.get("count")),
        "sample_rows": _measures(serving, _SAMPLE_MEASURES, ("first", "last", "min", "mean", "max")),
        "request_rows": _measures(requests, _REQUEST_MEASURES, ("mean", "p50", "p95", "max")),
        "shares": [{"name": name, "share": format_ratio(share)} for name, share in shares.items()],
    }


def _step_rows(diagnosis: Diagnosis) -> list[list[str]]:
    if diagnosis.batching is None:
        return []
    return [
        [
            row["kind"],
            format_count(row["step_count"]),
            format_s(row["duration_s"]),
            format_count(row["mean_batch_count"]),
            format_count(row["prefill_tokens"]),
            format_count(row["decode_tokens"]),
        ]
        for row in diagnosis.batching.steps.iter_rows(named=True)
    ]


def _measures(values: dict[str, Any], measures: dict[str, Any], columns: Iterable[str]) -> list[list[str]]:
    return [
        [name, *(written(values[key][column]) for column in columns)]
        for key, (name, written) in measures.items()
        if values.get(key) is not None
    ]


def _source(source: Any) -> dict[str, Any]:
    clocks = [
        f"{clock.where}: {clock.example}"
        + (f", {clock.zone}" if clock.zone else ", zone not printed")
        + ("" if clock.year_known else ", year not printed")
        + ("" if clock.offset_s in (None, 0) else f", {format_s(clock.offset_s)} from the inner clock")
        for clock in source.clocks
    ]
    return {
        **{
            key: value
            for key, value in asdict(source).items()
            if key in ("path", "format", "engine", "sha256", "notes")
        },
        "version": source.engine_version or "not printed",
        "lines": format_count(source.lines),
        "rejected": format_count(source.rejected_lines),
        "cut": "yes" if source.cut else "no",
        "clocks": clocks,
        "span": f"{_when(source.first_time, source.dated)} to {_when(source.last_time, source.dated)}",
    }


def _when(time: datetime | None, dated: bool) -> str:
    if time is None:
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M:%S" if dated else "%m-%d %H:%M:%S")


def _rejected(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    recording = diagnosis.recording
    return [
        {"place": recording.evidence(row["source_id"], row["line"]), "rule": row["rule"], "text": row["text"]}
        for row in recording.rejected.head(MOST_REJECTED).iter_rows(named=True)
    ]


def without_secrets(content: Any) -> Any:
    """The same tree with every string as it may be shown; they go through the rules together, as one by one is slow."""
    texts = sorted(set(_strings(content)))
    column = pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)}).select(shown(pl.col("text"), MOST_CHARACTERS))[
        "text"
    ]
    return _mapped(content, dict(zip(texts, column.to_list(), strict=True)))


def _strings(tree: Any) -> Iterable[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _strings(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _strings(value)


def _mapped(tree: Any, clean: dict[str, str]) -> Any:
    if isinstance(tree, str):
        return clean[tree]
    if isinstance(tree, dict):
        return {key: _mapped(value, clean) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_mapped(value, clean) for value in tree]
    return tree
