"""`python -m infer_diag.simulators.fleet OUT [DEPLOYMENT ...]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from infer_diag.simulators.fleet import generate


def main() -> None:
    """Writes the sample fleet, or the named deployments of it, and says what is done."""
    parser = argparse.ArgumentParser(prog="python -m infer_diag.simulators.fleet", description=generate.__doc__)
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("deployment", nargs="*", help="write these alone, without inventory and truth")
    given = parser.parse_args()
    generate(given.out, given.deployment, told=print)


if __name__ == "__main__":
    main()
