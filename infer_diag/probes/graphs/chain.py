"""A chain of small kernels that can be launched one by one or captured, on a GPU through CuPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from infer_diag.probes.cupy_device import CuPyDevice, cupy

SOURCE = r"""
extern "C" __global__ void add_one(float* values, int count)
{
    int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place < count) values[place] += 1.0f;
}
"""
ELEMENTS = 4096
_THREADS = 256


class Graph(Protocol):
    """A captured chain."""

    def launch(self) -> None:
        """Replays it and waits for its end."""


class Chain(Protocol):
    """A chain of kernels; each adds one to every element, so that what ran can be counted."""

    def eager(self) -> None:
        """Launches every kernel by itself and waits for the last."""

    def capture(self) -> Graph:
        """Captures the chain without running it."""

    def ran(self) -> int:
        """How many kernels have run so far."""


class GraphDevice(Protocol):
    """What the probe asks of a GPU that has graphs."""

    basis: str

    def facts(self) -> dict[str, str | int]:
        """What the device is."""

    def used_bytes(self) -> int | None:
        """Bytes of the device in use; null where it does not tell."""

    def chain(self, nodes: int) -> Chain:
        """A chain of this many kernels, compiled and run once."""

    def checks(self) -> Mapping[str, Callable[[], None]]:
        """Calls by name, each tried inside a capture of its own; one that is refused raises."""


class CuPyGraphDevice:
    """CuPy's current device."""

    basis = "measured"

    def __init__(self) -> None:
        self._cupy = cupy()
        self._device = CuPyDevice(self._cupy)

    def facts(self) -> dict[str, str | int]:
        """What the device is."""
        return self._device.facts()

    def used_bytes(self) -> int:
        """Total minus free bytes of the device, those of other processes included."""
        free, total = self._device.memory()
        return total - free

    def chain(self, nodes: int) -> Chain:
        """A chain of this many kernels, compiled and run once."""
        return CuPyChain(self._cupy, nodes)

    def checks(self) -> Mapping[str, Callable[[], None]]:
        """Calls that an inference step may contain, in the capture mode that CuPy uses (relaxed)."""
        module = self._cupy
        array = module.zeros(ELEMENTS, dtype=module.float32)
        bytes_of_a_miss = 64 << 20

        def during(call: Callable[[Any], Any]) -> Callable[[], None]:
            def tried() -> None:
                stream = module.cuda.Stream(non_blocking=True)
                with stream:
                    stream.begin_capture()
                    try:
                        call(stream)
                    except Exception:
                        with suppress(module.cuda.runtime.CUDARuntimeError):
                            stream.end_capture()  # It fails too, and what the call itself said matters more.
                        raise
                    stream.end_capture()

            return tried

        return {
            "kernel on the captured stream": during(lambda stream: array.__iadd__(1)),
            "copy on the device": during(lambda stream: array.copy()),
            "pool miss (cudaMalloc)": during(lambda stream: module.cuda.memory.Memory(bytes_of_a_miss)),
            "wait for the stream": during(lambda stream: stream.synchronize()),
            "wait for the device": during(lambda stream: module.cuda.runtime.deviceSynchronize()),
            "copy to pageable host memory": during(lambda stream: array.get()),
        }


class CuPyChain:
    """A chain on one stream of its own, since the legacy stream cannot be captured."""

    def __init__(self, module: Any, nodes: int) -> None:
        self._nodes = nodes
        self._stream = module.cuda.Stream(non_blocking=True)
        self._kernel = module.RawKernel(SOURCE, "add_one")
        self._values = module.zeros(ELEMENTS, dtype=module.float32)
        self._count = module.int32(ELEMENTS)
        module.cuda.runtime.deviceSynchronize()
        self.eager()

    def eager(self) -> None:
        """Launches every kernel by itself and waits for the last."""
        with self._stream:
            self._launches()
        self._stream.synchronize()

    def capture(self) -> Graph:
        """Captures the chain without running it: `cudaStreamBeginCapture` to `cudaGraphInstantiate`."""
        with self._stream:
            self._stream.begin_capture()
            try:
                self._launches()
            finally:
                graph = self._stream.end_capture()
        return CuPyGraph(graph, self._stream)

    def ran(self) -> int:
        """How many kernels have run so far."""
        return int(self._values.get()[0])

    def _launches(self) -> None:
        blocks = (-(-ELEMENTS // _THREADS),)
        for _ in range(self._nodes):
            self._kernel(blocks, (_THREADS,), (self._values, self._count))


class CuPyGraph:
    """A captured chain and the stream that it runs on."""

    def __init__(self, graph: Any, stream: Any) -> None:
        self._graph, self._stream = graph, stream

    def launch(self) -> None:
        """Replays it and waits for its end."""
        self._graph.launch(self._stream)
        self._stream.synchronize()
