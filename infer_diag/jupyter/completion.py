"""Completion of `%diag`: verbs, recordings, options, choices and paths, all read off the parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion

_LINE = re.compile(r"^\s*(?:[\w.,\s]+=\s*)?%diag\s+(?P<words>.*)$")
_CELL = re.compile(r"^%%diag\s+(?P<words>.*)$")
_MAX_PATHS = 200


class Matcher:
    """An IPython matcher that answers for `%diag` lines alone, and leaves every other line to the others."""

    matcher_api_version = 2
    matcher_identifier = "infer_diag"
    matcher_priority = 100.0

    def __init__(self, parser: argparse.ArgumentParser, cells: argparse.ArgumentParser) -> None:
        """`parser`: the grammar of lines; `cells`: that of the first line of a cell."""
        self._parser, self._cells = parser, cells
        self.__qualname__ = self.matcher_identifier  # IPython reads it off every matcher, as if all were functions

    def __call__(self, context: CompletionContext) -> dict[str, Any]:
        """The words that may stand at the cursor, in the form of IPython's second matcher interface."""
        is_cell = context.text_until_cursor.startswith("%%") and context.cursor_line == 0
        match = (_CELL if is_cell else _LINE).match(context.text_until_cursor)
        if match is None:
            return {"completions": [], "suppress": False}
        token = match["words"].split(" ")[-1]
        words = match["words"][: len(match["words"]) - len(token)].split()
        parser = self._cells if is_cell else self._parser
        found = [word for word in candidates(parser, words, token) if word.startswith(token)]
        completions = [SimpleCompletion(text=word, type="param") for word in dict.fromkeys(found)]
        return {"completions": completions, "suppress": True, "ordered": True, "matched_fragment": token}


def candidates(parser: argparse.ArgumentParser, words: list[str], token: str) -> Iterator[str]:
    """Words that may follow `words`, where `token` is the begin of the next one."""
    verbs = verbs_of(parser)
    if not words:
        yield from verbs
        return
    if words[0] not in verbs:
        return
    actions = verbs[words[0]]._actions
    options = {option: action for action in actions for option in action.option_strings}
    last = options.get(words[-1])
    if last is not None and last.nargs != 0:
        yield from _values(last, token)
        return
    if not token.startswith("-"):
        yield from _positional(actions, _given(words[1:], options), token)
    used = [options[word] for word in words if word in options]
    yield from (option for option, action in options.items() if action not in used)


def completed(action: argparse.Action, completer: Callable[[str], Iterable[str]]) -> None:
    """Gives an argument what completes it."""
    action.completer = completer  # type: ignore[attr-defined]


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The sub-parsers of a parser by verb."""
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(subparsers.choices)


def paths(token: str) -> Iterator[str]:
    """Files and folders that `token` begins, folders with a slash, hidden ones only when asked for."""
    typed = token.replace("\\ ", " ")
    head = typed[: typed.rfind("/") + 1]
    try:
        entries = sorted(Path(head or ".").expanduser().iterdir())
    except OSError:
        return
    for entry in entries[:_MAX_PATHS]:
        if not entry.name.startswith(".") or typed[len(head) :].startswith("."):
            yield (head + entry.name + ("/" if entry.is_dir() else "")).replace(" ", "\\ ")


def _given(words: list[str], options: dict[str, argparse.Action]) -> int:
    """How many positional words there are already."""
    takes = [word in options and options[word].nargs != 0 for word in words]
    return sum(not word.startswith("-") and not (index and takes[index - 1]) for index, word in enumerate(words))


def _positional(actions: Iterable[argparse.Action], given: int, token: str) -> Iterator[str]:
    positionals = [action for action in actions if not action.option_strings]
    if positionals and (given < len(positionals) or positionals[-1].nargs in ("+", "*")):
        yield from _values(positionals[min(given, len(positionals) - 1)], token)


def _values(action: argparse.Action, token: str) -> Iterable[str]:
    completer = getattr(action, "completer", None)
    if completer is not None:
        return completer(token)  # type: ignore[no-any-return]
    return map(str, action.choices or ())
