"""What a probe found, as one JSON file that can be read back, compared and shipped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl

from infer_diag.errors import SourceError
from infer_diag.probes.frames import FRAMES

VERSION = 1
BASES = ("measured", "simulated")
_LARGEST_BYTES = 256 << 20


@dataclass(frozen=True)
class ProbeResult:
    """The frames of one run of a probe, what they say in sentences, and on what kind of machine they were made.

    `basis` is `simulated` for runs on a simulated device, which nobody may take for a measurement. `recordings` are the
    files beside this one that `infer_diag.load` reads.
    """

    probe: str
    basis: str
    machine: dict[str, str | int]
    frames: dict[str, pl.DataFrame]
    sentences: tuple[str, ...] = ()
    recordings: tuple[str, ...] = ()
    device: dict[str, str | int] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Writes `probe_NAME.json` into the folder and returns its path."""
        path = folder / f"probe_{self.probe}.json"
        document = {
            "infer_diag": "probe",
            "version": VERSION,
            "probe": self.probe,
            "basis": self.basis,
            "machine": self.machine,
            "device": self.device,
            "sentences": list(self.sentences),
            "recordings": list(self.recordings),
            "frames": {name: frame.to_dicts() for name, frame in self.frames.items()},
        }
        path.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
        return path


def framed(name: str, rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows as the frame of this name; columns that a row lacks are null.

    Raises:
        dataframely.exc.ValidationError: a row breaks a rule of the frame.
    """
    wanted: type[dy.Schema] = FRAMES[name]
    kinds = wanted.create_empty().schema
    return wanted.validate(pl.DataFrame(list(rows), schema=kinds), cast=True)


def read_result(path: Path) -> ProbeResult:
    """The result that a probe wrote.

    Raises:
        SourceError: the file is absent, damaged or no result of a probe.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise SourceError(f"{path.name} is larger than {_LARGEST_BYTES >> 20} MiB, so no probe wrote it")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", hint="infer-diag probe NAME --out DIR writes it") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path.name} is no JSON document: {str(error)[:80]}") from error
    if not isinstance(document, dict) or document.get("infer_diag") != "probe":
        raise SourceError(f"{path.name} is no result of a probe", hint="infer-diag probe NAME --out DIR writes one")
    if document.get("version") != VERSION or document.get("basis") not in BASES:
        raise SourceError(f"{path.name} was written by another version of infer_diag", hint="run the probe again")
    try:
        return ProbeResult(
            probe=str(document["probe"]),
            basis=str(document["basis"]),
            machine=dict(document["machine"]),
            frames={name: framed(name, rows) for name, rows in document["frames"].items()},
            sentences=tuple(map(str, document["sentences"])),
            recordings=tuple(map(str, document["recordings"])),
            device=dict(document["device"]),
        )
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        pl.exceptions.PolarsError,
        dy.exc.ValidationError,
    ) as error:
        raise SourceError(f"{path.name} is damaged: {str(error).splitlines()[0][:80]}") from error
