"""Settings of the block device under a file, as sysfs shows them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")
DEFAULT_READ_AHEAD_BYTES = 128 << 10
"""What Linux reads ahead unless a device or an administrator says otherwise (`VM_READAHEAD_PAGES`)."""


@dataclass(frozen=True)
class BlockDevice:
    """What sysfs tells of a device; null where it tells nothing (network and in-memory file systems have no queue)."""

    name: str | None = None
    scheduler: str | None = None
    schedulers: tuple[str, ...] = ()
    is_rotational: bool | None = None
    read_ahead_bytes: int | None = None
    largest_request_bytes: int | None = None
    queue_depth_count: int | None = None
    read_expire_s: float | None = None

    @property
    def read_ahead_limit_bytes(self) -> int | None:
        """The most that one `WILLNEED` brings in: the larger of read-ahead and largest request.

        Source: `force_page_cache_ra` in Linux' mm/readahead.c, which cuts what is asked for to that.
        """
        told = [size for size in (self.read_ahead_bytes, self.largest_request_bytes) if size is not None]
        return max(told) if self.read_ahead_bytes is not None else None


def device_of(path: Path, sysfs: Path = SYSFS) -> BlockDevice:
    """The device that holds the file; of a partition the whole disk's settings, of a mapped one its own."""
    number = path.stat().st_dev
    label = f"{os.major(number)}:{os.minor(number)}"
    found = sysfs / "dev" / "block" / label
    if not found.exists():
        ahead = _whole(sysfs / "class" / "bdi" / label / "read_ahead_kb")
        return BlockDevice(read_ahead_bytes=_kib(ahead))
    folder = found.resolve()
    return read_settings(folder if (folder / "queue").is_dir() else folder.parent)


def read_settings(folder: Path) -> BlockDevice:
    """The settings of a device by its folder in sysfs."""
    queue = folder / "queue"
    names = _text(queue / "scheduler") or ""
    chosen = re.search(r"\[([\w-]+)\]", names)
    rotational = _whole(queue / "rotational")
    expire = _whole(queue / "iosched" / "read_expire")
    return BlockDevice(
        name=folder.name,
        scheduler=chosen[1] if chosen else None,
        schedulers=tuple(re.findall(r"[\w-]+", names)),
        is_rotational=None if rotational is None else bool(rotational),
        read_ahead_bytes=_kib(_whole(queue / "read_ahead_kb")),
        largest_request_bytes=_kib(_whole(queue / "max_sectors_kb")),
        queue_depth_count=_whole(queue / "nr_requests"),
        read_expire_s=None if expire is None else expire / 1000,
    )


def _kib(value: int | None) -> int | None:
    return None if value is None else value << 10


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _whole(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and re.fullmatch(r"[0-9]+", text) else None
