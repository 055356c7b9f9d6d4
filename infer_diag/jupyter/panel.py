"""What a verb returns: a title, a sentence, and the frame and figure behind them."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from infer_diag.redact import plain, shown

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_LINES = 12
MAX_ROWS = 100
MAX_CHARACTERS = 2000
PLOTLY = "application/vnd.plotly.v1+json"


@dataclass(frozen=True, repr=False)
class Panel:
    """An answer that a notebook shows: the figure where there is one, else the table, and always the text."""

    title: str
    sentence: str = ""
    details: tuple[str, ...] = ()
    frame: pl.DataFrame | None = None
    figure: go.Figure | None = None
    whole: bool = False
    """Whether every line is shown: of a list of our own, which no log makes long."""

    @property
    def lines(self) -> list[str]:
        """Title, sentence and details, in at most twelve lines where they come from logs; the same on every run."""
        parts = (self.title, self.sentence, *self.details)
        lines = [line for part in parts for line in part.splitlines() if line]
        if len(lines) > MAX_LINES and not self.whole:
            lines = [*lines[: MAX_LINES - 1], f"… and {len(lines) - MAX_LINES + 1} more"]
        text = pl.select(shown(pl.lit("\n".join(lines)), MAX_CHARACTERS * len(lines))).item()
        return str(text).split("\n")

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.text}
        if self.figure is not None:
            figure = json.loads(self.figure.to_json())
            return {PLOTLY: {**figure, "config": {"displaylogo": False}}, **self._rendered(), **bundle}
        return {**bundle, "text/html": self._html()}

    def _rendered(self) -> dict[str, Any]:
        """What plotly's own renderer adds, such as HTML where the reader asked it for that."""
        assert self.figure is not None
        return self.figure._repr_mimebundle_() or {}

    def _html(self) -> str:
        if self.frame is None:
            return f"<pre>{html.escape(self.text)}</pre>"
        about = "<br>".join(html.escape(plain(line, MAX_CHARACTERS)) for line in self.sentence.splitlines())
        return f"<b>{html.escape(plain(self.title, MAX_CHARACTERS))}</b><p>{about}</p>{_table(self.frame)}"


def _table(frame: pl.DataFrame) -> str:
    """The first hundred rows as an HTML table, without secrets and escaped, because cells may come out of a log."""
    rows = frame.head(MAX_ROWS).with_columns(
        shown(pl.col(pl.String), MAX_CHARACTERS),
        pl.col(pl.List(pl.String)).list.eval(shown(pl.element(), MAX_CHARACTERS)),
    )
    head = _row("th", rows.columns)
    body = "".join(_row("td", row) for row in rows.iter_rows())
    rest = f"<p>… and {len(frame) - MAX_ROWS:,} more rows</p>" if len(frame) > MAX_ROWS else ""
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{rest}"


def _row(tag: str, cells: Iterable[object]) -> str:
    return "<tr>" + "".join(f'<{tag} style="text-align:left">{_cell(cell)}</{tag}>' for cell in cells) + "</tr>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return html.escape(", ".join(map(str, value)) if isinstance(value, list) else str(value))
