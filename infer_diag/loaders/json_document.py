"""A file that is one JSON document: read whole, within limits, with the line of each of its parts."""

from __future__ import annotations

import bisect
import json
import re
from typing import Any

from infer_diag.errors import SourceError
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options

SIZE_LIMIT = 512 << 20
"""A document is held in memory several times over while it is read; larger ones are cut up by whoever exports them."""


class JsonDocument:
    """`value` of the document, and where in its text something stands."""

    def __init__(self, file: LogFile, options: Options) -> None:
        """Reads the file.

        Raises:
            SourceError: it is too large, nested too deeply, or no JSON.
        """
        parts, size = [], 0
        for data in file.chunks():
            options.on_bytes(len(data))
            size += len(data)
            if size > SIZE_LIMIT:
                raise SourceError(
                    f"{file.label} is a JSON document of more than {SIZE_LIMIT >> 20} MiB",
                    hint="export a shorter time range, or several files",
                )
            parts.append(data)
        self.text = b"".join(parts).decode("utf-8", "replace")
        self.value = _parsed(self.text, file.label)
        self._breaks: list[int] | None = None
        self._from = 0

    @property
    def lines(self) -> int:
        """Lines of the text."""
        return len(self._line_breaks()) + (not self.text.endswith("\n"))

    def line_of(self, literal: str) -> int:
        """The line of the next occurrence of a string value; asked in the order of the document; 0 where it is not."""
        found = self.text.find(json.dumps(literal), self._from)
        if found < 0:
            return 0
        self._from = found
        return bisect.bisect_right(self._line_breaks(), found) + 1

    def _line_breaks(self) -> list[int]:
        if self._breaks is None:
            self._breaks = [match.start() for match in re.finditer("\n", self.text)]
        return self._breaks


def _parsed(text: str, label: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise SourceError(f"{label} nests JSON too deeply to be read", hint="no exporter writes such a file") from error
    except ValueError as error:
        raise SourceError(
            f"{label} is no whole JSON document: {error}", hint="export it again; it may be cut"
        ) from error
