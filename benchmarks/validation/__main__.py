"""`python -m validation`: every fleet, with progress, and which lines of the acceptance are met."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from validation.suite import results

SEED = 20261129
OUT = Path(__file__).resolve().parents[2] / "notebooks" / "99_validation.json"
VERDICTS = {True: "met", False: "NOT MET", None: "open"}


def told(text: str) -> None:
    """Progress, on one line."""
    print(text, end="", file=sys.stderr, flush=True)


def main() -> None:
    """Writes the table and says which lines are met."""
    parser = argparse.ArgumentParser(prog="python -m validation", description=sys.modules["validation"].__doc__)
    parser.add_argument("--fleets", type=float, default=1.0, help="share of the fleets to make")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    found = results(given.fleets, given.seed, given.workers, told)
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    told("\n")
    for line in found["acceptance"]:
        print(f"{VERDICTS[line['met']]:8}{line['kind']}: {line['what']}: {line['found']} (aim: {line['aim']})")
    print(f"{found['fleets']} fleets; {given.out.name}")


if __name__ == "__main__":
    main()
