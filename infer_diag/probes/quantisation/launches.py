"""The kernels on a GPU through CuPy: what the first launch costs with compilation, and what the later ones move."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from infer_diag.probes.cupy_device import CuPyDevice, cupy
from infer_diag.probes.quantisation import eight_bit, four_bit, kernels

_THREADS = 256
_TOLERANCE = 2e-3

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Layer:
    """One weight in a format: what its kernel reads, how many threads it needs, and what must come out."""

    kernel: str
    arrays: tuple[NDArray[Any], ...]
    scalars: tuple[Any, ...]
    threads: int
    expected: Floats

    @property
    def read_bytes(self) -> int:
        """Bytes that the kernel reads at least."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def written_bytes(self) -> int:
        """Bytes of the half-precision weight."""
        return self.expected.size * 2


class Launcher(Protocol):
    """What the probe asks of a GPU that runs the kernels."""

    basis: str

    def facts(self) -> dict[str, str | int]:
        """What the device is."""

    def launches(self, layer: Layer, name: str, count: int) -> tuple[list[float], Floats]:
        """(seconds of each launch, the first with compilation; what the kernel wrote)."""


def layers(inputs: int, outputs: int, group: int = four_bit.GROUP, seed: int = 0) -> dict[str, Callable[[], Layer]]:
    """The same random weight in every format, made when asked for."""
    draws = np.random.default_rng(seed)
    weight = draws.standard_normal((inputs, outputs), dtype=np.float32) * np.float32(0.02)
    order = draws.permutation(inputs).astype(np.int32)
    return {
        "awq": lambda: _awq(weight, group),
        "gptq": lambda: _gptq(weight, group, None),
        "gptq_act_order": lambda: _gptq(weight, group, order),
        "fp8": lambda: _fp8(weight),
    }


def is_right(layer: Layer, written: Floats) -> bool:
    """Whether a kernel wrote what the reference says, up to the rounding of half precision."""
    largest = float(np.abs(layer.expected).max())
    return bool(np.allclose(written, layer.expected, rtol=_TOLERANCE, atol=_TOLERANCE * largest))


class CuPyLauncher:
    """CuPy's current device."""

    basis = "measured"

    def __init__(self) -> None:
        self._cupy = cupy()
        self._device = CuPyDevice(self._cupy)

    def facts(self) -> dict[str, str | int]:
        """What the device is."""
        return self._device.facts()

    def launches(self, layer: Layer, name: str, count: int) -> tuple[list[float], Floats]:
        """(seconds of each launch, the first by the wall clock and the others by the device's; what was written)."""
        module = self._cupy
        arrays = [module.asarray(array) for array in layer.arrays]
        out = module.zeros(layer.expected.shape, dtype=module.float16)
        module.cuda.runtime.deviceSynchronize()
        words = _arguments(layer, arrays, out)
        blocks = (-(-layer.threads // _THREADS),)
        with _empty_cache():
            begin = time.perf_counter()
            # The comment makes each format a source of its own, or GPTQ's second kernel would find its first one.
            kernel = module.RawKernel(f"{kernels.source(layer.kernel)}\n// {name}\n", layer.kernel)
            kernel(blocks, (_THREADS,), words)
            module.cuda.runtime.deviceSynchronize()
            seconds = [time.perf_counter() - begin]
        for _ in range(count - 1):
            first, last = module.cuda.Event(), module.cuda.Event()
            first.record()
            kernel(blocks, (_THREADS,), words)
            last.record()
            last.synchronize()
            seconds.append(module.cuda.get_elapsed_time(first, last) / 1000)
        return seconds, out.get().astype(np.float32)


def _arguments(layer: Layer, arrays: list[Any], out: Any) -> tuple[Any, ...]:
    """In the order of the kernel's parameters: FP8 takes its scale before the output."""
    if layer.kernel == "fp8":
        return (arrays[0], layer.scalars[0], out, layer.scalars[1])
    return (*arrays, out, *layer.scalars)


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Lets CuPy compile into an empty folder, so that a first launch is one although the user ran it before."""
    before = os.environ.get("CUPY_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUPY_CACHE_DIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["CUPY_CACHE_DIR"]
            else:
                os.environ["CUPY_CACHE_DIR"] = before


def _awq(weight: Floats, group: int) -> Layer:
    made = four_bit.awq_packed(weight, group)
    sizes = (np.int32(weight.shape[0]), np.int32(weight.shape[1]), np.int32(group))
    arrays = (made.qweight, made.qzeros, made.scales)
    return Layer("awq", arrays, sizes, made.qweight.size, four_bit.awq_unpacked(made))


def _gptq(weight: Floats, group: int, order: NDArray[np.int32] | None) -> Layer:
    made = four_bit.gptq_packed(weight, group, order)
    sizes = (np.int32(weight.shape[0]), np.int32(weight.shape[1]))
    arrays = (made.qweight, made.qzeros, made.scales, made.g_idx)
    return Layer("gptq", arrays, sizes, made.qweight.size, four_bit.gptq_unpacked(made))


def _fp8(weight: Floats) -> Layer:
    codes, scale = eight_bit.packed(weight)
    scalars = (np.float32(scale), np.int64(codes.size))
    return Layer("fp8", (codes,), scalars, codes.size, eight_bit.unpacked(codes, scale))
