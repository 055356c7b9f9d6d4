"""The GPUs of this machine, sampled through NVML into the table that `nvidia-smi` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from infer_diag.errors import ProbeUnavailable, SourceError
from infer_diag.loaders import load
from infer_diag.probes.memory.gpu_samples import HEADER, GpuSampler
from infer_diag.recording import Recording
from infer_diag.watch.clock import Clock
from infer_diag.watch.watched import append, fresh, grown

_NEVER_S = 1e6
"""The sampler's own thread sleeps: the watch asks when it is time."""


class GpuWatch:
    """Samples of every GPU.

    Raises:
        ProbeUnavailable: there is no NVIDIA driver here, or the driver shows no GPU.
    """

    def __init__(self, folder: Path, every_s: float, clock: Clock, nvml: Any = None) -> None:
        self.label = "GPU"
        self.state = "not asked yet"
        self.kept_bytes = self.seen_bytes = 0
        self.next_s = 0.0
        self.samples: dict[str, pl.DataFrame] = {}
        self._every_s = every_s
        self._path = fresh(folder / "gpus.csv")
        self._tail_path = folder / ".tail.csv"
        self._seen = 0
        self._sampler = GpuSampler(_NEVER_S, nvml=nvml, now=clock.now)
        try:
            self._sampler.__enter__()
        except ProbeUnavailable as error:
            hint = "run it where the GPU is, or watch the engine: %diag watch http://host:8000/metrics"
            raise ProbeUnavailable(error.message, hint=hint) from error
        if not self._sampler.rows:
            self.close()
            raise ProbeUnavailable("NVML shows no GPU", hint="watch the engine: %diag watch http://host:8000/metrics")
        self._sampler.rows.clear()

    def look(self, clock: Clock) -> None:
        """One row per GPU."""
        self.next_s = clock.steady_s() + self._every_s
        try:
            self._sampler.sample()
        except Exception as error:  # A driver may fail in any way, and a GPU may fall off the bus.
            self.state = f"NVML fails ({type(error).__name__}: {' '.join(str(error).split())[:80]})"
            return
        rows = [*self._sampler.rows]
        self._sampler.rows.clear()
        text = "".join(f"{row}\n" for row in rows)
        head = f"{HEADER}\n"
        self.kept_bytes += append(self._path, (text if self._seen else head + text).encode())
        self.seen_bytes = self.kept_bytes
        self._seen += 1
        self._tail_path.write_text(head + text)
        try:
            grown(self.samples, "gpu_samples", load(self._tail_path, tz="UTC").gpu_samples)
        except SourceError:
            self.state = "NVML tells nothing of these GPUs"
            return
        self.state = f"{self._seen:,} sample{'s' * (self._seen != 1)} of {len(rows)} GPU{'s' * (len(rows) != 1)}"

    def recording(self) -> Recording | None:
        """Every sample kept so far."""
        return load(self._path, tz="UTC") if self._seen else None

    def close(self) -> None:
        """Lets go of NVML."""
        self._tail_path.unlink(missing_ok=True)
        self._sampler.__exit__(None, None, None)
