"""The bpftrace scripts that come with infer_diag: what they watch, and their text for one machine.

`script("cuda_allocations", library="/proc/4242/root/usr/lib/x86_64-linux-gnu/libcuda.so.1")` is text for bpftrace;
`infer_diag.load` reads what it prints, `infer_diag.loaders.allocator.bpftrace.histograms` the maps of the others.
"""

from __future__ import annotations

import re
from importlib.resources import files

import polars as pl

from infer_diag.errors import DiagError, UnknownNameError

_FOLDER = files("infer_diag.observability") / "bpftrace"
_LIBRARY, _SECONDS = ":libcuda:", "interval:s:60 "
_PROBE = re.compile(r"^(\w+:[^\s{/]+(?:/[^\s{]+)?)", re.MULTILINE)


def names() -> list[str]:
    """The scripts' names in alphabetical order."""
    return sorted(each.name.removesuffix(".bt") for each in _FOLDER.iterdir() if each.name.endswith(".bt"))


def script(name: str, *, library: str = "libcuda", seconds: int = 60) -> str:
    """The text of a script: which CUDA driver library it watches, and when it ends by itself.

    `cuda_allocations` goes on until it is ended, since what it prints is small.

    Raises:
        UnknownNameError: there is no such script.
        DiagError: the library is no path that a probe can name, or the time is no time.
    """
    if name not in names():
        raise UnknownNameError("bpftrace script", name, names())
    if not re.fullmatch(r"[\w./+-]+", library):
        raise DiagError(f"{library[:80]!r} cannot be named in a probe", hint="give the path of libcuda.so.1")
    if not 1 <= seconds <= 86_400:
        raise DiagError(f"{seconds} s is no time to watch for", hint="1 to 86400; Ctrl-C ends it earlier")
    text = (_FOLDER / f"{name}.bt").read_text(encoding="utf-8")
    return text.replace(_LIBRARY, f":{library}:").replace(_SECONDS, f"interval:s:{seconds} ")


def scripts() -> pl.DataFrame:
    """One row per script: `name`, `about` (its first sentence), `probes` (what it attaches to)."""
    rows = [(name, _about(text), _probes(text)) for name in names() if (text := script(name))]
    return pl.DataFrame(
        rows, schema={"name": pl.String, "about": pl.String, "probes": pl.List(pl.String)}, orient="row"
    )


def _about(text: str) -> str:
    lines = [line.removeprefix("//").strip() for line in text.splitlines()]
    return " ".join(lines[: lines.index("")])


def _probes(text: str) -> list[str]:
    kinds = ("uprobe", "uretprobe", "kprobe", "kretprobe", "tracepoint", "software")
    found = (match[1] for match in _PROBE.finditer(text))
    return [probe for probe in found if probe.partition(":")[0] in kinds]
