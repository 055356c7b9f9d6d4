"""What `%diag batching NAME --what-if …` shows: the model's error on the log first, then what the changes would do."""

from __future__ import annotations

from collections.abc import Callable

from infer_diag.attribution.serving_changes import changes_of
from infer_diag.attribution.serving_what_if import WhatIf, serving_what_if
from infer_diag.jupyter.panel import Panel
from infer_diag.recording import Recording
from infer_diag.units import format_count, format_s

_NAMES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "output_tokens_per_s": ("output tokens/s", format_count),
    "ttft_s": ("median TTFT", format_s),
    "tpot_s": ("median TPOT", format_s),
    "running_count": ("peak running", format_count),
    "waiting_count": ("peak waiting", format_count),
    "preemption_count": ("preemptions", format_count),
}


def what_if_panel(recording: Recording, text: str) -> Panel:
    """The prediction for `max_num_seqs=512,scheduler=orca` as a panel; a refusal says which log would allow one."""
    told = serving_what_if(recording, changes_of(text))
    title = "What if " + ", ".join(f"{name} = {value}" for name, value in told.changes.items()) + " (modelled)"
    if told.measures.is_empty():
        return Panel(title, f"not identifiable: {told.refusal}")
    details = [*map("note: {}".format, told.assumptions), *_changed(told)]
    return Panel(title, told.refusal or _error(told), tuple(details), told.measures)


def _error(told: WhatIf) -> str:
    parts = [
        f"{_NAMES[row['measure']][0]} {row['error_ratio']:+.1%}"
        for row in told.measures.iter_rows(named=True)
        if row["error_ratio"] is not None
    ]
    return f"the model's error on this log: {', '.join(parts)} (step times {told.basis})"


def _changed(told: WhatIf) -> list[str]:
    lines = []
    for row in told.measures.iter_rows(named=True):
        name, written = _NAMES[row["measure"]]
        line = f"{name}: logged {written(row['logged'])}, modelled {written(row['modelled'])}"
        if row["changed"] is not None:
            line += f", with the changes {written(row['changed'])}"
        if row["low"] is not None:
            line += f" ({written(row['low'])} to {written(row['high'])})"
        lines.append(line)
    return lines
