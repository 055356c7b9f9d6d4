"""Files of one or several JSON documents, among other text or cut off at the end."""

from __future__ import annotations

import bisect
import json
import re
from dataclasses import dataclass
from typing import Any

from infer_diag.errors import SourceError
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_document import SIZE_LIMIT
from infer_diag.loaders.loader import Options

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]')
_CLOSERS = {"{": "}", "[": "]"}


@dataclass(frozen=True)
class JsonDocuments:
    """The documents of a file in order, each with the place in the text at which it begins."""

    text: str
    found: tuple[tuple[int, Any], ...]
    cut: bool
    breaks: tuple[int, ...]

    @property
    def lines(self) -> int:
        """Lines of the text."""
        return len(self.breaks) + (bool(self.text) and not self.text.endswith("\n"))

    def line_at(self, place: int) -> int:
        """The 1-based line of a place in the text."""
        return bisect.bisect_left(self.breaks, place) + 1


def documents(file: LogFile, options: Options) -> JsonDocuments:
    """Every JSON object or array of the file; of one that is cut off, what is whole of it.

    Raises:
        SourceError: the file is too large, or nested too deeply.
    """
    parts, size = [], 0
    for data in file.chunks():
        options.on_bytes(len(data))
        size += len(data)
        if size > SIZE_LIMIT:
            raise SourceError(
                f"{file.label} holds more than {SIZE_LIMIT >> 20} MiB of JSON", hint="split it into several files"
            )
        parts.append(data)
    text = b"".join(parts).decode("utf-8", "replace")
    try:
        found, cut = decoded(text)
    except RecursionError as error:
        raise SourceError(
            f"{file.label} nests JSON too deeply to be read", hint="no server writes such a file"
        ) from error
    return JsonDocuments(text, tuple(found), cut, tuple(match.start() for match in re.finditer("\n", text)))


def decoded(text: str) -> tuple[list[tuple[int, Any]], bool]:
    """(place and value of every object or array in the text, whether one of them is damaged or cut off).

    Raises:
        RecursionError: a document is nested too deeply.
    """
    decoder = json.JSONDecoder()
    found: list[tuple[int, Any]] = []
    place, cut = 0, False
    while (begin := _next_begin(text, place)) is not None:
        try:
            value, place = decoder.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            cut = True
            value = _mended(text[begin : error.pos])
            place = text.find("\n", error.pos) + 1 or len(text)
        if value is not None:
            found.append((begin, value))
    return found, cut


def _next_begin(text: str, place: int) -> int | None:
    match = re.compile(r"[\[{]").search(text, place)
    return None if match is None else match.start()


def _mended(text: str) -> Any:
    """The value of a document that breaks off, without what comes after its last whole part; null if nothing is."""
    open_brackets: list[str] = []
    end, closers = 0, ""
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in _CLOSERS:
            open_brackets.append(token)
        elif token in ("}", "]") and open_brackets:
            open_brackets.pop()
            end, closers = match.end(), _closing(open_brackets)
        elif token == ",":
            end, closers = match.start(), _closing(open_brackets)
    try:
        return json.loads(text[:end] + closers) if end else None
    except ValueError:
        return None


def _closing(open_brackets: list[str]) -> str:
    return "".join(_CLOSERS[bracket] for bracket in reversed(open_brackets))
