"""What each kind of allocator does with a request, with a block that comes back, and when told to empty its cache.

Compiled code calls `serve`, `give_back` and `trim`; which body they have follows from the class of the policy.
"""

from __future__ import annotations

from types import ModuleType

from infer_diag.simulators.allocators import async_pool, cupy_pool, rmm_arena, rmm_pool, slab, torch_pool
from infer_diag.simulators.allocators.compiled import chosen_by_policy
from infer_diag.simulators.allocators.heap import Heap, Records

Policy = (
    torch_pool.TorchPolicy
    | cupy_pool.CupyPolicy
    | async_pool.AsyncPolicy
    | rmm_pool.RmmPoolPolicy
    | rmm_arena.RmmArenaPolicy
    | slab.SlabPolicy
)

_MODULES: dict[type, ModuleType] = {
    torch_pool.TorchPolicy: torch_pool,
    cupy_pool.CupyPolicy: cupy_pool,
    async_pool.AsyncPolicy: async_pool,
    rmm_pool.RmmPoolPolicy: rmm_pool,
    rmm_arena.RmmArenaPolicy: rmm_arena,
    slab.SlabPolicy: slab,
}

_COMPILED_ONLY = "the body follows from the class of the policy when the caller is compiled"


def serve(policy: Policy, heap: Heap, log: Records, event: int, requested: int, arena: int) -> int:
    """The node that serves a request, or -1 where it fails; only compiled code can call it."""
    raise RuntimeError(_COMPILED_ONLY)


def give_back(policy: Policy, heap: Heap, log: Records, event: int, node: int) -> None:
    """Takes a block back; only compiled code can call it."""
    raise RuntimeError(_COMPILED_ONLY)


def trim(policy: Policy, heap: Heap, log: Records, event: int) -> None:
    """Gives idle memory back to the driver; only compiled code can call it."""
    raise RuntimeError(_COMPILED_ONLY)


for _generic in (serve, give_back, trim):
    chosen_by_policy(_generic, {policy: getattr(module, _generic.__name__) for policy, module in _MODULES.items()})
