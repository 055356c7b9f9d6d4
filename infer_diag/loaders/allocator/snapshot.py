"""PyTorch's memory snapshots (`torch.cuda.memory._dump_snapshot`) to a recording."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.allocator.snapshot_blocks import snapshot_blocks
from infer_diag.loaders.allocator.snapshot_events import allocator_events, failed_allocations
from infer_diag.loaders.allocator.snapshot_pickle import read_snapshot
from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import SIMULATED, Clock, Recording
from infer_diag.redact import redact


def load(file: LogFile, *, options: Options) -> Recording:
    """Blocks, events and failed allocations of one snapshot.

    Raises:
        SourceError: the file is no snapshot, or asks for more than one may.
    """
    snapshot = read_snapshot(file, options)
    blocks, doubts = snapshot_blocks(snapshot.segments)
    found, failed, damaged = [], [], 0
    unknown: set[str] = set()
    for device, columns in sorted(snapshot.events.items()):
        events = allocator_events(columns.frame(), device)
        found.append(events)
        failed.append(failed_allocations(events, blocks, device))
        unknown |= columns.unknown
        damaged += columns.damaged
    frames = {"blocks": blocks}
    if found:
        frames |= {"allocator_events": pl.concat(found), "ooms": pl.concat(failed, how="diagonal_relaxed")}
    events = frames.get("allocator_events", pl.DataFrame(schema={"time": pl.Datetime("us", "UTC")}))
    notes = [f"events of kinds that no rule knows: {', '.join(sorted(unknown))[:120]!r}"] if unknown else []
    if snapshot.simulated_by is not None:
        notes.insert(0, f"{SIMULATED} {redact(snapshot.simulated_by[:200])}")
    if damaged:
        doubts = [*doubts, f"{damaged:,} events are none and are left out"]
    dated = not events["time"].drop_nulls().is_empty()
    return recorded(
        file,
        frames,
        options=options,
        format="pytorch-snapshot",
        engine="pytorch",
        lines=0,
        understood=0,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=events["time"],
        clocks=(Clock("inner", "time_us", zone="UTC"),) if dated else (),
        notes=tuple(notes),
        doubts=tuple(doubts),
    )


LOADER = Loader(
    name="pytorch-snapshot",
    about="PyTorch's memory snapshots (pickles): blocks, allocator events, failed allocations",
    versions="1.13 to 2.9",
    frames=("allocator_events", "blocks", "ooms"),
    example=None,
    signature=Signature(magic=tuple(bytes([0x80, protocol]) for protocol in range(2, 6))),
    load=load,
)
