"""OTLP as protobuf: the collector's file exporter with `format: proto`, other streams of messages, or a single one.

Each message is one export request. The collector writes four bytes of length in front of each, others a varint; one
request may be the whole file. Messages that a collector compressed one by one are opened, JSON among them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import zstandard

from infer_diag.errors import SourceError
from infer_diag.loaders.files import LogFile, counted, whole
from infer_diag.loaders.json_documents import SIZE_LIMIT
from infer_diag.loaders.loader import Options

_ZSTD = b"\x28\xb5\x2f\xfd"
_LENGTH = 4
_BEGIN = 512
_FIELDS = {"resource": 0x0A, "scopes": 0x12}
"""Tags of the first two fields of a resource's message, and of a scope's."""


def is_otlp(begin: bytes) -> bool:
    """Whether a file that begins so holds OTLP's messages: the outermost three levels are alike in all of them."""
    return _framing(begin) is not None


def messages(file: LogFile, options: Options) -> list[bytes]:
    """The export requests of the file; what is cut off at its end is left out and marked.

    Raises:
        SourceError: the file is too large, or a message that was compressed is.
    """
    read = counted(file.blocks(), options.on_bytes)
    data = whole(file, read, SIZE_LIMIT, "of protobuf", "let the collector rotate its files (rotation: max_megabytes)")
    return [_opened(message, file) for message in _split(data, file)]


def requests(read: list[bytes], file: LogFile) -> Iterator[tuple[str, Any]]:
    """(`traces`, `metrics`, `logs` or `json`, the request) of each message; what is none of them is only counted.

    Raises:
        SourceError: the package that decodes them is not installed.
    """
    try:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError as error:
        raise SourceError(
            f"{file.label} is OTLP as protobuf, which needs opentelemetry-proto", hint="pip install 'infer-diag[otel]'"
        ) from error
    kinds: dict[str, tuple[Any, Callable[[Any], bool]]] = {
        "traces": (ExportTraceServiceRequest, _is_traces),
        "metrics": (ExportMetricsServiceRequest, _is_metrics),
        "logs": (ExportLogsServiceRequest, _is_logs),
    }
    unknown = 0
    for message in read:
        if message.startswith(b"{"):
            yield "json", message.decode("utf-8", "replace")
            continue
        for name, (kind, fits) in kinds.items():
            try:
                request = kind.FromString(message)
            except DecodeError:
                continue
            if fits(request):
                yield name, request
                break
        else:
            unknown += 1
    if unknown:
        file.notes.append(f"{unknown:,} messages are no export of spans, metrics or logs, or an empty one")


def _is_traces(request: Any) -> bool:
    leaves = (span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans)
    return any(len(span.trace_id) == 16 and span.start_time_unix_nano for span in leaves)


def _is_metrics(request: Any) -> bool:
    leaves = (each for one in request.resource_metrics for scope in one.scope_metrics for each in scope.metrics)
    return any(metric.name and metric.WhichOneof("data") for metric in leaves)


def _is_logs(request: Any) -> bool:
    leaves = (each for one in request.resource_logs for scope in one.scope_logs for each in scope.log_records)
    return any(record.time_unix_nano or record.observed_time_unix_nano for record in leaves)


def _opened(message: bytes, file: LogFile) -> bytes:
    if not message.startswith(_ZSTD):
        return message
    try:
        with zstandard.ZstdDecompressor().stream_reader(message) as stream:
            text = bytes(stream.read(SIZE_LIMIT + 1))
    except zstandard.ZstdError:
        file.cut = True
        return b""
    if len(text) > SIZE_LIMIT:
        raise SourceError(f"a message of {file.label} expands to more than {SIZE_LIMIT >> 20} MiB")
    return text


def _split(data: bytes, file: LogFile) -> Iterator[bytes]:
    """The messages between their lengths; without lengths the file is one message."""
    framing = _framing(data[:_BEGIN])
    if framing in (None, "single"):
        yield data
        return
    place = 0
    while place < len(data):
        head = data[place : place + 10]
        size, used = (int.from_bytes(head[:_LENGTH], "big"), _LENGTH) if framing == "fixed" else _varint(head)
        if used == 0 or len(head) < used or place + used + size > len(data):
            file.cut = True
            return
        yield data[place + used : place + used + size]
        place += used + size


def _framing(begin: bytes) -> str | None:
    """How messages are parted: `fixed` (four bytes of length), `single`, `varint`; null where it is no OTLP."""
    size, inner = int.from_bytes(begin[:_LENGTH], "big"), begin[_LENGTH:]
    if 2 <= size <= SIZE_LIMIT and (inner.startswith((_ZSTD, b'{"resource')) or _begins_message(inner, size)):
        return "fixed"
    if _begins_message(begin, SIZE_LIMIT):
        return "single"
    size, used = _varint(begin)
    return "varint" if used and _begins_message(begin[used:], size) else None


def _begins_message(begin: bytes, room: int) -> bool:
    """Whether these are the outer levels of an export: resources, in them a resource or scopes, and what these hold."""
    outer = _field(begin, 0, room, _FIELDS["resource"])
    if outer is None:
        return False
    at, size = outer
    inner = _field(begin, at, size, _FIELDS["resource"])
    if inner is not None and inner[1] == 0:
        return _field(begin, inner[0], size - 2, _FIELDS["scopes"]) is not None
    if inner is not None:
        attribute = _field(begin, *inner, _FIELDS["resource"])
        name = _field(begin, *attribute, _FIELDS["resource"]) if attribute is not None else None
        return name is not None and name[1] > 0 and begin[name[0] : name[0] + name[1]].isascii()
    scope = _field(begin, at, size, _FIELDS["scopes"])
    if scope is None:
        return False
    return any(_field(begin, *scope, tag) is not None for tag in (_FIELDS["resource"], _FIELDS["scopes"]))


def _field(data: bytes, at: int, room: int, tag: int) -> tuple[int, int] | None:
    """(where the content of the field that begins at `at` begins, its length), if it is this one and has room."""
    if at >= len(data) or data[at] != tag:
        return None
    size, used = _varint(data[at + 1 : at + 11])
    return (at + 1 + used, size) if used and 1 + used + size <= room else None


def _varint(data: bytes) -> tuple[int, int]:
    """(the number, bytes that it takes); no bytes where it does not end."""
    value = 0
    for place, byte in enumerate(data[:10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, place + 1
    return 0, 0
