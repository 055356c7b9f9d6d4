"""The one drawing widget: it sends scenes as messages, so that nothing of them is ever saved with a notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget

from infer_diag.jupyter.explore.scene import Scene

_HERE = Path(__file__).parent


class Plot(anywidget.AnyWidget):
    """Shows one scene, and calls back with what the reader selects in it."""

    _esm = _HERE / "plot.js"
    _css = _HERE / "plot.css"

    def __init__(self, **heard: Callable[[Any], None]) -> None:
        """`heard`: functions by the name of what the browser tells: `brush`, `pick`, `at`, `cell`, `zoom`."""
        super().__init__()
        self._heard = heard
        self._scene: Scene | None = None
        self._cells = b""
        self.on_msg(self._receive)

    def show(self, scene: Scene | None, cells: bytes = b"") -> None:
        """Draws another scene."""
        self._scene, self._cells = scene, cells
        self.send({"scene": scene}, [cells])

    def mark(self, **marks: Any) -> None:
        """Moves the brush or the cursor of the scene that is shown."""
        if self._scene is not None:
            self._scene = {**self._scene, **marks}
            self.send({"marks": marks})

    def _receive(self, _: Any, content: Any, __: Any) -> None:
        if not isinstance(content, dict):
            return
        if "ask" in content:
            self.send({"scene": self._scene}, [self._cells])
        for name, function in self._heard.items():
            if name in content:
                function(content[name])
