"""The memory section of a report: where reserved bytes go, in words, the block map over time, and holes by size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from infer_diag import charts
from infer_diag.attribution.heap.view import heap_view
from infer_diag.attribution.heap.waste import hole_sizes
from infer_diag.diagnose.fragmentation import holes_sentence, waste_sentence
from infer_diag.redact import plain
from infer_diag.report.figures import Chart, chart

if TYPE_CHECKING:
    from infer_diag.diagnose import Diagnosis

_MOST_POOLS = 8
_LONG = 600


@dataclass(frozen=True)
class MemorySection:
    """Sentences and charts; both empty where no allocator is recorded."""

    lines: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()


def memory_section(diagnosis: Diagnosis) -> MemorySection:
    """What the block maps say in words, and the charts of the heap that holds the most."""
    told, view = diagnosis.memory, heap_view(diagnosis.recording)
    if told is None or view is None:
        return MemorySection()
    devices, pools = (told.waste.filter(scope=scope).to_dicts() for scope in ("device", "pool"))
    lines = [*map(waste_sentence, devices), *map(holes_sentence, pools[:_MOST_POOLS])]
    if view.missing:
        lines.append(f"The curves over time are left out: {view.missing}.")
    if view.doubt:
        lines.append(f"States before the last are approximate: {view.doubt}.")
    drawn = []
    figure = charts.memory_figure(view)
    if figure is not None:
        caption = (
            "Each stretch is a block or a hole, in the order of addresses; drag over it to zoom in, move the slider to "
            "go through the recording."
        )
        drawn.append(chart(figure, "chart-memory", caption))
    sizes = hole_sizes(diagnosis.recording)
    if len(sizes):
        caption = "Idle bytes by the size of their holes at the end, beside how often such sizes were asked for."
        drawn.append(chart(charts.hole_chart(sizes, status=view.status), "chart-holes", caption))
    return MemorySection(tuple(plain(line, _LONG) for line in lines), tuple(drawn))
