"""`%diag`: a line is parsed, its verb runs, and what the verb returns is the value of the magic."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from IPython.core.error import UsageError
from IPython.utils.process import arg_split

from infer_diag.errors import UnknownNameError
from infer_diag.jupyter.completion import verbs_of
from infer_diag.jupyter.panel import Panel
from infer_diag.jupyter.session import Session
from infer_diag.jupyter.verbs import help_of, overview, usage

_HELP = ("-h", "--help")


class Magic:
    """The magic, with its grammar and the recordings that it has loaded."""

    def __init__(self, parser: argparse.ArgumentParser, session: Session) -> None:
        self._parser = parser
        self._session = session

    def function(self) -> Callable[[str], Panel]:
        """The function to register: its docstring, which `%diag?` shows, holds the grammar of every verb."""

        def diag(line: str) -> Panel:
            return self.run(line)

        grammar = "\n".join(usage(sub) for sub in verbs_of(self._parser).values())
        diag.__doc__ = f"Read server logs and say where the time goes.\n\n{grammar}"
        return diag

    def run(self, line: str) -> Panel:
        """The panel of a line.

        Raises:
            UsageError: the line breaks the grammar.
            DiagError: the verb cannot do what it is asked for.
        """
        words = _words(line)
        if not words:
            return overview(self._parser, self._session)
        verb, known = words[0], verbs_of(self._parser)
        if any(word in _HELP for word in words):
            return help_of(self._parser, verb if verb in known else None)
        if verb not in known:
            raise UsageError(str(UnknownNameError("verb", verb, known)))
        try:
            options = self._parser.parse_args(words)
        except UsageError as error:
            raise UsageError(f"{error} · see %diag help {verb}") from None
        return self._answer(options)

    def _answer(self, options: argparse.Namespace) -> Panel:
        if options.code:
            code: str = options.code_of(self._session, options)
            return Panel(code)
        panel: Panel = options.run(self._session, options)
        return panel


def _words(line: str) -> list[str]:
    try:
        words = list(arg_split(line, posix=os.name == "posix"))
    except ValueError as error:
        raise UsageError(f"{error} in {line.strip()[:80]!r}") from None
    return _with_times(words)


def _with_times(words: list[str]) -> list[str]:
    """The words with `--start -2h` as one: argparse would take the time for an option."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in ("--start", "--end") and word.startswith("-") and word[1:2].isdigit():
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined
