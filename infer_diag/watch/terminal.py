"""A watch in a terminal: its lines in place while it goes on, and nothing but the last ones where output is a file."""

from __future__ import annotations

import re
import sys
import threading

from rich.console import Console
from rich.live import Live as Screen
from rich.text import Text

from infer_diag.redact import redact
from infer_diag.watch import Live, View

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def follow(running: Live) -> View:
    """The last view of a watch that runs to its end here; standard error shows each one if it is a terminal."""
    stop = threading.Event()
    if not sys.stderr.isatty():
        return running.run(stop, lambda _: None)
    with Screen(console=Console(stderr=True), transient=True, auto_refresh=False) as screen:

        def show(view: View) -> None:
            text = _CONTROL.sub("�", redact("\n".join(view.lines)))
            screen.update(Text(text, overflow="ellipsis", no_wrap=True), refresh=True)

        return running.run(stop, show)
