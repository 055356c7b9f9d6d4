"""A published figure beside ours: how ours was obtained, and the correction where the published one is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment

from infer_diag.schema import STATUSES

HOW = (*STATUSES, "recorded", "simulated")
"""How a figure was obtained; `not_identifiable` goes without one."""

_TABLE = Environment(autoescape=True).from_string(
    "<table><thead><tr>{% for name in head %}<th style='text-align:left'>{{ name }}</th>{% endfor %}</tr></thead>"
    "<tbody>"
    "{% for claim in claims %}<tr><td style='text-align:left'>{{ claim.subject }}</td>"
    "<td style='text-align:left'>{{ claim.article }}</td><td style='text-align:left'>{{ claim.ours or '—' }}</td>"
    "<td style='text-align:left'>{{ claim.obtained }}</td>"
    "<td style='text-align:left'>{{ claim.correction }}</td></tr>{% endfor %}</tbody></table>"
)
_HEAD = ("subject", "the article", "ours", "how", "correction")


@dataclass(frozen=True)
class Claim:
    """One published figure with ours; `how` is one of `HOW`, `where` says on what ours was obtained.

    Raises:
        ValueError: `how` is none of `HOW`, or a figure is given for what is not identifiable, or none for what is.
    """

    subject: str
    article: str
    ours: str | None
    how: str
    correction: str = ""
    where: str = ""

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise ValueError(f"a figure is one of {', '.join(HOW)}, not {self.how!r}")
        if (self.ours is None) != (self.how == "not_identifiable"):
            raise ValueError("a figure says how it was obtained, and only what is not identifiable has none")

    @property
    def obtained(self) -> str:
        """How ours was obtained, in words."""
        return f"{self.how.replace('_', ' ')}{', ' + self.where if self.where else ''}"


class Claims:
    """Several claims as a table; as text, one claim a line."""

    def __init__(self, claims: Iterable[Claim]) -> None:
        self._claims = tuple(claims)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self._claims)

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def lines(self) -> list[str]:
        """One line a claim: the published figure, ours and how it was obtained."""
        return [
            f"{claim.subject}: the article says {claim.article}; ours {claim.ours or '—'} ({claim.obtained})"
            for claim in self
        ]

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {"text/plain": repr(self), "text/html": _TABLE.render(head=_HEAD, claims=self._claims)}
