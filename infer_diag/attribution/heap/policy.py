"""How each framework's allocator cuts and rounds its blocks, as far as a recording needs it to be read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.recording import Source

SMALL_BYTES = 1 << 20
"""PyTorch serves requests up to a MiB from small segments, and leaves rests up to a MiB in blocks of large ones."""
_SMALL_SEGMENT_BYTES = 2 << 20
_LARGE_PAGES_BYTES = 20 << 20


@dataclass(frozen=True)
class Policy:
    """Rounding to `unit_bytes`; `keeps_rests`: rests of large blocks stay with them; `takes_low`: no hole below."""

    unit_bytes: int
    takes_low: bool = False
    keeps_rests: bool = False
    has_kinds: bool = False

    def slack(self, groups: pl.DataFrame) -> NDArray[np.int64]:
        """The least rest of each group that becomes a block of its own."""
        rests = (groups["segment_kind"] == "large") & ~groups["is_expandable"].fill_null(False)
        least = np.full(len(groups), self.unit_bytes, np.int64)
        if self.keeps_rests:
            least[rests.fill_null(False).to_numpy()] = SMALL_BYTES + 1
        return least

    def kind(self, size: pl.Expr, pages: pl.Expr) -> pl.Expr:
        """Which requests a segment of this size serves; null where the allocator makes no difference."""
        if not self.has_kinds:
            return pl.lit(None, pl.String)
        small = pl.when(pages).then(size % _LARGE_PAGES_BYTES != 0).otherwise(size <= _SMALL_SEGMENT_BYTES)
        return pl.when(small).then(pl.lit("small")).otherwise(pl.lit("large"))


PYTORCH = Policy(unit_bytes=512, takes_low=True, keeps_rests=True, has_kinds=True)
CUPY = Policy(unit_bytes=512)
RMM = Policy(unit_bytes=256)
EXACT = Policy(unit_bytes=1)


def policy_of(source: Source, events: pl.DataFrame) -> Policy:
    """The policy of a source's allocator; where its events tell the size of every block, no rounding is applied.

    Frame in: AllocatorEvents. PyTorch rounds to 512 bytes and CuPy too, RMM to 256 (their sources). A PyTorch that was
    set to round otherwise, or never to split large blocks, shows it by a state that the snapshot contradicts.
    """
    allocs = events.filter(pl.col("action") == "alloc")
    if len(allocs) and allocs["allocated_bytes"].null_count() == 0:
        return EXACT
    return {"pytorch": PYTORCH, "cupy": CUPY, "rmm": RMM}.get(source.engine, EXACT)
