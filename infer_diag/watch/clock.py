"""Time as a watch sees it, so that tests can stand in for it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall clock, steady clock, and waiting."""

    def now(self) -> datetime:
        """The wall clock, in UTC."""

    def steady_s(self) -> float:
        """Seconds that never go back."""

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Returns after so many seconds, or as soon as `stop` is set."""


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> datetime:
        """The wall clock, in UTC."""
        return datetime.now(UTC)

    def steady_s(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Returns after so many seconds, or as soon as `stop` is set."""
        stop.wait(max(seconds, 0.0))
