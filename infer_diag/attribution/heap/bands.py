"""The article's three bands of 1 − largest / free, its action for each, and what that action really does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Band:
    """Ratios from `lower_ratio` up to `upper_ratio`, what the article does there, and what becomes of it."""

    name: str
    lower_ratio: float
    upper_ratio: float
    action: str
    effect: str


BANDS = (
    Band(
        "below 0.3",
        0.0,
        0.3,
        "none",
        "A low ratio is no sign of health: a single hole gives 0, and a request larger than that hole still fails.",
    ),
    Band(
        "0.3 to 0.7",
        0.3,
        0.7,
        "merge free neighbours",
        "Nothing: PyTorch, CuPy and RMM merge free neighbours at every free, so none are left to merge.",
    ),
    Band(
        "0.7 and more",
        0.7,
        1.0,
        "force a compaction",
        "No allocator moves a live tensor, for raw pointers lead to it. Emptying the cache returns segments that are "
        "idle as a whole and no hole beside a live block; expandable segments return idle pages; a restart returns "
        "all. A pool of many equal large holes lies here too and serves every request.",
    ),
)


def band_of(external_frag_ratio: float | None) -> Band | None:
    """The band of a ratio; null where it is unknown."""
    if external_frag_ratio is None:
        return None
    return next(band for band in reversed(BANDS) if external_frag_ratio >= band.lower_ratio)
