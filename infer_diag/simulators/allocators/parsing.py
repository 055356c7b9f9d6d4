"""Settings of allocators as text: `expandable_segments,max_split_size_mb=128,allocator=cupy`.

Commas part what is tried. `limit` and `memory_fraction` hold for all of it, and the sizes of a pool for that pool.
PyTorch's own spelling with colons is understood too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.simulators.allocators.settings import (
    ALLOCATORS,
    Divisions,
    Settings,
    TorchSettings,
)
from infer_diag.units import parse_bytes

_MIB = 1 << 20
_ALIASES = {"native": "torch", "cudaMallocAsync": "cuda_async", "async": "cuda_async", "backend": "allocator"}


@dataclass(frozen=True)
class Alternatives:
    """What is to be tried: settings by the words that asked for them, and the size of the device if it was given."""

    settings: tuple[tuple[str, Settings], ...]
    limit_bytes: int | None


def alternatives(text: str, recorded: Settings) -> Alternatives:
    """Each setting of the text by itself and, where several are PyTorch's, all of those together.

    PyTorch's settings change `recorded` where that is PyTorch's allocator, else its defaults.

    Raises:
        UnknownNameError: a setting or an allocator has no such name; the known ones are listed.
        DiagError: a value cannot be read, or a size is given of a pool that is not tried.
    """
    words = [_split(word) for word in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text) if word.strip()]
    if not words:
        raise DiagError("nothing to try", hint=f"say one of {', '.join(KNOWN)}")
    base = recorded if isinstance(recorded, TorchSettings) else TorchSettings()
    base = replace(base, **{key: _read(name, value) for name, value in words if (key := _SHARED.get(name))})
    limit = next((_bytes(name, value) for name, value in words if name == "limit"), None)
    of_torch = [(name, value) for name, value in words if name in _TORCH]
    found: list[tuple[str, Settings]] = []
    together = base
    for name, value in of_torch:
        change = {_TORCH[name][0]: _read(name, value)}
        found.append((_shown(name, value), replace(base, **change)))
        together = replace(together, **change)
    if len(of_torch) > 1:
        found.append((" + ".join(_shown(name, value) for name, value in of_torch), together))
    found += [_allocator(value, words, base) for name, value in words if name == "allocator"]
    _check_used(words)
    if not found:
        found.append((", ".join(_shown(name, value) for name, value in words), base))
    return Alternatives(tuple(found), limit)


def _split(word: str) -> tuple[str, str | None]:
    name, _, value = re.sub(r"[=:]", "=", word.strip(), count=1).partition("=")
    name = _ALIASES.get(name.strip(), name.strip())
    if name not in KNOWN:
        raise UnknownSettingError(name)
    return name, value.strip() or None


class UnknownSettingError(UnknownNameError):
    """A setting has no such name; the text lists every one that there is."""

    def __init__(self, name: str) -> None:
        super().__init__("setting", name, KNOWN)
        self.hint = f"known: {', '.join(KNOWN)}"


def _allocator(value: str | None, words: list[tuple[str, str | None]], base: TorchSettings) -> tuple[str, Settings]:
    name = _ALIASES.get(value or "", value or "")
    if name not in ALLOCATORS:
        raise UnknownNameError("allocator", name, ALLOCATORS)
    settings = base if name == "torch" else ALLOCATORS[name]
    sizes = {_POOLS[key][1]: _bytes(key, text) for key, text in words if key in _POOLS and _POOLS[key][0] == name}
    shown = f"{name} (approximation)" if name == "cuda_async" else name
    return shown, cast(Settings, replace(cast(Any, settings), **sizes))


def _check_used(words: list[tuple[str, str | None]]) -> None:
    tried = {_ALIASES.get(value or "", value or "") for name, value in words if name == "allocator"}
    for name, _ in words:
        if name in _POOLS and _POOLS[name][0] not in tried:
            pool = _POOLS[name][0]
            raise DiagError(f"{name} is a setting of {pool}, which is not tried", hint=f"add allocator={pool}")


def _shown(name: str, value: str | None) -> str:
    return name if value is None else f"{name}={value}"


def _read(name: str, value: str | None) -> Any:
    read = _TORCH[name][1] if name in _TORCH else _share
    try:
        return read(value)
    except (ValueError, TypeError):
        raise DiagError(f"{name}={value} cannot be read", hint=_EXAMPLES[name]) from None


def _bytes(name: str, value: str | None) -> int:
    if value is None:
        raise DiagError(f"{name} needs a size", hint=f"such as {name}=24GiB")
    return parse_bytes(value)


def _flag(value: str | None) -> bool:
    known = {None: True, "true": True, "1": True, "false": False, "0": False}
    key = value.lower() if value is not None else None
    if key not in known:
        raise ValueError(value)
    return known[key]


def _mebibytes(value: str | None) -> int:
    return int(value or "") * _MIB


def _share(value: str | None) -> float:
    share = float(value or "")
    if not 0 < share <= 1:
        raise ValueError(value)
    return share


def _divisions(value: str | None) -> Divisions:
    text = (value or "").strip()
    if not text.startswith("["):
        return int(text)
    pairs = [part.split(":") for part in text.strip("[]").split(",")]
    return tuple((None if size.strip() == ">" else int(size), int(number)) for size, number in pairs)


_TORCH: dict[str, tuple[str, Callable[[str | None], Any]]] = {
    "expandable_segments": ("expandable_segments", _flag),
    "max_split_size_mb": ("max_split_size_bytes", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _share),
}
_SHARED = {"memory_fraction": "memory_fraction", "per_process_memory_fraction": "memory_fraction"}
_POOLS = {
    "release_threshold": ("cuda_async", "release_threshold_bytes"),
    "initial_pool_size": ("rmm_pool", "initial_pool_bytes"),
    "maximum_pool_size": ("rmm_pool", "maximum_pool_bytes"),
    "arena_size": ("rmm_arena", "arena_bytes"),
}
_EXAMPLES = {
    "expandable_segments": "write expandable_segments or expandable_segments=False",
    "max_split_size_mb": "write it like max_split_size_mb=128",
    "max_non_split_rounding_mb": "write it like max_non_split_rounding_mb=64",
    "roundup_power2_divisions": "write 4 or [256:1,512:2,1024:4,>:8]",
    "garbage_collection_threshold": "write it like garbage_collection_threshold=0.8",
    "memory_fraction": "write it like memory_fraction=0.9",
    "per_process_memory_fraction": "write it like memory_fraction=0.9",
}
KNOWN: tuple[str, ...] = (*_TORCH, *_SHARED, "allocator", "limit", *_POOLS)
"""Every setting that the text may name."""
