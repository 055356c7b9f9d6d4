"""What the name of a log file says of its place in a series of rotated files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath

_PACKED = re.compile(r"\.(?:gz|zst|bz2|xz)$", re.IGNORECASE)
_DATE = (
    r"(?P<year>20\d\d)-?(?P<month>[01]\d)-?(?P<day>[0-3]\d)"
    r"(?:[T_.-]?(?P<hour>[0-2]\d)(?P<finer>[-:_]?[0-5]\d(?:[-:_.]?\d+)?)?)?"
)
_EXTENSION = r"\.(?:log|txt|out|err|jsonl?)"
_NUMBERED = re.compile(rf"^(?P<stem>.+{_EXTENSION})[._-](?P<number>\d{{1,4}})$")
_DATED = re.compile(rf"^(?P<stem>.+{_EXTENSION})[._-]{_DATE}$")
_DATED_INSIDE = re.compile(rf"^(?P<stem>.+?)[._-]{_DATE}(?P<extension>{_EXTENSION})$")
_CONTAINER = re.compile(r"^\d{1,4}\.log(?:\.|$)")
_EARLIER = re.compile(rf"^(?P<stem>.+?)[._-](?:previous|prev|old)(?P<extension>{_EXTENSION})$")


@dataclass(frozen=True)
class LogFileName:
    """The series that a file belongs to and its place there; `before` counts back from the file that is written now.

    `dated` and `every`: the date in the name, and the span that a file of so fine a date holds; null where the name
    has none, or one that is too fine to say what follows it.
    """

    series: tuple[str, str]
    before: int | None = None
    dated: datetime | None = None
    every: timedelta | None = None

    def adjoins(self, later: LogFileName, begins: datetime | None) -> bool:
        """Whether no file of the series is missing between this one and a later one, as far as the names can tell.

        `begins`: the first stamp of the later one, which places a file without a date.
        """
        if self.before is not None and later.before is not None:
            return self.before - later.before == 1
        if self.dated is None or self.every is None:
            return False
        if later.dated is not None:
            return later.dated <= self.dated + self.every
        return begins is not None and begins.replace(tzinfo=None) < self.dated + 2 * self.every


def log_file_name(path: str) -> LogFileName:
    """Series and place by the usual ways of rotation.

    `server.log.1.gz`, `server.log-20260301`, `server-2026-03-01.log` and `server.previous.log` are of the series of
    `server.log` in their folder; `0.log` and `1.log` are what one container wrote before and after it was restarted.
    """
    place = PurePosixPath(path)
    folder, name = str(place.parent), _PACKED.sub("", place.name)
    if _CONTAINER.match(name):
        return LogFileName((folder, "container"))
    if found := _NUMBERED.match(name):
        return LogFileName((folder, found["stem"]), before=int(found["number"]))
    if found := _DATED.match(name):
        return LogFileName((folder, found["stem"]), None, *_moment(found))
    if found := _DATED_INSIDE.match(name):
        return LogFileName((folder, found["stem"] + found["extension"]), None, *_moment(found))
    if found := _EARLIER.match(name):
        return LogFileName((folder, found["stem"] + found["extension"]), before=1)
    return LogFileName((folder, name), before=0)


def _moment(found: re.Match[str]) -> tuple[datetime | None, timedelta | None]:
    try:
        date = datetime(int(found["year"]), int(found["month"]), int(found["day"]), int(found["hour"] or 0))
    except ValueError:
        return None, None
    if found["finer"] is not None:
        return date, None
    return date, timedelta(days=1) if found["hour"] is None else timedelta(hours=1)
