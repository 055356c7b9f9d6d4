"""An HTTP server on loopback for as long as a test needs one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[str]:
    """The server's address while it answers."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def growing_page(page_of: Callable[[int], bytes]) -> Iterator[str]:
    """The address of a page that is another one each time: `page_of` is given how often it was asked for."""
    asked: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(1)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page_of(len(asked)))

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield f"{address}/metrics"
