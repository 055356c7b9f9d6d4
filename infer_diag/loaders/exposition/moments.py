"""When to begin and to end: times as users write them, and durations as Prometheus writes them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from infer_diag.errors import DiagError

Moment = datetime | str | None

_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdwy])"
_DURATION = re.compile(rf"(?:{_PART})+", re.ASCII)
_RELATIVE = re.compile(rf"(?:now)?\s*-\s*((?:{_PART})+)", re.ASCII)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_LAST_S = 253402300799.0  # the end of the year 9999
_KNOWN = "give a datetime, ISO text such as 2026-03-14T09:26:53Z, seconds since 1970, or -2h"


def duration_s(text: str) -> float | None:
    """Seconds of a duration such as `15s`, `1h30m` or `15`; null where the text is none or no time at all."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
    elif _DURATION.fullmatch(text):
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, text))
    else:
        return None
    return seconds if seconds > 0 and math.isfinite(seconds) else None


def epoch_s(moment: datetime | str, name: str, now_s: float, tz: str | None) -> float:
    """Seconds since 1970 of a moment; one without a zone is taken at `tz`, and as UTC where that is not given.

    Raises:
        DiagError: the text is no time, or one before 1970.
    """
    try:
        seconds = _epoch_s(moment, now_s, tz)
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds <= _LAST_S:
        raise DiagError(f"{name}={str(moment)[:40]!r} is no time", hint=_KNOWN)
    return seconds


def _epoch_s(moment: datetime | str, now_s: float, tz: str | None) -> float:
    if isinstance(moment, str):
        text = moment.strip()
        if text == "now":
            return now_s
        if (ago := _RELATIVE.fullmatch(text)) is not None:
            return now_s - (duration_s(ago.group(1)) or 0.0)
        if _NUMBER.fullmatch(text) and len(text.partition(".")[0]) > 8:
            return float(text)
        moment = datetime.fromisoformat(text)
    zone: tzinfo = ZoneInfo(tz) if tz is not None else UTC
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)).timestamp()


def written(seconds: float) -> str:
    """The moment in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def written_duration(seconds: float) -> str:
    """The seconds as Prometheus takes them, in whole milliseconds."""
    return f"{max(round(seconds * 1e3), 1)}ms"
