"""PyTorch's caching allocator on the device, where PyTorch is installed with CUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from infer_diag.probes.device import OutOfDeviceMemory, Pool


def torch_pools() -> Mapping[str, Callable[[int], Pool]]:
    """PyTorch's allocator by name; nothing where torch is absent or has no CUDA."""
    try:
        torch = import_module("torch")
    except ImportError:
        return {}
    return {"torch": lambda limit: TorchPool(torch, limit)} if torch.cuda.is_available() else {}


class TorchPool:
    """The process's one caching allocator with a limit on what it reserves."""

    def __init__(self, torch: Any, limit_bytes: int) -> None:
        self._torch, self._cuda = torch, torch.cuda
        self._cuda.empty_cache()
        _, total = self._cuda.mem_get_info()
        self._cuda.set_per_process_memory_fraction(min(limit_bytes / total, 1.0))
        self._live: dict[int, Any] = {}

    def malloc(self, size_bytes: int) -> int:
        """A block.

        Raises:
            OutOfDeviceMemory: there is no room under the limit.
        """
        try:
            tensor = self._torch.empty(size_bytes, dtype=self._torch.uint8, device="cuda")
        except self._cuda.OutOfMemoryError as error:
            raise OutOfDeviceMemory from error
        self._live[tensor.data_ptr()] = tensor
        return int(tensor.data_ptr())

    def free(self, address: int) -> None:
        """Gives the block back to the cache."""
        del self._live[address]

    def reserved_bytes(self) -> int:
        """Bytes that the allocator holds."""
        return int(self._cuda.memory_reserved())

    def allocated_bytes(self) -> int:
        """Bytes handed out, after rounding."""
        return int(self._cuda.memory_allocated())

    def free_blocks(self) -> list[tuple[int, int]]:
        """The idle blocks of all segments, by address."""
        blocks = []
        for segment in self._cuda.memory_snapshot():
            address = int(segment["address"])
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    blocks.append((address, int(block["size"])))
                address += int(block["size"])
        return sorted(blocks)

    def close(self) -> None:
        """Gives everything back and lifts the limit."""
        self._live.clear()
        self._cuda.empty_cache()
        self._cuda.set_per_process_memory_fraction(1.0)
