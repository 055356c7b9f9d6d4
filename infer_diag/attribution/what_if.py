"""What other settings, or another allocator, would have done with a recorded trace: simulated, with the model's error.

First comes the recording itself beside its own replay, which tells how far the model can be trusted; then each
alternative. Where the heap cannot begin as it was (another kind of segments, another allocator), what lived at the
beginning is allocated anew, and the recorded settings are shown with such a beginning too, so that rows compare.
"""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.errors import DiagError
from infer_diag.recording import Recording
from infer_diag.simulators.allocators import Settings
from infer_diag.simulators.allocators.parsing import alternatives
from infer_diag.simulators.replay import Begin, Device, Replay, devices, recorded_peaks, recorded_settings, replay
from infer_diag.units import format_bytes

RECORDING = "the recording"
RECORDED = "recorded settings"
_MODEL_ERROR = 0.1
"""A replay of the recording itself that is off by more in reserved memory says nothing of other settings."""


class WhatIf(dy.Schema):
    """One row per device and setting: the recording itself, its own replay, then the alternatives.

    `status` is `recorded` for what the recording shows and `simulated` for all else.
    """

    source_id = dy.UInt32()
    gpu = dy.String(nullable=True)
    settings = dy.String(description="as asked for; `the recording`; `recorded settings` is its own replay")
    status = dy.Enum(("recorded", "simulated"))
    begin = dy.Enum(
        ("empty", "reconstructed", "packed"),
        nullable=True,
        description="how the heap begins: with nothing, as it was, or with what lived then allocated anew",
    )
    request_count = dy.UInt32()
    failure_count = dy.UInt32()
    avoided_count = dy.UInt32(nullable=True, description="requests that failed in the recording and are served")
    new_failure_count = dy.UInt32(nullable=True, description="requests that were served in the recording and fail")
    retry_count = dy.UInt32(nullable=True, description="times that idle memory had to go back before a second attempt")
    device_malloc_count = dy.UInt32(nullable=True, description="segments or page ranges taken from the driver")
    reserved_peak_bytes = dy.UInt64(nullable=True)
    allocated_peak_bytes = dy.UInt64(nullable=True)
    allocated_at_reserved_peak_bytes = dy.UInt64(nullable=True, description="allocated when most was reserved")
    cached_at_peak_bytes = dy.UInt64(
        nullable=True, description="reserved − allocated when most was reserved: what the heap itself costs"
    )
    rounding_at_peak_bytes = dy.UInt64(
        nullable=True, description="allocated − requested when most was allocated: what rounding costs"
    )
    limit_bytes = dy.UInt64(nullable=True, description="what the process can reserve; null: unknown, nothing fails")
    placed_ratio = dy.Float64(
        nullable=True, min=0, max=1, description="model error: recorded addresses that the replay meets"
    )
    refusal = dy.String(nullable=True, description="why this alternative was not simulated")


def what_if(recording: Recording, settings: str) -> dy.DataFrame[WhatIf]:
    """One row per device for the recording, for its own replay, and for each alternative of `settings`.

    Frames in: AllocatorEvents, Blocks, Ooms. Frame out: WhatIf. `settings` is text such as
    `expandable_segments,max_split_size_mb=128,allocator=cupy`: each is tried by itself, PyTorch's also together;
    `limit=24GiB` sets the device's size where no failure in the recording tells it. Failed requests that are served
    count as freed at once, so what follows them is a lower bound. An alternative that needs an unknown limit has a
    `refusal` and no figures, and so has every one where the replay of the recording itself is off by more than 10 % in
    reserved memory.

    Raises:
        UnknownNameError: a setting or allocator of no such name.
        DiagError: the recording has no allocator events, or a value cannot be read.
    """
    found = devices(recording)
    if not found:
        raise DiagError(
            "the recording has no allocator events to replay",
            hint="record some: torch.cuda.memory._record_memory_history, RMM's log, or %%diag probe",
        )
    rows: list[dict[str, object]] = []
    for device in found:
        told = recorded_settings(device)
        tried = alternatives(settings, told)
        limit = device.limit_bytes if tried.limit_bytes is None else tried.limit_bytes
        own = replay(device, told, limit_bytes=limit, keeps_log=False)
        rows += [_recorded(device, own), _row(device, RECORDED, own)]
        unlike = _unlike(device, own)
        others = [(name, unlike or _tried(device, wanted, limit)) for name, wanted in tried.settings]
        begins = {each.begin for _, each in others if isinstance(each, Replay)}
        if "packed" in begins and own.begin != "packed":
            rows.append(_row(device, RECORDED, _packed(device, told, limit)))
        rows += [_row(device, name, each) for name, each in others]
    wanted = WhatIf.create_empty().schema
    return WhatIf.validate(pl.DataFrame(rows, schema=wanted, orient="row"), cast=True)


def _unlike(device: Device, own: Replay) -> str | None:
    """Why the model cannot speak of this recording: its own replay takes another amount of memory."""
    recorded, _ = recorded_peaks(device)
    simulated = own.counters.reserved_peak_bytes
    if recorded is None or abs(simulated - recorded) <= _MODEL_ERROR * recorded:
        return None
    return (
        f"the model does not reproduce the recording: {format_bytes(simulated)} reserved at most where "
        f"{format_bytes(recorded)} are recorded"
    )


def _tried(device: Device, settings: Settings, limit_bytes: int | None) -> Replay | str:
    try:
        return replay(device, settings, limit_bytes=limit_bytes, keeps_log=False, explains=False)
    except DiagError as error:
        return str(error)


def _packed(device: Device, told: Settings, limit_bytes: int | None) -> Replay:
    begin: Begin = "packed"
    return replay(device, told, limit_bytes=limit_bytes, begin=begin, keeps_log=False, explains=False)


def _recorded(device: Device, own: Replay) -> dict[str, object]:
    """What the recording itself shows."""
    reserved, allocated = recorded_peaks(device)
    failures = int((device.events["action"] == "oom").sum())
    return {
        "source_id": device.source_id,
        "gpu": device.gpu,
        "settings": RECORDING,
        "status": "recorded",
        "request_count": len(own.placements),
        "failure_count": failures,
        "reserved_peak_bytes": reserved,
        "allocated_peak_bytes": allocated,
        "limit_bytes": own.limit_bytes,
    }


def _row(device: Device, name: str, done: Replay | str) -> dict[str, object]:
    row: dict[str, object] = {"source_id": device.source_id, "gpu": device.gpu, "settings": name, "status": "simulated"}
    if isinstance(done, str):
        return row | {"request_count": 0, "failure_count": 0, "refusal": done}
    counters = done.counters
    return row | {
        "begin": done.begin,
        "request_count": len(done.placements),
        "failure_count": counters.failure_count,
        "avoided_count": done.avoided_count,
        "new_failure_count": done.new_failure_count,
        "retry_count": counters.retry_count,
        "device_malloc_count": counters.device_malloc_count,
        "reserved_peak_bytes": counters.reserved_peak_bytes,
        "allocated_peak_bytes": counters.allocated_peak_bytes,
        "allocated_at_reserved_peak_bytes": counters.allocated_at_reserved_peak_bytes,
        "cached_at_peak_bytes": counters.reserved_peak_bytes - counters.allocated_at_reserved_peak_bytes,
        "rounding_at_peak_bytes": counters.allocated_peak_bytes - counters.requested_at_peak_bytes,
        "limit_bytes": done.limit_bytes,
        "placed_ratio": done.placed_ratio,
    }
