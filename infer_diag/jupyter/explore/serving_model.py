"""Serving as the explorer shows it: one timeline, and what a window of it says, with the lines behind each number."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property

import numpy as np
import polars as pl

from infer_diag.attribution.quantiles import quantile
from infer_diag.attribution.requests import told_once
from infer_diag.attribution.streams import counted_once
from infer_diag.attribution.timeline import serving_timeline
from infer_diag.charts.template import COLOURS, file_name
from infer_diag.jupyter.explore.facts import Fact, extremes, fact
from infer_diag.jupyter.explore.scene import Panel, Scene, panels_scene
from infer_diag.jupyter.explore.windows import Window, origin_of, requests_of, since, within
from infer_diag.recording import Recording
from infer_diag.units import format_count, format_ratio, format_s

POINTS = 400
BINS = 200
MOST_ENGINES = 4
SLOWEST = 15
LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "end to end", "queue_s": "queue"}
_DASHES = ("", "5 3", "2 2", "7 2 2 2")
_LINES = (
    ("rate", "output_tokens_per_s", "output tokens/s", "decode"),
    ("rate", "prompt_tokens_per_s", "prompt tokens/s", "prefill"),
    ("load", "running_count", "running", "running"),
    ("load", "waiting_count", "waiting", "waiting"),
    ("kv", "kv_usage_ratio", "KV cache used", "kv"),
)
_PANELS = {"rate": "tokens per second", "load": "requests", "kv": "KV cache used"}
_WRITTEN = {"rate": format_count, "load": format_count, "kv": format_ratio}


class ServingModel:
    """The serving side of a recording, sorted once, so that a window costs what lies in it."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.origin = origin_of(recording)
        self._samples = self._placed(counted_once(recording))
        self._requests = requests_of(recording, self.origin)
        self._tells_ends = bool(self._requests["ended"].any())
        self._tellers = {
            name: told["teller"][0]
            for name in LATENCIES
            if not (told := told_once(self._requests.drop_nulls("x"), name)).is_empty()
        }

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return self._samples.is_empty() and self._requests["x"].is_null().all()

    @property
    def measures(self) -> dict[str, str]:
        """The latencies that the recording has, by column."""
        return {name: LATENCIES[name] for name in self._tellers}

    @cached_property
    def span(self) -> tuple[float, float]:
        """What the timeline covers."""
        ends = [frame["x"].drop_nulls() for frame in (self._samples, self._requests)]
        known = pl.concat(ends)
        return (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)  # type: ignore[arg-type]

    def moment(self, x: float) -> datetime | None:
        """The time of a place on the timeline, null without a clock."""
        return (
            None
            if self.origin is None
            else pl.select(pl.lit(self.origin) + pl.duration(microseconds=round(x * 1e6))).item()
        )

    @cached_property
    def timeline(self) -> Scene:
        """Rates, queue and KV use over the whole recording, and how long requests took."""
        panels = {name: Panel(label, 0.0, 68, written=_WRITTEN[name]) for name, label in _PANELS.items()}
        legend: dict[str, str] = {}
        once = self._recording.replace(engine_samples=counted_once(self._recording))
        drawn = self._placed(serving_timeline(once, POINTS).samples)
        engines = drawn.select("source_id", "replica").unique(maintain_order=True).rows()
        for number, (source_id, replica) in enumerate(engines[:MOST_ENGINES]):
            own = drawn.filter(pl.col("replica").eq_missing(pl.lit(replica, pl.String)), source_id=source_id)
            for place, column, name, colour in _LINES:
                rows = own.drop_nulls(column)
                if rows.is_empty():
                    continue
                y = rows[column].cast(pl.Float64)
                panels[place].high = max(panels[place].high, float(y.max()))  # type: ignore[arg-type]
                engine = (
                    f" · {file_name(self._recording.sources[source_id].path)} {replica or ''}"
                    if len(engines) > 1
                    else ""
                )
                panels[place].line(name + engine, COLOURS[colour], rows["x"].to_list(), y.to_list(), _DASHES[number])
                legend[name] = COLOURS[colour]
        panels["kv"].scale, panels["kv"].unit = 100.0, " %"
        shown = [panel for panel in panels.values() if panel.marks]
        for panel in shown:
            panel.high = panel.high * 1.06 or 1.0
        latency = self._latency_panel()
        if latency is not None:
            shown.append(latency)
            legend |= {f"{_first(self.measures)} median": COLOURS["mixed"], "p95": COLOURS["compile_graph"]}
        note = f"{len(engines) - MOST_ENGINES} more engines are not drawn" if len(engines) > MOST_ENGINES else ""
        label = "Serving over time. Drag a window, or use the arrow keys; Shift moves its end, Escape shows all."
        return panels_scene(
            label, shown, self.span, legend=list(legend.items()), brushable=True, note=note, xlabel=self._axis()
        )

    def facts(self, window: Window) -> list[Fact]:
        """Requests, latencies, rates, queue, KV use and preemptions of a window, each with its lines."""
        return self._all_facts if window is None else self._facts(window)

    @cached_property
    def _all_facts(self) -> list[Fact]:
        return self._facts(None)

    def _facts(self, window: Window) -> list[Fact]:
        rows, samples = within(self._requests, window), within(self._samples, window)
        return [*self._request_facts(rows), *self._sample_facts(samples), *self._preemptions(window)]

    def slowest(self, window: Window, measure: str) -> list[Fact]:
        """The requests of a window that took longest."""
        if measure not in self._tellers:
            return []
        rows = self._told(within(self._requests, window), measure).top_k(SLOWEST, by=measure)
        return [
            fact(
                self._recording,
                f"{row['name'] or 'request'}: {LATENCIES[measure]} {format_s(row[measure])}, at {format_s(row['x'])}",
                [(row["source_id"], row["line"])],
            )
            for row in rows.iter_rows(named=True)
        ]

    def histogram(self, window: Window, measure: str) -> Scene | None:
        """How a latency is distributed in a window: requests by length, on a logarithmic axis."""
        if measure not in self._tellers:
            return None
        values = self._told(within(self._requests, window), measure)[measure].to_numpy()
        values = values[values > 0]
        if not len(values):
            return None
        low, high = np.log10(values.min()), np.log10(values.max())
        low, high = (low - 0.5, high + 0.5) if high - low < 0.05 else (low, high)
        counts, edges = np.histogram(np.log10(values), bins=60, range=(low, high))
        bars = {
            "t": "bars",
            "c": COLOURS["mixed"],
            "x0": edges[:-1].tolist(),
            "x1": edges[1:].tolist(),
            "y": counts.tolist(),
        }
        panel = Panel("requests", float(counts.max()) * 1.06, 120, written=format_count, marks=[bars])
        ends = range(int(np.floor(low)), int(np.ceil(high)) + 1)
        ticks = [
            (np.log10(m) + e, format_s(m * 10.0**e)) for e in ends for m in (1, 2, 5) if low <= np.log10(m) + e <= high
        ]
        label = f"{LATENCIES[measure]} of {len(values):,} requests"
        return panels_scene(label, [panel], (float(low), float(high)), xticks=ticks, xlabel=label)

    def _latency_panel(self) -> Panel | None:
        measure = next(iter(self._tellers), None)
        if measure is None:
            return None
        low, high = self.span
        width = (high - low) / BINS or 1.0
        value = pl.col(measure)
        bins = (
            self._told(self._requests, measure)
            .group_by(((pl.col("x") - low) / width).floor().clip(0, BINS - 1).alias("bin"))
            .agg(p50=quantile(value, 0.5), p95=quantile(value, 0.95))
            .sort("bin")
            .with_columns(x=low + (pl.col("bin") + 0.5) * width)
        )
        panel = Panel(f"{LATENCIES[measure]}", float(bins["p95"].max()) * 1.06 or 1.0, 68, written=_seconds)  # type: ignore[arg-type]
        panel.unit = " s"
        for column, colour, name in (("p50", "mixed", "median"), ("p95", "compile_graph", "p95")):
            panel.line(name, COLOURS[colour], bins["x"].to_list(), bins[column].to_list())
        return panel

    def _request_facts(self, rows: pl.DataFrame) -> list[Fact]:
        if rows.is_empty():
            return []
        over = f", {rows['ended'].sum():,} of them finished" if self._tells_ends else ""
        ends = rows.select("source_id", "line").gather([0, len(rows) - 1]).rows()
        found = [fact(self._recording, f"{len(rows):,} requests{over}", ends)]
        for measure, name in self.measures.items():
            told = self._told(rows, measure)
            if told.is_empty():
                continue
            value = pl.col(measure)
            # Sorted once, both are read off.
            ordered = told.select(value.sort())
            p50, p95 = ordered.select(quantile(value, 0.5).alias("a"), quantile(value, 0.95).alias("b")).row(0)
            near = told.select(pl.col("source_id", "line").get((value - p95).abs().arg_min())).row(0)
            worst = told.select(pl.col("source_id", "line", measure).get(value.arg_max())).row(0)
            lengths = f"median {format_s(p50)}, p95 {format_s(p95)}, longest {format_s(worst[2])}"
            text = f"{name}: {lengths} ({len(told):,} requests)"
            note = "the request nearest to the p95, and the longest; quantiles are linear between neighbours"
            found.append(fact(self._recording, text, [near, worst[:2]], note))
        return found

    def _sample_facts(self, samples: pl.DataFrame) -> list[Fact]:
        found = []
        for _, column, name, _ in _LINES:
            told = samples.drop_nulls(column)
            if told.is_empty():
                continue
            (mean, least, most), ends = extremes(told, column)
            written = format_ratio if column.endswith("_ratio") else format_count
            text = f"{name}: mean {written(mean)}, from {written(least)} to {written(most)} ({len(told):,} samples)"
            found.append(fact(self._recording, text, ends, "the sample with the most, and the one with the least"))
        return found

    def _preemptions(self, window: Window) -> list[Fact]:
        said = self._placed(self._recording.incidents.filter(kind="preemption"))
        rows = within(said, window)
        counted = within(self._samples.filter(pl.col("preemption_count") > 0), window)
        if rows.is_empty() and counted.is_empty():
            return []
        told = rows if len(rows) else counted
        count = len(rows) if len(rows) else int(counted["preemption_count"].sum())
        return [fact(self._recording, f"{count:,} preemptions", told.select("source_id", "line").head(6).rows())]

    def _told(self, rows: pl.DataFrame, measure: str) -> pl.DataFrame:
        own = (pl.col("teller") == self._tellers[measure]) & pl.col("x").is_not_null() & pl.col(measure).is_not_null()
        return rows.lazy().filter(own).select("source_id", "line", "x", "name", measure).collect()

    def _placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with their place `x` on the timeline, sorted; by line where no row has a time."""
        if rows["time"].is_null().all():
            return rows.with_columns(pl.col("line").cast(pl.Float64).alias("x")).sort("x", maintain_order=True)
        return rows.drop_nulls("time").with_columns(since(self.origin)).sort("x", maintain_order=True)

    def _axis(self) -> str:
        if self._samples.is_empty() or self._samples["time"].is_not_null().any():
            return (
                f"since {self.origin:%Y-%m-%d %H:%M:%S} UTC"
                if self.origin and self.origin.year > 2000
                else "since the begin"
            )
        return "line of the log (it has no clock)"


def _seconds(value: float) -> str:
    return format_s(value) if value else "0 s"


def _first(measures: dict[str, str]) -> str:
    return next(iter(measures.values()), "")
