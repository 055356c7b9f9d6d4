"""Observations to starts: where one start of an engine ends and the next begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from infer_diag.loaders.serving_lines import ServingLines, speaks_for

_ENDS = {"ready", "failed", "shutdown"}
_BEFORE_START = {"shutdown", "oom", "failed", "ready"}
_LOADS = ("weights_fetch", "weights_load", "weights_read")
_AFTER_LOAD = ("warmup", "server_ready", "first_request")
_LATE = timedelta(seconds=2)
_SINGLE_PROCESSES = ("APIServer", "EngineCore")

Row = dict[str, Any]


@dataclass
class Start:
    """One start while it is put together; rows are observations in the order of the log.

    `served_through`: how many serving lines of its replica the file holds up to its last row.
    """

    replica: str | None
    rows: list[Row] = field(default_factory=list)
    served: bool = False
    closed: bool = False
    failed: bool = False
    loaded: bool = False
    served_through: int = 0
    closed_time: datetime | None = None
    pids: dict[str, str] = field(default_factory=dict)
    sized: set[tuple[str | None, str | None]] = field(default_factory=set)

    def add(self, row: Row) -> None:
        """Takes one more observation."""
        self.rows.append(row)
        if row["process"] and row["pid"] and row["process"].startswith(_SINGLE_PROCESSES):
            self.pids.setdefault(row["process"], row["pid"])
        self.loaded = self.loaded or row["phase"] is not None
        self.failed = self.failed or row["kind"] == "failed"
        if row["kind"] == "kv_pool":
            self.sized.add((row["process"], row["pid"]))
        if row["kind"] in _ENDS or (row["phase"] == "init_engine" and row["edge"] != "begin"):
            self.closed = True
            self.closed_time = row["time"] or self.closed_time

    def ends_before(self, row: Row) -> bool:
        """Whether this observation opens another start."""
        if row["kind"] == "engine_begin":
            return self.loaded or self.closed
        if row["kind"] == "process_begin":
            return self.failed
        if row["edge"] == "verdict":
            return self.served or any(one["kind"] == "ready" for one in self.rows)
        if row["kind"] is not None or row["phase"] in _AFTER_LOAD or row["edge"] == "bound":
            return False
        known = self.pids.get(row["process"] or "")
        if known is not None and row["pid"] is not None and known != row["pid"]:
            return True
        # One process sizes its KV pool after all of its weights are there.
        if row["phase"] in _LOADS and (row["process"], row["pid"]) in self.sized:
            return True
        printed_late = (
            self.closed_time is not None and row["time"] is not None and row["time"] <= self.closed_time + _LATE
        )
        return self.closed and not (printed_late and not self.served) and row["phase"] != "kernel_warmup"


def segmented(observations: pl.DataFrame, serving: ServingLines) -> list[Start]:
    """The starts of one file in order.

    Rows without a replica belong to every replica's start that is open, since front ends and launchers speak for all of
    them; a line of a serving engine ends the start of its own replica only.
    """
    replicas = [name for name in observations["replica"].unique(maintain_order=True).to_list() if name is not None]
    names: list[str | None] = list(replicas) if len(replicas) > 1 else [None]
    lines = observations["line"].to_numpy().astype(np.int64)
    before = {name: serving.counts_before(name, lines) for name in names}
    through = {name: serving.counts_before(name, lines + 1) for name in names}
    spoken_for = {place: _spoken_for(place, names) for place in observations["replica"].unique()}
    open_starts: dict[str | None, Start] = {}
    starts: list[Start] = []
    for number, row in enumerate(observations.to_dicts()):
        for name in spoken_for[row["replica"]]:
            current = open_starts.get(name)
            if current is not None and before[name][number] > current.served_through:
                current.served = current.closed = True
            if current is None or current.ends_before(row):
                if row["kind"] in _BEFORE_START and row["edge"] != "verdict":
                    continue
                current = open_starts[name] = Start(name)
                starts.append(current)
            current.add(row)
            current.served_through = through[name][number]
    for name, current in open_starts.items():
        if serving.count(name) > current.served_through:
            current.served = current.closed = True
    return [start for start in starts if start.loaded or any(_announces(row) for row in start.rows)]


def _announces(row: Row) -> bool:
    """Whether this observation alone shows that there was a start."""
    return bool(row["kind"] == "engine_begin" or row["edge"] == "verdict")


def _spoken_for(replica: str | None, names: list[str | None]) -> list[str | None]:
    """The replicas that a record tells of: its own, all of its pod, or all there are."""
    if replica is None:
        return names
    own = [name for name in names if name is not None and speaks_for(replica, name)]
    return list(own) or names
