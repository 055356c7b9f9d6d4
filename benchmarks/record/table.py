"""Print what the clients of recorded scenarios measured, as a Markdown table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HEAD = (
    "scenario", "start", "ready s", "sent", "done", "wall s", "prompt tokens", "output tokens",
    "output tokens/s", "TTFT mean / p50 / p95 s", "TPOT mean / p50 / p95 ms", "preemptions",
)  # fmt: skip


def _three(spread: dict, factor: float, digits: int) -> str:
    return " / ".join(f"{spread[key] * factor:.{digits}f}" for key in ("mean", "p50", "p95"))


def rows(folder: Path) -> list[list[str]]:
    """Return one row per start of every scenario below ``folder``."""
    found = []
    for path in sorted(folder.glob("*/meta.json")):
        meta = json.loads(path.read_text(encoding="utf-8"))
        for number, start in enumerate(meta["starts"]):
            found.append(_row(meta["scenario"], number, start))
    return found


def _row(scenario: str, number: int, start: dict) -> list[str]:
    client = start.get("client")
    if not client:
        return [f"`{scenario}`", str(number), "never", *["–"] * (len(HEAD) - 3)]
    return [
        f"`{scenario}`",
        str(number),
        f"{start['ready_after_s']:.1f}",
        str(client["sent"]),
        str(client["finished"]),
        f"{client['wall_s']:.1f}",
        str(client["prompt_tokens"]),
        str(client["output_tokens"]),
        f"{client['output_tokens_per_s']:.1f}",
        _three(client["ttft_s"], 1, 2),
        _three(client["tpot_s"], 1000, 0),
        str(start["server_counters"]["preemptions"]),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the recordings")
    args = parser.parse_args()
    for row in (HEAD, ["---"] * len(HEAD), *rows(args.folder)):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
