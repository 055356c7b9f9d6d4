"""The recordings that a notebook has loaded, by name, and how each was loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING

from infer_diag.diagnose import Diagnosis, diagnose
from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.recording import Recording

if TYPE_CHECKING:
    from infer_diag.jupyter.explore.app import Explorer
    from infer_diag.jupyter.watch import Watching


@dataclass(frozen=True)
class Loaded:
    """A recording, its name, and the Python and the options that load it again."""

    name: str
    recording: Recording
    paths: tuple[str, ...]
    code: str
    options: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What the recording says; made once."""
        return diagnose(self.recording)


@dataclass
class Session:
    """What `%diag` has loaded; a verb without a name means the recording that was loaded last.

    `variables` is the notebook's own namespace: a `Recording` in a variable answers to the variable's name too.
    """

    variables: Mapping[str, object] = field(default_factory=dict)
    loaded: dict[str, Loaded] = field(default_factory=dict)
    explorers: dict[str, Explorer] = field(default_factory=dict)
    watches: dict[str, Watching] = field(default_factory=dict)

    def add(self, loaded: Loaded) -> None:
        """Keep a recording under its name and make it the one that verbs without a name mean."""
        self.loaded.pop(loaded.name, None)
        self.loaded[loaded.name] = loaded

    def get(self, name: str | None) -> Loaded:
        """The recording of this name, the last loaded one for None.

        Raises:
            UnknownNameError: no recording has this name.
            DiagError: None, and nothing is loaded.
        """
        if name is None:
            if not self.loaded:
                raise DiagError("no recording is loaded", hint="%diag load PATH, or %diag load sample:captured/plain")
            return next(reversed(self.loaded.values()))
        if name in self.loaded:
            return self.loaded[name]
        variable = self.variables.get(name)
        if isinstance(variable, Recording):
            return Loaded(name, variable, tuple(source.path for source in variable.sources), f"recording = {name}")
        raise UnknownNameError("recording", name, self.names())

    def names(self) -> list[str]:
        """Names that `get` knows, the last loaded first."""
        variables = [name for name, value in self.variables.items() if isinstance(value, Recording)]
        return [*reversed(self.loaded), *(name for name in variables if name not in self.loaded and name[0] != "_")]

    def name_for(self, paths: tuple[str, ...]) -> str:
        """A name for a recording of these paths: the first one's stem, numbered where other paths hold that name."""
        # Of an address only the host: what stands in front of it may be a password.
        place = paths[0].rpartition("@")[2].partition("?")[0] if "://" in paths[0] else paths[0]
        stem = PurePath(place.rstrip("/").removeprefix("sample:")).name.split(".")[0]
        base = re.sub(r"\W+", "_", stem).strip("_") or "recording"
        name, number = base, 1
        while name in self.loaded and self.loaded[name].paths != paths:
            number += 1
            name = f"{base}_{number}"
        return name
