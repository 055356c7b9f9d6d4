"""What every loader is: a format's name, how to recognise it, and a function from a file to a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from infer_diag.loaders.files import LogFile
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Recording


@dataclass(frozen=True)
class Options:
    """How the user wants a file read; `on_bytes` is called with the size of each piece that was read.

    `columns`: for a table of the user's own, the source's column (or that and its unit) of each column of a frame.
    `start` and `end`: for a server that is asked, between which times.
    """

    year: int | None = None
    tz: str | None = None
    strict: bool = False
    on_bytes: Callable[[int], None] = lambda _: None
    columns: Mapping[str, str | tuple[str, str]] | None = None
    start: datetime | str | None = None
    end: datetime | str | None = None


class Load(Protocol):
    """From one file to its recording (one source, `source_id` 0)."""

    def __call__(self, file: LogFile, *, options: Options) -> Recording:
        """Reads the file; raises errors of `infer_diag.errors` alone."""


@dataclass(frozen=True)
class Loader:
    """One format that `load` reads.

    `versions` are those that the tests have texts of, `frames` the frames of the schema that these fill (rejected lines
    aside), `example` is text that is recognised as this format (null where it is binary).
    """

    name: str
    about: str
    versions: str
    frames: tuple[str, ...]
    example: str | None
    signature: Signature
    load: Load
