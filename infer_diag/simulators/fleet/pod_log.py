"""The text of a deployment's pods as a team collects it: with the stamps of the container runtime, or without."""

from __future__ import annotations

import zlib
from datetime import datetime, timedelta

from infer_diag.simulators.fleet.plan import BEGIN, Plan


def pod_name(plan: Plan, number: int) -> str:
    """The pod's name as a ReplicaSet gives it."""
    template = f"{zlib.crc32(plan.name.encode()):08x}"
    letters = "bcdfghjklmnpqrstvwxz2456789"
    value, suffix = zlib.crc32(f"{plan.name} pod {number}".encode()), ""
    for _ in range(5):
        value, place = divmod(value, len(letters))
        suffix += letters[place]
    return f"{plan.name}-{template}-{suffix}"


def moment(seconds: float) -> datetime:
    """The true time of a second of the simulation."""
    return BEGIN + timedelta(microseconds=round(seconds * 1e6))


def rfc3339(seconds: float) -> str:
    """A moment in whole seconds, as Kubernetes writes it."""
    return f"{moment(seconds):%Y-%m-%dT%H:%M:%SZ}"


class PodLog:
    """Lines of one deployment; what falls into the hole of its log was rotated away before anybody kept it."""

    def __init__(self, plan: Plan, container: str) -> None:
        self.plan, self.container = plan, container
        self.rows: list[tuple[float, int, str]] = []
        self.pod = ""

    def enter(self, number: int) -> None:
        """The lines that follow are of this pod."""
        self.pod = pod_name(self.plan, number)

    def clock(self, seconds: float) -> datetime:
        """What the container's own clock shows: ahead where it is, in its zone."""
        return moment(seconds + self.plan.clock_ahead_s + 3600 * self.plan.zone_h)

    def say(self, seconds: float, *lines: str) -> None:
        """Lines that the container prints at this second."""
        hole = self.plan.hole_h
        if hole is not None and hole[0] <= seconds / 3600 < hole[1]:
            return
        self.rows += [
            (seconds, len(self.rows) + number, self._wrapped(seconds, line)) for number, line in enumerate(lines)
        ]

    def text(self) -> str:
        """All lines in the order in which they were printed."""
        return "".join(f"{line}\n" for _, _, line in sorted(self.rows))

    def _wrapped(self, seconds: float, line: str) -> str:
        if not self.plan.stamped:
            return line
        # Container runtimes stamp to the nanosecond; what is simulated ends at the microsecond.
        return f"[pod/{self.pod}/{self.container}] {moment(seconds):%Y-%m-%dT%H:%M:%S.%f}000Z {line}"
