"""The exceptions of infer_diag: each says where, what was seen, what was expected and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DiagError(Exception):
    """Base of every error that infer_diag raises on purpose.

    `str(error)` is one line: what happened, then ` · ` and the hint. IPython shows that line in place of a
    traceback and still fails the cell, because it renders an exception by `_render_traceback_` where there is one.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        text = self.message if self.hint is None else f"{self.message} · {self.hint}"
        return " ".join(text.split())

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class SourceError(DiagError):
    """A path cannot be read: it is absent, empty, damaged, or holds nothing that a loader knows."""


class LogFormatError(DiagError):
    """A log breaks the rules of its format and `strict=True` was asked for, or a stated format does not fit."""


class UnknownNameError(DiagError):
    """A name (sample, format, recording, option value) is not one of those that exist."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=3)
        listed = ", ".join(close or names[:12]) or "none"
        hint = f"did you mean {listed}?" if close else f"known: {listed}"
        super().__init__(f"there is no {what} named {name[:80]!r}", hint=hint)


class ProbeUnavailable(DiagError):
    """A probe cannot measure on this machine (no GPU, no driver, no permission)."""
