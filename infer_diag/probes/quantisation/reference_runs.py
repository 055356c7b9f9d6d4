"""What unpacking costs the processor, again and again: the numpy references timed on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.probes.quantisation import eight_bit, four_bit
from infer_diag.probes.result import framed

SORTED_ONCE = "gptq_act_order_sorted"
"""Act-order whose rows were sorted by group when they were loaded."""

Unpack = Callable[[], NDArray[np.float32]]


def reference_runs(inputs: int = 512, outputs: int = 1024, count: int = 6, seed: int = 0) -> pl.DataFrame:
    """`frames.KernelRuns`: processor seconds of unpacking one random weight `count` times in every format, by numpy.

    They are those of this thread, so that other work on the machine does not count. Every launch does the whole work,
    as every forward pass does; none of them compiles anything.
    """
    draws = np.random.default_rng(seed)
    weight = draws.standard_normal((inputs, outputs), dtype=np.float32) * np.float32(0.02)
    order = draws.permutation(inputs).astype(np.int32)
    rows: list[dict[str, Any]] = []
    for name, (unpack, read_bytes) in _formats(weight, order).items():
        for launch in range(1, count + 1):
            begin = time.thread_time()
            written_bytes = unpack().nbytes
            seconds = time.thread_time() - begin
            rows.append(
                {
                    "kernel": name,
                    "launch_id": launch,
                    "duration_s": seconds,
                    "read_bytes": read_bytes,
                    "written_bytes": written_bytes,
                    "bytes_per_s": (read_bytes + written_bytes) / seconds,
                }
            )
    return framed("kernel_runs", rows)


def _formats(weight: NDArray[np.float32], order: NDArray[np.int32]) -> dict[str, tuple[Unpack, int]]:
    awq, plain, mixed = (
        four_bit.awq_packed(weight),
        four_bit.gptq_packed(weight),
        four_bit.gptq_packed(weight, order=order),
    )
    codes, scale = eight_bit.packed(weight)
    gptq = {"gptq": plain, "gptq_act_order": mixed, SORTED_ONCE: four_bit.reordered(mixed)[0]}
    return {
        "awq": (partial(four_bit.awq_unpacked, awq), _bytes(awq)),
        **{name: (partial(four_bit.gptq_unpacked, each), _bytes(each)) for name, each in gptq.items()},
        "fp8": (partial(eight_bit.unpacked, codes, scale), codes.nbytes),
    }


def _bytes(weight: four_bit.AwqWeight | four_bit.GptqWeight) -> int:
    return sum(array.nbytes for array in vars(weight).values() if isinstance(array, np.ndarray))
