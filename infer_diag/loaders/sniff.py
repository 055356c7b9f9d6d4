"""Which format a file is in: decided by what stands in its first 256 KiB, never by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import polars as pl

from infer_diag.loaders.text.prefixes import ascii_classes

_SAMPLE = 1 << 18
_ENOUGH = 2


@dataclass(frozen=True)
class Signature:
    """Patterns (Rust's syntax) that only one format prints: each phrase that occurs counts two, the stamp one.

    A stamp alone is not enough, since others may write one like it; one phrase is. `wraps` names the formats whose
    lines stand inside this one's files: where both are seen, this one is meant however much the other prints.
    `magic` are the first bytes of a binary format, which has no phrases; `shape` tells one that has none either by how
    it begins.
    """

    phrases: tuple[str, ...] = ()
    stamp: str | None = None
    wraps: tuple[str, ...] = ()
    magic: tuple[bytes, ...] = ()
    shape: Callable[[bytes], bool] | None = None

    @property
    def is_binary(self) -> bool:
        """Whether files of this format may be binary."""
        return bool(self.magic) or self.shape is not None

    def is_of(self, begin: bytes) -> bool:
        """Whether a binary file that begins so is of this format."""
        by_magic = bool(self.magic) and begin.startswith(self.magic)
        return by_magic or (self.shape is not None and self.shape(begin))


def is_binary(head: bytes) -> bool:
    """Whether the bytes are no text."""
    sample = head[:8192]
    odd = sum(sample.count(byte) for byte in range(9)) + sum(sample.count(byte) for byte in range(14, 27))
    return bool(sample) and (b"\0" in sample or odd > 0.1 * len(sample))


def by_magic(begin: bytes, signatures: Iterable[tuple[str, Signature]]) -> str | None:
    """The first of the binary formats that begin with these bytes, or None where none does."""
    return next((name for name, signature in signatures if signature.is_of(begin)), None)


def sniffed(head: bytes, signatures: Iterable[tuple[str, Signature]]) -> str | None:
    """The name of the format that the file's begin speaks for most, or None where nothing speaks for one."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", head[:_SAMPLE].decode("utf-8", "replace")).replace('\\"', '"')
    # Copied text may be wrapped in the middle of a phrase.
    return _most(text, dict(signatures)) or _most(text.replace("\n", " "), dict(signatures))


def _most(text: str, known: dict[str, Signature]) -> str | None:
    scores = _scores(text, known)
    best = max(scores, key=lambda name: scores[name])
    if scores[best] < _ENOUGH:
        return None
    return next((name for name in known if best in known[name].wraps and scores[name] >= _ENOUGH), best)


def _scores(text: str, known: dict[str, Signature]) -> dict[str, int]:
    """How strongly the text speaks for each format.

    All patterns go to one engine that matches in linear time, since the text may be of anybody and without line breaks.
    """
    patterns = [(name, f"(?m){phrase}", 2) for name, signature in known.items() for phrase in signature.phrases]
    patterns += [(name, signature.stamp, 1) for name, signature in known.items() if signature.stamp]
    found = pl.DataFrame({"text": [text]}).select(
        pl.col("text").str.contains(ascii_classes(pattern)).alias(str(place))
        for place, (_, pattern, _) in enumerate(patterns)
    )
    scores = dict.fromkeys(known, 0)
    for (name, _, weight), occurs in zip(patterns, found.row(0), strict=True):
        scores[name] += weight * occurs
    return scores
