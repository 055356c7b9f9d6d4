"""What a recording says of the machine that it was made on: enough to compare, nothing that names the machine."""

from __future__ import annotations

import os
import platform
import re


def facts() -> dict[str, str | int]:
    """Kernel (numbers only), cores, memory in bytes and Python of this machine; no host name, user, address or path."""
    kernel = re.match(r"[0-9]+(?:\.[0-9]+)*", platform.release())
    told: dict[str, str | int] = {
        "system": platform.system(),
        "kernel": kernel[0] if kernel else "unknown",
        "architecture": platform.machine(),
        "cpu_count": os.cpu_count() or 0,
        "python": platform.python_version(),
    }
    if hasattr(os, "sysconf"):
        told["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return told
