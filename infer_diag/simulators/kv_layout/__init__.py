"""Layouts of a KV cache as memory sees them: loads, banks, occupancy and the L2."""

from infer_diag.simulators.kv_layout.bank_conflicts import conflict_degree, tile_reads
from infer_diag.simulators.kv_layout.coalescing import READERS, run_bytes, touched, warp_reads
from infer_diag.simulators.kv_layout.comparison import bank_conflicts, l2_hits, layout_reads, occupancies, width_reads
from infer_diag.simulators.kv_layout.l2 import ORDERS, l2_trace, most_hits_ratio
from infer_diag.simulators.kv_layout.occupancy import SMS, occupancy, shared_array_bytes, tokens_that_fit
from infer_diag.simulators.kv_layout.shape import LAYOUTS, KvShape, addresses

__all__ = [
    "LAYOUTS",
    "ORDERS",
    "READERS",
    "SMS",
    "KvShape",
    "addresses",
    "bank_conflicts",
    "conflict_degree",
    "l2_hits",
    "l2_trace",
    "layout_reads",
    "most_hits_ratio",
    "occupancies",
    "occupancy",
    "run_bytes",
    "shared_array_bytes",
    "tile_reads",
    "tokens_that_fit",
    "touched",
    "warp_reads",
    "width_reads",
]
