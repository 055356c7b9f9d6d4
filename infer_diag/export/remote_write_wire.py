"""Prometheus remote write 1.0: samples as protobuf, compressed with snappy, in order of time.

The message is declared here with the library's own descriptors, in a pool of its own: the packages that bring it
register `prometheus.*` in the pool of the whole process, where two of them cannot live together.
"""

from __future__ import annotations

import http.client
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from infer_diag import __version__
from infer_diag.errors import SourceError
from infer_diag.export.labels import Labels
from infer_diag.export.measures import Series, prometheus_name
from infer_diag.loaders.exposition.address import Address, address
from infer_diag.redact import redact

_AT_ONCE = 5000
_SILENCE_S = 30.0
_TOLD = 160
_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
    "User-Agent": f"infer_diag/{__version__}",
}
_TOO_OLD = ("out of bounds", "out of order", "too old", "too far")
_FIELD = descriptor_pb2.FieldDescriptorProto


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would carry the credentials to wherever it leads."""

    def redirect_request(self, *_: object) -> None:
        return None


def send(series: Sequence[Series], labels: Labels, url: str) -> int:
    """Writes the series to a receiver of remote writes (`…/api/v1/write`) and returns the number of samples.

    User and password stand in the URL or, like a token, in the variables that a Prometheus server is read with.

    Raises:
        SourceError: the receiver cannot be reached or refuses, with what it says.
    """
    target = address(f"prometheus+{url}")
    sent = 0
    for body, count in requests(series, labels):
        _post(target, body)
        sent += count
    return sent


def requests(series: Sequence[Series], labels: Labels) -> Iterator[tuple[bytes, int]]:
    """The bodies to post, each with its number of samples; a receiver takes no sample older than what it has."""
    rows = [(us // 1000, place, value) for place, one in enumerate(series) for us, value in one.points]
    # Two samples of one millisecond would contradict each other; the later one counts.
    latest = {(at, place): value for at, place, value in rows}
    ordered = sorted(latest.items())
    for begin in range(0, len(ordered), _AT_ONCE):
        part = ordered[begin : begin + _AT_ONCE]
        yield _body(part, series, labels), len(part)


def _body(part: Sequence[tuple[tuple[int, int], float]], series: Sequence[Series], labels: Labels) -> bytes:
    held: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (at, place), value in part:
        held[place].append((at, value))
    request = _write_request()()
    for place, samples in sorted(held.items()):
        row = request.timeseries.add()
        for name, text in sorted(_labels(series[place], labels).items()):
            row.labels.add(name=name, value=text)
        for at, number in samples:
            row.samples.add(timestamp=at, value=number)
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


def _labels(one: Series, labels: Labels) -> dict[str, str]:
    given = {name.replace(".", "_"): value for name, value in labels.of_metrics.items()}
    return {**given, **dict(one.attributes), "__name__": prometheus_name(one.name), "job": "infer_diag"}


@cache
def _write_request() -> Any:
    """The class of `prometheus.WriteRequest`, as far as samples need it."""
    file = descriptor_pb2.FileDescriptorProto(name="remote_write.proto", package="prometheus", syntax="proto3")
    _message(file, "Label", (1, "name", _FIELD.TYPE_STRING), (2, "value", _FIELD.TYPE_STRING))
    _message(file, "Sample", (1, "value", _FIELD.TYPE_DOUBLE), (2, "timestamp", _FIELD.TYPE_INT64))
    _message(file, "TimeSeries", (1, "labels", "Label"), (2, "samples", "Sample"))
    _message(file, "WriteRequest", (1, "timeseries", "TimeSeries"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("prometheus.WriteRequest"))


def _message(file: Any, name: str, *fields: tuple[int, str, Any]) -> None:
    message = file.message_type.add(name=name)
    for number, field, kind in fields:
        several = isinstance(kind, str)
        message.field.add(
            name=field,
            number=number,
            label=_FIELD.LABEL_REPEATED if several else _FIELD.LABEL_OPTIONAL,
            type=_FIELD.TYPE_MESSAGE if several else kind,
            type_name=f".prometheus.{kind}" if several else None,
        )


def _post(target: Address, body: bytes) -> None:
    request = Request(target.base, data=body, headers=_HEADERS, method="POST")
    if target.authorization is not None:
        request.add_unredirected_header("Authorization", target.authorization)
    label = target.label.removeprefix("prometheus+")
    try:
        with build_opener(_NoRedirect).open(request, timeout=_SILENCE_S):
            return
    except HTTPError as error:
        with error:
            _refused(label, error)
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        told = getattr(reason, "strerror", None) or redact(str(reason))[:_TOLD] or type(reason).__name__
        raise SourceError(f"{label} cannot be reached: {told}", hint="check host and port, and that it runs") from None


def _refused(label: str, error: HTTPError) -> NoReturn:
    try:
        told = redact(" ".join(error.read(1 << 16).decode("utf-8", "replace").split()))[:_TOLD]
    except (OSError, http.client.HTTPException):
        told = ""
    said = f"{label} refuses the samples ({error.code}{': ' + told if told else ''})"
    if error.code == 404 or 300 <= error.code < 400:
        hint = "Prometheus takes them at /api/v1/write, once started with --web.enable-remote-write-receiver"
    elif error.code in (401, 403):
        hint = "put user:password@ in front of the host, or a token into INFER_DIAG_PROMETHEUS_TOKEN"
    elif any(words in told for words in _TOO_OLD):
        hint = "older samples than it has need storage.tsdb.out_of_order_time_window in its configuration"
    else:
        hint = "ask the receiver's operators, or its log"
    raise SourceError(said, hint=hint) from None
