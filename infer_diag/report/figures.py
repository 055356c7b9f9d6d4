"""The charts of a report as HTML with fixed ids, and the scripts that its content policy lets run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import unescape

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

_SCRIPT = re.compile(r"<script[^>]*>(.*?)</script>", re.DOTALL)
_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d"],
}


_TITLE_HEIGHT = 48


@dataclass(frozen=True)
class Chart:
    """A figure on the page: its title and source in words, how to read it, its markup, and the scripts in it."""

    title: str
    origin: str
    caption: str
    html: Markup
    scripts: tuple[str, ...]


def chart(figure: go.Figure, div_id: str, caption: str) -> Chart:
    """The figure as a part of a page, without plotly.js; the same figure and id always give the same text.

    Its title and subtitle become text of the page, which wraps on a narrow screen and which a screen reader finds.
    """
    title, origin = unescape(figure.layout.title.text or ""), unescape(figure.layout.title.subtitle.text or "")
    bare = go.Figure(figure).update_layout(title=None, margin={"t": 76 - _TITLE_HEIGHT})
    bare.update_layout(height=figure.layout.height - _TITLE_HEIGHT)
    html = bare.to_html(full_html=False, include_plotlyjs=False, div_id=div_id, config=_CONFIG, auto_play=False)
    return Chart(title, origin, caption, Markup(html), tuple(_SCRIPT.findall(html)))


def plotly_js() -> Markup:
    """The library itself, for one script element of the page."""
    return Markup(get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n"))


def script_policy(scripts: Iterable[str]) -> str:
    """`script-src` of the content policy: the hashes of exactly these scripts, so that no other one ever runs."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    return " ".join(dict.fromkeys(f"'sha256-{digest}'" for digest in digests)) or "'none'"
