"""The largest allocation that a device serves, found by bisection with plain, short-lived allocations."""

from __future__ import annotations

from typing import Any

from infer_diag.probes.device import Device, OutOfDeviceMemory

RESOLUTION_BYTES = 2 << 20
"""The driver hands out device memory in pages of 2 MiB, so a finer answer would be none."""

HEADROOM_BYTES = 512 << 20
HEADROOM_RATIO = 0.02


def largest_allocation(device: Device, before: str = "as found", headroom_bytes: int | None = None) -> dict[str, Any]:
    """A row of `frames.LargestAllocations`: the answer is exact to 2 MiB.

    Each block is freed at once and never written to. The last `headroom_bytes` of what is free (512 MiB or 2 % of the
    device unless said otherwise) are never asked for, because a neighbour on the same card would fail in the meantime.
    """
    free, total = device.memory()
    headroom = max(HEADROOM_BYTES, int(HEADROOM_RATIO * total)) if headroom_bytes is None else headroom_bytes
    ceiling = max(free - headroom, 0) // RESOLUTION_BYTES
    served, failed, attempts = 0, None, 0
    low, high = 0, ceiling
    while low < high or (attempts == 0 and ceiling):
        middle = high if attempts == 0 else (low + high + 1) // 2
        attempts += 1
        if _serves(device, middle * RESOLUTION_BYTES):
            served = low = middle
        else:
            failed, high = middle, middle - 1
    return {
        "before": before,
        "total_bytes": total,
        "free_bytes": free,
        "headroom_bytes": headroom,
        "largest_bytes": served * RESOLUTION_BYTES,
        "next_failed_bytes": None if failed is None else failed * RESOLUTION_BYTES,
        "attempt_count": attempts,
    }


def _serves(device: Device, size_bytes: int) -> bool:
    try:
        address = device.malloc(size_bytes)
    except OutOfDeviceMemory:
        return False
    device.free(address)
    return True
