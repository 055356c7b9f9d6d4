"""The fresh process of the context probe: it sets a CUDA context up by the driver's own calls and times each step.

It imports the standard library alone, because whatever else a process has loaded would be measured with it. Printed is
one JSON object. Arguments: `timing` or `memory`, the flags of the context, the device's PCI address for `memory`.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

DRIVER, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
CUBLAS = ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11")
PINNED_BYTES, DEVICE_BYTES = 64 << 20, 2 << 20
MAP_HOST = 0x08
"""`CU_CTX_MAP_HOST`."""
_DEVICE_MAP = 0x02
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry touch(.param .u64 place)
{
    .reg .u64 %address;
    .reg .u32 %value;
    ld.param.u64 %address, [place];
    cvta.to.global.u64 %address, %address;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""


class Refused(Exception):
    """A call of the driver returned an error."""


class Start:
    """One start, step after step; each step needs those before it."""

    def __init__(self, load: Callable[[str], Any], flags: int) -> None:
        self._load, self._flags = load, flags
        self.driver: Any = None
        self.device = c_int()
        self.told: dict[str, Any] = {}
        self._context, self._host, self._memory = c_void_p(), c_void_p(), c_ulonglong()
        self._module, self._kernel = c_void_p(), c_void_p()

    def steps(self, until: str | None = None) -> Iterator[tuple[str, Callable[[], None]]]:
        """The steps by name, in order, up to the one that is named."""
        for name in (
            *("load_driver", "init", "discovery", "context", "map_host", "first_allocation", "module_load"),
            *("first_kernel", "second_kernel", "cublas_handle"),
        ):
            yield name, getattr(self, name)
            if name == until:
                return

    def load_driver(self) -> None:
        """Loads the driver's library."""
        self.driver = self._load(DRIVER)

    def init(self) -> None:
        """`cuInit`."""
        self._call("cuInit", c_uint(0))

    def discovery(self) -> None:
        """Counts the devices and asks the first one for name, memory and address."""
        count, size, name, bus = c_int(), c_size_t(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(32)
        version = c_int()
        self._call("cuDeviceGetCount", byref(count))
        self._call("cuDeviceGet", byref(self.device), c_int(0))
        self._call("cuDeviceGetName", name, c_int(96), self.device)
        self._call("cuDeviceTotalMem_v2", byref(size), self.device)
        self._call("cuDeviceGetPCIBusId", bus, c_int(32), self.device)
        self._call("cuDriverGetVersion", byref(version))
        self.told = {
            "name": name.value.decode("ascii", "replace"),
            "device_count": count.value,
            "memory_bytes": size.value,
            "driver": version.value,
        }
        self.told_bus = bus.value.decode("ascii", "replace")

    def context(self) -> None:
        """`cuCtxCreate` with the flags."""
        self._call("cuCtxCreate_v2", byref(self._context), c_uint(self._flags), self.device)

    def map_host(self) -> None:
        """Pins 64 MiB of host memory and maps it into the device's address space."""
        pointer = c_ulonglong()
        self._call("cuMemHostAlloc", byref(self._host), c_size_t(PINNED_BYTES), c_uint(_DEVICE_MAP))
        self._call("cuMemHostGetDevicePointer_v2", byref(pointer), self._host, c_uint(0))

    def first_allocation(self) -> None:
        """Takes 2 MiB of the device."""
        self._call("cuMemAlloc_v2", byref(self._memory), c_size_t(DEVICE_BYTES))

    def module_load(self) -> None:
        """Loads a module of one small kernel, which the driver compiles from PTX."""
        self._call("cuModuleLoadData", byref(self._module), c_char_p(PTX))
        self._call("cuModuleGetFunction", byref(self._kernel), self._module, c_char_p(b"touch"))

    def first_kernel(self) -> None:
        """Launches it and waits."""
        self._launched()

    def second_kernel(self) -> None:
        """Launches it again and waits."""
        self._launched()

    def cublas_handle(self) -> None:
        """Loads cuBLAS and creates a handle."""
        library = None
        for name in CUBLAS:
            try:
                library = self._load(name)
                break
            except OSError:
                continue
        if library is None:
            raise Refused("cuBLAS is not on the loader's path")
        handle = c_void_p()
        result = int(library.cublasCreate_v2(byref(handle)))
        if result:
            raise Refused(f"cublasCreate_v2 returned {result}")

    def _launched(self) -> None:
        place = c_ulonglong(self._memory.value)
        words = (c_void_p * 1)(ctypes.cast(byref(place), c_void_p))
        one, none = c_uint(1), c_uint(0)
        self._call("cuLaunchKernel", self._kernel, one, one, one, one, one, one, none, c_void_p(), words, c_void_p())
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *words: Any) -> None:
        result = int(getattr(self.driver, name)(*words))
        if result:
            raise Refused(f"{name} returned {result}")


class UsedMemory:
    """Bytes that a device has in use by NVML, which holds the device open, so it never runs beside a timing."""

    def __init__(self, load: Callable[[str], Any], bus: str) -> None:
        self._library = load(NVML)
        self._handle = c_void_p()
        if self._library.nvmlInit_v2() or self._library.nvmlDeviceGetHandleByPciBusId_v2(
            c_char_p(bus.encode("ascii")), byref(self._handle)
        ):
            raise OSError("NVML does not know the device")

    def __call__(self) -> int:
        """The bytes in use now, those of other processes included."""
        told = (c_ulonglong * 3)()
        if self._library.nvmlDeviceGetMemoryInfo(self._handle, told):
            raise OSError("NVML does not tell the device's memory")
        return int(told[2])


def measured(
    start: Start, used: Callable[[], int] | None, until: str | None, clock: Callable[[], int] = time.perf_counter_ns
) -> list[dict[str, Any]]:
    """One row per step: `duration_s`, or with `used` the `taken_bytes` in its place; a failed step ends the start.

    cuBLAS may be absent without anything being wrong, so its failure is the last row like any other.
    """
    rows = []
    before = used() if used is not None else 0
    for name, step in start.steps(until):
        begin = clock()
        row: dict[str, Any] = {"step": name, "duration_s": None, "taken_bytes": None, "refusal": None}
        try:
            step()
        except (Refused, OSError, AttributeError) as error:
            row["refusal"] = str(error)[:200]
        else:
            duration = clock() - begin
            if used is None:
                row["duration_s"] = duration / 1e9
            else:
                now = used()
                row["taken_bytes"], before = now - before, now
        rows.append(row)
        if row["refusal"] is not None:
            break
    return rows


def main(what: str, flags: str, bus: str, until: str) -> None:
    """Prints the steps of one start."""
    start = Start(ctypes.CDLL, int(flags))
    used = UsedMemory(ctypes.CDLL, bus) if what == "memory" else None
    rows = measured(start, used, until or None)
    print(json.dumps({"steps": rows, "device": start.told, "bus": getattr(start, "told_bus", "")}))


if __name__ == "__main__":
    main(*sys.argv[1:5])
