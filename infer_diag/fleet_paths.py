"""Paths to a fleet: which folders are deployments, what an inventory beside them says, and `load_fleet`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from infer_diag import samples
from infer_diag.errors import SourceError, UnknownNameError
from infer_diag.fleet import Deployment, Facts, Fleet, check_names

if TYPE_CHECKING:
    from distributed import Client

INVENTORY = "deployments.csv"
"""A table beside the deployments' folders: `deployment` and any of the columns of `Facts`."""
_NO_LOG = (".md", ".csv", ".json", ".txt", ".html", ".ipynb", ".py")
_NUMBERS = {"gpu_count": int, "price_per_gpu_h": float, "held_gpu_h": float}
_WORDS = ("model", "gpu", "precision")
_MOST_INVENTORY_BYTES = 4 << 20


def load_fleet(
    *paths: str | Path,
    client: Client | None = None,
    facts: Mapping[str, Facts] | None = None,
    price_per_gpu_h: float | None = None,
    workers: int | None = None,
    year: int | None = None,
    tz: str | None = None,
) -> Fleet:
    """The fleet that the paths name: a folder per deployment, whose logs are read once the fleet is asked something.

    A path is a folder that holds a folder per deployment, a glob or fsspec URL of such folders (or of files, one a
    deployment), or `sample:NAME`. A `deployments.csv` in the folder above the deployments gives their facts.

    Args:
        paths: where the deployments are.
        client: a Dask client; its workers have to see the same paths. Without one, processes of this machine.
        facts: what is known of a deployment, by its name; it wins over the inventory.
        price_per_gpu_h: dollars per GPU and hour where nothing else says.
        workers: processes at most, where there is no client.
        year: year of stamps that print none.
        tz: time zone (IANA name) of stamps that name none.

    Raises:
        SourceError: a path names nothing, or two deployments share a name.
        UnknownNameError: `facts` names a deployment that is not there.
    """
    found = [each for path in paths for each in _deployments(str(path))]
    check_names([each.name for each in found])
    given = dict(facts or {})
    for name in given:
        if name not in {each.name for each in found}:
            raise UnknownNameError("deployment", name, [each.name for each in found])
    rest = Facts(price_per_gpu_h=price_per_gpu_h, evidence="given by the caller" if price_per_gpu_h else None)
    told = [
        replace(each, facts=given.get(each.name, Facts()).over(each.facts).over(rest), year=year, tz=tz)
        for each in found
    ]
    return Fleet(tuple(sorted(told, key=lambda each: each.name)), client, workers)


def is_fleet(path: str) -> bool:
    """Whether a path is a folder of deployments: folders in it, and no log beside them."""
    if path.startswith("sample:"):
        path = str(samples.path(path.removeprefix("sample:")))
    folder = Path(path).expanduser()
    return "://" not in path and folder.is_dir() and bool(_folders(folder)) and not _logs(folder)


def has_inventory(path: str) -> bool:
    """Whether a path is a folder of deployments that says so itself, by a `deployments.csv`."""
    if path.startswith("sample:"):
        path = str(samples.path(path.removeprefix("sample:")))
    return "://" not in path and (Path(path).expanduser() / INVENTORY).is_file() and is_fleet(path)


def _deployments(path: str) -> Iterator[Deployment]:
    if path.startswith("sample:"):
        path = str(samples.path(path.removeprefix("sample:")))
    if "://" in path:
        yield from _of_url(path)
        return
    folder = Path(path).expanduser()
    if folder.is_dir():
        inside = _folders(folder)
        found = inside if inside and not _logs(folder) else [folder]
    else:
        found = sorted(Path(folder.anchor or ".").glob(str(folder.relative_to(folder.anchor))))
    if not found:
        raise SourceError(f"{path} does not exist", hint="give a folder that holds a folder per deployment")
    facts = {parent: _inventory(parent / INVENTORY) for parent in {each.parent for each in found}}
    for each in found:
        if each.name != INVENTORY:
            yield Deployment(each.name, (str(each),), facts[each.parent].get(each.name, Facts()))


def _folders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith((".", "_")))


def _logs(folder: Path) -> list[Path]:
    files = (each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))
    return [each for each in files if each.suffix.lower() not in _NO_LOG]


def _of_url(url: str) -> Iterator[Deployment]:
    import fsspec

    try:
        system, root = fsspec.core.url_to_fs(url)
        listed = system.glob(root) if any(mark in root for mark in "*?[") else system.ls(root, detail=False)
        places = sorted(str(each).rstrip("/") for each in listed)
        facts: dict[str, Facts] = {}
        for place in places:
            if place.endswith(f"/{INVENTORY}"):
                facts = _facts(system.cat_file(place)[:_MOST_INVENTORY_BYTES].decode("utf-8", "replace"), place)
        for place in places:
            name = PurePosixPath(place).name
            if system.isdir(place):
                files = tuple(system.unstrip_protocol(str(file)) for file in sorted(system.find(place)))
            else:
                files = () if name == INVENTORY or _has_no_log(name) else (system.unstrip_protocol(place),)
            if files:
                yield Deployment(name, files, facts.get(name, Facts()))
    except (OSError, ImportError, ValueError) as error:
        raise SourceError(f"{url} cannot be listed: {error}") from error


def _has_no_log(name: str) -> bool:
    return name.lower().endswith(_NO_LOG)


def _inventory(path: Path) -> dict[str, Facts]:
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        return _facts(file.read(_MOST_INVENTORY_BYTES).decode("utf-8-sig", "replace"), str(path))


def _facts(text: str, path: str) -> dict[str, Facts]:
    """The facts of an inventory by deployment.

    Raises:
        SourceError: it has no column `deployment`, or a number in it is none.
    """
    table = csv.DictReader(io.StringIO(text))
    if "deployment" not in (table.fieldnames or ()):
        known = ", ".join(("deployment", *_WORDS, *_NUMBERS))
        raise SourceError(f"{path} has no column 'deployment'", hint=f"its columns may be {known}")
    found: dict[str, Facts] = {}
    for row in table:
        values: dict[str, Any] = {name: row[name].strip() for name in _WORDS if (row.get(name) or "").strip()}
        for name, kind in _NUMBERS.items():
            if (row.get(name) or "").strip():
                values[name] = _number(row[name], kind, f"{path}:{table.line_num}")
        found[row["deployment"].strip()] = Facts(**values, evidence=f"{path}:{table.line_num}")
    return found


def _number(text: str, kind: type, place: str) -> float:
    try:
        value = float(kind(text))
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise SourceError(f"{place} has {text[:40]!r} where a number above 0 belongs")
    return int(value) if kind is int else value
