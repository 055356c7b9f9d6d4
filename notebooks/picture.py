"""Draws the README's picture from a shipped sample: `make picture`."""

from __future__ import annotations

from pathlib import Path

import infer_diag as diag
from infer_diag.jupyter.panels import batching_panel

SAMPLE = "sample:captured/long_short_bursts/server.log"


def main() -> None:
    """Writes `serving.png` beside this file: what `%diag batching` shows of the sample."""
    panel = batching_panel(diag.diagnose(diag.load(SAMPLE)))
    if panel.figure is None:
        raise SystemExit(f"{SAMPLE} has nothing to draw")
    panel.figure.write_image(Path(__file__).with_name("serving.png"), width=900, height=780)


if __name__ == "__main__":
    main()
