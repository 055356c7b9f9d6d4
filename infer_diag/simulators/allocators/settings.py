"""What can be set of each simulated allocator, and the policy that compiled code follows for it.

The defaults are those of the real ones. A device's limit is no setting of an allocator and is given beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from infer_diag.errors import DiagError
from infer_diag.simulators.allocators import async_pool, cupy_pool, rmm_arena, rmm_pool, slab, torch_pool
from infer_diag.simulators.allocators.heap import UNLIMITED, Ints
from infer_diag.simulators.allocators.policies import Policy

_MIB = 1 << 20
_INTERVALS = 16
_LEAST_SPLIT = 20 * _MIB

Divisions = int | tuple[tuple[int | None, int], ...]
"""One number of divisions for all sizes, or (from how many MiB on, divisions) in turn; `None`: all larger sizes."""


@dataclass(frozen=True)
class TorchSettings:
    """PyTorch's caching allocator; the names are those of `PYTORCH_CUDA_ALLOC_CONF`, sizes in bytes.

    `memory_fraction` is `torch.cuda.set_per_process_memory_fraction`; without it `garbage_collection_threshold` has no
    effect, as in PyTorch.
    """

    max_split_size_bytes: int | None = None
    max_non_split_rounding_bytes: int = _LEAST_SPLIT
    roundup_power2_divisions: Divisions = 0
    garbage_collection_threshold: float | None = None
    expandable_segments: bool = False
    memory_fraction: float | None = None

    def policy(self, limit_bytes: int | None) -> Policy:
        """The policy on a device of this size.

        Raises:
            DiagError: a value is out of PyTorch's range, or a fraction is to be taken of an unknown limit.
        """
        if self.max_split_size_bytes is not None and self.max_split_size_bytes < _LEAST_SPLIT:
            raise DiagError("max_split_size_mb is below 20", hint="PyTorch takes 20 and more")
        allowed = UNLIMITED
        if self.memory_fraction is not None:
            allowed = int(_of_limit(self.memory_fraction, "memory_fraction") * _known(limit_bytes, "memory_fraction"))
        collect_above = UNLIMITED
        if self.garbage_collection_threshold is not None:
            if self.memory_fraction is None:
                raise DiagError(
                    "garbage_collection_threshold has no effect without a memory fraction",
                    hint="say memory_fraction=0.9 too, as torch.cuda.set_per_process_memory_fraction does",
                )
            collect_above = int(_of_limit(self.garbage_collection_threshold, "garbage_collection_threshold") * allowed)
        return torch_pool.TorchPolicy(
            UNLIMITED if self.max_split_size_bytes is None else self.max_split_size_bytes,
            self.max_non_split_rounding_bytes,
            collect_above,
            int(self.expandable_segments),
            _limit(limit_bytes),
            allowed,
            divisions(self.roundup_power2_divisions),
        )


@dataclass(frozen=True)
class CupySettings:
    """CuPy's memory pool; it has nothing to set but the limit."""

    def policy(self, limit_bytes: int | None) -> Policy:
        """The policy on a device, or under `MemoryPool.set_limit`, of this size."""
        return cupy_pool.CupyPolicy(_limit(limit_bytes), cupy_pool.GRAIN)


@dataclass(frozen=True)
class AsyncSettings:
    """The approximation of the driver's pool; without a threshold nothing is given back at a synchronisation."""

    release_threshold_bytes: int | None = None

    def policy(self, limit_bytes: int | None) -> Policy:
        """The policy on a device of this size."""
        keep = UNLIMITED if self.release_threshold_bytes is None else self.release_threshold_bytes
        return async_pool.AsyncPolicy(_limit(limit_bytes), async_pool.STEP_BYTES, keep)


@dataclass(frozen=True)
class RmmPoolSettings:
    """RMM's pool; without an initial size half of the device, or where that is unknown what the first request needs."""

    initial_pool_bytes: int | None = None
    maximum_pool_bytes: int | None = None

    def policy(self, limit_bytes: int | None) -> Policy:
        """The policy on a device of this size."""
        initial = self.initial_pool_bytes
        if initial is None:
            initial = 0 if limit_bytes is None else limit_bytes // 2
        maximum = UNLIMITED if self.maximum_pool_bytes is None else self.maximum_pool_bytes
        return rmm_pool.RmmPoolPolicy(_limit(limit_bytes), _grains(min(initial, maximum)), maximum)


@dataclass(frozen=True)
class RmmArenaSettings:
    """RMM's arenas; without a size half of the device."""

    arena_bytes: int | None = None

    def policy(self, limit_bytes: int | None) -> Policy:
        """The policy on a device of this size.

        Raises:
            DiagError: neither the arena's size nor the device's is known, or the one exceeds the other.
        """
        size = _known(limit_bytes, "rmm_arena") // 2 if self.arena_bytes is None else self.arena_bytes
        if size > _limit(limit_bytes):
            raise DiagError("the arena is larger than the device", hint="say a smaller arena_size")
        return rmm_arena.RmmArenaPolicy(_limit(limit_bytes), _grains(size))


@dataclass(frozen=True)
class SlabSettings:
    """The article's slab: reading A is one arena of the whole device, reading B (`is_classed`) slabs of equal slots."""

    is_classed: bool = False

    def policy(self, limit_bytes: int | None) -> Policy:
        """The policy on a device of this size.

        Raises:
            DiagError: reading A, and the device's size is unknown.
        """
        limit = _limit(limit_bytes) if self.is_classed else _known(limit_bytes, "slab")
        return slab.SlabPolicy(limit, int(self.is_classed))


Settings = TorchSettings | CupySettings | AsyncSettings | RmmPoolSettings | RmmArenaSettings | SlabSettings

ALLOCATORS: dict[str, Settings] = {
    "torch": TorchSettings(),
    "cupy": CupySettings(),
    "cuda_async": AsyncSettings(),
    "rmm_pool": RmmPoolSettings(),
    "rmm_arena": RmmArenaSettings(),
    "slab": SlabSettings(),
    "slab_classes": SlabSettings(is_classed=True),
}
"""Every simulated allocator by name, as it is when nothing is set."""


def divisions(wanted: Divisions) -> Ints:
    """`roundup_power2_divisions` for sizes from 1 MiB, 2 MiB, … 32 GiB on, filled as PyTorch fills it.

    Raises:
        DiagError: a number of divisions or a size is no power of two.
    """
    if isinstance(wanted, int):
        _check_powers([wanted])
        return np.full(_INTERVALS, wanted, np.int64)
    table, last, is_first = np.zeros(_INTERVALS, np.int64), 0, True
    _check_powers([number for pair in wanted for number in pair if number is not None])
    for from_mib, number in wanted:
        if from_mib is None:
            table[last:] = number
            continue
        last = min(max(from_mib.bit_length() - 1, 0), _INTERVALS - 1)
        if is_first:
            table[:last] = number
        table[last], is_first = number, False
    return table


def _check_powers(numbers: Iterable[int]) -> None:
    for number in numbers:
        if number < 0 or number & (number - 1):
            raise DiagError(
                f"roundup_power2_divisions: {number} is no power of two", hint="PyTorch takes 0, 1, 2, 4, …"
            )


def _limit(limit_bytes: int | None) -> int:
    return UNLIMITED if limit_bytes is None else limit_bytes


def _known(limit_bytes: int | None, what: str) -> int:
    if limit_bytes is None:
        raise DiagError(
            f"{what} needs the size of the device, which the recording does not tell", hint="say limit=24GiB"
        )
    return limit_bytes


def _of_limit(share: float, name: str) -> float:
    if not 0 < share <= 1:
        raise DiagError(f"{name} is {share:g}", hint="it lies between 0 and 1")
    return share


def _grains(size: int) -> int:
    return size // rmm_pool.GRAIN * rmm_pool.GRAIN
