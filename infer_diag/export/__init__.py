"""What a diagnosis says, handed on: as OTLP spans and metrics, and by Prometheus remote write.

Both need the extra `otel` (`pip install 'infer-diag[otel]'`); this package imports it when it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from infer_diag.diagnose import Diagnosis
from infer_diag.errors import DiagError
from infer_diag.export.exports import Exports
from infer_diag.export.labels import Labels, checked
from infer_diag.export.measures import MEASURES, Series, measures_table, series_of
from infer_diag.export.path_ends import same_phases
from infer_diag.export.placing import Placing, placed
from infer_diag.export.spans import spans_of
from infer_diag.recording import Recording

__all__ = ["MEASURES", "Exported", "measures_table", "otlp", "remote_write", "same_phases"]


@dataclass(frozen=True)
class Exported:
    """What was handed on, and where to; `notes` say what was left out and why."""

    to: str
    span_count: int
    series_count: int
    sample_count: int
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        told = f"{self.span_count} spans, {self.sample_count} samples of {self.series_count} series to {self.to}"
        return "\n".join([told, *self.notes])


def otlp(
    diagnosis: Diagnosis,
    to: str | Path,
    *,
    labels: Mapping[str, str] | None = None,
    origin: datetime | None = None,
) -> Exported:
    """Phases, findings and metrics of a diagnosis as OTLP, to an endpoint or to a file that `load` reads back.

    One trace a recording: a span around it with the findings as events, a span per start, and in it one per interval
    of a phase. Trace and span ids are hashes of the sources, the labels and the place, so that the same export has the
    same ids. Metrics are gauges at the times of their samples, or at the last stamp (`MEASURES`).

    Args:
        diagnosis: of one recording.
        to: `http://collector:4318` (OTLP over HTTP) or a file, which is written anew as JSON, an export a line.
        labels: such as `{"tenant_id": "acme", "order_id": "A-1"}`: on every span, and on every metric but those whose
            values never end (`order_id` and its like).
        origin: for logs whose clock is not known, where their first stamp is to stand; it is marked as relative.

    Raises:
        DiagError: a label does not do, the clock is not known and no origin given, or the extra is not installed.
        SourceError: the collector cannot be reached or refuses.
    """
    chosen, placing = _prepared(diagnosis, labels, origin)
    found, series = spans_of(diagnosis, placing), series_of(diagnosis, placing)
    resource = _resource(diagnosis.recording, placing)
    exports = Exports(found.intervals, series, chosen, resource, _seed(diagnosis.recording, chosen, origin))
    target = _handed_on(exports, str(to))
    notes = (*found.left_out, *chosen.notes, *_place_notes(placing))
    return Exported(target, len(found.intervals), len(series), sum(len(one.points) for one in series), notes)


def _handed_on(exports: Exports, to: str) -> str:
    """Sends or writes, and returns where to without what is secret in it."""
    try:
        from infer_diag.export.otlp_wire import to_endpoint, to_file
    except ImportError as error:
        raise _without_extra(error) from error
    scheme, is_url, _ = to.partition("://")
    if scheme in ("http", "https") and is_url:
        to_endpoint(exports, to)
        return to.rpartition("@")[2]
    if is_url:
        raise DiagError(f"{to[:60]!r} is neither a file nor http://", hint="http://collector:4318, or a path")
    to_file(exports, Path(to))
    return to


def remote_write(
    diagnosis: Diagnosis,
    url: str,
    *,
    labels: Mapping[str, str] | None = None,
    origin: datetime | None = None,
) -> Exported:
    """The metrics of a diagnosis to a receiver of Prometheus remote writes, at the times of their samples.

    Names are those of `MEASURES` with underscores and their unit (`infer_diag_start_duration_seconds`), `job` is
    `infer_diag`. Arguments as for `otlp`; `url` ends in `/api/v1/write` on a Prometheus server that was started with
    `--web.enable-remote-write-receiver`.

    Raises:
        DiagError: a label does not do, the clock is not known and no origin given, or the extra is not installed.
        SourceError: the receiver cannot be reached or refuses, as it does with samples older than those it has.
    """
    chosen, placing = _prepared(diagnosis, labels, origin)
    try:
        from infer_diag.export.remote_write_wire import send
    except ImportError as error:
        raise _without_extra(error) from error
    if url.partition("://")[0] not in ("http", "https"):
        raise DiagError(f"{url[:60]!r} is no URL to write to", hint="http://prometheus:9090/api/v1/write")
    series: tuple[Series, ...] = series_of(diagnosis, placing)
    sent = send(series, chosen, url)
    return Exported(url.rpartition("@")[2], 0, len(series), sent, (*chosen.notes, *_place_notes(placing)))


def _prepared(
    diagnosis: Diagnosis, labels: Mapping[str, str] | None, origin: datetime | None
) -> tuple[Labels, Placing]:
    if not isinstance(diagnosis, Diagnosis):
        raise DiagError("only the diagnosis of one recording can be exported", hint="export each deployment of a fleet")
    return checked(labels), placed(diagnosis.recording, origin)


def _resource(recording: Recording, placing: Placing) -> dict[str, str]:
    engines = [source.engine for source in recording.sources if source.engine]
    told = {"service.name": "infer_diag", "infer_diag.engine": engines[0] if engines else "unknown"}
    return {**told, "infer_diag.clock": "relative" if placing.is_relative else "true"}


def _seed(recording: Recording, labels: Labels, origin: datetime | None) -> str:
    """What makes an export the same one: the bytes of its sources, how they were read, its labels and its place."""
    sources = sorted(
        (source.sha256 or f"{source.path} {source.size_bytes}", source.format, str(source.first_time))
        for source in recording.sources
    )
    return msgspec.json.encode([sources, labels.of_spans, str(origin)]).decode()


def _place_notes(placing: Placing) -> tuple[str, ...]:
    return ("times are relative: the first stamp stands at the given origin",) if placing.is_relative else ()


def _without_extra(error: ImportError) -> DiagError:
    return DiagError(
        f"exporting needs packages that are not installed ({error.name or error})",
        hint="pip install 'infer-diag[otel]'",
    )
