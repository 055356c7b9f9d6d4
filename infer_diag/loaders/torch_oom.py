"""Text that PyTorch prints of its memory, on its own: out-of-memory messages, `memory_summary()`, segments dumped."""

from __future__ import annotations

import dataclasses

import polars as pl

from infer_diag.loaders import engine_log, memory_summary
from infer_diag.loaders.conformed import Frames
from infer_diag.loaders.engine_log import Engine
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text.reader import Batch, TextFormat
from infer_diag.recording import Recording


def identify(records: pl.DataFrame) -> pl.DataFrame:
    """Adds `replica` and keeps `rank`: a program of one's own names no engine."""
    return records.with_columns(pl.lit(None, pl.String).alias("replica"))


def serving(batch: Batch) -> Frames:
    """The lines of tables and dumps, which are read together once the whole text is there."""
    return {"printed": memory_summary.printed(batch.records)}


def whole(frames: Frames) -> Frames:
    """Frames with the tables and dumps, and where they break off."""
    lines = frames.pop("printed", None)
    if lines is None:
        return frames
    return {
        **frames,
        "memory_stats": memory_summary.memory_stats(lines),
        "blocks": memory_summary.blocks(lines),
        "incidents": memory_summary.cuts(lines),
    }


def configured(records: pl.DataFrame) -> pl.DataFrame:
    """No row: such a text tells of no configuration."""
    return records.select("line").clear()


ENGINE = Engine(
    name="pytorch",
    text=TextFormat(start_needles=memory_summary.NEEDLES, serving_needles=()),
    rules=(),
    identify=identify,
    serving=serving,
    configured=configured,
    whole=whole,
)


def load(file: LogFile, *, options: Options) -> Recording:
    """One file as a recording.

    Raises:
        LogFormatError: `strict` and a line is damaged.
    """
    recording = engine_log.load(file, engine=ENGINE, options=options)
    if recording.incidents.filter(kind="cut").is_empty():
        return recording
    return recording.replace(sources=tuple(dataclasses.replace(source, cut=True) for source in recording.sources))


SIGNATURE = Signature(
    phrases=(
        r"(?:CUDA|HIP|XPU|NPU|MPS backend) out of memory|DefaultCPUAllocator: (?:can't|not enough)"
        r"|(?:CUDA|HIP) error: out of memory|PyTorch (?:CUDA|HIP|XPU) memory summary, device ID",
    ),
)
"""One phrase, so that any engine that prints two of its own keeps a log with such a message in it."""

LOADER = Loader(
    name="pytorch",
    about="PyTorch's own text: out-of-memory messages, memory_summary tables, dumped segments",
    versions="1.0 to 2.9",
    frames=("incidents", "blocks", "memory_stats", "ooms"),
    example=(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total "
        "capacity of 79.10 GiB of which 185.50 MiB is free. Including non-PyTorch memory, this process "
        "has 78.90 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and "
        "8.20 GiB is reserved by PyTorch but unallocated."
    ),
    signature=SIGNATURE,
    load=load,
)
