"""Why a deployment costs what it costs: its ledger, the identity that the cost obeys, and who owns the excess."""

from __future__ import annotations

BLAMED = ("cold_start", "batching", "fragmentation", "idle", "undelivered", "residual")
"""Causes that engineering can mend, and what remains unexplained."""
NEVER_BLAMED = ("hardware", "price", "mix", "prefix_cache")
"""Bars of their own: what was bought, what was paid, and what was asked."""
CAUSES = (*BLAMED, *NEVER_BLAMED)
REFERENCES = ("median", "best", "roofline")
"""What a deployment may be compared with, beside another one by name."""
