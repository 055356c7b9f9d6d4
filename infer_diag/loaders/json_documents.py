"""Files of JSON read whole, within limits, with the line of each part: one document, or several among other text."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from infer_diag.errors import SourceError
from infer_diag.loaders.files import LogFile, counted, whole
from infer_diag.loaders.loader import Options

SIZE_LIMIT = 512 << 20
"""Text and values are held in memory together while they are read; larger files are cut up by whoever exports them."""

_BEGIN = re.compile(r"[\[{]")
# A string that never ends takes the rest of the text: nothing may try again from each quote inside it.
_TOKEN = re.compile(r'(?s)"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{},]')
_CLOSERS = {"{": "}", "[": "]"}


@dataclass(frozen=True)
class JsonDocuments:
    """The documents of a file in order, each with the place in the text at which it begins."""

    text: str
    found: tuple[tuple[int, Any], ...]
    cut: bool = False

    @property
    def value(self) -> Any:
        """The first document; null where there is none."""
        return self.found[0][1] if self.found else None

    @property
    def lines(self) -> int:
        """Lines of the text."""
        return len(self._breaks) + (bool(self.text) and not self.text.endswith("\n"))

    def line_at(self, place: int) -> int:
        """The 1-based line of a place in the text."""
        return bisect.bisect_left(self._breaks, place) + 1

    def line_of(self, literal: str) -> int:
        """The line on which a string first stands as a key or a value; 0 where it does not."""
        return self.lines_in_order()(literal)

    def lines_in_order(self) -> Callable[[str], int]:
        """`line_of` for many strings that stand in the order in which they are asked for, in one pass over the text."""
        place = 0

        def line_of(literal: str) -> int:
            nonlocal place
            found = self.text.find(json.dumps(literal), place)
            if found < 0:
                return 0
            place = found
            return self.line_at(found)

        return line_of

    @cached_property
    def _breaks(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.text)]


def document(file: LogFile, options: Options) -> JsonDocuments:
    """The one document that is the whole file.

    Raises:
        SourceError: the file is too large, nested too deeply, or no JSON.
    """
    text = _text(file, options)
    try:
        return JsonDocuments(text, ((0, json.loads(text)),))
    except RecursionError as error:
        raise _too_deep(file) from error
    except ValueError as error:
        raise SourceError(
            f"{file.label} is no whole JSON document: {error}", hint="export it again; it may be cut"
        ) from error


def documents(file: LogFile, options: Options) -> JsonDocuments:
    """Every JSON object or array of the file; of one that is cut off, what is whole of it.

    Raises:
        SourceError: the file is too large, or nested too deeply.
    """
    text = _text(file, options)
    try:
        found, cut = decoded(text)
    except RecursionError as error:
        raise _too_deep(file) from error
    return JsonDocuments(text, tuple(found), cut)


def decoded(text: str) -> tuple[list[tuple[int, Any]], bool]:
    """(place and value of every object or array in the text, whether one of them is damaged or cut off).

    Raises:
        RecursionError: a document is nested too deeply.
    """
    decoder = json.JSONDecoder()
    found: list[tuple[int, Any]] = []
    place, cut = 0, False
    while (match := _BEGIN.search(text, place)) is not None:
        begin = match.start()
        try:
            value, place = decoder.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            cut = True
            value = _mended(text[begin : error.pos])
            place = text.find("\n", error.pos) + 1 or len(text)
        if value is not None:
            found.append((begin, value))
    return found, cut


def _text(file: LogFile, options: Options) -> str:
    read = counted(file.chunks(), options.on_bytes)
    hint = "export a shorter time range, or several files"
    return whole(file, read, SIZE_LIMIT, "of JSON", hint).decode("utf-8", "replace")


def _too_deep(file: LogFile) -> SourceError:
    return SourceError(
        f"{file.label} nests JSON too deeply to be read", hint="no exporter or server writes such a file"
    )


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
