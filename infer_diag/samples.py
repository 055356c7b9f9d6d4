"""The recorded logs that travel with the package, by name; `load("sample:captured/plain")` goes through here."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path, PurePosixPath

from infer_diag.errors import SourceError, UnknownNameError

_HERE = Path(__file__).parent
_REGISTRY = "registry.txt"


def names() -> list[str]:
    """The samples there are, sorted: each is a folder of the files of one recording, such as `captured/plain`."""
    return sorted({str(PurePosixPath(file).parent) for file in _registry()})


def path(name: str) -> Path:
    """The folder of a sample, or the one file of it when `name` goes on to a file; every file's hash is checked.

    Raises:
        UnknownNameError: no such sample; says which names are close.
        SourceError: a file of the sample is absent or is not the one that was shipped.
    """
    wanted = name.strip().strip("/")
    files = [file for file in _registry() if file == wanted or file.startswith(f"{wanted}/")]
    if not files or not wanted:
        raise UnknownNameError("sample", name, names())
    for file in files:
        _check(file)
    return _root() / wanted


def about(name: str) -> str:
    """What a sample shows, in a line; empty where its `meta.json` does not say.

    Raises:
        UnknownNameError: no such sample.
        SourceError: a file of the sample is absent or is not the one that was shipped.
    """
    meta = path(name) / "meta.json"
    return str(json.loads(meta.read_bytes()).get("shows", "")) if meta.is_file() else ""


def registry_of(folder: Path) -> str:
    """The text of `registry.txt` for a folder of samples: one `sha256  path` per line, sorted by path."""
    files = sorted(
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and file.parent != folder and not file.name.startswith((".", "README"))
    )
    return "".join(f"{_sha256(folder / file)}  {file}\n" for file in files)


@cache
def _root() -> Path:
    """The samples of the wheel, or those of the checkout that the package runs from."""
    for folder in (_HERE / "_sample_logs", _HERE.parent / "sample_logs"):
        if (folder / _REGISTRY).is_file():
            return folder
    raise SourceError(
        "this installation carries no sample logs", hint="install the wheel, or run from a checkout of the project"
    )


@cache
def _registry() -> dict[str, str]:
    lines = (_root() / _REGISTRY).read_text(encoding="utf-8").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    return {file: digest for digest, file in pairs}


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _check(file: str) -> None:
    found = _root() / file
    if not found.is_file():
        raise SourceError(f"the sample file {file} is absent", hint="install infer_diag again")
    if _sha256(found) != _registry()[file]:
        raise SourceError(f"the sample file {file} is not the one that was shipped", hint="install infer_diag again")
