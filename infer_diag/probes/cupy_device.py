"""The GPU through CuPy, as thin as it can be: every name of CuPy that the probes use stands in this module."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from infer_diag.errors import ProbeUnavailable
from infer_diag.probes.device import OutOfDeviceMemory, Pool, Recorder
from infer_diag.probes.slab import SlabArena

_ERROR_MEMORY_ALLOCATION = 2
"""`cudaErrorMemoryAllocation`."""

ALLOCATION_UNIT_BYTES = 512
"""What CuPy's pools round every request up to."""


def cupy() -> Any:
    """The module `cupy` with a device that it can use.

    Raises:
        ProbeUnavailable: it is not installed, or finds no device.
    """
    try:
        module = import_module("cupy")
    except ImportError as error:
        raise ProbeUnavailable("CuPy is not installed", hint="pip install 'infer-diag[gpu]'") from error
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        raise ProbeUnavailable(
            f"CuPy finds no GPU ({error})", hint="run it on the GPU server; nvidia-smi there must list a device"
        ) from error
    if not count:
        raise ProbeUnavailable("CuPy finds no GPU", hint="look at CUDA_VISIBLE_DEVICES")
    return module


class CuPyDevice:
    """CuPy's current device."""

    basis = "measured"

    def __init__(self, module: Any) -> None:
        self._cupy, self._runtime, self._memory = module, module.cuda.runtime, module.cuda.memory

    @classmethod
    def current(cls) -> CuPyDevice:
        """The current device.

        Raises:
            ProbeUnavailable: CuPy is not installed, or finds no device.
        """
        return cls(cupy())

    def facts(self) -> dict[str, str | int]:
        """Model, memory, driver, runtime and CuPy; no serial number, address or identifier of the device."""
        told = self._runtime.getDeviceProperties(self._cupy.cuda.Device().id)
        return {
            "name": told["name"].decode("ascii", "replace"),
            "memory_bytes": int(told["totalGlobalMem"]),
            "multiprocessor_count": int(told["multiProcessorCount"]),
            "compute_capability": f"{told['major']}.{told['minor']}",
            "driver": int(self._runtime.driverGetVersion()),
            "runtime": int(self._runtime.runtimeGetVersion()),
            "cupy": str(self._cupy.__version__),
        }

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""
        free, total = self._runtime.memGetInfo()
        return int(free), int(total)

    def malloc(self, size_bytes: int) -> int:
        """A block by `cudaMalloc`.

        Raises:
            OutOfDeviceMemory: there is no room.
        """
        try:
            return int(self._runtime.malloc(size_bytes))
        except self._runtime.CUDARuntimeError as error:
            if error.status != _ERROR_MEMORY_ALLOCATION:
                raise
            raise OutOfDeviceMemory from error

    def free(self, address: int) -> None:
        """Gives such a block back."""
        self._runtime.free(address)

    def pools(self) -> Mapping[str, Callable[[int], Pool]]:
        """CuPy's pool, the driver's asynchronous one and the article's slab; PyTorch's where it is installed."""
        from infer_diag.probes.torch_pool import torch_pools

        made: dict[str, Callable[[int], Pool]] = {
            "cupy": lambda limit: CuPyPool(self._memory, limit),
            "slab": lambda limit: CuPySlab(self, self._memory, limit),
        }
        if self._runtime.deviceGetAttribute(self._runtime.cudaDevAttrMemoryPoolsSupported, 0):
            made["cupy_async"] = lambda limit: AsyncPool(self._memory, limit)
        return {**made, **torch_pools()}

    @contextmanager
    def recording(self, recorder: Recorder) -> Iterator[None]:
        """Events of this thread's pools go to the recorder; the asynchronous pool calls no hook."""
        with _hook(self._cupy, recorder):
            yield


def _hook(module: Any, recorder: Recorder) -> Any:
    stream = module.cuda.get_current_stream

    class RecordingHook(module.cuda.MemoryHook):  # type: ignore[misc]
        name = "infer_diag"

        def alloc_postprocess(self, **told: Any) -> None:
            if told["mem_ptr"]:
                recorder.event(
                    "segment_alloc",
                    gpu=told["device_id"],
                    address=told["mem_ptr"],
                    allocated_bytes=told["mem_size"],
                    stream=stream().ptr,
                )

        def malloc_postprocess(self, **told: Any) -> None:
            if not told["mem_ptr"] and not told["size"]:
                return
            recorder.event(
                "alloc" if told["mem_ptr"] else "oom",
                gpu=told["device_id"],
                address=told["mem_ptr"] or None,
                requested_bytes=told["size"],
                allocated_bytes=told["mem_size"],
                stream=stream().ptr,
            )

        def free_postprocess(self, **told: Any) -> None:
            # CuPy frees into the arena of the stream that allocated, which need not be the current one.
            recorder.event("free", gpu=told["device_id"], address=told["mem_ptr"], allocated_bytes=told["mem_size"])

    return RecordingHook()


class CuPyPool:
    """A pool of CuPy of its own, apart from the default one."""

    def __init__(self, memory: Any, limit_bytes: int) -> None:
        self._memory = memory
        self._pool = memory.SingleDeviceMemoryPool()
        self._pool.set_limit(size=limit_bytes)
        self._live: dict[int, Any] = {}

    def malloc(self, size_bytes: int) -> int:
        """A block.

        Raises:
            OutOfDeviceMemory: there is no room under the limit.
        """
        try:
            pointer = self._pool.malloc(size_bytes)
        except self._memory.OutOfMemoryError as error:
            raise OutOfDeviceMemory from error
        self._live[pointer.ptr] = pointer
        return int(pointer.ptr)

    def free(self, address: int) -> None:
        """Gives the block back to the pool by dropping the last reference to it."""
        del self._live[address]

    def reserved_bytes(self) -> int:
        """Bytes that the pool holds."""
        return int(self._pool.total_bytes())

    def allocated_bytes(self) -> int:
        """Bytes handed out, rounded to 512."""
        return int(self._pool.used_bytes())

    def free_blocks(self) -> list[tuple[int, int]] | None:
        """The idle blocks of the null stream's arena; null before CuPy 14.1, which does not show them."""
        index = getattr(self._pool, "_debug_arena_get_index", None)
        if index is None:
            return None
        return sorted((int(chunk.mem.ptr + chunk.offset), int(size)) for size, chunk in index(0))

    def close(self) -> None:
        """Gives everything back."""
        self._live.clear()
        gc.collect()
        self._pool.free_all_blocks()


class AsyncPool:
    """The driver's stream-ordered pool.

    What limits it is soft, and it counts a block as used until its stream has passed the free; so the limit here is on
    the bytes handed out as this class counts them.
    """

    def __init__(self, memory: Any, limit_bytes: int) -> None:
        self._memory, self._limit, self._allocated = memory, limit_bytes, 0
        self._pool = memory.MemoryAsyncPool()
        self._live: dict[int, tuple[Any, int]] = {}

    def malloc(self, size_bytes: int) -> int:
        """A block.

        Raises:
            OutOfDeviceMemory: there is no room, or the limit would be exceeded.
        """
        rounded = -(-size_bytes // ALLOCATION_UNIT_BYTES) * ALLOCATION_UNIT_BYTES
        if self._allocated + rounded > self._limit:
            raise OutOfDeviceMemory
        try:
            pointer = self._pool.malloc(size_bytes)
        except self._memory.OutOfMemoryError as error:
            raise OutOfDeviceMemory from error
        self._live[pointer.ptr] = (pointer, rounded)
        self._allocated += rounded
        return int(pointer.ptr)

    def free(self, address: int) -> None:
        """Gives the block back."""
        self._allocated -= self._live.pop(address)[1]

    def reserved_bytes(self) -> int:
        """Bytes that the driver holds for the pool."""
        return int(self._pool.total_bytes())

    def allocated_bytes(self) -> int:
        """Bytes handed out, rounded to 512."""
        return self._allocated

    def free_blocks(self) -> None:
        """Unknown: the driver shows no blocks."""
        return

    def close(self) -> None:
        """Frees everything and lets the driver take it back."""
        self._live.clear()
        gc.collect()
        self._pool.free_all_blocks()


class CuPySlab:
    """The article's slab as an allocator of CuPy: `PythonFunctionAllocator` over one block of the device."""

    def __init__(self, device: CuPyDevice, memory: Any, limit_bytes: int) -> None:
        self._device, self._limit = device, limit_bytes
        self._base = device.malloc(limit_bytes)
        self._arena = SlabArena(self._base, limit_bytes)
        self._allocator = memory.PythonFunctionAllocator(self._served, lambda address, _: self._arena.free(address))
        self._live: dict[int, Any] = {}

    def malloc(self, size_bytes: int) -> int:
        """A block.

        Raises:
            OutOfDeviceMemory: no idle range is large enough.
        """
        pointer = self._allocator.malloc(size_bytes)
        self._live[pointer.ptr] = pointer
        return int(pointer.ptr)

    def free(self, address: int) -> None:
        """Gives the block back to the arena."""
        del self._live[address]

    def reserved_bytes(self) -> int:
        """The whole arena."""
        return self._limit

    def allocated_bytes(self) -> int:
        """Bytes in blocks, rounding included."""
        return self._arena.allocated_bytes

    def free_blocks(self) -> list[tuple[int, int]]:
        """The idle ranges."""
        return self._arena.free_blocks()

    def close(self) -> None:
        """Gives the arena back to the device."""
        self._live.clear()
        gc.collect()
        self._device.free(self._base)

    def _served(self, size_bytes: int, device_id: int) -> int:
        address = self._arena.malloc(size_bytes)
        if address is None:
            raise OutOfDeviceMemory
        return address
