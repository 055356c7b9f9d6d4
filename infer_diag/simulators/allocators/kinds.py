"""Numbers that compiled code uses for actions: those of `schema.AllocatorEvents`, and one that only a trace has."""

from __future__ import annotations

from infer_diag.schema import AllocatorEvents

ACTIONS: tuple[str, ...] = tuple(AllocatorEvents.create_empty().schema["action"].categories)  # type: ignore[attr-defined]

(ALLOC, FREE, FREE_REQUESTED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM) = (
    ACTIONS.index(name)
    for name in (
        "alloc",
        "free",
        "free_requested",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
    )
)

EMPTY_CACHE = len(ACTIONS)
"""The program tells the allocator to give idle memory back (`torch.cuda.empty_cache`, `free_all_blocks`)."""
