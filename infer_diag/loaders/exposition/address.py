"""The address of a Prometheus server as users write it, taken apart; what is secret in it stays out of its label."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from infer_diag.errors import SourceError
from infer_diag.loaders.exposition.moments import duration_s
from infer_diag.redact import redact

SCHEMES = ("prometheus+http", "prometheus+https")
TOKEN, USER, PASSWORD = (f"INFER_DIAG_PROMETHEUS_{name}" for name in ("TOKEN", "USER", "PASSWORD"))

_QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_MATCHER = rf"[A-Za-z_][A-Za-z0-9_]*\s*(?:=~|!~|!=|=)\s*{_QUOTED}"
_MATCHERS = re.compile(rf"\s*{_MATCHER}\s*(?:,\s*{_MATCHER}\s*)*,?\s*", re.ASCII)
_PARAMETERS = ("match", "step", "token")
_EXAMPLE = 'prometheus+http://host:9090?match={job="vllm"}&step=15s'


@dataclass(frozen=True)
class Address:
    """Where a server answers and what of it is asked for.

    `base` is the URL in front of `/api/v1`, `label` what may be shown, `matchers` the conditions on labels without
    their braces, `step` null where each scrape is wanted, and `authorization` the header that opens the door.
    """

    base: str
    label: str
    matchers: str = ""
    step_s: float | None = None
    authorization: str | None = field(default=None, repr=False)


def is_address(path: object) -> bool:
    """Whether a path names a Prometheus server."""
    return str(path).partition("://")[0].lower() in SCHEMES and "://" in str(path)


def address(text: str) -> Address:
    """The address that a text `prometheus+http://[user:password@]host[:port][/prefix][?match=…&step=…]` writes.

    User and password, or a bearer token, come from the text (`user:password@`, `token=`) or else from the environment
    (INFER_DIAG_PROMETHEUS_USER and _PASSWORD, or _TOKEN).

    Raises:
        SourceError: the text is no such address.
    """
    scheme, _, rest = text.partition("://")
    place, _, query = rest.partition("?")
    # urlsplit would take what follows a # for a fragment, and quotes what it cannot read, passwords too.
    try:
        parts = urlsplit(f"{scheme.lower().removeprefix('prometheus+')}://{place}", allow_fragments=False)
        host = parts.netloc.rpartition("@")[2]
        valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or re.search(r"[\s\x00-\x1f]", place):
        # What stands in front of an @ may be a password, however the rest is written.
        seen = redact(text.rpartition("@")[2].removeprefix(f"{scheme}://"))[:60]
        raise SourceError(f"{seen!r} is no address of a Prometheus server", hint=f"write {_EXAMPLE}")
    asked = _parameters(query)
    matchers = _matchers(asked.get("match", ""))
    step_s = _step_s(asked["step"]) if "step" in asked else None
    base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
    shown = [f"match={{{matchers}}}"] * bool(matchers) + [f"step={asked.get('step')}"] * (step_s is not None)
    label = redact(f"prometheus+{base}" + ("?" + "&".join(shown) if shown else ""))
    return Address(base, label, matchers, step_s, _authorization(parts.netloc, asked.get("token")))


def _parameters(query: str) -> dict[str, str]:
    asked: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        name = unquote(name).removesuffix("[]")
        if name not in _PARAMETERS or name in asked:
            wrong = f"{name[:40]!r} twice" if name in asked else f"{redact(name)[:40]!r}"
            raise SourceError(
                f"the address of a Prometheus server has no parameter {wrong}", hint=f"known: match, step; {_EXAMPLE}"
            )
        # Not unquote_plus: a + belongs to a regular expression.
        asked[name] = unquote(value)
    return asked


def _matchers(text: str) -> str:
    inner = text.strip()
    inner = inner[1:-1].strip() if inner.startswith("{") and inner.endswith("}") else inner
    if inner and not _MATCHERS.fullmatch(inner):
        raise SourceError(
            f"match={redact(text)[:80]} is no list of conditions on labels",
            hint='write the labels alone, such as match={job="vllm",pod=~"prod-.*"}; which metrics is known',
        )
    return inner.rstrip(",").rstrip()


def _step_s(text: str) -> float:
    step_s = duration_s(text)
    if step_s is None:
        raise SourceError(
            f"step={redact(text)[:40]} is no duration", hint="write 15s or 1m, or leave it out to get each scrape"
        )
    return step_s


def _authorization(netloc: str, token: str | None) -> str | None:
    told, _, _ = netloc.rpartition("@")
    name, _, password = told.partition(":")
    user = (unquote(name), unquote(password)) if told else None
    if token is None and user is None:
        token = os.environ.get(TOKEN) or None
        if token is None and os.environ.get(USER):
            user = (os.environ[USER], os.environ.get(PASSWORD, ""))
    if token is not None:
        if not re.fullmatch(r"[!-~]+", token):
            raise SourceError(
                "the token for the Prometheus server holds characters that no header can carry",
                hint=f"look for a blank or a line break in it (token= in the address, or {TOKEN})",
            )
        return f"Bearer {token}"
    return "Basic " + base64.b64encode(":".join(user).encode()).decode() if user else None
