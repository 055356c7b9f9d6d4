"""Text that a log may hold to harm its reader, and how to see whether it did."""

from __future__ import annotations

import re
from typing import Any

SCRIPT = "<script>alert(1)</script>"
TOKEN = "hf_" + "Secret0Secret0Secret0Secret0"
PASSWORD = "hunter2hunter2"
TEXTS = {
    "script": SCRIPT,
    "handler": '"><img src=x onerror=alert(1)>',
    "link": '<a href="javascript:alert(1)">here</a> [here](javascript:alert(1)) ![x](http://evil.example/x.png)',
    "closing": "</script></style></pre></details><svg onload=alert(1)>",
    "ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J",
    "bidi": "abc\u202egnp.exe\u202c \u2066x\u2069",
    "unseen": "zero\u200bwidth\u200d\ufeff\u00ad",
    "long": "A" * 50_000,
    "token": f"token {TOKEN} api_key={TOKEN} password='{PASSWORD}' https://me:{PASSWORD}@host/x",
    "split token": f"hf_\x1b[0m{TOKEN[3:]} hf_\u200b{TOKEN[3:]}",
    "markdown": "# head\n* item | cell | `code` ``` ~~~ @everyone #1 !2 www.evil.example |",
    "template": "{{7*7}}{% for a in b %}${7*7}",
}
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u00ad]")
_TAG = re.compile(r"<\s*/?\s*[A-Za-z!]")


def strings(tree: Any) -> list[str]:
    """Every string in a tree of JSON values, its keys too."""
    if isinstance(tree, str):
        return [tree]
    if isinstance(tree, dict):
        return [text for key, value in tree.items() for part in (key, value) for text in strings(part)]
    if isinstance(tree, list | tuple):
        return [text for value in tree for text in strings(value)]
    return []


def faults(text: str, *, most: int | None = None) -> list[str]:
    """What of a shown text still tells a secret, cannot be seen, or is longer than it may be."""
    found = [f"secret in {text[:80]!r}"] * (TOKEN[3:] in text or PASSWORD in text)
    found += [f"unseen {match[0]!r} in {text[:80]!r}" for match in _UNSEEN.finditer(text.replace("\n", ""))]
    if most is not None and len(text) > most:
        found.append(f"{len(text)} characters: {text[:80]!r}")
    return found


def tags(text: str, allowed: tuple[str, ...] = ()) -> list[str]:
    """The markup that a text holds, but for the tags that are allowed."""
    names = "|".join(allowed) or "(?!)"
    return [match[0] for match in _TAG.finditer(re.sub(rf"</?(?:{names})\s*/?>", "", text))]
