"""Memory, load and power of the GPUs over time by NVML, in the table that `nvidia-smi --query-gpu` prints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from infer_diag.errors import ProbeUnavailable

HEADER = "timestamp, index, memory.used [MiB], memory.free [MiB], memory.reserved [MiB], power.draw [W]"
_MIB = 1 << 20


class GpuSampler:
    """While it is entered, a thread samples every device each `every_s` seconds; NVML tells sums, never free blocks.

    `utilization.memory` is left out on purpose: it is the share of time in which memory was read or written.
    """

    def __init__(self, every_s: float = 0.1, *, nvml: Any = None, now: Callable[[], datetime] | None = None) -> None:
        self._every_s = every_s
        self._nvml = nvml if nvml is not None else import_module("pynvml")
        self._now = now or (lambda: datetime.now(UTC))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._handles: list[Any] = []
        self.rows: list[str] = []

    def __enter__(self) -> GpuSampler:
        """Begins to sample.

        Raises:
            ProbeUnavailable: there is no NVIDIA driver here.
        """
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise ProbeUnavailable(f"NVML finds no driver ({error})", hint="run it on the GPU server") from error
        count = self._nvml.nvmlDeviceGetCount()
        self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self.sample()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        self.sample()
        self._nvml.nvmlShutdown()

    def sample(self) -> None:
        """Takes one row per device."""
        stamp = self._now().strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
        for index, handle in enumerate(self._handles):
            used, free, reserved = self._memory(handle)
            cells = (stamp, str(index), _mib(used), _mib(free), _mib(reserved), self._power(handle))
            self.rows.append(", ".join(cells))

    def write(self, path: Path) -> Path:
        """Writes the table, which `infer_diag.load` reads as `nvidia-smi`."""
        path.write_text("\n".join([HEADER, *self.rows]) + "\n", encoding="ascii")
        return path

    def _loop(self) -> None:
        while not self._stop.wait(self._every_s):
            self.sample()

    def _memory(self, handle: Any) -> tuple[int, int, int | None]:
        """(used, free, reserved) bytes; the first version of the call counts what is reserved as used."""
        try:
            told = self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
        except (self._nvml.NVMLError, AttributeError):
            told = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            return int(told.used), int(told.free), None
        return int(told.used), int(told.free), int(told.reserved)

    def _power(self, handle: Any) -> str:
        try:
            return f"{self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000:.2f} W"
        except self._nvml.NVMLError:
            return "[N/A]"


def _mib(size: int | None) -> str:
    return "[N/A]" if size is None else f"{size / _MIB:.6f} MiB"
