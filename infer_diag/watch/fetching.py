"""One page over HTTP, bounded in size and in time as a whole; what goes wrong becomes one line."""

from __future__ import annotations

import gzip
import http.client
import threading
import time
import zlib
from typing import IO, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from infer_diag.errors import SourceError

PAGE_LIMIT_BYTES = 16 << 20
_PIECE = 1 << 16


class _SameServer(HTTPRedirectHandler):
    """Follows `/metrics` to `/metrics/` and never to another server: a redirect would carry the credentials there."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Request | None:
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Fetcher:
    """Gets one address again and again.

    A server may send its answer so slowly that no timeout of a single read ever strikes, and a name may take long to
    look up; so each request runs in a thread of its own that is given up after `limit_s`, and the next one begins only
    once it has come to its end.
    """

    def __init__(self, url: str, authorization: str | None = None, limit_s: float = 5.0) -> None:
        self._url = url
        self._authorization = authorization
        self._limit_s = limit_s
        self._opener = build_opener(_SameServer)
        self._running: _Request | None = None

    def __call__(self) -> bytes:
        """The page.

        Raises:
            SourceError: there is no whole answer in time, or none that is a page.
        """
        if self._running is not None and self._running.is_alive():
            raise SourceError("the request before is still unanswered")
        self._running = _Request(self)
        self._running.start()
        self._running.join(self._limit_s)
        if self._running.is_alive():
            self._running.given_up = True
            raise SourceError(f"no whole answer within {self._limit_s:.3g} s")
        outcome = self._running.outcome
        if isinstance(outcome, bytes):
            return outcome
        raise SourceError(_said(outcome, self._limit_s))

    def page(self, request: _Request) -> bytes:
        """The page, read in the request's thread."""
        asked = Request(self._url, headers={"Accept-Encoding": "gzip", "User-Agent": "infer_diag"})
        if self._authorization is not None:
            asked.add_header("Authorization", self._authorization)
        ends_s = time.monotonic() + self._limit_s
        with self._opener.open(asked, timeout=self._limit_s) as answer:
            packed = (answer.headers.get("Content-Encoding") or "").lower() == "gzip"
            stream = gzip.GzipFile(fileobj=cast(IO[bytes], answer)) if packed else answer
            pieces, size = [], 0
            while piece := stream.read1(_PIECE):
                pieces.append(piece)
                size += len(piece)
                if size > PAGE_LIMIT_BYTES:
                    raise SourceError(f"the answer is longer than {PAGE_LIMIT_BYTES >> 20} MiB")
                if request.given_up or time.monotonic() > ends_s:
                    raise TimeoutError
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
        return b"".join(pieces)


class _Request(threading.Thread):
    """One request; `outcome` is the page, or what went wrong."""

    def __init__(self, fetcher: Fetcher) -> None:
        super().__init__(daemon=True, name="infer_diag watch")
        self._fetcher = fetcher
        self.given_up = False
        self.outcome: bytes | Exception = TimeoutError()

    def run(self) -> None:
        try:
            self.outcome = self._fetcher.page(self)
        except Exception as error:  # Whatever a server or a network does ends as a line of the view.
            self.outcome = error


def _said(error: Exception, limit_s: float) -> str:
    if isinstance(error, SourceError):
        return error.message
    if isinstance(error, HTTPError):
        error.close()
        if 300 <= error.code < 400:
            return f"it redirects to another server ({error.code})"
        return f"it answers {error.code}" + {401: ", access is refused", 403: ", access is refused"}.get(error.code, "")
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, TimeoutError):
        return f"no whole answer within {limit_s:.3g} s"
    if isinstance(reason, gzip.BadGzipFile | zlib.error | EOFError | http.client.HTTPException | ValueError):
        return f"the answer is damaged ({type(reason).__name__})"
    if isinstance(reason, OSError):
        return (reason.strerror or type(reason).__name__).lower()
    return type(reason).__name__
