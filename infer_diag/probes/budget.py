"""How long a probe may go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Budget:
    """A limit of seconds from now on; a probe asks before each repetition, so it ends one repetition late at most."""

    limit_s: float
    clock: Callable[[], float] = time.monotonic
    _begin_s: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_begin_s", self.clock())

    @property
    def left_s(self) -> float:
        """Seconds that remain; never below 0."""
        return max(self.limit_s - (self.clock() - self._begin_s), 0.0)

    @property
    def spent(self) -> bool:
        """Whether no time is left."""
        return self.left_s <= 0
