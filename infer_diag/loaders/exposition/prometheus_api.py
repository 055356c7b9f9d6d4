"""The HTTP API of a Prometheus server: one request at a time, bounded in size and time, each failure one line."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from typing import IO, Any, NoReturn, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from infer_diag import redact
from infer_diag.errors import SourceError
from infer_diag.loaders.exposition.address import TOKEN, Address

ANSWER_LIMIT = 16 << 20
"""Bytes of one answer, expanded: values as JSON take some ten times as much memory while they are read."""

_QUERY_TIMEOUT = "60s"
_SILENCE_S = 75.0
"""Longer than the server is given for a query: it sends nothing before the query is done."""
_FIRST_SILENCE_S = 15.0
_WHOLE_S = 180.0
_PIECE = 1 << 18
_TOLD = 120
_TOO_MUCH = ("too many samples", "exceeded maximum resolution", "timed out", "query timeout", "limit")


class AnswerTooLarge(SourceError):
    """What was asked for is more than the server or this reader takes at once; a shorter range may go through."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="ask for less: a shorter range, fewer series by match=, or a longer step=")


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would carry the credentials to wherever it leads."""

    def redirect_request(self, *_: object) -> None:
        return None


class PrometheusApi:
    """Requests to one server; `on_bytes` is called with the size of each answer."""

    def __init__(self, address: Address, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        self._address = address
        self._on_bytes = on_bytes
        self._opener = build_opener(_NoRedirect)

    def get(
        self, path: str, parameters: Mapping[str, str] | None = None, silence_s: float = _SILENCE_S
    ) -> dict[str, Any]:
        """The JSON object that the server answers below `/api/v1`, whose `status` is `success`.

        Raises:
            AnswerTooLarge: the server or the limits of this reader ask for a shorter range.
            SourceError: the server cannot be reached, refuses, or is no Prometheus server.
        """
        url = f"{self._address.base}/api/v1/{path}" + (f"?{urlencode(parameters)}" if parameters else "")
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "infer_diag"}
        request = Request(url, headers=headers)
        if self._address.authorization is not None:
            request.add_unredirected_header("Authorization", self._address.authorization)
        try:
            with self._opener.open(request, timeout=silence_s) as answer:
                body = self._body(answer)
        except HTTPError as error:
            with error:
                self._refused(error)
        except (OSError, http.client.HTTPException, zlib.error, EOFError, ValueError) as error:
            self._broken(error, silence_s)
        self._on_bytes(len(body))
        return self._document(body)

    def query(self, expression: str, at_s: float) -> dict[str, Any]:
        """The answer of an instant query; a selector with a range gets every sample of it as it was scraped."""
        return self.get("query", {"query": expression, "time": f"{at_s:.3f}", "timeout": _QUERY_TIMEOUT})

    def query_range(self, expression: str, begin_s: float, end_s: float, step_s: float) -> dict[str, Any]:
        """The answer of a range query: a value per step, the last one repeated for as long as the server looks back."""
        span = {"start": f"{begin_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        return self.get("query_range", {"query": expression, "timeout": _QUERY_TIMEOUT, **span})

    def now_s(self) -> float:
        """Seconds since 1970 by the server's clock."""
        data = self.get("query", {"query": "time()"}, _FIRST_SILENCE_S).get("data")
        value = data.get("result") if isinstance(data, dict) else None
        try:
            return float(cast(list[Any], value)[1])
        except (TypeError, ValueError, IndexError):
            raise self._no_prometheus("it does not tell the time") from None

    def _body(self, answer: http.client.HTTPResponse) -> bytes:
        stream = _expanded(answer)
        ends = time.monotonic() + _WHOLE_S
        pieces: list[bytes] = []
        size = 0
        while piece := stream.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > ANSWER_LIMIT:
                raise AnswerTooLarge(f"{self._address.label} answers with more than {ANSWER_LIMIT >> 20} MiB at once")
            if time.monotonic() > ends:
                raise TimeoutError
        return b"".join(pieces)

    def _document(self, body: bytes) -> dict[str, Any]:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise self._no_prometheus("its answer is no JSON") from None
        if not isinstance(document, dict) or document.get("status") != "success":
            raise self._no_prometheus("its answer is no result of a query")
        return document

    def _no_prometheus(self, seen: str) -> SourceError:
        return SourceError(
            f"{self._address.label} is no Prometheus server: {seen}",
            hint="give the address in front of /api/v1/query, with its path where it has one",
        )

    def _refused(self, error: HTTPError) -> NoReturn:
        label, code = self._address.label, error.code
        told = _told(error)
        if code in (401, 403):
            raise SourceError(
                f"{label} refuses access ({code}{_said(told)})",
                hint=f"put user:password@ in front of the host, or a bearer token into {TOKEN}",
            ) from None
        if 300 <= code < 400:
            host = redact.redact(urlsplit(error.headers.get("Location") or "").hostname or "elsewhere")
            raise self._no_prometheus(f"it redirects to {host} ({code})") from None
        if told is None and code < 500:
            raise self._no_prometheus(f"it answers {code} to /api/v1") from None
        if code in (400, 422, 503) and told is not None and any(words in told for words in _TOO_MUCH):
            raise AnswerTooLarge(f"{label} cannot answer at once ({code}{_said(told)})") from None
        if code in (400, 422):
            raise SourceError(
                f"{label} does not take the query ({code}{_said(told)})", hint="check match= and step= of the address"
            ) from None
        raise SourceError(
            f"{label} does not answer now ({code}{_said(told)})", hint="try again later, or ask its operators"
        ) from None

    def _broken(self, error: Exception, silence_s: float) -> NoReturn:
        if isinstance(error, AnswerTooLarge):
            raise error
        reason = error.reason if isinstance(error, URLError) else error
        label = self._address.label
        if isinstance(reason, TimeoutError | socket.timeout):
            raise SourceError(
                f"{label} did not answer within {silence_s:.0f} s",
                hint="check host and port; a shorter range, match= or a longer step= asks for less",
            ) from None
        if isinstance(reason, ssl.SSLError):
            raise SourceError(
                f"{label} cannot be reached safely: {reason.reason or 'TLS fails'}",
                hint="is it https? SSL_CERT_FILE names the certificates of an authority of your own",
            ) from None
        if isinstance(reason, OSError):
            told = reason.strerror or type(reason).__name__
            raise SourceError(
                f"{label} cannot be reached: {told}", hint="check host and port, and that it runs"
            ) from None
        raise self._no_prometheus(f"its answer breaks off ({type(reason).__name__})") from None


def _expanded(answer: http.client.HTTPResponse | HTTPError) -> IO[bytes]:
    packed = (answer.headers.get("Content-Encoding") or "").lower() == "gzip"
    return cast(IO[bytes], gzip.GzipFile(fileobj=cast(IO[bytes], answer)) if packed else answer)


def _told(error: HTTPError) -> str | None:
    """What the API itself says of an error, null where the answer is not the API's."""
    try:
        document = json.loads(_expanded(error).read(_PIECE))
    except (ValueError, RecursionError, OSError, EOFError, zlib.error, http.client.HTTPException):
        return None
    told = document.get("error") if isinstance(document, dict) else None
    return " ".join(redact.redact(told).split()) if isinstance(told, str) else None


def _said(told: str | None) -> str:
    return f": {told[:_TOLD]}" if told else ""
