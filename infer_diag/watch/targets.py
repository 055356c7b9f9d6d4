"""What a user names to be watched: the GPUs of this machine, an engine's address, or a log that still grows."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

from infer_diag.errors import DiagError
from infer_diag.redact import redact

GPU = "gpu"
_EXAMPLE = "gpu, http://host:8000/metrics, or the path of a log"
_LONGEST = 60


@dataclass(frozen=True)
class Target:
    """One thing to watch; `label` may be shown, `authorization` is the header that opens the door."""

    kind: Literal["gpu", "engine", "log"]
    place: str
    label: str
    authorization: str | None = field(default=None, repr=False)


def target(text: str) -> Target:
    """The target that a text names: `gpu`, `http://[user:password@]host[:port][/metrics]`, or a path.

    Raises:
        DiagError: the text looks like an address and is none.
    """
    if text == GPU:
        return Target("gpu", GPU, "the GPUs of this machine")
    if "://" not in text:
        return Target("log", text, redact(text))
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or re.search(r"[\s\x00-\x1f]", text):
        # What stands in front of an @ may be a password, however the rest is written.
        seen = redact(text.rpartition("@")[2])[:_LONGEST]
        raise DiagError(f"{seen!r} is nothing that can be watched", hint=f"name {_EXAMPLE}")
    told, _, host = parts.netloc.rpartition("@")
    path = "/metrics" if parts.path in ("", "/") else parts.path
    place = f"{parts.scheme}://{host}{path}" + (f"?{parts.query}" if parts.query else "")
    return Target("engine", place, redact(f"{host}{path}"), _basic(told) if told else None)


def _basic(told: str) -> str:
    name, _, password = told.partition(":")
    pair = f"{unquote(name)}:{unquote(password)}"
    return "Basic " + base64.b64encode(pair.encode()).decode()
