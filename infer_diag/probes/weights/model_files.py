"""Which files of a model folder hold the weights that a loader reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from infer_diag.errors import SourceError

ORDER = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Names in the order in which transformers looks for them (`modeling_utils.py`, 5.19); the first that exists wins."""

_LARGEST_INDEX_BYTES = 64 << 20
_OTHER = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True)
class ModelFiles:
    """The weight files of a model, in the order in which they are read, and those that an index names in vain."""

    layout: str
    files: tuple[Path, ...]
    missing: tuple[str, ...] = ()
    index: Path | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together; those of missing shards are not in it."""
        return sum(file.stat().st_size for file in self.files)


def resolve(model: Path) -> ModelFiles:
    """The weight files of a folder, of a hub cache's `models--…` folder, or the one file that is named.

    The order is `ORDER`; a folder with none of these names gives its safetensors, else bin, else GGUF files by name.

    Raises:
        SourceError: there is no such folder, no weights in it, or its index is damaged.
    """
    if model.is_file():
        return ModelFiles("file", (model,))
    if not model.is_dir():
        raise SourceError(f"there is no model folder {model}", hint="give the folder that holds the weights")
    folder = _snapshot(model)
    for name in ORDER:
        found = folder / name
        if found.is_file():
            return _of_index(found) if name.endswith(".json") else ModelFiles(name, (found,))
    for pattern in _OTHER:
        files = tuple(sorted(file for file in folder.glob(pattern) if file.is_file()))
        if files:
            return ModelFiles(pattern, files)
    raise SourceError(f"{model} holds no weights", hint=f"expected {', '.join(ORDER)} or other safetensors, bin, GGUF")


def _snapshot(folder: Path) -> Path:
    """The snapshot that `refs/main` names, where the folder is a model of the hub's cache."""
    snapshots, main = folder / "snapshots", folder / "refs" / "main"
    if not snapshots.is_dir():
        return folder
    if main.is_file():
        named = snapshots / Path(main.read_text(encoding="utf-8", errors="replace").strip()[:100]).name
        if named.is_dir():
            return named
    only = [each for each in snapshots.iterdir() if each.is_dir()]
    if len(only) == 1:
        return only[0]
    raise SourceError(f"{folder} holds {len(only)} snapshots and no main one", hint="give one snapshot's folder")


def _of_index(index: Path) -> ModelFiles:
    if index.stat().st_size > _LARGEST_INDEX_BYTES:
        raise SourceError(f"{index.name} is larger than {_LARGEST_INDEX_BYTES >> 20} MiB, so it is no index of shards")
    try:
        mapped = json.loads(index.read_bytes())["weight_map"]
        names = sorted({str(name) for name in mapped.values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(f"{index.name} is no index of shards: it has no readable weight_map") from error
    # An index is data of others: a name that leads out of the folder is no shard.
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise SourceError(f"{index.name} names {outside[0][:80]!r}, which is outside its folder")
    files = tuple(index.parent / name for name in names if (index.parent / name).is_file())
    missing = tuple(name for name in names if not (index.parent / name).is_file())
    if not files:
        raise SourceError(f"none of the {len(names)} shards of {index.name} is there", hint="fetch the model again")
    return ModelFiles(index.name, files, missing, index)
