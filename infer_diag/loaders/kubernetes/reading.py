"""A file from a cluster to a recording."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, Frames, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import document
from infer_diag.loaders.kubernetes import nodes, states, tables
from infer_diag.loaders.kubernetes.amounts import AGE
from infer_diag.loaders.kubernetes.nodes import described_nodes, node_incidents
from infer_diag.loaders.kubernetes.objects import object_frames
from infer_diag.loaders.kubernetes.pod_starts import pod_frames
from infer_diag.loaders.kubernetes.states import described_states
from infer_diag.loaders.kubernetes.tables import table_events
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text import prefixes
from infer_diag.loaders.text.lines import Chunk
from infer_diag.recording import Clock, Recording


def load(file: LogFile, *, options: Options) -> Recording:
    """Starts, phases and incidents of the pods, and the nodes that offer no accelerator."""
    if file.head(256).lstrip()[:1] == b"{":
        return _from_json(file, options)
    lines, count = _lines(file, options)
    events, damaged = table_events(lines)
    events = pl.concat([events, described_states(lines)])
    frames = _frames(events, described_nodes(lines))
    clocks = () if events.is_empty() else (Clock("inner", _example(lines), year_known=False, date_known=False),)
    return _recorded(file, options, frames, events, count, damaged, clocks)


def _from_json(file: LogFile, options: Options) -> Recording:
    read = document(file, options)
    events, offered = object_frames(read.value, read.lines_in_order())
    stamped = not events["first_us"].is_null().all()
    clocks = (Clock("inner", "RFC 3339", zone="UTC"),) if stamped else ()
    damaged = pl.DataFrame(schema=CLAIMED)
    return _recorded(file, options, _frames(events, offered), events, read.lines, damaged, clocks)


def _lines(file: LogFile, options: Options) -> tuple[pl.DataFrame, int]:
    parts, count = [pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String})], 0
    for data in file.chunks():
        chunk = Chunk(data, count + 1)
        options.on_bytes(len(data))
        parts.append(chunk.matching(f"{tables.NEEDLES}|{nodes.NEEDLES}|{states.NEEDLES}"))
        count += chunk.line_count
    return pl.concat(parts).with_columns(prefixes.clean(pl.col("text"))), count


def _example(lines: pl.DataFrame) -> str:
    return str(lines["text"].str.extract(rf"\s({AGE})\s").drop_nulls().first() or "")


def _frames(events: pl.DataFrame, offered: pl.DataFrame) -> Frames:
    frames = pod_frames(events)
    return frames | {"incidents": pl.concat([frames["incidents"], node_incidents(offered)], how="diagonal_relaxed")}


def _recorded(
    file: LogFile,
    options: Options,
    frames: Frames,
    events: pl.DataFrame,
    lines: int,
    rejected: pl.DataFrame,
    clocks: tuple[Clock, ...],
) -> Recording:
    times = pl.concat([events["first_us"], events["last_us"].alias("first_us")]).cast(pl.Datetime("us", "UTC"))
    return recorded(
        file,
        frames,
        options=options,
        format="kubernetes",
        engine="kubernetes",
        lines=lines,
        understood=events["line"].n_unique(),
        rejected=rejected,
        times=times,
        clocks=clocks,
    )


_AGED = rf"{AGE}(?: \(x\d+ over {AGE}\))?"
_DESCRIBED = rf"^[ \t]*(?:Normal|Warning)[ \t]+[A-Z][A-Za-z]+[ \t]+{_AGED}[ \t]+\S"
_LISTED = rf"^[ \t]*(?:[a-z0-9-]+[ \t]+)?{_AGED}[ \t]+(?:Normal|Warning)[ \t]+[A-Z]\w+[ \t]+[A-Za-z]+/\S"
_OBJECT = r'"apiVersion"\s*:\s*"(?:v1|events\.k8s\.io/v1)"'

LOADER = Loader(
    name="kubernetes",
    about="Kubernetes: event tables of kubectl describe and get events, events, pods and nodes as JSON, node listings",
    versions="objects v1 and events.k8s.io/v1, tables of kubectl",
    frames=("starts", "phases", "incidents"),
    example=(
        '  Normal  Pulled  2m9s  kubelet  Successfully pulled image "registry.example/llm:1" in 4m0.5s '
        "(6m10.25s including waiting)"
    ),
    signature=Signature(
        # Messages quote images and commands of engines, so a row counts for more than a word in it.
        stamp=rf"(?m){_DESCRIBED}|{_LISTED}|{_OBJECT}",
        phrases=(
            _DESCRIBED,
            _LISTED,
            _OBJECT,
            r"^[ \t]*LAST SEEN[ \t]+TYPE[ \t]+REASON[ \t]",
            r"^[ \t]*Type[ \t]+Reason[ \t]+Age[ \t]+From[ \t]+Message",
            r'"involvedObject"\s*:\s*\{',
            r"^Allocatable:[ \t\r]*$",
        ),
    ),
    load=load,
)
