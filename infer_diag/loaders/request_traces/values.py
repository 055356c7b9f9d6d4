"""Values out of JSON documents that anyone may have written: the wanted kind, or null."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

Object = dict[str, Any]


def as_object(value: object) -> Object:
    """An object, an empty one where it is something else."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[Object]:
    """The objects in a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def values(value: object) -> list[Any]:
    """A list, an empty one where it is something else."""
    return value if isinstance(value, list) else []


def text(value: object) -> str | None:
    """A text of at most 200 characters that is not empty."""
    return value[:200] if isinstance(value, str) and value else None


def figure(value: object) -> float | None:
    """A finite number; JSON's true and false are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def amount(value: object) -> float | None:
    """A finite number from 0 on."""
    number = figure(value)
    return number if number is not None and number >= 0 else None


def count(value: object) -> int | None:
    """A whole number from 0 on that fits 32 bits."""
    number = amount(value)
    return int(number) if number is not None and number == int(number) and number < 2**32 else None


def moment(value: object) -> datetime | None:
    """An ISO 8601 time that names its zone."""
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
