"""What `python -X importtime` prints, as a frame."""

from __future__ import annotations

import re
from typing import Any

_LINE = re.compile(r"^import time:\s+(\d+) \|\s+(\d+) \| ( *)(\S+)\s*$")
_MOST_LINES = 100_000


def import_rows(text: str, start: int) -> list[dict[str, Any]]:
    """Rows of `frames.ImportTimes` for one start; lines of other kinds are passed over.

    A module's `cumulative_s` holds those of what it imports, which stand above it one level deeper.
    """
    matches = (_LINE.match(line) for line in text.splitlines()[:_MOST_LINES])
    return [
        {
            "start_id": start,
            "module": match[4],
            "depth_count": len(match[3]) // 2,
            "self_s": int(match[1]) / 1e6,
            "cumulative_s": int(match[2]) / 1e6,
        }
        for match in matches
        if match is not None
    ]
