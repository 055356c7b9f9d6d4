"""A GPU, a running engine or a log that still grows, watched: what is seen is kept and diagnosed as it comes."""

from __future__ import annotations

from infer_diag.watch.targets import target
from infer_diag.watch.watching import Live, View, live

__all__ = ["Live", "View", "live", "target"]
