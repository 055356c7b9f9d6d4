"""Simulated GPU memory allocators with one interface: PyTorch's, CuPy's, the driver's (approximated), RMM's, a slab.

`Allocator` takes the settings of any of them; what it does comes out as the frames of a recording.
"""

from __future__ import annotations

from infer_diag.simulators.allocators.allocator import Allocator, Counters
from infer_diag.simulators.allocators.settings import (
    ALLOCATORS,
    AsyncSettings,
    CupySettings,
    RmmArenaSettings,
    RmmPoolSettings,
    Settings,
    SlabSettings,
    TorchSettings,
)

__all__ = [
    "ALLOCATORS",
    "Allocator",
    "AsyncSettings",
    "Counters",
    "CupySettings",
    "RmmArenaSettings",
    "RmmPoolSettings",
    "Settings",
    "SlabSettings",
    "TorchSettings",
]
