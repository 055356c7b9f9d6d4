"""Tables of an SQLite file that somebody else made: read only, and nothing that the file defines is run."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options

MAGIC = b"SQLite format 3\0"
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ}
_LONGEST_VALUE = 64 << 20
_LARGEST_COPY = 8 << 30
_ROWS_AT_ONCE = 100_000


class Tables:
    """The plain tables of one file; views, virtual tables and computed columns stay unread."""

    def __init__(self, connection: sqlite3.Connection, label: str) -> None:
        self._connection, self._label = connection, label
        made = self._rows("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        plain = [name for name, sql in made if not str(sql).upper().lstrip().startswith("CREATE VIRTUAL")]
        self.names = frozenset(str(name) for name in plain)

    def columns(self, table: str) -> list[str]:
        """The columns of a table, none where there is no such table: exporters make tables when they need them."""
        if table not in self.names:
            return []
        with self._complaining():
            return [str(each[0]) for each in self._connection.execute(f'SELECT * FROM "{table}" LIMIT 0').description]

    def frame(self, table: str, wanted: Mapping[str, type[pl.DataType]], where: str = "") -> pl.DataFrame:
        """The wanted columns of a table, null where it lacks one; `where` is a condition in SQL."""
        there = self.columns(table)
        chosen = ", ".join(f'"{name}"' if name in there else f'NULL AS "{name}"' for name in wanted)
        if not there:
            return pl.DataFrame(schema=dict(wanted))
        parts = [pl.DataFrame(schema=dict(wanted))]
        with self._complaining():
            found = self._connection.execute(f'SELECT {chosen} FROM "{table}"{f" WHERE {where}" if where else ""}')
            while rows := found.fetchmany(_ROWS_AT_ONCE):
                parts.append(pl.DataFrame(rows, schema=dict(wanted), orient="row", strict=False))
        return pl.concat(parts)

    def _rows(self, query: str) -> list[tuple[object, ...]]:
        with self._complaining():
            return self._connection.execute(query).fetchall()

    @contextmanager
    def _complaining(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise SourceError(
                f"{self._label} is an SQLite file that cannot be read as plain tables: {str(error)[:80]}",
                hint="export the report again",
            ) from error


@contextmanager
def opened(file: LogFile, options: Options) -> Iterator[Tables]:
    """The tables of a file; one that is compressed or remote is copied to a temporary place first.

    Raises:
        SourceError: the file is no SQLite, damaged, or too large to be copied.
    """
    if file.begin(len(MAGIC)) != MAGIC:
        raise SourceError(f"{file.label} is no SQLite file", hint="export it with nsys export --type sqlite")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(file.path)
        if "://" in file.path or not _is_plain(path):
            path = Path(folder) / "export.sqlite"
            _copied(file, path)
        options.on_bytes(file.size_bytes)
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            connection.set_authorizer(
                lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY
            )
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            yield Tables(connection, file.label)
        finally:
            connection.close()


def _is_plain(path: Path) -> bool:
    with path.open("rb") as raw:
        return raw.read(len(MAGIC)) == MAGIC


def _copied(file: LogFile, path: Path) -> None:
    with path.open("wb") as out:
        for block in file.blocks():
            out.write(block)
            if out.tell() > _LARGEST_COPY:
                raise SourceError(
                    f"{file.label} holds more than {_LARGEST_COPY >> 30} GiB", hint="decompress it here and load that"
                )
