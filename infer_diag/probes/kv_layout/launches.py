"""The kernels on a GPU through CuPy: one module, five launches, a copy for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from infer_diag.probes.cupy_device import CuPyDevice, cupy
from infer_diag.probes.kv_layout import kernels
from infer_diag.probes.kv_layout.packing import Cache, Words, scalars


@dataclass(frozen=True)
class Launched:
    """What one kernel did: seconds of each launch, one sum per thread, blocks on an SM, registers of a thread."""

    seconds: list[float]
    out: Words
    blocks_per_sm: int | None
    registers: int | None


class Reader(Protocol):
    """What the probe asks of a GPU that reads caches."""

    basis: str

    def facts(self) -> dict[str, str | int]:
        """What the device is."""

    def launches(self, kernel: str, cache: Cache, splits: int, count: int) -> Launched:
        """The kernel launched `count` times on the cache in its layout, after one launch that does not count."""

    def copy_seconds(self, size_bytes: int, count: int) -> list[float]:
        """Seconds of copies of so many bytes on the device, each read once and written once."""


class CuPyReader:
    """CuPy's current device."""

    basis = "measured"

    def __init__(self) -> None:
        self._cupy = cupy()
        self._device = CuPyDevice(self._cupy)
        self._module = self._cupy.RawModule(code=kernels.source())

    def facts(self) -> dict[str, str | int]:
        """What the device is."""
        return self._device.facts()

    def launches(self, kernel: str, cache: Cache, splits: int, count: int) -> Launched:
        """The kernel launched `count` times, by the device's clock, after one launch that does not count."""
        module = self._cupy
        function = self._module.get_function(kernel)
        keys, values = (module.asarray(each) for each in cache.packed(kernel))
        table = module.asarray(cache.table)
        blocks = cache.keys.shape[0] * cache.keys.shape[2] * splits
        out = module.zeros(blocks * kernels.THREADS, dtype=module.uint32)
        words = (keys, values, table, out, *scalars(cache, splits))

        def launch() -> None:
            function((blocks,), (kernels.THREADS,), words)

        seconds = self._timed(launch, count)
        resident = module.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, kernels.THREADS, 0)
        return Launched(seconds, np.asarray(out.get()), int(resident), int(function.num_regs))

    def copy_seconds(self, size_bytes: int, count: int) -> list[float]:
        """Seconds of copies on the device, by its clock."""
        module = self._cupy
        source, target = (module.zeros(size_bytes, dtype=module.uint8) for _ in range(2))

        def copy() -> None:
            target.data.copy_from_device_async(source.data, size_bytes, module.cuda.Stream.null)

        return self._timed(copy, count)

    def _timed(self, call: Any, count: int) -> list[float]:
        module = self._cupy
        call()
        module.cuda.runtime.deviceSynchronize()
        seconds = []
        for _ in range(count):
            first, last = module.cuda.Event(), module.cuda.Event()
            first.record()
            call()
            last.record()
            last.synchronize()
            seconds.append(module.cuda.get_elapsed_time(first, last) / 1000)
        return seconds
