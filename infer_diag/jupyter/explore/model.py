"""Everything that the explorer knows and decides, without a widget: its pages, its window, what follows from it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from infer_diag.attribution.heap.trace import heap_traces
from infer_diag.diagnose import Diagnosis
from infer_diag.diagnose.summary import overview
from infer_diag.errors import DiagError
from infer_diag.jupyter.explore.cost_model import CostModel
from infer_diag.jupyter.explore.device_model import DeviceModel, KvModel
from infer_diag.jupyter.explore.facts import Fact, evidence_html
from infer_diag.jupyter.explore.heap_model import HeapModel
from infer_diag.jupyter.explore.serving_model import ServingModel
from infer_diag.jupyter.explore.start_model import StartModel
from infer_diag.jupyter.explore.windows import Window
from infer_diag.redact import plain
from infer_diag.units import format_s

_LONG = 600


class ExploreModel:
    """A diagnosis to be looked into; `window` is what is selected of the serving timeline."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        self.recording = diagnosis.recording
        self.starts = StartModel(diagnosis)
        self.serving = ServingModel(self.recording)
        self.cost = CostModel(diagnosis, self.serving.origin)
        self.devices = DeviceModel(self.recording, self.serving)
        self.kv_pool = KvModel(self.recording, self.serving)
        self.window: Window = None

    @property
    def pages(self) -> list[str]:
        """The pages that have something to show."""
        has_memory = self.has_heap or not (self.devices.is_empty and self.kv_pool.is_empty)
        told = {"cold start": bool(self.starts.starts), "batching": not self.serving.is_empty, "memory": has_memory}
        told["cost"] = told["cold start"] or told["batching"]
        return ["overview", *(name for name, has in told.items() if has)]

    @property
    def has_heap(self) -> bool:
        """Whether an allocator's events or blocks are recorded."""
        return not (self.recording.allocator_events.is_empty() and self.recording.blocks.is_empty())

    @cached_property
    def heaps(self) -> list[HeapModel]:
        """The recorded heaps, read when they are first asked for.

        Raises:
            DiagError: what reads them is not installed.
        """
        return [HeapModel(self.recording, trace) for trace in heap_traces(self.recording)]

    def heaps_or_refusal(self) -> tuple[list[HeapModel], str]:
        """The heaps, and why there are none where they cannot be read."""
        try:
            return self.heaps, ""
        except DiagError as error:
            return [], str(error)

    def summary(self) -> list[str]:
        """What was read, a line each."""
        return [plain(line, _LONG) for line in overview(self.diagnosis)]

    def findings(self) -> list[Fact]:
        """The findings, the gravest first, with their lines and what to do."""
        return [
            Fact(
                plain(f"{each.severity}: {each.sentence}", _LONG),
                each.evidence,
                " · ".join(
                    [f"{each.id}, {each.status.replace('_', ' ')}", *([f"→ {each.remedy}"] if each.remedy else [])]
                ),
            )
            for each in self.diagnosis.findings
        ]

    def choose(self, brush: Any) -> bool:
        """Takes the ends of a window, or null for all of it, as the window; says whether that changed it."""
        low, high = self.span
        window = None if brush is None else (min(max(float(brush[0]), low), high), min(max(float(brush[1]), low), high))
        changed, self.window = window != self.window, window
        return changed

    @property
    def span(self) -> tuple[float, float]:
        """What a window may cover: the serving timeline, and the samples of devices around it."""
        ends = [part.span for part in (self.serving, self.devices) if not part.is_empty]
        return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else self.serving.span

    def window_words(self) -> str:
        """The window in words."""
        if self.window is None:
            return "the whole recording"
        begin, end = self.window
        return f"{format_s(begin) if begin else '0 s'} to {format_s(end)} ({format_s(end - begin)})"

    def moment_of(self, heap: HeapModel) -> int | None:
        """Where the heap stood at the end of the window; null without a window or without a clock in common."""
        if self.window is None:
            return None
        time = self.serving.moment(self.window[1])
        return None if time is None else heap.at(time)

    def evidence(self, chosen: Fact) -> str:
        """The lines behind a fact, as HTML."""
        return evidence_html(self.recording, chosen)
