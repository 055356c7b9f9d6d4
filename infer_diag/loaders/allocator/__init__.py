"""What allocators record of themselves: PyTorch's snapshots, RMM's log, CuPy's hooks, dumps of TensorFlow and JAX.

`refusing_pickle` and `snapshot*` read PyTorch's pickles, `rmm`, `cupy_hooks` and `bfc*` the text of the others,
`bpftrace*` what eBPF sees of the driver, `recorded_events` the Parquet files that infer_diag itself records.
"""

from __future__ import annotations

from infer_diag.loaders.allocator import bfc, bpftrace, cupy_hooks, recorded_events, rmm, snapshot

LOADERS = (
    snapshot.LOADER,
    rmm.LOADER,
    cupy_hooks.LOADER,
    bfc.LOADER,
    bpftrace.LOADER,
    recorded_events.LOADER,
)
