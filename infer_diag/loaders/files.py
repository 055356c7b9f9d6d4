"""Paths to bytes: what a user names, opened, decompressed, decoded and cut into chunks that end at a line."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, cast

import zstandard

from infer_diag import samples
from infer_diag.errors import SourceError
from infer_diag.loaders.exposition.address import address, is_address

CHUNK_BYTES = 16 << 20
"""Large enough to hide the cost of a chunk, small enough that its memory is taken again and not mapped anew."""

HASHED_BYTES = 256 << 20
"""Larger files carry no checksum: hashing them would cost a tenth of the whole read."""

EXPANSION_LIMIT = 2000
"""A compressed log shrinks 10 to 100 times; beyond this factor the archive is made to exhaust memory or patience."""

_TAIL_BYTES = 1 << 14

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz"}
_SKIPPED_SUFFIXES = {".png", ".jpg", ".html", ".ipynb", ".py", ".pyc", ".so", ".whl", ".zip", ".tar"}


@dataclass
class LogFile:
    """One file to read; `cut` and `sha256` are known once `chunks` has run to its end."""

    path: str
    label: str
    size_bytes: int = 0
    cut: bool = False
    sha256: str | None = None
    notes: list[str] = field(default_factory=list)

    def head(self, size: int = 1 << 20) -> bytes:
        """The first bytes, decompressed and in UTF-8."""
        probe = replace(self, notes=[])
        return next(probe.chunks(limit=size), b"")[:size]

    def begin(self, size: int = 64) -> bytes:
        """The first bytes, decompressed and otherwise as they are."""
        probe = replace(self, notes=[])
        return next(probe.blocks(size), b"")[:size]

    def blocks(self, limit: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The bytes of a file that is no text, decompressed, in pieces of at most `limit`."""
        yield from self._expanded(limit)

    def chunks(self, limit: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The text in UTF-8, in pieces of about `limit` bytes that end at a line break (or at the file's end)."""
        rest: list[bytes] = []
        held = 0
        for block in self._decoded(limit):
            end = block.rfind(b"\n") + 1
            if end == 0 and held + len(block) < limit:
                rest.append(block)
                held += len(block)
                continue
            end = end or len(block)
            # One copy per chunk at most: the rest of the one before and the view up to the last line break.
            yield b"".join((*rest, memoryview(block)[:end])) if rest or end < len(block) else block
            rest = [block[end:]] if end < len(block) else []
            held = len(block) - end
        if rest:
            yield b"".join(rest)

    def _decoded(self, limit: int) -> Iterator[bytes]:
        decoder: codecs.IncrementalDecoder | None = None
        returns_end_lines = False
        for number, block in enumerate(self._expanded(limit, to_a_line=True)):
            if number == 0:
                encoding = _encoding(block)
                if encoding is not None:
                    decoder = codecs.getincrementaldecoder(encoding)("replace")
            text = decoder.decode(block).encode() if decoder is not None else block
            if number == 0:
                returns_end_lines = b"\n" not in text and b"\r" in text
            yield text.replace(b"\r", b"\n") if returns_end_lines else text

    def _expanded(self, limit: int, *, to_a_line: bool = False) -> Iterator[bytes]:
        digest = hashlib.sha256() if self.size_bytes <= HASHED_BYTES else None
        expanded = 0
        with _open(self.path) as raw:
            stream = _decompressed(raw, digest)
            while block := self._block(stream, limit, to_a_line=to_a_line and stream is raw):
                expanded += len(block)
                if self.size_bytes and expanded > max(self.size_bytes * EXPANSION_LIMIT, 1 << 30):
                    raise SourceError(
                        f"{self.label} expands to more than {EXPANSION_LIMIT} times its size",
                        hint="decompress it yourself if you trust it",
                    )
                yield block
            if digest is not None:
                self.sha256 = digest.hexdigest()

    def _block(self, stream: IO[bytes], limit: int, *, to_a_line: bool) -> bytes:
        """About `limit` bytes (`to_a_line`: of a seekable stream, so many that the last line is whole).

        What a damaged archive gives before it breaks off is kept.
        """
        read = getattr(stream, "read1", stream.read)
        pieces: list[bytes] = []
        size = 0
        try:
            limit = _up_to_a_line(stream, limit) if to_a_line else limit
            while size < limit and not self.cut and (piece := read(limit - size)):
                pieces.append(piece)
                size += len(piece)
        except (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
            self.cut = True
            self.notes.append(f"the compressed data breaks off ({type(error).__name__})")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _up_to_a_line(stream: IO[bytes], limit: int) -> int:
    """How much to read so that the last line is whole: what ends elsewhere is copied once more."""
    here = stream.tell()
    tail = min(limit, _TAIL_BYTES)
    stream.seek(here + limit - tail)
    end = stream.read(tail).rfind(b"\n") + 1
    stream.seek(here)
    return limit - tail + end if end else limit


class _Hashing(io.RawIOBase):
    """Reads through and hashes the bytes as they lie on disk."""

    def __init__(self, raw: IO[bytes], digest: hashlib._Hash) -> None:
        self._raw, self._digest = raw, digest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._raw.read(size)
        self._digest.update(block)
        return block

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        block = self.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


def _decompressed(raw: IO[bytes], digest: hashlib._Hash | None) -> IO[bytes]:
    magic = raw.read(6)
    raw.seek(0)
    kind = next((name for mark, name in _MAGIC.items() if magic.startswith(mark)), None)
    source = cast(IO[bytes], _Hashing(raw, digest)) if digest is not None else raw
    if kind == "gzip":
        return cast(IO[bytes], gzip.GzipFile(fileobj=source))
    if kind == "zstd":
        return cast(IO[bytes], zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True))
    if kind == "bz2":
        return cast(IO[bytes], bz2.BZ2File(source))
    if kind == "xz":
        return cast(IO[bytes], lzma.LZMAFile(source))
    return source


def whole(file: LogFile, blocks: Iterable[bytes], limit: int, what: str, hint: str) -> bytes:
    """All of the file's blocks as one, for what can only be read together.

    Raises:
        SourceError: they hold more than `limit` bytes; `what` says of which.
    """
    parts, size = [], 0
    for block in blocks:
        size += len(block)
        if size > limit:
            raise SourceError(f"{file.label} holds more than {limit >> 20:,} MiB {what}", hint=hint)
        parts.append(block)
    return b"".join(parts)


def counted(blocks: Iterable[bytes], on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    """The blocks, with progress told after each."""
    for block in blocks:
        on_bytes(len(block))
        yield block


def _encoding(block: bytes) -> str | None:
    """The encoding to decode from, or None where the bytes are UTF-8 (or close enough to be mended line by line)."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if block.startswith(mark):
            return encoding
    head = block[:4096]
    if len(head) > 16 and head[1::2].count(0) > len(head) * 0.4:
        return "utf-16-le"
    if len(head) > 16 and head[::2].count(0) > len(head) * 0.4:
        return "utf-16-be"
    return None


def _open(path: str) -> IO[bytes]:
    try:
        if "://" in path:
            import fsspec

            return cast(IO[bytes], fsspec.open(path, "rb").open())
        return Path(path).open("rb", buffering=0)
    except (OSError, ImportError, ValueError) as error:
        raise SourceError(f"{path} cannot be opened: {error}") from error


def find(paths: tuple[str | Path, ...]) -> list[LogFile]:
    """What the user's paths name: files, folders (searched deeply), globs, `sample:NAME`, fsspec URLs, servers.

    Raises:
        SourceError: a path names nothing.
    """
    found: dict[str, LogFile] = {}
    for given in paths:
        for path, label in _expand(str(given)):
            found.setdefault(path, LogFile(path, label, _size(path)))
    return list(found.values())


def _expand(given: str) -> list[tuple[str, str]]:
    if given.startswith("sample:"):
        root = samples.path(given.removeprefix("sample:"))
        return (
            [(str(file), f"{given}/{file.relative_to(root)}") for file in _within(root)]
            if root.is_dir()
            else [(str(root), given)]
        )
    if is_address(given):
        return [(given, address(given).label)]
    if "://" in given:
        return [(url, url) for url in _expand_url(given)]
    path = Path(given).expanduser()
    if path.is_dir():
        files = _within(path)
        if not files:
            raise SourceError(f"{given} holds no file", hint="name a log file, or a folder with logs")
        return [(str(file), str(file)) for file in files]
    if path.exists():
        return [(str(path), given)]
    pattern = str(path)
    matches = (
        sorted(Path(path.anchor).glob(pattern[len(path.anchor) :])) if any(mark in given for mark in "*?[") else []
    )
    files = [file for match in matches for file in (_within(match) if match.is_dir() else [match])]
    if files:
        return [(str(file), str(file)) for file in dict.fromkeys(files)]
    raise SourceError(
        f"{given} does not exist", hint="give a file, a folder, a glob or sample:NAME (infer-diag samples)"
    )


def _expand_url(url: str) -> list[str]:
    import fsspec

    if not any(mark in url for mark in "*?["):
        return [url]
    try:
        return [str(file.full_name) for file in fsspec.open_files(url, "rb")]
    except (OSError, ImportError, ValueError) as error:
        raise SourceError(f"{url} cannot be listed: {error}") from error


def _within(root: Path) -> list[Path]:
    visible = (
        file
        for file in sorted(root.rglob("*"))
        if not any(part.startswith(".") for part in file.relative_to(root).parts)
    )
    return [file for file in visible if file.is_file() and file.suffix.lower() not in _SKIPPED_SUFFIXES]


def _size(path: str) -> int:
    return Path(path).stat().st_size if "://" not in path else 0
